// Convolution by oneDNN's BRGEMM kernels if they accept the packed weights, else by panel_gemm over
// gathered windows.
#include <cstring>

#include "kernels/cpu/conv_panels.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel_for.h"
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

struct ConvStorage : PackedStorage {
  PackedLinear pointwise;  // for 1x1x1 kernels, a linear layer over pixels
  ConvPanels panels;
  // This is oneDNN's description of the same bytes; it is zero if oneDNN does not read them.
  memory::desc vendor_desc;
  OnednnCache<ConvKey> calls;
  void for_buffers(const BufferVisitor& visit) override {
    pointwise.for_buffers(visit);
    visit(panels.buffer());
  }
};

int64_t taps(const PackedConv& packed) {
  return packed.kernel()[0] * packed.kernel()[1] * packed.kernel()[2];
}

memory::desc weight_desc(const PackedConv& packed, int64_t block) {
  const auto [kt, kh, kw] = packed.kernel();
  const int i = static_cast<int>(block / 16) - 1;
  if (kt == 1) {
    constexpr Tag kTag[] = {Tag::Ohwi16o, Tag::Ohwi32o, Tag::Ohwi48o, Tag::Ohwi64o};
    return {{packed.out(), packed.in(), kh, kw}, memory::data_type::f32, kTag[i]};
  }
  constexpr Tag kTag[] = {Tag::Odhwi16o, Tag::Odhwi32o, Tag::Odhwi48o, Tag::Odhwi64o};
  return {{packed.out(), packed.in(), kt, kh, kw}, memory::data_type::f32, kTag[i]};
}

// kt = 1 makes F independent pictures; otherwise x is one volume.
OnednnCall make_conv(const PackedConv& packed, const memory::desc& weight, const ConvKey& key) {
  OmpThreads threads(key.threads);
  const auto [kt, kh, kw] = packed.kernel();
  const auto [f, h, w] = key.extent;
  const auto [front, above, below, left, right] = key.pad;
  const auto [st, sh, sw] = key.stride;
  const int64_t of = (f + front - kt) / st + 1, oh = (h + above + below - kh) / sh + 1,
                ow = (w + left + right - kw) / sw + 1;
  const bool volume = kt > 1;
  const auto desc = [&](int64_t channels, int64_t d0, int64_t d1, int64_t d2) {
    return volume ? memory::desc({1, channels, d0, d1, d2}, memory::data_type::f32, Tag::ndhwc)
                  : memory::desc({d0, channels, d1, d2}, memory::data_type::f32, Tag::nhwc);
  };
  OnednnCall call;
  call.in = desc(packed.in(), f, h, w);
  call.out = desc(packed.out(), of, oh, ow);
  if (packed.bias()) call.bias = memory::desc({packed.out()}, memory::data_type::f32, Tag::a);
  const auto dims = [&](int64_t d0, int64_t d1, int64_t d2) {
    return volume ? memory::dims{d0, d1, d2} : memory::dims{d1, d2};
  };
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::convolution_forward::desc conv(
      dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, call.in, weight,
      call.bias, call.out, dims(st, sh, sw), dims(front, above, left), dims(0, below, right));
  const dnnl::convolution_forward::primitive_desc chosen(conv, attr, onednn_engine(), true);
  if (!chosen.get(true)) return call;
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  if (is_fast_implementation(call.implementation))
    call.primitive = dnnl::convolution_forward(chosen);
  return call;
}

