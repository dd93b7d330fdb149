#pragma once
// Shared by the oneDNN files: the engine, thread counts per call, scratchpads and a small cache of
// primitives. Only *_onednn.cc include this.
#include <algorithm>
#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/stream.h"

namespace weft::cpu {

dnnl::engine& onednn_engine();
dnnl::stream& onednn_stream();  // one per calling thread

// oneDNN takes its thread count from the calling thread's OpenMP setting, both when a primitive is
// made and when it runs. OmpThreads sets it for a scope.
class OmpThreads {
 public:
  explicit OmpThreads(int threads);
  ~OmpThreads();
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_;
};

inline dnnl::memory::data_type onednn_type(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// A OnednnCall is a primitive and its memory layouts. `primitive` is empty if oneDNN has only its
// reference loops, or nothing at all, for the shape.
struct OnednnCall {
  dnnl::primitive primitive;
  dnnl::memory::desc in, weight, bias, out, scratchpad;
  std::string implementation = "none";
  explicit operator bool() const { return static_cast<bool>(primitive); }
};

// True for oneDNN's names of kernels worth running: JIT or BRGEMM code. "gemm:" paths unpack whole
// operands into scratchpads as large as the result, and "ref" are plain loops.
bool is_fast_implementation(std::string_view name);

// The bf16 rows, of an output each, that reorder_weight holds while it works on a weight.
constexpr int64_t kReorderedRows = 192;  // a multiple of 16, 32, 48 and 64: no layout block is cut
Tensor reordered_rows(const TensorView& weight, Device device);

// Converts weight [out, in] or [out, in, kt, kh, kw] (any float dtype) to bf16 in `data`, in the
// layout `desc` [in, out] or like the weight. It works on blocks of outputs, so that the
// conversion's temporary stays small.
void reorder_weight(Stream& stream, const TensorView& weight, const dnnl::memory::desc& desc,
                    void* data);

// Runs the call with the calling thread's scratch as scratchpad; bias may be null if the call has
// none.
void run_onednn(const OnednnCall& call, const void* in, const void* weight, const void* bias,
                void* out);

// A call without bias whose input, output and scratchpad stay where they are from run to run:
// describing them for every run costs a quarter of a small one.
class BoundCall {
 public:
  // `scratch` holds what the call asks for.
  BoundCall(const OnednnCall& call, const void* in, void* out, void* scratch);
  void run(const void* weight);

 private:
  const dnnl::primitive& primitive_;
  std::unordered_map<int, dnnl::memory> args_;
};

// A cache of one weight's primitives, by shape. It is bounded: the oldest goes first (a call in
// flight keeps its own reference). Equal shapes of other weights share their machine code inside
// oneDNN.
template <class Key, class Call = OnednnCall>
class OnednnCache {
 public:
  template <class Make>
  std::shared_ptr<const Call> get(const Key& key, Make&& make) {
    {
      std::lock_guard lock(mutex_);
      for (const auto& [known, call] : calls_)
        if (known == key) return call;
    }
    auto call = std::make_shared<const Call>(make());
    std::lock_guard lock(mutex_);
    if (calls_.size() == kCapacity) calls_.erase(calls_.begin());
    calls_.emplace_back(key, call);
    return call;
  }

 private:
  static constexpr size_t kCapacity = 32;
  std::mutex mutex_;
  std::vector<std::pair<Key, std::shared_ptr<const Call>>> calls_;
};

}  // namespace weft::cpu
