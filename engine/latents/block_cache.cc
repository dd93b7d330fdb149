#include "engine/latents/block_cache.h"

#include <cmath>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

Change change_of(Stream& stream, const TensorView& a, const TensorView& b) {
  Change sum;
  if (is_dry_run(stream)) return sum;
  const HostCopy now(stream, a), before(stream, b);
  const float *x = now.view().as<float>(), *y = before.view().as<float>();
  for (int64_t i = 0; i < a.count(); ++i) {
    sum.change += std::abs(double{x[i]} - y[i]);
    sum.size += std::abs(double{y[i]});
  }
  return sum;
}

BlockCache::BlockCache(Stream& stream, Arena& arena, int64_t width, int steps)
    : changes(steps), errors(steps), stream_(stream), arena_(arena), width_(width) {}

void BlockCache::keep(const Rows& rows, const Before& before, const TensorView& x) {
  const Range& kept = rows.kept;
  Tensor& added = added_[rows.slot];
  if (!added || added.view()[0] != kept.size())
    added = Tensor(DType::kF32, {kept.size(), width_}, stream_.device());
  const Arena::Scope scope(arena_);
  const TensorView from = arena_.alloc(DType::kF32, x.shape());
  before(from);
  axpby(stream_, 1, x.slice(0, kept.begin, kept.size()), -1, from.slice(0, kept.begin, kept.size()),
        added);
}

void BlockCache::reuse(const Rows& rows, int blocks, const Before& before,
                       const TensorView& velocity, const Forward& forward) {
  const auto added = added_.find(rows.slot);
  CHECK(added != added_.end() && added->second.view()[0] == rows.kept.size(), to_string(rows.slot),
        "rows", rows.kept.size(), "are reused before they are kept");
  const Arena::Scope scope(arena_);
  const TensorView x = arena_.alloc(DType::kF32, {rows.all, width_});
  before(x);
  const TensorView kept = x.slice(0, rows.kept.begin, rows.kept.size());
  add(stream_, kept, added->second, kept);
  forward({blocks, blocks, blocks}, x, velocity);
}

void BlockCache::note_velocity(int step, const TensorView& velocity) {
  if (velocity_)
    changes[step] = change_of(stream_, velocity, velocity_);
  else
    velocity_ = Tensor(DType::kF32, {velocity[0], velocity[1]}, stream_.device());
  copy(stream_, velocity, velocity_);
}

void BlockCache::note_audit(int step, const TensorView& reused, const TensorView& computed) {
  errors[step] = change_of(stream_, reused, computed);
}

}  // namespace weft
