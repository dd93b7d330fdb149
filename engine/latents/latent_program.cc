#include "engine/latents/latent_program.h"

#include <algorithm>

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {

void JobHost::signal(const Segment&, const TensorView&) {
  throw Error(ErrorKind::kUsage, "this model follows a sound; the stream has none");
}

DenoisePlanConfig staged_config(const RankPlacement& placement, const TransformerTraits& traits,
                                DType dtype, const Sequence& all, const StalePatches& patches) {
  DenoisePlanConfig config;
  config.layout = placement.layout();
  config.tokens = placement.token_counts({all.tokens, all.frames}, patches);
  if (all.beside > 0) {
    config.beside = placement.token_counts(all, patches);
    for (size_t index = 0; index < config.beside.size(); ++index)
      config.beside[index] -= config.tokens[index];
  }
  config.frames = all.frames;
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(dtype));
  if (patches.pipefusion) config.patches = patches.pipefusion->patches;
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  return config;
}

Tensor join_on_root(const Rank& of, const Tag& tag, const TensorView& own_rows,
                    const std::array<int64_t, 4>& shape, const TokensOfRank& tokens) {
  const RankPlacement& placement = of.placement;
  const auto& patch = of.experts.traits().patch;
  const int64_t row = patch[0] * patch[1] * patch[2] * shape[0];
  TensorView own;
  if (const int64_t rows = tokens(placement.rank()).size(); rows > 0)
    own = own_rows.reshape({rows, row});
  Tensor whole;
  if (placement.root()) whole = Tensor(DType::kF32, shape, of.stream.device());
  std::optional<Arena::Scope> scope;  // of the rows that arrive
  const auto landing = [&](int rank) {
    const int64_t rows = rank == 0 ? 0 : tokens(rank).size();
    if (rows == 0) return rank == 0 ? own : TensorView();
    scope.emplace(of.arena);
    return of.arena.alloc(DType::kF32, {rows, row});
  };
  const auto place = [&](int rank, const TensorView& rows) {
    if (rows) unpatchify(of.stream, rows, patch, tokens(rank), whole);
    scope.reset();
  };
  if (placement.alone())
    place(0, own);
  else
    placement.communicator().gather_v(of.stream, tag, own, landing, place);
  return whole;
}

LatentProgram::LatentProgram(const Rank& rank, DType wire, Graphs graphs)
    : stream_(rank.stream),
      arena_(rank.arena),
      experts_(rank.experts),
      placement_(rank.placement),
      traits_(rank.experts.traits()),
      dtype_(wire),
      forwards_(rank, graphs, *this) {}

void LatentProgram::begin(Job& job, const ForwardMethod& method, bool in_segments, bool by_micro) {
  job_ = &job;
  shape_ = job.facts.window;
  grid_ = traits_.grid(shape_[1], shape_[2], shape_[3]);
  slots.clear();
  solver_.clear();
  cache_.reset();
  forwards_.begin({job, grid_, method, in_segments, by_micro});
}

bool LatentProgram::last_stage() const {
  const Mesh& mesh = placement_.mesh();
  return mesh.at(Axis::kLayers, placement_.rank()) == mesh.layout()[Axis::kLayers] - 1;
}

void LatentProgram::compute(const Step& step) {
  if (begin_pass(step)) run_forward(step, step.reuses);
}

void LatentProgram::run_forward(const Step& step, bool reuses) {
  const std::optional<BlockCache::Rows> added = added_rows(step);
  const Forward* running = nullptr;
  const auto before = [&](const TensorView& x) { write_before(step, *running, x); };
  const auto blocks = [&](const Forward& forward) {
    running = &forward;
    if (reuses)
      return cache_->reuse(*added, step.blocks.total, before, velocity_rows(step), forward);
    run_blocks(step, forward);
  };
  HiddenHook hook;
  if (added && !reuses) hook = [&](const TensorView& x) { cache_->keep(*added, before, x); };
  forwards_.run(step, slots.has(kLatentSlot) ? slots[kLatentSlot] : TensorView(), blocks,
                {.hook = hook, .repeats = !reuses});
}

void LatentProgram::run_blocks(const Step& step, const Forward& forward) {
  const Arena::Scope scope(arena_);
  const int64_t rows = forward_rows(step) + joint_rows(step.pass);
  TensorView in;
  if (step.blocks.first()) {
    in = latent_rows(step);
  } else {
    in = arena_.alloc(DType::kF32, {rows, traits_.width});
    copy(stream_, slots[step.reads[0].slot].slice(0, 0, rows), in);
  }
  if (step.blocks.last()) {
    forward(step.blocks, in, velocity_rows(step));
    return;
  }
  const TensorView out = arena_.alloc(DType::kF32, {rows, traits_.width});
  forward(step.blocks, in, out);
  Step sent{.pass = step.pass, .tokens = step.tokens, .payload = Payload::kHidden};
  const TensorView& hidden =
      slots.make(step.writes[0].slot, dtype_, message_rows(sent), traits_.width, stream_.device());
  copy(stream_, out, hidden.slice(0, 0, rows));
}

