#include "kernels/meter.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/device_plan.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

const DeviceTraits* measured_device() {
  const Meter* meter = thread_meter();
  return meter ? meter->measures() : nullptr;
}

// The buffers of packed weights in a dry run: they have the sizes of the weights that are packed
// for the measured device.
struct MeasuredWeights : PackedStorage {
  Tensor weights, scales, bias_bf16;
  void for_buffers(const BufferVisitor& visit) override {
    visit(weights);
    visit(scales);
    visit(bias_bf16);
  }
};

// `weight` [out, ...] is the matrix to be packed.
void measure_packed(const Stream& stream, PackedWeights& packed, const TensorView& weight,
                    const TensorView& bias, WeightFormat format) {
  const Device place = stream.device();
  const bool eight = format != WeightFormat::kCompute;
  const int64_t out = weight[0], in = weight.count() / out;
  const PackedExtents extents = packed_extents(out, in, packed.dtype(), format);
  auto& buffers = packed.make_storage<MeasuredWeights>();
  buffers.weights =
      Tensor(eight ? DType::kI8 : packed.dtype(), {extents.rows, extents.stride}, place);
  if (eight) {
    buffers.scales = Tensor(DType::kF32, {extents.rows}, place);
    Tensor(weight.dtype, {packing_rows(out, in, weight.dtype), in}, place);  // freed when packed
  }
  if (bias) buffers.bias = Tensor(DType::kF32, bias.shape(), place);
  if (bias && packed.dtype() == DType::kBF16)
    buffers.bias_bf16 = Tensor(DType::kBF16, bias.shape(), place);
}

double bytes(const TensorView& x) { return x ? static_cast<double>(x.bytes()) : 0; }

// The work of an op that moves the bytes of its arguments at positions kAt, which are views.
template <OpFamily kFamily, size_t... kAt>
constexpr auto moved = [](const char* op, const auto&... arguments) -> Work {
  const auto all = std::tie(arguments...);
  return {kFamily, 0, (bytes(std::get<kAt>(all)) + ...), op};
};

Work combine_work(const char* op, std::span<const Term> terms, const TensorView& out) {
  return {OpFamily::kPointwise, 0, static_cast<double>(terms.size() + 1) * bytes(out), op};
}

size_t linear_scratch(const TensorView& x, const PackedLinear& packed, LinearActivation activation,
                      const TensorView& out) {
  const DeviceTraits* device = measured_device();
  if (!device) return 0;
  return linear_scratch_bytes({.rows = x.rows(),
                               .in = packed.in(),
                               .out = packed.out(),
                               .dtype = packed.dtype(),
                               .format = packed.format(),
                               .result = out.dtype,
                               .activation = activation},
                              *device);
}

Work linear_work(const char* op, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out) {
  return {OpFamily::kLinear,
          2.0 * static_cast<double>(x.rows()) * static_cast<double>(packed.in() * packed.out()),
          bytes(x) + bytes(out) + static_cast<double>(packed.bytes()), op,
          linear_scratch(x, packed, activation, out)};
}

// The sum is read, too.
Work linear_add_work(const char* op, const TensorView& x, const PackedLinear& packed,
                     const TensorView& sum) {
  Work work = linear_work(op, x, packed, LinearActivation::kNone, sum);
  work.bytes += bytes(sum);
  return work;
}

size_t attention_scratch(const AttentionArgs& args) {
  const DeviceTraits* device = measured_device();
  if (!device || args.segments.empty()) return 0;
  const TensorView& q = args.q;
  AttentionShape shape{
      .queries = q[0],
      .heads = q[1],
      .kv_heads = args.segments[0].k[1],
      .size = q[2],
      .segments = static_cast<int64_t>(args.segments.size()),
      .one_more = args.segments.size() == 2 && args.segments[1].k[0] == 1,
      .dtype = q.dtype,
      .format = args.format,
      .bias = static_cast<bool>(args.bias),
      .plain = !args.bias && !args.causal && args.scale > 0 && args.out.dtype == q.dtype};
  for (const KVSegment& segment : args.segments) shape.keys += segment.k[0];
  return attention_scratch_bytes(shape, *device);
}

