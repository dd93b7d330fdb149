#include "kernels/gemm_limit.h"

#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"

namespace weft {

namespace {

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
  }

  void run() override {
    const bool taken = cuda::gemm(
        stream_, {.m = rows_,
                  .n = out_,
                  .k = in_,
                  .x = {.data = x_.view().data, .dtype = dtype_, .row_stride = in_},
                  .w = {.data = weight_.view().data, .dtype = dtype_, .row_stride = in_},
                  .out = {.data = result_.view().data, .dtype = dtype_, .row_stride = out_}});
    CHECK(taken, "rows", rows_, "in", in_, "out", out_);
    stream_.sync();
  }
  std::string implementation() const override { return "cublasLt"; }

 private:
  Stream stream_;
  Tensor x_, weight_, result_;
};

}  // namespace

std::unique_ptr<GemmLimit> make_cuda_gemm_limit(Stream& stream, DType dtype, int64_t rows,
                                                int64_t in, int64_t out) {
  return std::make_unique<CudaGemmLimit>(stream, dtype, rows, in, out);
}

}  // namespace weft
