#include "parallel/methods/bands.h"

#include <numeric>

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

// Calls within a pass are numbered, so that messages differ where they could meet.
int next(const Pass& now, Pass& pass, int& calls) {
  if (now != pass) calls = 0;
  pass = now;
  constexpr int kSegments = 1 << 15;
  return calls++ % kSegments;
}

}  // namespace

HaloView BandHalo::exchange(Context& context, const TensorView& band, int dim, int64_t before,
                            int64_t after) {
  const int own = bands_.rank();
  const bool first = own == 0, last = own == bands_.size() - 1;
  const int64_t rows = band[dim], above = first ? 0 : before, below = last ? 0 : after;
  CHECK(rows >= before && rows >= after, "a halo of", before, after, "rows around a band of", rows);
  std::vector<int64_t> shape(band.shape().begin(), band.shape().end());
  const auto alloc = [&](int64_t count) {
    shape[dim] = count;
    return context.arena.alloc(band.dtype, shape);
  };
  const TensorView out = alloc(above + rows + below);
  const Arena::Scope scope(context.arena);
  const Tag tag{
      .kind = Payload::kHalo, .pass = context.pass, .hop = next(context.pass, pass_, calls_)};
  std::vector<Message> sends, receives;
  const auto meet = [&](int peer, int64_t out_begin, int64_t out_rows, int64_t in_rows) {
    const TensorView edge = alloc(out_rows);
    copy(context.stream, band.slice(dim, out_begin, out_rows), edge);
    sends.push_back({peer, tag, edge});
    receives.push_back({peer, tag, alloc(in_rows)});
    return receives.back().view;
  };
  TensorView from_above, from_below;
  if (!first) from_above = meet(own - 1, 0, after, before);
  if (!last) from_below = meet(own + 1, rows - before, before, after);
  Communicator::Pending pending = bands_.post(context.stream, sends, receives);
  copy(context.stream, band, out.slice(dim, above, rows));
  bands_.wait(pending);
  if (above > 0) copy(context.stream, from_above, out.slice(dim, 0, above));
  if (below > 0) copy(context.stream, from_below, out.slice(dim, above + rows, below));
  return {out, above, below};
}

BandMixer::BandMixer(Communicator bands, std::vector<int64_t> rows)
    : bands_(std::move(bands)), rows_(std::move(rows)) {
  CHECK(static_cast<int>(rows_.size()) == bands_.size(), "rows of", rows_.size(), "bands of",
        bands_.size());
}

void BandMixer::attend(Context& context, const Attend& attend) {
  CHECK(!attend.rope && !attend.past && attend.mask == Mask::kFull && attend.replicated == 0,
        "a frame's attention");
  const int own = bands_.rank();
  const int64_t n = attend.k[0], heads = attend.k[1], e = attend.k[2];
  CHECK(n % rows_[own] == 0, "tokens", n, "rows", rows_[own]);
  const int64_t width = n / rows_[own];
  const int64_t all = width * std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
  const Arena::Scope scope(context.arena);
  const TensorView kv = context.arena.alloc(attend.k.dtype, {all, 2 * heads, e});
  std::vector<TensorView> parts;
  int64_t at = 0;
  for (int64_t rows : rows_) {
    parts.push_back(kv.slice(0, at, rows * width));
    at += rows * width;
  }
  copy(context.stream, attend.k, parts[own].slice(1, 0, heads));
  copy(context.stream, attend.v, parts[own].slice(1, heads, heads));
  const Tag tag = take_tags(attend.layer, 1)(Payload::kKeyValue);
  bands_.all_gather_v(context.stream, tag, parts[own], parts);
  const KVSegment segment{.k = kv.slice(1, 0, heads), .v = kv.slice(1, heads, heads)};
  attention(context.stream, {.q = attend.q,
                             .segments = {&segment, 1},
                             .scale = attend.scale,
                             .format = attend.format,
                             .out = attend.out});
}

}  // namespace weft