// Query-key pairs hidden by a causal mask are not counted.
Work attention_work(const char* op, const AttentionArgs& args) {
  double pairs = 0, held = 0;
  const int64_t n = args.q[0];
  for (const KVSegment& segment : args.segments) {
    const int64_t keys = segment.k[0];
    held += bytes(segment.k) + bytes(segment.v);
    if (!args.causal) {
      pairs += static_cast<double>(n * keys);
      continue;
    }
    for (int64_t i = 0; i < n; ++i)
      pairs += static_cast<double>(
          std::clamp<int64_t>(args.query_position + i + 1 - segment.position, 0, keys));
  }
  return {OpFamily::kAttention, 4 * pairs * static_cast<double>(args.q[1] * args.q[2]),
          bytes(args.q) + bytes(args.out) + held, op, attention_scratch(args)};
}

Work conv_work(const char* op, const TensorView& x, const PackedConv& packed, const ConvArgs&,
               const TensorView& out) {
  const auto [kt, kh, kw] = packed.kernel();
  return {OpFamily::kConv,
          2.0 * static_cast<double>(out.count()) * static_cast<double>(packed.in() * kt * kh * kw),
          bytes(x) + bytes(out) + static_cast<double>(packed.bytes()), op,
          measured_device() ? kConvWorkspace : 0};
}

// Returns the table that the metered table of this stream wraps.
const Ops& base(const Stream& stream) {
  return stream.device().kind == Device::Kind::kCuda ? cuda_ops() : cpu_ops();
}

// An op on a device ends when the device has finished it, so a meter that needs times waits for the
// device.
void metered(const Stream& stream, const Work& work, const std::function<void()>& run) {
  Meter* meter = thread_meter();
  if (!meter) return run();
  if (!stream.queue() || !meter->waits()) return meter->op(work, run);
  meter->op(work, [&] {
    run();
    stream.sync();
  });
}

// Packing counts as loading, not as an op. In a dry run there is nothing to pack. Where no device
// is measured, the CPU's table says what its layout takes.
PackedLinear pack_linear_metered(Stream& stream, const TensorView& weight, const TensorView& bias,
                                 DType dtype, WeightFormat format) {
  if (!is_dry_run(stream))
    return base(stream).linear.pack_linear(stream, weight, bias, dtype, format);
  if (!measured_device()) {
    Stream host = stream_on({Device::Kind::kMeasuredHost});
    return cpu_ops().linear.pack_linear(host, weight, bias, dtype, format);
  }
  PackedLinear packed(weight, dtype, format);
  measure_packed(stream, packed, weight, bias, format);
  return packed;
}

PackedLinear pack_stored_metered(Stream& stream, StoredMatrix matrix, const TensorView& bias,
                                 DType dtype, std::shared_ptr<SharedScratch> scratch) {
  Stream host = stream_on({Device::Kind::kMeasuredHost});
  const bool dry = is_dry_run(stream);
  CHECK(!dry || !measured_device(), "weights of a device in their file's format");
  return (dry ? cpu_ops() : base(stream))
      .linear.pack_stored(dry ? host : stream, std::move(matrix), bias, dtype, std::move(scratch));
}

PackedConv pack_conv_metered(Stream& stream, const TensorView& weight, const TensorView& bias,
                             DType dtype) {
  if (!is_dry_run(stream)) return base(stream).conv.pack_conv(stream, weight, bias, dtype);
  if (!measured_device()) {
    Stream host = stream_on({Device::Kind::kMeasuredHost});
    return cpu_ops().conv.pack_conv(host, weight, bias, dtype);
  }
  PackedConv packed(weight, dtype);
  measure_packed(stream, packed, weight, bias, WeightFormat::kCompute);
  return packed;
}

