#include "parallel/methods/dual_scope.h"

#include <algorithm>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "parallel/context.h"
#include "parallel/methods/attention_state.h"

namespace weft {

std::string refuse(const DualScope& scope, int64_t frames) {
  const auto is = [](const char* name, const auto& value, const std::string& legal) {
    return std::string(name) + " is " + std::to_string(value) + ", legal: " + legal;
  };
  if (scope.window < 0) return is("window", scope.window, "0 or more latent frames");
  if (scope.global < 0 || scope.global > frames)
    return is("global", scope.global,
              "0 ... " + std::to_string(frames) + ", the latent frames of the video");
  if (scope.trained < 1) return is("trained", scope.trained, "1 or more latent frames");
  if (!std::isfinite(scope.bias)) return is("bias", scope.bias, "a finite number");
  if (scope.stale < 0 || scope.stale > 1) return is("stale", scope.stale, "0 or 1 steps");
  if (scope.warmup < 0) return is("warmup", scope.warmup, "0 or more steps");
  return "";
}

ClipFrames::ClipFrames(const SequenceMap& clips, const Sequence& video, const DualScope& scope)
    : video_(video), scope_(scope) {
  CHECK(refuse(scope, video.frames).empty(), refuse(scope, video.frames));
  const int64_t size = frame_tokens();
  for (int index = 0; index < clips.size(); ++index) {
    const std::vector<Range>& ranges = clips[index].ranges;
    CHECK(ranges.size() == 1 && ranges[0].begin % size == 0 && ranges[0].end % size == 0, "clip",
          index, "of", to_string(ranges[0]), "tokens per frame", size);
    clips_.push_back({ranges[0].begin / size, ranges[0].end / size});
  }
}

Range ClipFrames::near(const Range& frames) const {
  return intersection({frames.begin - scope_.window, frames.end + scope_.window},
                      {0, video_.frames});
}

Range ClipFrames::shared(int from, int to) const { return intersection(clips_[from], seen(to)); }

Range ClipFrames::globals(int index) const {
  Range held;
  for (int64_t j = 0; j < scope_.global; ++j) {
    if (global(j) < clips_[index].begin) held.begin = j + 1;
    if (global(j) < clips_[index].end) held.end = j + 1;
  }
  return held;
}

std::vector<double> ClipFrames::positions() const {
  std::vector<double> positions;
  const auto last = static_cast<double>(std::max<int64_t>(video_.frames - 1, 1));
  for (int64_t frame = 0; frame < video_.frames; ++frame)
    positions.push_back(static_cast<double>(frame) * static_cast<double>(scope_.trained - 1) /
                        last);
  return positions;
}

// The keys and values [rows, 2, Akv, E] that a rank's frames see, and the queries of the global
// part.
struct DualScopeMixer::Keys {
  const ClipFrames& frames;
  Range seen;  // the frames of near_rows
  TensorView near_rows, global_rows, global_q;

  Keys(Arena& arena, const ClipFrames& of, int own, const Attend& attend)
      : frames(of), seen(of.seen(own)) {
    const TensorView& k = attend.k;
    const int64_t size = frames.frame_tokens();
    near_rows = arena.alloc(k.dtype, {seen.size() * size, 2, k[1], k[2]});
    if (frames.scope().global == 0) return;
    global_rows = arena.alloc(k.dtype, {frames.scope().global * size, 2, k[1], k[2]});
    global_q = arena.alloc(attend.q.dtype, attend.q.shape());
  }
  TensorView near(const Range& of) const {
    return rows(near_rows, {of.begin - seen.begin, of.end - seen.begin});
  }
  TensorView global(const Range& js) const { return rows(global_rows, js); }
  // Returns the rows that travel from a clip to another: near frames, then global ones.
  std::vector<TensorView> travelling(int from, int to) const {
    std::vector<TensorView> out;
    if (const Range shared = frames.shared(from, to); shared.size() > 0)
      out.push_back(near(shared));
    if (const Range js = frames.globals(from); js.size() > 0) out.push_back(global(js));
    return out;
  }

