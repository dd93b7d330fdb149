#include "parallel/methods/tensor_parallel.h"

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

Tag TensorReducer::next_tag(Context& context, Payload kind) {
  if (context.pass != pass_) calls_ = 0;
  pass_ = context.pass;
  constexpr int kLayers = 1 << 12;
  return {.kind = kind, .pass = pass_, .layer = calls_++ % kLayers};
}

void TensorReducer::sum(Context& context, const TensorView& partial) {
  const Tag tag = next_tag(context, partial.rank == 1 ? Payload::kStatistic : Payload::kPartial);
  group_.all_reduce(context.stream, context.arena, tag, partial, algorithm_);
}

void TensorReducer::gather(Context& context, const TensorView& part, int dim,
                           const TensorView& whole) {
  const Arena::Scope scope(context.arena);
  std::vector<TensorView> parts;
  for (int rank = 0; rank < group_.size(); ++rank) {
    std::vector<int64_t> shape(whole.shape().begin(), whole.shape().end());
    shape[dim] = partition(whole[dim], group_.size(), rank).size();
    parts.push_back(context.arena.alloc(whole.dtype, shape));
  }
  const TensorView& own = parts[group_.rank()];
  CHECK(part[dim] == own[dim], "part", part.to_string_shape(), "of", whole.to_string_shape());
  copy(context.stream, part, own);
  group_.all_gather_v(context.stream, next_tag(context, Payload::kGathered), own, parts);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Range range = partition(whole[dim], group_.size(), rank);
    copy(context.stream, parts[rank], whole.slice(dim, range.begin, range.size()));
  }
}

}  // namespace weft
