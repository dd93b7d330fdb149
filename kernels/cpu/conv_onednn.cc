// Convolution by oneDNN's BRGEMM kernels where the machine has AVX-512 (and, for bf16, multiplies
// bf16), else by panel_gemm over gathered windows.
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cpu/conv_panels.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

using dnnl::memory;
using Tag = memory::format_tag;

struct ConvKey {
  std::array<int64_t, 3> extent{};  // F, H, W of x
  std::array<int64_t, 3> stride{};
  std::array<int64_t, 5> pad{};  // front, above, below, left, right
  int threads = 1;
  bool operator==(const ConvKey&) const = default;
};

// Holds the weights once: as panels, which both libraries read in f32, or (if the hardware
// multiplies bf16) in the layout that oneDNN asked for, which only oneDNN reads.
struct ConvStorage : PackedStorage {
  PackedLinear pointwise;  // for 1x1x1 kernels, a linear layer over pixels
  ConvPanels panels;
  Tensor vendor;
  // This is oneDNN's description of the weights; it is zero if oneDNN does not read them.
  memory::desc vendor_desc;
  OnednnCache<ConvKey> calls;

  const void* values() const { return vendor ? vendor.view().data : panels.data(); }
  void for_buffers(const BufferVisitor& visit) override {
    pointwise.for_buffers(visit);
    visit(panels.buffer());
    visit(vendor);
  }
};

int64_t taps(const PackedConv& packed) {
  return packed.kernel()[0] * packed.kernel()[1] * packed.kernel()[2];
}

memory::desc weight_desc(const PackedConv& packed, Tag tag) {
  const auto [kt, kh, kw] = packed.kernel();
  return {{packed.out(), packed.in(), kt, kh, kw}, onednn_type(packed.dtype()), tag};
}

memory::desc panels_desc(const PackedConv& packed, int64_t block) {
  constexpr Tag kTag[] = {Tag::Odhwi16o, Tag::Odhwi32o, Tag::Odhwi48o, Tag::Odhwi64o};
  return weight_desc(packed, kTag[block / 16 - 1]);
}

// x is one volume; with kt = 1 its frames are independent pictures.
OnednnCall make_conv(const PackedConv& packed, const memory::desc& weight, const ConvKey& key,
                     bool even_slow = false) {
  OmpThreads threads(key.threads);
  const auto [kt, kh, kw] = packed.kernel();
  const auto [f, h, w] = key.extent;
  const auto [front, above, below, left, right] = key.pad;
  const auto [st, sh, sw] = key.stride;
  const int64_t of = (f + front - kt) / st + 1, oh = (h + above + below - kh) / sh + 1,
                ow = (w + left + right - kw) / sw + 1;
  const memory::data_type type = onednn_type(packed.dtype());
  OnednnCall call;
  call.in = memory::desc({1, packed.in(), f, h, w}, type, Tag::ndhwc);
  call.out = memory::desc({1, packed.out(), of, oh, ow}, type, Tag::ndhwc);
  if (packed.bias()) call.bias = memory::desc({packed.out()}, memory::data_type::f32, Tag::a);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::convolution_forward::desc conv(
      dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, call.in, weight,
      call.bias, call.out, memory::dims{st, sh, sw}, memory::dims{front, above, left},
      memory::dims{0, below, right});
  const dnnl::convolution_forward::primitive_desc chosen(conv, attr, onednn_engine(), true);
  if (!chosen.get(true)) return call;
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  if (even_slow || is_fast_implementation(call.implementation))
    call.primitive = dnnl::convolution_forward(chosen);
  return call;
}

// oneDNN's BRGEMM convolution picks the output channels per block by the picture's size. It is
// asked at the size of a 480p latent, the heavy case.
OnednnCall typical_call(const PackedConv& packed, int threads) {
  const auto [kt, kh, kw] = packed.kernel();
  return make_conv(packed, weight_desc(packed, Tag::any),
                   {.extent = {kt, 60, 104},
                    .stride = {1, 1, 1},
                    .pad = {0, kh / 2, kh / 2, kw / 2, kw / 2},
                    .threads = threads});
}

// Returns the output channels per panel.
int64_t choose_block(const PackedConv& packed, int threads) {
  const int64_t best = ConvPanels::widest_block(packed.out());
  if (packed.dtype() != DType::kF32 || !has_avx512()) return best;
  const OnednnCall call = typical_call(packed, threads);
  if (!call) return best;
  for (int64_t block : {16, 32, 48, 64})
    if (call.weight == panels_desc(packed, block)) return block;
  return best;
}