 private:
  TensorView rows(const TensorView& of, const Range& frame) const {
    return of.slice(0, frame.begin * frames.frame_tokens(), frame.size() * frames.frame_tokens());
  }
};

DualScopeMixer::DualScopeMixer(std::optional<Communicator> group, const ClipFrames& frames)
    : group_(std::move(group)), own_(group_ ? group_->rank() : 0), frames_(frames) {
  CHECK(frames.clips() == (group_ ? group_->size() : 1), "clips", frames.clips());
}

void DualScopeMixer::begin(const Pass& pass) {
  TokenMixer::begin(pass);
  if (pass.step != pass_.step) before_ = pass_;
  pass_ = pass;
}

void DualScopeMixer::finish() {
  TokenMixer::finish();
  if (cache_) cache_->finish();
}

// Makes what the global part needs, once.
void DualScopeMixer::prepare_global(Stream& stream, const Rope& rope) {
  if (!bias_row_) {
    Tensor row(DType::kF32, {frames_.frame_tokens()});
    std::fill_n(row.as<float>(), row.count(), static_cast<float>(frames_.scope().bias));
    bias_row_ = on_device(stream, std::move(row));
  }
  const Rope& made = global_rope_;
  if (made.grid != rope.grid || made.start != rope.start || made.pairs != rope.pairs ||
      made.theta != rope.theta)
    global_rope_ = with_frame_positions(stream, rope, frames_.positions());
}

// Puts the own frames' keys and values in their places, and applies the ropes.
void DualScopeMixer::place_own(Context& context, const Attend& attend, const Keys& keys) {
  Stream& stream = context.stream;
  const Range own = frames_.clip(own_);
  const int64_t size = frames_.frame_tokens(), first = own.begin * size;
  const auto place = [&](const Range& frames, const Rope& rope, const TensorView& to) {
    const int64_t row = (frames.begin - own.begin) * size, count = frames.size() * size;
    apply_rope(stream, attend.k.slice(0, row, count), rope, frames.begin * size, to.select(1, 0));
    copy(stream, attend.v.slice(0, row, count), to.select(1, 1));
  };
  place(own, *attend.rope, keys.near(own));
  if (keys.global_q) {
    prepare_global(stream, *attend.rope);
    const Range js = frames_.globals(own_);
    for (int64_t j = js.begin; j < js.end; ++j) {
      const int64_t frame = frames_.global(j);
      place({frame, frame + 1}, global_rope_, keys.global({j, j + 1}));
    }
    apply_rope(stream, attend.q, global_rope_, first, keys.global_q);
  }
  apply_rope(stream, attend.q, *attend.rope, first, attend.q);
}

// Posts all messages of an attend.
void DualScopeMixer::post(Stream& stream, const AttendTags& tags, const Keys& keys) {
  std::vector<Message> sends, receives;
  const auto add = [&](std::vector<Message>& messages, int peer, int from, int to) {
    int hop = 0;
    for (const TensorView& rows : keys.travelling(from, to))
      messages.push_back({peer, tags(Payload::kKeyValue, hop++), rows});
  };
  for (int peer = 0; peer < frames_.clips(); ++peer) {
    if (peer == own_) continue;
    add(sends, peer, own_, peer);
    add(receives, peer, peer, own_);
  }
  pending_ = group_->post(stream, sends, receives);
}

// Posts what other ranks see in the next step, and in this one where it may not be stale.
void DualScopeMixer::post_to_cache(Stream& stream, int layer, const Keys& keys) {
  const auto rows = [&](int from, int to) {
    int64_t count = 0;
    for (const TensorView& view : keys.travelling(from, to)) count += view[0];
    return count;
  };
  if (!cache_) {
    const TensorView& like = keys.near_rows;
    FeatureDescription parts{.row = {like[1], like[2], like[3]},
                             .versions = 2,
                             .dtype = like.dtype,
                             .device = like.device};
    for (int peer = 0; peer < frames_.clips(); ++peer) {
      if (peer == own_) continue;
      const int64_t sent = rows(own_, peer);
      parts.links.push_back({peer, {parts.rows, parts.rows + sent}, {0, rows(peer, own_)}});
      parts.rows += sent;
    }
    cache_ = std::make_unique<FeatureCache>(&*group_, std::move(parts));
  }
  const FeatureKey key{.branch = pass_.branch, .layer = layer};
  const DualScope& scope = frames_.scope();
  const bool fresh = pass_.step < scope.warmup || pass_.model != before_.model ||
                     cache_->staleness(key, pass_.step) != scope.stale;
  version_ = fresh ? pass_.step : pass_.step - scope.stale;
  const TensorView part = cache_->write(key, pass_.step);
  int64_t at = 0;
  for (const FeatureLink& link : cache_->description().links)
    for (const TensorView& view : keys.travelling(own_, link.peer)) {
      copy(stream, view, part.slice(0, at, view[0]));
      at += view[0];
    }
  cache_->exchange(stream, key, pass_.step);
}

// Returns when the frames of other ranks are in their places.
void DualScopeMixer::receive(Stream& stream, int layer, const Keys& keys) {
  if (!pending_.empty()) group_->wait(pending_);
  if (!cache_) return;
  const FeatureKey key{.branch = pass_.branch, .layer = layer};
  const std::vector<FeatureLink>& links = cache_->description().links;
  for (size_t i = 0; i < links.size(); ++i) {
    const TensorView arrived = cache_->read(key, static_cast<int>(i), version_);
    int64_t at = 0;
    for (const TensorView& view : keys.travelling(links[i].peer, own_)) {
      copy(stream, arrived.slice(0, at, view[0]), view);
      at += view[0];
    }
  }
}

void DualScopeMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const Range own = frames_.clip(own_);
  const int64_t size = frames_.frame_tokens(), heads = attend.q[1], e = attend.q[2];
  CHECK(attend.rope && attend.q[0] == own.size() * size && attend.mask == Mask::kFull &&
            attend.replicated == 0 && !attend.past,
        "q", attend.q.to_string_shape(), "of frames", to_string(own), "of", size, "tokens");
  const Arena::Scope scope(context.arena);
  const Keys keys(context.arena, frames_, own_, attend);
  place_own(context, attend, keys);
  if (frames_.clips() > 1 && frames_.scope().stale == 0)
    post(stream, take_tags(attend.layer, 2), keys);
  else if (frames_.clips() > 1)
    post_to_cache(stream, attend.layer, keys);

