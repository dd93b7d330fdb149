#include "engine/denoising/block_cache.h"

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

void BlockCache::watch(int branch, int64_t rows, Before before) {
  if (!added_[branch]) added_[branch] = Tensor(DType::kF32, {rows, width_}, stream_.device());
  watched_ = {branch, std::move(before)};
}

void BlockCache::before_head(Context&, const TensorView& x) {
  const Arena::Scope scope(arena_);
  const TensorView before = arena_.alloc(DType::kF32, x.shape());
  watched_.before(before);
  axpby(stream_, 1, x, -1, before, added_[watched_.branch]);
}

void BlockCache::reuse(int branch, int blocks, const Before& before, const TensorView& velocity,
                       const Forward& forward) {
  CHECK(added_[branch], "a step is skipped before one has run the blocks");
  const Arena::Scope scope(arena_);
  const TensorView x = arena_.alloc(DType::kF32, added_[branch].view().shape());
  before(x);
  add(stream_, x, added_[branch], x);
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