TensorView LatentProgram::velocity_rows(const Step& step) {
  return slots.make(step.writes[0].slot, DType::kF32, step.tokens.size(), traits_.row(),
                    stream_.device());
}

void LatentProgram::prepare(const Step& message) {
  if (message.kind == Step::Kind::kSend) return;
  const SlotId& slot = message.writes[0].slot;
  const int64_t rows = message_rows(message);
  const Device device = stream_.device();
  if (message.payload == Payload::kControl) {
    slots.make(slot, DType::kI64, 1, 1);
  } else if (message.payload == Payload::kHidden) {
    slots.make(slot, dtype_, rows, traits_.width, device);
  } else if (message.payload == Payload::kFirstBlock) {
    slots.make(slot, DType::kF32, rows, traits_.width, device);
  } else if (slot.kind != SlotKind::kPatch) {  // its rows are lent
    slots.make(slot, DType::kF32, rows, traits_.row(), device);
  }
}

int64_t LatentProgram::message_rows(const Step& message) {
  const bool hidden =
      message.payload == Payload::kHidden || message.payload == Payload::kFirstBlock;
  return message.tokens.size() + (hidden ? joint_rows(message.pass) : 0);
}

void LatentProgram::update(const Step& step) {
  const Arena::Scope scope(arena_);
  const TensorView latent = updated_rows(step);
  if (!latent) return;
  const TensorView velocity = velocity_of(step);
  // Parts are counted from 1 where one of them is updated alone.
  const int segment = step.pass.segment, part = step.pass.micro;
  std::vector<SolverPart>& all = solver(segment, latent);
  const std::span parts = part > 0 ? std::span(all).subspan(part - 1, 1) : std::span(all);
  const Range rows{parts.front().rows.begin, parts.back().rows.end};
  moves(step, rows, latent, velocity);
  for (auto& [own, state] : parts)
    sampler().step(stream_, arena_, step.pass.step,
                   velocity.slice(0, own.begin - rows.begin, own.size()),
                   latent.slice(0, own.begin - rows.begin, own.size()), state);
  moved(rows, latent);
  forwards_.check_latent(step.pass, latent);
  const bool ends = part == 0 || part == std::ssize(all);
  if (ends && step.pass.step + 1 == sampler().steps()) solver_.erase(segment);
}

// Guides the velocity of both branches, in the arena.
TensorView LatentProgram::velocity_of(const Step& update) {
  const TensorView& positive = slots[velocity_slot(0)];
  const TensorView velocity = arena_.alloc(DType::kF32, positive.shape());
  copy(stream_, positive, velocity);
  const bool both = update.reads.size() > 2;
  guide(stream_, arena_, experts_.family(), job_->facts.guidance[update.pass.model],
        both ? slots[velocity_slot(1)] : TensorView(), velocity);
  return velocity;
}

void LatentProgram::moves(const Step& step, const Range& rows, const TensorView&,
                          const TensorView& velocity) {
  job_->host.velocity(step.pass, rows, velocity);
}

std::vector<LatentProgram::SolverPart>& LatentProgram::solver(int segment, const TensorView& rows) {
  std::vector<SolverPart>& parts = solver_[segment];
  if (parts.empty())
    for (const Range& part : solver_parts(rows))
      parts.push_back({part, sampler().state(part.size() * traits_.row(), stream_.device())});
  return parts;
}

// The k-th tensor of a segment's solver, in the arena where it has several parts.
TensorView LatentProgram::history_rows(int segment, size_t k) {
  std::vector<SolverPart>& parts = solver_.at(segment);
  const auto of = [&](const SolverPart& part) {
    return sampler().history(part.state)[k].second.reshape({part.rows.size(), traits_.row()});
  };
  if (parts.size() == 1) return of(parts[0]);
  const TensorView rows = arena_.alloc(DType::kF32, {parts.back().rows.end, traits_.row()});
  for (const SolverPart& part : parts)
    copy(stream_, of(part), rows.slice(0, part.rows.begin, part.rows.size()));
  return rows;
}

void LatentProgram::restore_history(int segment, size_t k, const TensorView& latent) {
  const Arena::Scope scope(arena_);
  const std::vector<SolverPart>& parts = solver_.at(segment);
  const TensorView rows = arena_.alloc(DType::kF32, {parts.back().rows.end, traits_.row()});
  cut_segment(segment, latent, rows);
  for (const SolverPart& part : parts)
    copy(stream_, rows.slice(0, part.rows.begin, part.rows.size()),
         sampler().history(part.state)[k].second.reshape({part.rows.size(), traits_.row()}));
}