// The layout of oneDNN's bf16 kernels for a convolution; zero if oneDNN has no such kernel here. It
// is remembered, because a dry run asks for many convolutions of few sizes.
memory::desc bf16_layout(const PackedConv& packed, int threads) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 7>, memory::desc> known;
  const auto [kt, kh, kw] = packed.kernel();
  const std::array<int64_t, 7> key{packed.in(), packed.out(), kt, kh, kw, packed.bias() != nullptr,
                                   threads};
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known.try_emplace(key);
  if (fresh)
    if (const OnednnCall call = typical_call(packed, threads)) found->second = call.weight;
  return found->second;
}

PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  PackedConv packed(weight, dtype);
  auto& storage = packed.make_storage<ConvStorage>();
  if (taps(packed) == 1) {
    const TensorView matrix = weight.select(4, 0).select(3, 0).select(2, 0);
    storage.pointwise =
        stream.ops().linear.pack_linear(stream, matrix, bias, dtype, WeightFormat::kCompute);
    return packed;
  }
  packed.set_bias(stream, bias);
  if (dtype == DType::kBF16 && has_bf16_dot_products()) {
    const memory::desc layout = bf16_layout(packed, stream.threads());
    if (layout.get_size()) {
      const Device device = stream.device();
      storage.vendor_desc = layout;
      storage.vendor = Tensor(DType::kU8, {static_cast<int64_t>(layout.get_size())}, device);
      if (device.measured())
        reordered_rows(weight, device);  // held while the weight is packed
      else
        reorder_weight(stream, weight, layout, storage.vendor.view().data);
      return packed;
    }
  }
  const int64_t block = stream.device().measured() ? ConvPanels::widest_block(packed.out())
                                                   : choose_block(packed, stream.threads());
  storage.panels = ConvPanels(stream, weight, dtype, block);
  if (dtype == DType::kF32 && has_avx512()) storage.vendor_desc = panels_desc(packed, block);
  return packed;
}

// A 1x1x1 kernel is a linear layer over the pixels. No model has strides or padding around such a
// kernel; with them, the pixels are gathered first.
void conv_pointwise(Stream& stream, const TensorView& x, const PackedLinear& packed,
                    const ConvArgs& args, const TensorView& out) {
  const LinearOps& ops = stream.ops().linear;
  const TensorView to = out.reshape({out[0] * out[1] * out[2], out[3]});
  // Padding shifts the pixels even if the extents are equal.
  const bool shifted = args.pad_front || args.pad_h[0] || args.pad_w[0];
  if (!shifted && x[0] == out[0] && x[1] == out[1] && x[2] == out[2]) {
    ops.linear(stream, x.reshape({to[0], x[3]}), packed, LinearActivation::kNone, to);
    return;
  }
  Tensor rows(x.dtype, {to[0], x[3]});
  const size_t bytes = x[3] * size_of(x.dtype);
  for (int64_t i = 0; i < to[0]; ++i) {
    const int64_t f = i / out[2] / out[1] * args.stride[0] - args.pad_front;
    const int64_t h = i / out[2] % out[1] * args.stride[1] - args.pad_h[0];
    const int64_t w = i % out[2] * args.stride[2] - args.pad_w[0];
    if (f < 0 || f >= x[0] || h < 0 || h >= x[1] || w < 0 || w >= x[2]) continue;
    std::memcpy(static_cast<char*>(rows.view().data) + i * bytes,
                static_cast<const char*>(x.data) + ((f * x[1] + h) * x[2] + w) * bytes, bytes);
  }
  ops.linear(stream, rows, packed, LinearActivation::kNone, to);
}

// oneDNN's kernel for a shape: one that reads the weights as they lie, else one before which they
// are reordered, in every call.
OnednnCall find_call(const PackedConv& packed, const ConvStorage& storage, const ConvKey& key) {
  OnednnCall call = make_conv(packed, storage.vendor_desc, key);
  for (const bool even_slow : {false, true})
    if (!call) call = make_conv(packed, weight_desc(packed, Tag::any), key, even_slow);
  CHECK(call, "no convolution", call.implementation);
  return call;
}

void run_vendor(const PackedConv& packed, ConvStorage& storage, const ConvKey& key, const void* x,
                void* out) {
  const auto call = storage.calls.get(key, [&] { return find_call(packed, storage, key); });
  OmpThreads scope(key.threads);
  const void* weight = storage.values();
  if (call->weight != storage.vendor_desc) {
    memory from(storage.vendor_desc, onednn_engine(), const_cast<void*>(weight));
    memory to(call->weight, onednn_engine(),
              thread_scratch_bytes(Scratch::kPacked, call->weight.get_size()));
    dnnl::reorder(from, to).execute(onednn_stream(), from, to);
    weight = to.get_data_handle();
  }
  run_onednn(*call, x, weight, packed.bias(), out);
}

