#include "kernels/cpu/onednn.h"

#include <omp.h>

#include "kernels/copy.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/scratch.h"

namespace weft::cpu {

dnnl::engine& onednn_engine() {
  cpu_cap();  // the cap must be set before oneDNN chooses a kernel
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& onednn_stream() {
  thread_local dnnl::stream stream(onednn_engine());
  return stream;
}

OmpThreads::OmpThreads(int threads) : before_(omp_get_max_threads()) {
  if (threads != before_) omp_set_num_threads(threads);
}

OmpThreads::~OmpThreads() {
  if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
}

bool is_fast_implementation(std::string_view name) {
  return name.starts_with("brg") || name.starts_with("jit") ||
         (cpu_cap() == CpuCap::kEmulatedBf16 && name.starts_with("gemm"));
}

Tensor reordered_rows(const TensorView& weight, Device device) {
  return Tensor(DType::kBF16, weight.slice(0, 0, std::min(kReorderedRows, weight[0])).shape(),
                device);
}

void reorder_weight(Stream& stream, const TensorView& weight, const dnnl::memory::desc& desc,
                    void* data) {
  using dnnl::memory;
  const OmpThreads scope(stream.threads());
  const Tensor rows = reordered_rows(weight, {});
  for (int64_t o = 0; o < weight[0]; o += kReorderedRows) {
    const TensorView part = rows.view().slice(0, 0, std::min(kReorderedRows, weight[0] - o));
    copy(stream, weight.slice(0, o, part[0]), part);
    memory::dims extents, strides, offsets(part.rank, 0);
    for (int d = 0; d < part.rank; ++d) {
      extents.push_back(part[d]);
      strides.push_back(part.stride[d]);
    }
    offsets[0] = o;
    if (part.rank == 2)  // the description of a matrix is [in, out]
      for (memory::dims* dims : {&extents, &strides, &offsets}) std::ranges::reverse(*dims);
    memory from({extents, memory::data_type::bf16, strides}, onednn_engine(), part.data);
    memory to(desc.submemory_desc(extents, offsets), onednn_engine(), data);
    dnnl::reorder(from, to).execute(onednn_stream(), from, to);
    onednn_stream().wait();
  }
}

namespace {

dnnl::memory memory_at(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, onednn_engine(), const_cast<void*>(data));
}

void run_primitive(const dnnl::primitive& primitive,
                   const std::unordered_map<int, dnnl::memory>& args) {
  dnnl::stream& stream = onednn_stream();
  primitive.execute(stream, args);
  stream.wait();
}

}  // namespace

BoundCall::BoundCall(const OnednnCall& call, const void* in, void* out, void* scratch)
    : primitive_(call.primitive),
      args_{{DNNL_ARG_SRC, memory_at(call.in, in)},
            {DNNL_ARG_WEIGHTS, dnnl::memory(call.weight, onednn_engine(), nullptr)},
            {DNNL_ARG_DST, memory_at(call.out, out)}} {
  if (call.scratchpad.get_size() > 0)
    args_.emplace(DNNL_ARG_SCRATCHPAD, memory_at(call.scratchpad, scratch));
}

void BoundCall::run(const void* weight) {
  args_.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(weight));
  run_primitive(primitive_, args_);
}

void run_onednn(const OnednnCall& call, const void* in, const void* weight, const void* bias,
                void* out) {
  std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory_at(call.in, in)},
                                             {DNNL_ARG_WEIGHTS, memory_at(call.weight, weight)},
                                             {DNNL_ARG_DST, memory_at(call.out, out)}};
  if (bias) args.emplace(DNNL_ARG_BIAS, memory_at(call.bias, bias));
  if (const size_t bytes = call.scratchpad.get_size())
    args.emplace(DNNL_ARG_SCRATCHPAD,
                 memory_at(call.scratchpad, thread_scratch_bytes(Scratch::kVendor, bytes)));
  run_primitive(call.primitive, args);
}

}  // namespace weft::cpu