// Returns the output channels per panel. oneDNN's BRGEMM convolution picks 16, 32 or 48 by the
// picture's size and refuses any other; it is asked at the size of a 480p latent, the heavy case.
// Small pictures for which it would have chosen another block take the panel path.
int64_t choose_block(const PackedConv& packed, int threads) {
  const int64_t best = ConvPanels::widest_block(packed.out());
  if (packed.dtype() != DType::kF32 || !has_avx512()) return best;
  const auto [kt, kh, kw] = packed.kernel();
  const memory::desc any(kt == 1 ? memory::dims{packed.out(), packed.in(), kh, kw}
                                 : memory::dims{packed.out(), packed.in(), kt, kh, kw},
                         memory::data_type::f32, Tag::any);
  const OnednnCall call = make_conv(packed, any,
                                    {.extent = {kt, 60, 104},
                                     .stride = {1, 1, 1},
                                     .pad = {0, kh / 2, kh / 2, kw / 2, kw / 2},
                                     .threads = threads});
  if (!call) return best;
  for (int64_t block : {16, 32, 48, 64})
    if (call.weight == weight_desc(packed, block)) return block;
  return best;
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
  const int64_t block = stream.device().measured() ? ConvPanels::widest_block(packed.out())
                                                   : choose_block(packed, stream.threads());
  storage.panels = ConvPanels(stream, weight, dtype, block);
  if (dtype == DType::kF32 && has_avx512()) storage.vendor_desc = weight_desc(packed, block);
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

// Runs x in one oneDNN call; returns false if oneDNN has no fast kernel for the shape.
bool run_vendor(const PackedConv& packed, ConvStorage& storage, const ConvKey& key, const float* x,
                float* out) {
  const auto call =
      storage.calls.get(key, [&] { return make_conv(packed, storage.vendor_desc, key); });
  if (!*call) return false;
  OmpThreads scope(key.threads);
  run_onednn(*call, x, storage.panels.data(), packed.bias(), out);
  return true;
}

// From this many frames on, deterministic mode gives each output frame to oneDNN on one thread.
// For fewer frames, panel_gemm shares out the pixels, with the same bits for any number of
// threads.
constexpr int64_t kFixedFrames = 4;

bool conv_frames(Stream& stream, const TensorView& x, const PackedConv& packed,
                 ConvStorage& storage, ConvKey key, const TensorView& out) {
  // Padding in front would give the first frames other shapes.
  if (out[0] < kFixedFrames || key.pad[0] != 0) return false;
  key.threads = 1;
  key.extent[0] = packed.kernel()[0];
  const auto call =
      storage.calls.get(key, [&] { return make_conv(packed, storage.vendor_desc, key); });
  if (!*call) return false;
  const int64_t in_frame = x[1] * x[2] * x[3], out_frame = out[1] * out[2] * out[3];
  parallel_tasks(stream, out[0], [&](int64_t f) {
    CHECK(run_vendor(packed, storage, key, x.as<float>() + f * key.stride[0] * in_frame,
                     out.as<float>() + f * out_frame),
          "frame", f);
  });
  return true;
}

ConvKey key_of(const Stream& stream, const TensorView& x, const ConvArgs& args) {
  return {.extent = {x[0], x[1], x[2]},
          .stride = args.stride,
          .pad = {args.pad_front, args.pad_h[0], args.pad_h[1], args.pad_w[0], args.pad_w[1]},
          .threads = stream.threads()};
}

// oneDNN's 2D convolution has no padding or stride over frames.
bool convolves_panels(const PackedConv& packed, const ConvStorage& storage, const ConvArgs& args) {
  if (!storage.vendor_desc.get_size()) return true;
  return packed.kernel()[0] == 1 && (args.pad_front != 0 || args.stride[0] != 1);
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  auto& storage = packed.storage<ConvStorage>();
  if (storage.pointwise) return conv_pointwise(stream, x, storage.pointwise, args, out);
  if (!convolves_panels(packed, storage, args)) {
    const ConvKey key = key_of(stream, x, args);
    if (stream.deterministic() ? conv_frames(stream, x, packed, storage, key, out)
                               : run_vendor(packed, storage, key, x.as<float>(), out.as<float>()))
      return;
  }
  storage.panels.run(stream, x, packed, args, out);
}

}  // namespace

std::string conv_implementation(const Stream& stream, const PackedConv& packed, const TensorView& x,
                                const ConvArgs& args) {
  const auto& storage = packed.storage<ConvStorage>();
  if (storage.pointwise) return "linear";
  if (convolves_panels(packed, storage, args)) return "panels";
  const OnednnCall call = make_conv(packed, storage.vendor_desc, key_of(stream, x, args));
  return call ? call.implementation : "panels";
}

void fill_conv_onednn(Ops& ops) {
  ops.conv.pack_conv = pack_conv;
  ops.conv.conv3d = conv3d;
}

}  // namespace weft::cpu
