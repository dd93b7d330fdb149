// 8-bit integer GEMM by oneDNN. The instructions multiply unsigned by signed integers, so 128 is
// added to the values of x, and 128 times the sum of an output's weights is subtracted again.
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/panel_gemm.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"

namespace weft::cpu {

namespace {

using dnnl::memory;

constexpr int64_t kGemmRows = 128;  // rows of one GEMM; the sums of 8960 outputs then take 4.4 MiB

// Up to this many rows, reading the weights is most of the work: the threads share the columns.
constexpr int64_t kGemvRows = 16;

struct Key {
  int64_t rows = 0;
  int threads = 1;
  bool operator==(const Key&) const = default;
};

struct Storage : PackedStorage {
  Tensor packed, scales, corrections;  // corrections [out] kI32
  memory::desc layout;
  OnednnCache<Key> calls;
  void for_buffers(const BufferVisitor& visit) override {
    for (Tensor* buffer : {&packed, &scales, &corrections}) visit(*buffer);
  }
};

// The arguments of linear().
struct Arguments {
  const TensorView& x;
  const PackedLinear& packed;
  LinearActivation activation;
  const TensorView& out;
};

OnednnCall make_call(const Key& key, int64_t in, int64_t out, const memory::desc& weight) {
  const OmpThreads threads(key.threads);
  const int64_t rows = key.rows;
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

// Computes the results of x rows [begin, begin + key.rows), on the stream's threads if key.threads
// > 1.
void run_int8_rows(const Stream& stream, const Arguments& arguments, int64_t begin,
                   const Key& key) {
  const OmpThreads threads(key.threads);
  const TensorView &x = arguments.x, &out = arguments.out;
  const PackedLinear& packed = arguments.packed;
  const LinearActivation activation = arguments.activation;
  auto& storage = packed.storage<Storage>();
  const int64_t in = packed.in(), columns = packed.out();
  auto* numbers = thread_scratch<uint8_t>(Scratch::kLeft, key.rows * in);
  auto* sums = thread_scratch<int32_t>(Scratch::kSums, key.rows * columns);
  float* scales = thread_scratch<float>(Scratch::kState, key.rows);
  for (int64_t r = 0; r < key.rows; ++r) {
    const int64_t at = (begin + r) * x.row_stride();
    float* wide = thread_scratch<float>(Scratch::kStageIn, in);
    const float* row = wide;
    if (x.dtype == DType::kF32)
      row = x.as<float>() + at;
    else
      widen_bf16(x.as<bf16>() + at, in, wide);
    scales[r] = quantize_row(row, in, numbers + r * in);
  }
  const auto call =
      storage.calls.get(key, [&] { return make_call(key, in, columns, storage.layout); });
  run_onednn(*call, numbers, storage.packed.view().data, nullptr, sums);
  const auto finish = [&](int64_t from, int64_t to) {
    float* wide = thread_scratch<float>(Scratch::kStageIn, to - from);
    for (int64_t r = 0; r < key.rows; ++r) {
      const int64_t at = (begin + r) * out.row_stride() + from;
      finish_int8({.count = to - from,
                   .sums = sums + r * columns + from,
                   .corrections = storage.corrections.as<int32_t>() + from,
                   .scale = scales[r],
                   .scales = storage.scales.as<float>() + from,
                   .bias = packed.has_bias() ? packed.bias() + from : nullptr,
                   .activation = activation,
                   .out = out.dtype == DType::kF32 ? out.as<float>() + at : wide});
      if (out.dtype == DType::kBF16) narrow_bf16(wide, to - from, out.as<bf16>() + at);
    }
  };
  if (key.threads > 1)
    parallel_for(stream, columns, row_grain(key.rows), finish);
  else
    finish(0, columns);
}

}  // namespace

PackedLinear pack_linear_int8_onednn(Stream& stream, const TensorView& weight,
                                     const TensorView& bias, DType dtype) {
  PackedLinear packed(weight, dtype, WeightFormat::kInt8);
  EightBitWeights weights;
  quantize_weights(stream, weight, WeightFormat::kInt8, weights);
  const int64_t in = packed.in(), out = packed.out();
  auto& storage = packed.make_storage<Storage>();
  packed.set_bias(stream, bias);
  storage.scales = std::move(weights.scales);
  storage.corrections = Tensor(DType::kI32, {out}, stream.device());
  if (stream.device().measured()) {
    storage.packed = std::move(weights.values);
    return packed;
  }
  storage.layout = make_call({.rows = kGemmRows}, in, out,
                             {{in, out}, memory::data_type::s8, memory::format_tag::any})
                       .weight;
  storage.packed = Tensor(DType::kU8, {static_cast<int64_t>(storage.layout.get_size())});
  const auto* values = static_cast<const int8_t*>(weights.values.view().data);
  for (int64_t o = 0; o < out; ++o) {
    int32_t sum = 0;
    for (int64_t i = 0; i < in; ++i) sum += values[o * in + i];
    storage.corrections.as<int32_t>()[o] = 128 * sum;
  }
  memory from({{in, out}, memory::data_type::s8, memory::dims{1, in}}, onednn_engine(),
              weights.values.view().data);
  memory to(storage.layout, onednn_engine(), storage.packed.view().data);
  const OmpThreads scope(stream.threads());
  dnnl::reorder(from, to).execute(onednn_stream(), from, to);
  onednn_stream().wait();
  return packed;
}

void linear_int8_onednn(Stream& stream, const TensorView& x, const PackedLinear& packed,
                        LinearActivation activation, const TensorView& out) {
  const Arguments arguments{x, packed, activation, out};
  const int64_t rows = x.rows();
  if (rows <= kGemvRows && packed.in() * packed.out() >= int64_t{1} << 18) {
    run_int8_rows(stream, arguments, 0, {.rows = rows, .threads = stream.threads()});
    return;
  }
  // Rows are cut in equal blocks, as many as keep all threads busy.
  const int64_t turns = (rows + kGemmRows * stream.threads() - 1) / (kGemmRows * stream.threads());
  const int64_t blocks = std::min(rows, turns * stream.threads());
  parallel_tasks(stream, blocks, [&](int64_t i) {
    const int64_t begin = rows * i / blocks, end = rows * (i + 1) / blocks;
    run_int8_rows(stream, arguments, begin, {.rows = end - begin});
  });
}

}  // namespace weft::cpu
