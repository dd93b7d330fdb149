#include "kernels/gemm_limit.h"

#include <chrono>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cuda/device.h"

namespace weft {

using dnnl::memory;

void fill_for_limit(void* data, DType dtype, int64_t count) {
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<uint32_t>(state >> 32 & 0x807fffff) | 0x3f800000u;
    if (dtype == DType::kF32)
      static_cast<uint32_t*>(data)[i] = bits;
    else
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
  }
}

namespace {

class OnednnGemmLimit final : public GemmLimit {
 public:
  OnednnGemmLimit(int threads, DType dtype, int64_t rows, int64_t in, int64_t out)
      : GemmLimit(dtype, rows, in, out), threads_(threads) {
    const cpu::OmpThreads scope(threads);
    const memory::data_type type = cpu::onednn_type(dtype);
    call_.in = {{rows, in}, type, memory::dims{in, 1}};
    call_.out = {{rows, out}, type, memory::dims{out, 1}};
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc any({in, out}, type, memory::format_tag::any);
    const dnnl::matmul::primitive_desc chosen({call_.in, any, call_.out}, attr,
                                              cpu::onednn_engine());
    call_.implementation = chosen.impl_info_str();
    call_.weight = chosen.weights_desc();
    call_.scratchpad = chosen.scratchpad_desc();
    call_.primitive = dnnl::matmul(chosen);
    x_ = Tensor(dtype, {rows, in});
    weight_ = Tensor(DType::kU8, {static_cast<int64_t>(call_.weight.get_size())});
    result_ = Tensor(dtype, {rows, out});
    fill_for_limit(x_.view().data, dtype, x_.count());
    fill_for_limit(weight_.view().data, dtype,
                   weight_.count() / static_cast<int64_t>(size_of(dtype)));
  }

  double run() override {
    const cpu::OmpThreads scope(threads_);
    const auto begun = std::chrono::steady_clock::now();
    cpu::run_onednn(call_, x_.view().data, weight_.view().data, nullptr, result_.view().data);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }
  std::string implementation() const override { return call_.implementation; }

 private:
  int threads_;
  cpu::OnednnCall call_;
  Tensor x_, weight_, result_;
};

}  // namespace

std::unique_ptr<GemmLimit> make_gemm_limit(Stream& stream, DType dtype, int64_t rows, int64_t in,
                                           int64_t out) {
  if (stream.device().kind == Device::Kind::kCuda)
    return make_cuda_gemm_limit(stream, dtype, rows, in, out);
  const bool use_bf16 = dtype == DType::kBF16 && cpu::has_bf16_dot_products();
  return std::make_unique<OnednnGemmLimit>(stream.threads(), use_bf16 ? DType::kBF16 : DType::kF32,
                                           rows, in, out);
}

}  // namespace weft