template <size_t kSize>
struct Name {
  char text[kSize];
  constexpr Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
};

// Makes an entry of `ops`: it hands kWork's description of a call to the meter, and the same entry
// of the wrapped table runs the call.
template <Name kName, auto kFamily, auto kEntry, auto kWork, class Family, class Result,
          class... Arguments>
void meter_as(Ops& ops, Result (*Family::*)(Stream&, Arguments...)) {
  ops.*kFamily.*kEntry = [](Stream& stream, Arguments... arguments) {
    const auto op = base(stream).*kFamily.*kEntry;
    const Work work = kWork(kName.text, arguments...);
    if constexpr (std::is_void_v<Result>) {
      metered(stream, work, [&] { op(stream, arguments...); });
    } else {
      Result result{-1};  // of a dry run
      metered(stream, work, [&] { result = op(stream, arguments...); });
      return result;
    }
  };
}
template <Name kName, auto kFamily, auto kEntry, auto kWork>
void meter(Ops& ops) {
  meter_as<kName, kFamily, kEntry, kWork>(ops, kEntry);
}

void meter_pointwise(Ops& ops) {
  using enum OpFamily;
  using Of = PointwiseOps;
  constexpr auto kOf = &Ops::pointwise;
  meter<"add", kOf, &Of::add, moved<kPointwise, 0, 1, 2>>(ops);
  meter<"gated_add", kOf, &Of::gated_add, moved<kPointwise, 0, 1, 3>>(ops);
  meter<"add_bias", kOf, &Of::add_bias, moved<kPointwise, 0, 2>>(ops);
  meter<"silu", kOf, &Of::silu, moved<kPointwise, 0, 1>>(ops);
  meter<"gelu_tanh", kOf, &Of::gelu_tanh, moved<kPointwise, 0, 1>>(ops);
  meter<"gelu_erf", kOf, &Of::gelu_erf, moved<kPointwise, 0, 1>>(ops);
  meter<"gelu_quick", kOf, &Of::gelu_quick, moved<kPointwise, 0, 1>>(ops);
  meter<"gelu_tanh_mul", kOf, &Of::gelu_tanh_mul, moved<kPointwise, 0, 1, 2>>(ops);
  meter<"tanh", kOf, &Of::tanh, moved<kPointwise, 0, 1>>(ops);
  meter<"silu_mul", kOf, &Of::silu_mul, moved<kPointwise, 0, 1, 2>>(ops);
  meter<"sigmoid_mul", kOf, &Of::sigmoid_mul, moved<kPointwise, 0, 1, 2>>(ops);
  meter<"axpby", kOf, &Of::axpby, moved<kPointwise, 1, 3, 4>>(ops);
  meter<"combine", kOf, &Of::combine, combine_work>(ops);
  meter<"clamp", kOf, &Of::clamp, moved<kPointwise, 0, 3>>(ops);
  meter<"first_non_finite", kOf, &Of::first_non_finite, moved<kPointwise, 0>>(ops);
  meter<"note_non_finite", kOf, &Of::note_non_finite, moved<kPointwise, 0>>(ops);
}

