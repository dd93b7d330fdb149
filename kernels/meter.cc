#include "kernels/meter.h"

#include <algorithm>
#include <chrono>

#include "kernels/cuda/device.h"

namespace weft {

namespace {

double bytes(const TensorView& x) { return x ? static_cast<double>(x.bytes()) : 0; }

Work moved(OpFamily family, const char* op, double bytes) { return {family, 0, bytes, op}; }

Work linear_work(const TensorView& x, const PackedLinear& packed, const TensorView& out) {
  return {OpFamily::kLinear,
          2.0 * static_cast<double>(x.rows()) * static_cast<double>(packed.in() * packed.out()),
          bytes(x) + bytes(out) + static_cast<double>(packed.bytes()), "linear"};
}

// Query-key pairs hidden by a causal mask are not counted.
Work attention_work(const AttentionArgs& args) {
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
          bytes(args.q) + bytes(args.out) + held, "attention"};
}

Work conv_work(const TensorView& x, const PackedConv& packed, const TensorView& out) {
  const auto [kt, kh, kw] = packed.kernel();
  return {OpFamily::kConv,
          2.0 * static_cast<double>(out.count()) * static_cast<double>(packed.in() * kt * kh * kw),
          bytes(x) + bytes(out) + static_cast<double>(packed.bytes()), "conv3d"};
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

// Packing counts as loading, not as an op. In a dry run there is nothing to pack.
PackedLinear pack_linear_metered(Stream& stream, const TensorView& weight, const TensorView& bias,
                                 DType dtype, WeightFormat format) {
  if (!is_dry_run(stream))
    return base(stream).linear.pack_linear(stream, weight, bias, dtype, format);
  PackedLinear packed;
  packed.out_ = weight[0];
  packed.in_ = weight[1];
  packed.dtype_ = dtype;
  packed.format_ = format;
  packed.bytes_ =
      static_cast<size_t>(weight.count()) * (format == WeightFormat::kCompute ? size_of(dtype) : 1);
  if (bias) packed.bias_ = Tensor(DType::kF32, {weight[0]}, stream.device());
  return packed;
}

PackedConv pack_conv_metered(Stream& stream, const TensorView& weight, const TensorView& bias,
                             DType dtype) {
  if (!is_dry_run(stream)) return base(stream).conv.pack_conv(stream, weight, bias, dtype);
  PackedConv packed;
  packed.out_ = weight[0];
  packed.in_ = weight[1];
  packed.kernel_ = {weight.rank == 5 ? weight[2] : 1, weight[-2], weight[-1]};
  packed.dtype_ = dtype;
  packed.bytes_ = static_cast<size_t>(weight.count()) * size_of(dtype);
  if (bias) packed.bias_ = Tensor(DType::kF32, {weight[0]}, stream.device());
  return packed;
}

Ops make_metered() {
  Ops ops{};
  ops.name = "metered";
  ops.norm = {
      [](Stream& s, const TensorView& x, const TensorView& weight, const TensorView& bias,
         float eps, const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "layer_norm", bytes(x) + bytes(out)),
                [&] { base(s).norm.layer_norm(s, x, weight, bias, eps, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& scale, const TensorView& shift,
         float eps, const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "modulated_layer_norm", bytes(x) + bytes(out)),
                [&] { base(s).norm.modulated_layer_norm(s, x, scale, shift, eps, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& weight, float eps,
         const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "rms_norm", bytes(x) + bytes(out)),
                [&] { base(s).norm.rms_norm(s, x, weight, eps, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& sums) {
        metered(s, moved(OpFamily::kNorm, "sum_squares", bytes(x)),
                [&] { base(s).norm.sum_squares(s, x, sums); });
      },
      [](Stream& s, const TensorView& x, const TensorView& sums, int64_t width,
         const TensorView& weight, float eps, const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "rms_scale", bytes(x) + bytes(out)),
                [&] { base(s).norm.rms_scale(s, x, sums, width, weight, eps, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& gamma, Activation activation,
         const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "channel_rms_norm", bytes(x) + bytes(out)),
                [&] { base(s).norm.channel_rms_norm(s, x, gamma, activation, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& sums) {
        metered(s, moved(OpFamily::kNorm, "group_sums", bytes(x)),
                [&] { base(s).norm.group_sums(s, x, sums); });
      },
      [](Stream& s, const TensorView& x, const TensorView& sums, const TensorView& squares) {
        metered(s, moved(OpFamily::kNorm, "group_squares", bytes(x)),
                [&] { base(s).norm.group_squares(s, x, sums, squares); });
      },
      [](Stream& s, const TensorView& x, const TensorView& sums, const TensorView& squares,
         const TensorView& weight, const TensorView& bias, float eps, Activation activation,
         const TensorView& out) {
        metered(s, moved(OpFamily::kNorm, "group_norm", bytes(x) + bytes(out)), [&] {
          base(s).norm.group_norm(s, x, sums, squares, weight, bias, eps, activation, out);
        });
      }};
  ops.linear = {pack_linear_metered, [](Stream& s, const TensorView& x, const PackedLinear& packed,
                                        LinearActivation activation, const TensorView& out) {
                  metered(s, linear_work(x, packed, out),
                          [&] { base(s).linear.linear(s, x, packed, activation, out); });
                }};
  ops.attention = {
      [](Stream& s, const AttentionArgs& args) {
        metered(s, attention_work(args), [&] { base(s).attention.attention(s, args); });
      },
      [](Stream& s, const TensorView& out_a, const TensorView& lse_a, const TensorView& out_b,
         const TensorView& lse_b) {
        metered(s, moved(OpFamily::kPointwise, "merge_attention", 3 * bytes(out_a)),
                [&] { base(s).attention.merge_attention(s, out_a, lse_a, out_b, lse_b); });
      }};
  ops.rope = {[](Stream& s, const TensorView& x, const Rope& rope, int64_t first_token,
                 const TensorView& out) {
    metered(s, moved(OpFamily::kRope, "apply_rope", bytes(x) + bytes(out)),
            [&] { base(s).rope.apply_rope(s, x, rope, first_token, out); });
  }};
  ops.pointwise = {
      [](Stream& s, const TensorView& a, const TensorView& b, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "add", bytes(a) + bytes(b) + bytes(out)),
                [&] { base(s).pointwise.add(s, a, b, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& y, const TensorView& gate,
         const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "gated_add", bytes(x) + bytes(y) + bytes(out)),
                [&] { base(s).pointwise.gated_add(s, x, y, gate, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& bias, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "add_bias", bytes(x) + bytes(out)),
                [&] { base(s).pointwise.add_bias(s, x, bias, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "silu", bytes(x) + bytes(out)),
                [&] { base(s).pointwise.silu(s, x, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "tanh", bytes(x) + bytes(out)),
                [&] { base(s).pointwise.tanh(s, x, out); });
      },
      [](Stream& s, const TensorView& x, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "gelu_tanh", bytes(x) + bytes(out)),
                [&] { base(s).pointwise.gelu_tanh(s, x, out); });
      },
      [](Stream& s, const TensorView& a, const TensorView& b, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "gelu_tanh_mul", bytes(a) + bytes(b) + bytes(out)),
                [&] { base(s).pointwise.gelu_tanh_mul(s, a, b, out); });
      },
      [](Stream& s, const TensorView& a, const TensorView& b, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "silu_mul", bytes(a) + bytes(b) + bytes(out)),
                [&] { base(s).pointwise.silu_mul(s, a, b, out); });
      },
      [](Stream& s, float a, const TensorView& x, float b, const TensorView& y,
         const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "axpby", bytes(x) + bytes(y) + bytes(out)),
                [&] { base(s).pointwise.axpby(s, a, x, b, y, out); });
      },
      [](Stream& s, std::span<const Term> terms, const TensorView& out) {
        const double views = static_cast<double>(terms.size() + 1);
        metered(s, moved(OpFamily::kPointwise, "combine", views * bytes(out)),
                [&] { base(s).pointwise.combine(s, terms, out); });
      },
      [](Stream& s, const TensorView& x, float low, float high, const TensorView& out) {
        metered(s, moved(OpFamily::kPointwise, "clamp", bytes(x) + bytes(out)),
                [&] { base(s).pointwise.clamp(s, x, low, high, out); });
      },
      [](Stream& s, const TensorView& x) {
        int64_t first = -1;
        metered(s, moved(OpFamily::kPointwise, "first_non_finite", bytes(x)),
                [&] { first = base(s).pointwise.first_non_finite(s, x); });
        return first;
      },
      [](Stream& s, const TensorView& x, const TensorView& slot) {
        metered(s, moved(OpFamily::kPointwise, "note_non_finite", bytes(x)),
                [&] { base(s).pointwise.note_non_finite(s, x, slot); });
      }};
  ops.conv = {pack_conv_metered,
              [](Stream& s, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
                 const TensorView& out) {
                metered(s, conv_work(x, packed, out),
                        [&] { base(s).conv.conv3d(s, x, packed, args, out); });
              },
              [](Stream& s, const TensorView& x, const TensorView& out) {
                metered(s, moved(OpFamily::kCopy, "upsample_nearest2", bytes(x) + bytes(out)),
                        [&] { base(s).conv.upsample_nearest2(s, x, out); });
              }};
  ops.copy = {[](Stream& s, const TensorView& x, const TensorView& out) {
                metered(s, moved(OpFamily::kCopy, "copy", bytes(x) + bytes(out)),
                        [&] { base(s).copy.copy(s, x, out); });
              },
              [](Stream& s, const TensorView& out) {
                metered(s, moved(OpFamily::kCopy, "fill_zero", bytes(out)),
                        [&] { base(s).copy.fill_zero(s, out); });
              },
              [](Stream& s, const TensorView& table, const TensorView& ids, const TensorView& out) {
                metered(s, moved(OpFamily::kCopy, "gather_rows", 2 * bytes(out)),
                        [&] { base(s).copy.gather_rows(s, table, ids, out); });
              },
              [](Stream& s, const TensorView& x, const TensorView& out) {
                metered(s, moved(OpFamily::kCopy, "frames_to_rgb8", bytes(x) + bytes(out)),
                        [&] { base(s).copy.frames_to_rgb8(s, x, out); });
              }};
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
