// The fastest of cuBLASLt's algorithms is another one from run to run, and results are the same.
// This needs a GPU.
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"
#include "tests/cuda/first_device.h"
#include "tests/kernels/row_ops.h"

namespace weft::cuda {
namespace {

// The result of the last of some calls on a stream that is new, and so are its algorithms.
Tensor product(const Tensor& x, const Tensor& w, DType dtype, Determinism determinism, int calls) {
  Stream stream = cuda_stream(0, determinism, 1);
  const int64_t m = x.view()[0], n = w.view()[0], k = x.view()[1];
  const Tensor a(x.view().dtype, {m, k}, stream.device()),
      b(w.view().dtype, {n, k}, stream.device()), out(dtype, {m, n}, stream.device());
  copy(stream, x, a);
  copy(stream, w, b);
  for (int call = 0; call < calls; ++call)
    EXPECT_TRUE(
        gemm(stream, {.m = m,
                      .n = n,
                      .k = k,
                      .x = {.data = a.view().data, .dtype = x.view().dtype, .row_stride = k},
                      .w = {.data = b.view().data, .dtype = w.view().dtype, .row_stride = k},
                      .out = {.data = out.view().data, .dtype = dtype, .row_stride = n}}))
        << gemm_refusal(stream);
  Tensor host(dtype, {m, n});
  copy(stream, out, host);
  stream.sync();
  return host;
}

TEST(TimedGemm, HasTheBitsOfTheFirstAlgorithm) {
  struct Case {
    DType in, out;
    int64_t m, n, k;
  };
  for (const Case& c : {Case{DType::kBF16, DType::kBF16, 1024, 1024, 8192},
                        Case{DType::kBF16, DType::kF32, 520, 2048, 4096},
                        Case{DType::kBF16, DType::kBF16, 4608, 3072, 3072},
                        Case{DType::kF32, DType::kF32, 512, 2048, 8192},
                        Case{DType::kF32, DType::kF32, 1100, 1536, 1536}}) {
    const Tensor x = test::make_normal(c.in, {c.m, c.k}, 1),
                 w = test::make_normal(c.in, {c.n, c.k}, 2);
    const Tensor expected = product(x, w, c.out, Determinism::kFixed, 1);
    for (int run = 0; run < 3; ++run)
      EXPECT_TRUE(test::bitwise_equal(product(x, w, c.out, Determinism::kFast, 4), expected))
          << c.m << " x " << c.n << " x " << c.k << " of " << to_string(c.in);
  }
}

}  // namespace
}  // namespace weft::cuda
