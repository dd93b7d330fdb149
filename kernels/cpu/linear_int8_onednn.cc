// 8-bit products by oneDNN: numbers of x get 128 added, because the instructions multiply numbers
// without a sign by numbers with one; 128 times the sum of an output's weights is taken off again.
#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/panel_gemm.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"

namespace weft::cpu {

namespace {

using dnnl::memory;

constexpr int64_t kRows = 128;  // of one product; sums of 8960 outputs take 4.4 MiB

struct Storage {
  Tensor packed, scales, corrections;  // corrections [out] kI32
  memory::desc layout;
  OnednnCache<int64_t> calls;  // by rows
};

OnednnCall make_call(int64_t rows, int64_t in, int64_t out, const memory::desc& weight) {
  const OmpThreads one(1);
  OnednnCall call;
  call.in = {{rows, in}, memory::data_type::u8, memory::dims{in, 1}};
  call.out = {{rows, out}, memory::data_type::s32, memory::dims{out, 1}};
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc chosen({call.in, weight, call.out}, attr, onednn_engine());
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  call.primitive = dnnl::matmul(chosen);
  return call;
}

// x rows [begin, begin + count) to results.
void run_rows(const PackedLinear& packed, Storage& storage, const TensorView& x,
              LinearActivation activation, const TensorView& out, int64_t begin, int64_t count) {
  const OmpThreads one(1);
  const int64_t in = packed.in(), columns = packed.out();
  auto* numbers = thread_scratch<uint8_t>(Scratch::kLeft, count * in);
  auto* sums = thread_scratch<int32_t>(Scratch::kSums, count * columns);
  float* wide = thread_scratch<float>(Scratch::kStageIn, std::max(in, columns));
  float* scales = thread_scratch<float>(Scratch::kState, count);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = (begin + r) * x.row_stride();
    const float* row = wide;
    if (x.dtype == DType::kF32)
      row = x.as<float>() + at;
    else
      widen_bf16(x.as<bf16>() + at, in, wide);
    scales[r] = quantize_row(row, in, numbers + r * in);
  }
  const auto call =
      storage.calls.get(count, [&] { return make_call(count, in, columns, storage.layout); });
  run_onednn(*call, numbers, storage.packed.view().data, nullptr, sums);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = (begin + r) * out.row_stride();
    finish_int8({.count = columns,
                 .sums = sums + r * columns,
                 .corrections = storage.corrections.as<int32_t>(),
                 .scale = scales[r],
                 .scales = storage.scales.as<float>(),
                 .bias = packed.has_bias() ? packed.bias_.as<float>() : nullptr,
                 .activation = activation,
                 .out = out.dtype == DType::kF32 ? out.as<float>() + at : wide});
    if (out.dtype == DType::kBF16) narrow_bf16(wide, columns, out.as<bf16>() + at);
  }
}

}  // namespace

PackedLinear pack_linear_int8_onednn(Stream& stream, const TensorView& weight,
                                     const TensorView& bias, DType dtype) {
  PackedLinear packed;
  Int8Weights weights = quantize_weights(stream, weight, bias, dtype, packed);
  const int64_t in = packed.in(), out = packed.out();
  auto* storage = new Storage;
  packed.storage_ = {storage, [](void* data) { delete static_cast<Storage*>(data); }};
  storage->layout =
      make_call(kRows, in, out, {{in, out}, memory::data_type::s8, memory::format_tag::any}).weight;
  storage->packed = Tensor(DType::kU8, {static_cast<int64_t>(storage->layout.get_size())});
  storage->scales = std::move(weights.scales);
  storage->corrections = Tensor(DType::kI32, {out});
  const auto* values = static_cast<const int8_t*>(weights.values.view().data);
  for (int64_t o = 0; o < out; ++o) {
    int32_t sum = 0;
    for (int64_t i = 0; i < in; ++i) sum += values[o * in + i];
    storage->corrections.as<int32_t>()[o] = 128 * sum;
  }
  memory from({{in, out}, memory::data_type::s8, memory::dims{1, in}}, onednn_engine(),
              weights.values.view().data);
  memory to(storage->layout, onednn_engine(), storage->packed.view().data);
  dnnl::reorder(from, to).execute(onednn_stream(), from, to);
  onednn_stream().wait();
  packed.bytes_ += storage->packed.view().bytes() - weights.values.view().bytes() +
                   storage->corrections.view().bytes();
  return packed;
}

void linear_int8_onednn(Stream& stream, const TensorView& x, const PackedLinear& packed,
                        LinearActivation activation, const TensorView& out) {
  auto& storage = *static_cast<Storage*>(packed.storage_.get());
  // Equal blocks, as many as keep all threads busy.
  const int64_t rows = x.rows();
  const int64_t turns = (rows + kRows * stream.threads() - 1) / (kRows * stream.threads());
  const int64_t blocks = std::min(rows, turns * stream.threads());
  parallel_tasks(stream, blocks, [&](int64_t i) {
    const int64_t begin = rows * i / blocks, end = rows * (i + 1) / blocks;
    run_rows(packed, storage, x, activation, out, begin, end - begin);
  });
}

}  // namespace weft::cpu
