#pragma once
// The references of 8-bit integers and 8-bit floats share these loops.
#include <vector>

#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"

namespace weft::cpu {

// Computes a linear layer row by row. `make()` returns a thread's quantizer: quantize(row) rounds a
// row [in] f32 to 8 bits and returns its scale; sum(row, o) is the dot product of that row with the
// weights of output o.
template <class Make>
void linear_quantized(Stream& stream, const TensorView& x, const PackedLinear& packed,
                      LinearActivation activation, const TensorView& out, Make&& make) {
  const float* scales = packed.storage<EightBitWeights>().scales.as<float>();
  const int64_t in = packed.in(), columns = packed.out();
  const float* bias = packed.bias();
  const auto run = [&]<class T, class Out>(T, Out, int64_t begin, int64_t end) {
    std::vector<float> row(in);
    auto quantizer = make();
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < in; ++i) row[i] = to_float(x.as<T>()[r * x.row_stride() + i]);
      const float scale = quantizer.quantize(row);
      for (int64_t o = 0; o < columns; ++o) {
        const auto product = quantizer.sum(row, o) * (scale * scales[o]);
        out.as<Out>()[r * out.row_stride() + o] = from_float<Out>(
            static_cast<float>(activate_exact(product + (bias ? bias[o] : 0.0f), activation)));
      }
    }
  };
  parallel_for(stream, x.rows(), row_grain(in * columns), [&](int64_t begin, int64_t end) {
    visit_dtype(x.dtype, [&](auto tag) {
      visit_dtype(out.dtype, [&](auto out_tag) { run(tag, out_tag, begin, end); });
    });
  });
}

}  // namespace weft::cpu