  const AttentionState sum = alloc_state(context.arena, attend.q[0], heads, e);
  const bool composing = context.pass.step < frames_.scope().global_steps;
  const auto see = [&](const TensorView& q, int64_t frame, const TensorView& rows, bool biased,
                       const AttentionState& state) {
    const KVSegment segment{.k = rows.select(1, 0), .v = rows.select(1, 1)};
    attention(stream, {.q = q.slice(0, (frame - own.begin) * size, size),
                       .segments = {&segment, 1},
                       .scale = attend.scale,
                       .format = attend.format,
                       .out = state.out,
                       .lse = state.lse});
    if (biased && bias_row_) add_bias(stream, state.lse, bias_row_, state.lse);
  };
  const auto state_of = [&](int64_t frame) { return sum.rows((frame - own.begin) * size, size); };
  const auto see_near = [&](bool needs_others) {
    for (int64_t frame = own.begin; frame < own.end; ++frame)
      if (const Range near = frames_.near(frame);
          (near.begin < own.begin || near.end > own.end) == needs_others)
        see(attend.q, frame, keys.near(near), !composing, state_of(frame));
  };
  see_near(false);
  receive(stream, attend.layer, keys);
  see_near(true);
  if (keys.global_q) {
    const AttentionState part = alloc_state(context.arena, size, heads, e);
    for (int64_t frame = own.begin; frame < own.end; ++frame) {
      see(keys.global_q, frame, keys.global_rows, composing, part);
      merge_attention(stream, state_of(frame).out, state_of(frame).lse, part.out, part.lse);
    }
  }
  copy(stream, sum.out, attend.out);
}

}  // namespace weft
