#include "kernels/gemm_limit.h"

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/onednn.h"

namespace weft {

using dnnl::memory;

namespace {

// Values of +-1 to 2.
void fill(void* data, DType dtype, int64_t count) {
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

}  // namespace

struct GemmLimit::Impl {
  int threads = 1;
  int64_t rows, in, out;
  DType dtype;
  cpu::OnednnCall call;
  Tensor x, weight, result;
};

GemmLimit::GemmLimit(const Stream& stream, DType dtype, int64_t rows, int64_t in, int64_t out)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.threads = stream.threads();
  impl.rows = rows;
  impl.in = in;
  impl.out = out;
  impl.dtype = dtype == DType::kBF16 && cpu::has_bf16_products() ? DType::kBF16 : DType::kF32;
  const cpu::OmpThreads threads(impl.threads);
  const memory::data_type type = cpu::onednn_type(impl.dtype);
  cpu::OnednnCall& call = impl.call;
  call.in = {{rows, in}, type, memory::dims{in, 1}};
  call.out = {{rows, out}, type, memory::dims{out, 1}};
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const memory::desc any({in, out}, type, memory::format_tag::any);
  const dnnl::matmul::primitive_desc chosen({call.in, any, call.out}, attr, cpu::onednn_engine());
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  call.primitive = dnnl::matmul(chosen);
  impl.x = Tensor(impl.dtype, {rows, in});
  impl.weight = Tensor(DType::kU8, {static_cast<int64_t>(call.weight.get_size())});
  impl.result = Tensor(impl.dtype, {rows, out});
  // Zeros draw less power, so a product of them may run at a higher clock.
  fill(impl.x.view().data, impl.dtype, impl.x.count());
  fill(impl.weight.view().data, impl.dtype,
       impl.weight.count() / static_cast<int64_t>(size_of(impl.dtype)));
}

GemmLimit::~GemmLimit() = default;
GemmLimit::GemmLimit(GemmLimit&&) noexcept = default;

void GemmLimit::run() {
  const cpu::OmpThreads threads(impl_->threads);
  cpu::run_onednn(impl_->call, impl_->x.view().data, impl_->weight.view().data, nullptr,
                  impl_->result.view().data);
}

double GemmLimit::flop() const {
  return 2.0 * static_cast<double>(impl_->rows) * static_cast<double>(impl_->in) *
         static_cast<double>(impl_->out);
}

DType GemmLimit::dtype() const { return impl_->dtype; }
std::string GemmLimit::implementation() const { return impl_->call.implementation; }

}  // namespace weft