// The places of an input that `count` places of an output read from `at` on, along one axis.
struct Reads {
  int64_t begin = 0, end = 0;
  int64_t before = 0, after = 0;  // places of padding around them
};
Reads reads(int64_t at, int64_t count, int64_t kernel, int64_t stride, int64_t pad,
            int64_t extent) {
  const int64_t first = at * stride - pad, last = first + (count - 1) * stride + kernel;
  const int64_t begin = std::max<int64_t>(first, 0), end = std::min(last, extent);
  return {begin, end, begin - first, last - end};
}

// Padding is narrower than the kernel, as in all models: no place of the output reads padding
// alone.
bool every_place_reads(const PackedConv& packed, const ConvArgs& args) {
  const auto [kt, kh, kw] = packed.kernel();
  return args.pad_front < kt && std::ranges::max(args.pad_h) < kh;
}

// In deterministic mode oneDNN gets so many rows of one output frame at a time, on one thread.
constexpr int64_t kBandRows = 16;

void conv_fixed(Stream& stream, const TensorView& x, const PackedConv& packed, ConvStorage& storage,
                const ConvArgs& args, const TensorView& out) {
  const int64_t bands = (out[1] + kBandRows - 1) / kBandRows;
  const size_t row = x[2] * x[3] * size_of(x.dtype), out_row = out[2] * out[3] * size_of(x.dtype);
  parallel_tasks(stream, out[0] * bands, [&](int64_t i) {
    const int64_t f = i / bands, h = i % bands * kBandRows;
    const auto [kt, kh, kw] = packed.kernel();
    const auto [st, sh, sw] = args.stride;
    const Reads frames = reads(f, 1, kt, st, args.pad_front, x[0]);
    const Reads rows = reads(h, std::min(kBandRows, out[1] - h), kh, sh, args.pad_h[0], x[1]);
    const int64_t count = frames.end - frames.begin, height = rows.end - rows.begin;
    const auto from = [&](int64_t frame) {
      return static_cast<const char*>(x.data) + (frame * x[1] + rows.begin) * row;
    };
    const void* in = from(frames.begin);
    if (count > 1 && height < x[1]) {
      char* dense = thread_scratch<char>(Scratch::kStageIn, count * height * row);
      for (int64_t k = 0; k < count; ++k)
        std::memcpy(dense + k * height * row, from(frames.begin + k), height * row);
      in = dense;
    }
    const ConvKey key{
        .extent = {count, height, x[2]},
        .stride = args.stride,
        .pad = {frames.before, rows.before, rows.after, args.pad_w[0], args.pad_w[1]}};
    run_vendor(packed, storage, key, in, static_cast<char*>(out.data) + (f * out[1] + h) * out_row);
  });
}

ConvKey key_of(const Stream& stream, const TensorView& x, const ConvArgs& args) {
  return {.extent = {x[0], x[1], x[2]},
          .stride = args.stride,
          .pad = {args.pad_front, args.pad_h[0], args.pad_h[1], args.pad_w[0], args.pad_w[1]},
          .threads = stream.threads()};
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  auto& storage = packed.storage<ConvStorage>();
  if (storage.pointwise) return conv_pointwise(stream, x, storage.pointwise, args, out);
  if (!storage.vendor_desc.get_size()) return storage.panels.run(stream, x, packed, args, out);
  ConvKey key = key_of(stream, x, args);
  if (stream.deterministic()) {
    if (every_place_reads(packed, args)) return conv_fixed(stream, x, packed, storage, args, out);
    key.threads = 1;
  }
  run_vendor(packed, storage, key, x.data, out.data);
}

}  // namespace

std::string conv_implementation(const Stream& stream, const PackedConv& packed, const TensorView& x,
                                const ConvArgs& args) {
  const auto& storage = packed.storage<ConvStorage>();
  if (storage.pointwise) return "linear";
  if (!storage.vendor_desc.get_size()) return "panels";
  return find_call(packed, storage, key_of(stream, x, args)).implementation;
}

void fill_conv_onednn(Ops& ops) {
  ops.conv.pack_conv = pack_conv;
  ops.conv.conv3d = conv3d;
}

}  // namespace weft::cpu
