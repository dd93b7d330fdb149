#include "kernels/gemm_limit.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"

namespace weft {

namespace {

// A run must be long compared with a launch and the wait after it. For small GEMMs it repeats the
// GEMM until it reaches this time, at most kMostTimes times.
constexpr double kLeastSeconds = 1e-3;
constexpr int kMostTimes = 64;
constexpr int kWarm = 4;  // by then gemm() has timed the algorithms (gemm.h)

class CudaGemmLimit final : public GemmLimit {
 public:
  CudaGemmLimit(const Stream& stream, DType dtype, int64_t rows, int64_t in, int64_t out)
      : GemmLimit(dtype, rows, in, out),
        stream_(stream),
        x_(dtype, {rows, in}, stream.device()),
        weight_(dtype, {out, in}, stream.device()),
        result_(dtype, {rows, out}, stream.device()) {
    for (const Tensor* tensor : {&x_, &weight_}) {
      const Tensor host(dtype, tensor->view().shape());
      fill_for_limit(host.view().data, dtype, host.count());
      copy(stream_, host, *tensor);
    }
    double seconds = 0;
    for (int i = 0; i < kWarm; ++i) seconds = run();
    times_ = std::clamp(static_cast<int>(std::ceil(kLeastSeconds / seconds)), 1, kMostTimes);
  }

  double run() override {
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < times_; ++i) give();
    stream_.sync();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() / times_;
  }
  std::string implementation() const override { return "cublasLt"; }

 private:
  void give() {
    const bool taken = cuda::gemm(
        stream_, {.m = rows_,
                  .n = out_,
                  .k = in_,
                  .x = {.data = x_.view().data, .dtype = dtype_, .row_stride = in_},
                  .w = {.data = weight_.view().data, .dtype = dtype_, .row_stride = in_},
                  .out = {.data = result_.view().data, .dtype = dtype_, .row_stride = out_}});
    CHECK(taken, "rows", rows_, "in", in_, "out", out_);
  }

  Stream stream_;
  Tensor x_, weight_, result_;
  int times_ = 1;
};

}  // namespace

std::unique_ptr<GemmLimit> make_cuda_gemm_limit(Stream& stream, DType dtype, int64_t rows,
                                                int64_t in, int64_t out) {
  return std::make_unique<CudaGemmLimit>(stream, dtype, rows, in, out);
}

}  // namespace weft
