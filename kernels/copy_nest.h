#pragma once
// A CopyNest is the loop nest over two views of one shape; the copies of every backend start from
// it.
#include <algorithm>

#include "kernels/tensor.h"

namespace weft {

// Dimensions are outermost first; those with one element are left out; strides are in elements.
struct CopyNest {
  int rank = 0;
  int64_t extent[kMaxRank] = {}, x[kMaxRank] = {}, out[kMaxRank] = {};

  // The number of elements in the first `dims` dimensions.
  int64_t product(int dims) const {
    int64_t n = 1;
    for (int i = 0; i < dims; ++i) n *= extent[i];
    return n;
  }
};

// Sorts the dimensions by the output's stride and merges neighbours where both views allow it.
inline CopyNest make_copy_nest(const TensorView& x, const TensorView& out) {
  int order[kMaxRank], dims = 0;
  for (int i = 0; i < x.rank; ++i)
    if (x.extent[i] != 1) order[dims++] = i;
  std::stable_sort(order, order + dims,
                   [&](int a, int b) { return out.stride[a] > out.stride[b]; });
  CopyNest nest;
  for (int i = 0; i < dims; ++i) {
    const int dim = order[i], last = nest.rank - 1;
    const int64_t extent = x.extent[dim];
    if (nest.rank > 0 && nest.x[last] == x.stride[dim] * extent &&
        nest.out[last] == out.stride[dim] * extent) {
      nest.extent[last] *= extent;
      nest.x[last] = x.stride[dim];
      nest.out[last] = out.stride[dim];
      continue;
    }
    nest.extent[nest.rank] = extent;
    nest.x[nest.rank] = x.stride[dim];
    nest.out[nest.rank++] = out.stride[dim];
  }
  if (nest.rank == 0) nest = {.rank = 1, .extent = {1}, .x = {1}, .out = {1}};
  return nest;
}

}  // namespace weft