Ops make_metered() {
  using enum OpFamily;
  Ops ops{};
  ops.name = "metered";
  constexpr auto kOfNorm = &Ops::norm;
  constexpr auto kOfFused = &Ops::fused;
  meter<"layer_norm", kOfNorm, &NormOps::layer_norm, moved<kNorm, 0, 4>>(ops);
  meter<"modulated_layer_norm", kOfNorm, &NormOps::modulated_layer_norm, moved<kNorm, 0, 4>>(ops);
  meter<"gated_add_norm", kOfFused, &FusedOps::gated_add_norm, moved<kNorm, 0, 0, 1, 4>>(ops);
  meter<"rms_norm", kOfNorm, &NormOps::rms_norm, moved<kNorm, 0, 3>>(ops);
  meter<"rms_norm_rope", kOfFused, &FusedOps::rms_norm_rope, moved<kNorm, 0, 4>>(ops);
  meter<"sum_squares", kOfNorm, &NormOps::sum_squares, moved<kNorm, 0>>(ops);
  meter<"rms_scale", kOfNorm, &NormOps::rms_scale, moved<kNorm, 0, 5>>(ops);
  meter<"channel_rms_norm", kOfNorm, &NormOps::channel_rms_norm, moved<kNorm, 0, 3>>(ops);
  meter<"group_sums", kOfNorm, &NormOps::group_sums, moved<kNorm, 0>>(ops);
  meter<"group_squares", kOfNorm, &NormOps::group_squares, moved<kNorm, 0>>(ops);
  meter<"group_norm", kOfNorm, &NormOps::group_norm, moved<kNorm, 0, 7>>(ops);
  ops.linear.pack_linear = pack_linear_metered;
  ops.linear.pack_stored = pack_stored_metered;
  meter<"linear", &Ops::linear, &LinearOps::linear, linear_work>(ops);
  meter<"linear_add", kOfFused, &FusedOps::linear_add, linear_add_work>(ops);
  meter<"attention", &Ops::attention, &AttentionOps::attention, attention_work>(ops);
  meter<"merge_attention", &Ops::attention, &AttentionOps::merge_attention,
        moved<kPointwise, 0, 0, 0>>(ops);
  meter<"apply_rope", &Ops::rope, &RopeOps::apply_rope, moved<kRope, 0, 3>>(ops);
  meter_pointwise(ops);
  ops.conv.pack_conv = pack_conv_metered;
  meter<"conv3d", &Ops::conv, &ConvOps::conv3d, conv_work>(ops);
  meter<"upsample_nearest2", &Ops::conv, &ConvOps::upsample_nearest2, moved<kCopy, 0, 1>>(ops);
  meter<"copy", &Ops::copy, &CopyOps::copy, moved<kCopy, 0, 1>>(ops);
  meter<"fill_zero", &Ops::copy, &CopyOps::fill_zero, moved<kCopy, 0>>(ops);
  meter<"gather_rows", &Ops::copy, &CopyOps::gather_rows, moved<kCopy, 2, 2>>(ops);
  meter<"frames_to_rgb8", &Ops::copy, &CopyOps::frames_to_rgb8, moved<kCopy, 0, 1>>(ops);
  meter<"encode_rows", &Ops::row_code, &RowCodeOps::encode_rows, moved<kCopy, 0, 1, 2>>(ops);
  meter<"decode_rows", &Ops::row_code, &RowCodeOps::decode_rows, moved<kCopy, 0, 1, 2>>(ops);
  return ops;
}

}  // namespace

Zone zone_of(OpFamily family) {
  constexpr Zone kZoneOf[] = {Zone::kLinear, Zone::kAttention, Zone::kConv, Zone::kNorm,
                              Zone::kRope,   Zone::kPointwise, Zone::kCopy};
  static_assert(std::size(kZoneOf) == kOpFamilies);
  return kZoneOf[static_cast<int>(family)];
}

const Ops& metered_ops() {
  static const Ops ops = make_metered();
  return ops;
}

bool is_dry_run(const Stream& stream) {
  const Meter* meter = thread_meter();
  return meter && &stream.ops() == &metered_ops() && !meter->runs();
}

bool computes_on_device(const Stream& stream) { return stream.queue() || measured_device(); }

void TimingMeter::op(const Work& work, const std::function<void()>& run) {
  const auto begun = std::chrono::steady_clock::now();
  run();
  Total& total = totals_[static_cast<int>(work.family)];
  total.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  total.flop += work.flop;
  total.bytes += work.bytes;
  ++total.calls;
}

}  // namespace weft