Snapshot LatentProgram::gather(int turn, const Range& segments, const Range& stepped) {
  Tag tag{.kind = Payload::kLatent, .pass = {.step = turn}, .topic = Topic::kKept};
  Snapshot out;
  out.latent =
      gather_segments(segments, tag, [&](int segment) { return slots[segment_slot(segment)]; });
  const auto names = sampler().history(SamplerState(0));
  for (size_t k = 0; k < names.size() && stepped.size() > 0; ++k) {
    ++tag.hop;
    const auto rows = [&](int segment) { return history_rows(segment, k); };
    out.history.emplace_back(names[k].first, gather_segments(stepped, tag, rows));
  }
  return out;
}

Tensor LatentProgram::gather_segment(int segment, const Tag& tag, const SegmentRows& rows) {
  const Arena::Scope scope(arena_);
  const auto sent = [&](int rank) { return reported(segment, rank); };
  const bool sends = sent(placement_.rank()).size() > 0;
  return on_host(stream_,
                 joined_on_root(tag, sends ? rows(segment) : TensorView(),
                                {shape_[0], segment_frames(segment), shape_[2], shape_[3]}, sent));
}

Tensor LatentProgram::gather_segments(const Range& segments, const Tag& tag,
                                      const SegmentRows& rows) {
  const auto first = static_cast<int>(segments.begin), end = static_cast<int>(segments.end);
  if (end - first == 1) return gather_segment(first, tag, rows);
  int64_t frames = 0, at = 0;
  for (int segment = first; segment < end; ++segment) frames += segment_frames(segment);
  Tensor whole;
  if (placement_.root()) whole = Tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]});
  Stream host = host_stream(stream_);
  for (int segment = first; segment < end; at += segment_frames(segment++)) {
    const Tensor latent = gather_segment(segment, tag, rows);
    if (latent) copy(host, latent, whole.view().slice(1, at, segment_frames(segment)));
  }
  return whole;
}

Tensor LatentProgram::drawn(const Segment& segment, int64_t frames) const {
  Tensor latent(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]});
  if (!is_dry_run(stream_)) job_->host.noise(segment, latent);
  return on_device(stream_, std::move(latent));
}

void LatentProgram::restore(int turn, const Range& segments, const Range& stepped,
                            Snapshot& snapshot) {
  Tag tag{.kind = Payload::kLatent, .pass = {.step = turn}, .topic = Topic::kStart};
  share(segments, tag, std::move(snapshot.latent),
        [&](int segment, const TensorView& latent) { enter_segment(segment, latent); });
  const auto names = sampler().history(SamplerState(0));
  for (size_t k = 0; k < names.size() && stepped.size() > 0; ++k) {
    ++tag.hop;
    Tensor whole;
    for (auto& [name, tensor] : snapshot.history)
      if (name == names[k].first) whole = std::move(tensor);
    share(stepped, tag, std::move(whole), [&](int segment, const TensorView& latent) {
      if (!steps_segment(segment)) return;
      solver(segment, slots[segment_slot(segment)]);
      restore_history(segment, k, latent);
    });
  }
}

// Gives every rank its frames of each segment of a tensor that the root has of all of them.
void LatentProgram::share(const Range& segments, const Tag& tag, Tensor whole,
                          const TakeSegment& take) {
  Stream host = host_stream(stream_);
  int64_t all = 0, first = 0;
  for (auto segment = static_cast<int>(segments.begin); segment < segments.end; ++segment)
    all += segment_frames(segment);
  for (auto segment = static_cast<int>(segments.begin); segment < segments.end; ++segment) {
    const auto part = [&](int rank) {
      const Range frames = frames_held(segment, rank);
      Tensor latent(DType::kF32, {shape_[0], frames.size(), shape_[2], shape_[3]});
      if (placement_.root())
        copy(host,
             whole.view()
                 .reshape({shape_[0], all, shape_[2], shape_[3]})
                 .slice(1, first + frames.begin, frames.size()),
             latent);
      return latent;
    };
    Tensor own = part(placement_.rank());
    if (others() && !placement_.has_clips()) {
      others()->broadcast(stream_, tag, own, 0);
    } else if (others() && !placement_.root()) {
      others()->receive(stream_, 0, tag, own);
    } else {
      for (int rank = 1; rank < placement_.ranks(); ++rank)
        others()->send(stream_, rank, tag, part(rank));
    }
    first += segment_frames(segment);
    if (first == all) whole = {};
    own = on_device(stream_, std::move(own));
    take(segment, own);
    stream_.sync();
  }
}

Tensor LatentProgram::joined(const Step& decode) {
  Tensor latent;
  for (const SlotVersion& version : decode.reads) {
    if (version.slot == kFramesSlot) continue;
    const auto [rows, tokens] = part_of(version.slot, decode);
    if (!rows) continue;
    const int64_t frames = tokens.total / (grid_[1] * grid_[2]) * traits_.patch[0];
    if (!latent)
      latent = Tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]}, stream_.device());
    unpatchify(stream_, rows, traits_.patch, tokens, latent);
  }
  stream_.sync();
  return latent;
}

}  // namespace weft
