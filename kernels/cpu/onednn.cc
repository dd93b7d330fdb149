#include "kernels/cpu/onednn.h"

#include <omp.h>

#include <unordered_map>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/scratch.h"

namespace weft::cpu {

dnnl::engine& onednn_engine() {
  cpu_cap();  // the cap must be set before oneDNN chooses anything
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
  return name.starts_with("brg") || name.starts_with("jit");
}

void run_onednn(const OnednnCall& call, const void* in, const void* weight, const void* bias,
                void* out) {
  dnnl::engine& engine = onednn_engine();
  const auto memory = [&](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine, const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory(call.in, in)},
                                             {DNNL_ARG_WEIGHTS, memory(call.weight, weight)},
                                             {DNNL_ARG_DST, memory(call.out, out)}};
  if (bias) args.emplace(DNNL_ARG_BIAS, memory(call.bias, bias));
  if (const size_t bytes = call.scratchpad.get_size())
    args.emplace(DNNL_ARG_SCRATCHPAD,
                 memory(call.scratchpad, thread_scratch_bytes(Scratch::kVendor, bytes)));
  dnnl::stream& stream = onednn_stream();
  call.primitive.execute(stream, args);
  stream.wait();
}

}  // namespace weft::cpu
