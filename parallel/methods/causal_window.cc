#include "parallel/methods/causal_window.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/philox.h"
#include "kernels/row_code.h"
#include "parallel/context.h"

namespace weft {
namespace {

RowCode code_of(KeptRows kept) { return kept == KeptRows::kInt8 ? RowCode::kInt8 : RowCode::kE4m3; }

}  // namespace

int64_t sink_frame(const SinkPosition& position, int64_t segment, int step, int64_t first_frame) {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  CHECK(position.distance.size() > 0, "distance", to_string(position.distance));
  const uint32_t drawn = philox4x32_10({low(segment), high(segment), low(step), 0},
                                       {low(position.seed), high(position.seed)})[0];
  return std::max(position.start,
                  first_frame + position.distance.begin + drawn % position.distance.size());
}

CausalWindow::CausalWindow(const CausalWindowShape& shape) : shape_(shape) {
  const int64_t layers = shape.layers.end - shape.layers.begin;
  CHECK(shape.frames > 0 && shape.frame_tokens > 0 && shape.sinks > 0, "frames", shape.frames,
        "tokens", shape.frame_tokens, "sinks", shape.sinks);
  rings_.resize(layers * shape.steps.size());
  sinks_.resize(layers * shape.sinks);
}

void CausalWindow::begin(const WindowSegment& segment) {
  CHECK(segment.step >= shape_.steps.begin && segment.step < shape_.steps.end, "step", segment.step,
        "of", to_string(shape_.steps));
  CHECK(segment.frames.size() > 0 && segment.frames.size() <= shape_.frames, "frames",
        to_string(segment.frames), "in a window of", shape_.frames);
  segment_ = segment;
  makes_sink_ = -1;
}

void CausalWindow::begin_sink(int sink) {
  CHECK(sink >= 0 && sink < shape_.sinks, "sink", sink, "of", shape_.sinks);
  makes_sink_ = sink;
}

Range CausalWindow::seen(const Range& segment) const {
  return {std::max<int64_t>(0, segment.end - shape_.frames), segment.end};
}

std::vector<double> CausalWindow::slot_positions(const Range& segment) const {
  const Range frames = seen(segment);
  std::vector<double> positions(frames.size());
  for (int64_t frame = frames.begin; frame < frames.end; ++frame)
    positions[frame % shape_.frames] = static_cast<double>(frame - frames.begin);
  return positions;
}

void WindowStore::put(int layer, int step, WindowRing ring) {
  std::lock_guard lock(mutex_);
  rings_[{layer, step}] = std::move(ring);
}

WindowRing WindowStore::take(int layer, int step) {
  std::lock_guard lock(mutex_);
  const auto found = rings_.find({layer, step});
  if (found == rings_.end()) return {};
  WindowRing ring = std::move(found->second);
  rings_.erase(found);
  return ring;
}

template <class F>
void CausalWindow::for_each_ring(F&& each) {
  for (int layer = shape_.layers.begin; layer < shape_.layers.end; ++layer)
    for (auto step = static_cast<int>(shape_.steps.begin); step < shape_.steps.end; ++step)
      each(layer, step, ring(layer, step));
}

void CausalWindow::leave(WindowStore& store) {
  for_each_ring([&](int layer, int step, Ring& ring) { store.put(layer, step, std::move(ring)); });
}

void CausalWindow::take(WindowStore& store) {
  for_each_ring([&](int layer, int step, Ring& ring) { ring = store.take(layer, step); });
}

size_t CausalWindow::bytes() const {
  size_t bytes = 0;
  for (const std::vector<Ring>* rings : {&rings_, &sinks_})
    for (const Ring& ring : *rings) bytes += ring.rows ? ring.rows.view().bytes() : 0;
  return bytes;
}

CausalWindow::Ring& CausalWindow::made(Ring& ring, int64_t tokens, const TensorView& keys) const {
  const bool coded = is_coded(shape_.kept);
  if (!ring.rows)
    ring.rows =
        Tensor(coded ? DType::kI8 : keys.dtype, {2, tokens, keys[1], keys[2] + coded}, keys.device);
  return ring;
}

void CausalWindow::keep(Context& context, const TensorView& from, const TensorView& to) const {
  if (!is_coded(shape_.kept)) return copy(context.stream, from, to);
  const Arena::Scope scope(context.arena);
  TensorView dense = from;
  if (!from.rows_collapse()) {
    dense = context.arena.alloc(from.dtype, from.shape());
    copy(context.stream, from, dense);
  }
  encode_rows(context.stream, dense, {}, to, code_of(shape_.kept));
}

TensorView CausalWindow::rows_of(Context& context, const TensorView& kept, DType dtype) const {
  if (!is_coded(shape_.kept)) return kept;
  const TensorView rows = context.arena.alloc(dtype, {kept[0], kept[1], kept[2] - 1});
  decode_rows(context.stream, kept, {}, rows, code_of(shape_.kept));
  return rows;
}

void CausalWindow::write(Context& context, Ring& ring, const TensorView& k,
                         const TensorView& v) const {
  const Range& frames = segment_.frames;
  CHECK(frames.begin == ring.written.end || frames == ring.written, "frames", to_string(frames),
        "after", to_string(ring.written));
  ring.written = frames;
  const TensorView rows = ring.rows;
  for (int64_t frame = frames.begin, count = 0; frame < frames.end; frame += count) {
    const int64_t slot = frame % shape_.frames, size = shape_.frame_tokens;
    count = std::min(frames.end - frame, shape_.frames - slot);
    for (const int part : {0, 1})
      keep(context, (part ? v : k).slice(0, (frame - frames.begin) * size, count * size),
           rows.select(0, part).slice(0, slot * size, count * size));
  }
}

void CausalWindowMixer::make_sink(Context& context, const Attend& attend) {
  const CausalWindow::Ring& sink = window_.made(window_.sink(attend.layer, window_.makes_sink_),
                                                window_.shape_.sink_tokens, attend.k);
  window_.keep(context, attend.k, sink.rows.view().select(0, 0));
  window_.keep(context, attend.v, sink.rows.view().select(0, 1));
  FullMixer().attend(context, attend);
}

void CausalWindowMixer::attend(Context& context, const Attend& attend) {
  const bool makes_sink = window_.makes_sink_ >= 0;
  CHECK(!attend.past && (makes_sink || attend.replicated == 0) && attend.mask == Mask::kFull &&
            attend.rope,
        "layer", attend.layer, "replicated", attend.replicated);
  CHECK(attend.q[0] - attend.replicated == context.tokens.total, "rows", attend.q[0], "replicated",
        attend.replicated, "tokens", context.tokens.total);
  if (makes_sink) return make_sink(context, attend);
  const CausalWindow::WindowSegment& segment = window_.segment_;
  const CausalWindowShape& shape = window_.shape_;
  CausalWindow::Ring& ring = window_.made(window_.ring(attend.layer, segment.step),
                                          shape.frames * shape.frame_tokens, attend.k);
  window_.write(context, ring, attend.k, attend.v);

  const Arena::Scope scope(context.arena);
  std::vector<KVSegment> segments;
  const auto see = [&](const CausalWindow::Ring& kept, std::initializer_list<const Rope*> ropes) {
    const auto rows_of = [](const Rope* rope) {
      return rope ? rope->grid[0] * rope->grid[1] * rope->grid[2] : 0;
    };
    int64_t rows = 0, first = 0;
    for (const Rope* rope : ropes) rows += rows_of(rope);
    const auto part = [&](int index) {
      return window_.rows_of(context, kept.rows.view().select(0, index).slice(0, 0, rows),
                             attend.k.dtype);
    };
    const TensorView keys = part(0), k = context.arena.alloc(keys.dtype, keys.shape());
    for (const Rope* rope : ropes) {
      const int64_t own = rows_of(rope);
      if (own > 0)
        apply_rope(context.stream, keys.slice(0, first, own), *rope, 0, k.slice(0, first, own));
      first += own;
    }
    segments.push_back({.k = k, .v = part(1)});
  };
  see(ring, {segment.keys});
  if (shape.sink_tokens > 0)
    see(window_.sink(attend.layer, segment.sink), {segment.sink_keys, segment.sink_replicated});
  apply_rope(context.stream, attend.q, *attend.rope, 0, attend.q);
  attention(context.stream, {.q = attend.q,
                             .segments = segments,
                             .scale = attend.scale,
                             .format = attend.format,
                             .out = attend.out});
}

}  // namespace weft
