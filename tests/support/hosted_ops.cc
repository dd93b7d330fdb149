#include "tests/support/hosted_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"

namespace weft::test {

namespace {

Stream& device_stream(const Stream& host) {
  // These are never destroyed: when a process exits, the driver and the libraries, whose handles a
  // queue would give back, may be gone before.
  static auto& fast = *new Stream(cuda_stream(0, Determinism::kFast, 1));
  static auto& fixed = *new Stream(cuda_stream(0, Determinism::kFixed, 1));
  return host.deterministic() ? fixed : fast;
}

// Holds the memory of one call's views on the device.
class Trip {
 public:
  Trip(const Stream& host, const std::vector<TensorView>& inputs,
       const std::vector<TensorView>& outputs)
      : stream_(device_stream(host)) {
    for (const TensorView& view : inputs) add(view, false);
    for (const TensorView& view : outputs) add(view, true);
    merge();
    for (Span& span : spans_) {
      span.device = static_cast<char*>(
          device_malloc(stream_.device(), static_cast<size_t>(span.end - aligned(span.begin))));
      copy(on_device(span, span.begin), span.begin, span, cudaMemcpyHostToDevice);
    }
  }
  ~Trip() {
    for (const Span& span : spans_)
      device_free(stream_.device(), span.device,
                  static_cast<size_t>(span.end - aligned(span.begin)));
  }
  Trip(const Trip&) = delete;
  Trip& operator=(const Trip&) = delete;

  Stream& stream() { return stream_; }

  TensorView operator[](TensorView view) const {
    if (!view) return view;
    auto* const data = static_cast<char*>(view.data);
    for (const Span& span : spans_)
      if (span.begin <= data && data < span.end) view.data = on_device(span, data);
    view.device = stream_.device();
    return view;
  }

  // Copies outputs back, and checks that inputs have not changed.
  void finish() {
    for (const Span& span : spans_) {
      const auto bytes = static_cast<size_t>(span.end - span.begin);
      std::vector<char> back(bytes);
      copy(back.data(), on_device(span, span.begin), span, cudaMemcpyDeviceToHost);
      stream_.sync();
      if (!span.output)
        CHECK(std::memcmp(back.data(), span.begin, bytes) == 0, "an op changed its input");
      else
        std::memcpy(span.begin, back.data(), bytes);
    }
  }

 private:
  struct Span {
    char *begin, *end;
    bool output;
    char* device = nullptr;
  };

  // Addresses keep their offset within 64 bytes, because the host aligns tensors to 64 bytes.
  static char* aligned(char* at) { return at - reinterpret_cast<uintptr_t>(at) % 64; }
  static char* on_device(const Span& span, char* at) {
    return span.device + (at - aligned(span.begin));
  }

  void add(const TensorView& view, bool output) {
    if (!view || view.count() == 0) return;
    CHECK(view.device == Device{}, "a view of the host");
    int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) last += (view.extent[i] - 1) * view.stride[i];
    auto* const begin = static_cast<char*>(view.data);
    const auto bytes = (last + 1) * static_cast<int64_t>(size_of(view.dtype));
    spans_.push_back({begin, begin + bytes, output});
  }

  void merge() {
    std::ranges::sort(spans_, {}, &Span::begin);
    std::vector<Span> merged;
    for (const Span& span : spans_) {
      if (merged.empty() || span.begin >= merged.back().end) {
        merged.push_back(span);
        continue;
      }
      merged.back().end = std::max(merged.back().end, span.end);
      merged.back().output |= span.output;
    }
    spans_ = std::move(merged);
  }

  void copy(void* to, const void* from, const Span& span, cudaMemcpyKind kind) {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(span.end - span.begin), kind,
                                    cuda_queue(stream_).stream()));
  }

  Stream& stream_;
  std::vector<Span> spans_;
};

void collect(std::vector<TensorView>& views, const TensorView& view) { views.push_back(view); }
template <class T>
void collect(std::vector<TensorView>&, const T&) {}

TensorView translate(const Trip& trip, const TensorView& view) { return trip[view]; }
template <class T>
const T& translate(const Trip&, const T& value) {
  return value;
}

// Runs an entry of the op table whose last view is its output, or that has no output.
template <auto family, auto entry, class R, class... A>
R run(Stream& host, A... arguments) {
  std::vector<TensorView> views;
  (collect(views, arguments), ...);
  Trip trip(host, {views.begin(), views.end() - 1}, {views.back()});
  const auto call = [&] {
    return (cuda_ops().*family.*entry)(trip.stream(), translate(trip, arguments)...);
  };
  if constexpr (std::is_void_v<R>) {
    call();
    trip.finish();
  } else {
    const R result = call();
    trip.finish();
    return result;
  }
}

template <auto family, auto entry, class F, class R, class... A>
void host(Ops& ops, R (*F::*)(Stream&, A...)) {
  ops.*family.*entry = run<family, entry, R, A...>;
}
template <auto family, auto entry>
void host(Ops& ops) {
  host<family, entry>(ops, entry);
}

PackedLinear pack_linear(Stream& host, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  Stream& stream = device_stream(host);
  PackedLinear packed = cuda_ops().linear.pack_linear(stream, weight, bias, dtype, format);
  stream.sync();
  return packed;
}

PackedLinear pack_stored(Stream& host, StoredMatrix matrix, const TensorView& bias, DType dtype,
                         std::shared_ptr<SharedScratch> scratch) {
  return cuda_ops().linear.pack_stored(device_stream(host), std::move(matrix), bias, dtype,
                                       std::move(scratch));
}

PackedConv pack_conv(Stream& host, const TensorView& weight, const TensorView& bias, DType dtype) {
  Stream& stream = device_stream(host);
  PackedConv packed = cuda_ops().conv.pack_conv(stream, weight, bias, dtype);
  stream.sync();
  return packed;
}

void attention(Stream& host, const AttentionArgs& args) {
  std::vector<TensorView> inputs{args.q, args.bias};
  for (const KVSegment& segment : args.segments) {
    inputs.push_back(segment.k);
    inputs.push_back(segment.v);
  }
  Trip trip(host, inputs, {args.out, args.lse});
  std::vector<KVSegment> segments(args.segments.begin(), args.segments.end());
  for (KVSegment& segment : segments) {
    segment.k = trip[segment.k];
    segment.v = trip[segment.v];
  }
  AttentionArgs on_device = args;
  on_device.q = trip[args.q];
  on_device.segments = segments;
  on_device.bias = trip[args.bias];
  on_device.out = trip[args.out];
  on_device.lse = trip[args.lse];
  cuda_ops().attention.attention(trip.stream(), on_device);
  trip.finish();
}

void combine(Stream& host, std::span<const Term> terms, const TensorView& out) {
  std::vector<TensorView> inputs;
  for (const Term& term : terms) inputs.push_back(term.x);
  Trip trip(host, inputs, {out});
  std::vector<Term> on_device(terms.begin(), terms.end());
  for (Term& term : on_device) term.x = trip[term.x];
  cuda_ops().pointwise.combine(trip.stream(), on_device, trip[out]);
  trip.finish();
}

void merge_attention(Stream& host, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b) {
  Trip trip(host, {out_b, lse_b}, {out_a, lse_a});
  cuda_ops().attention.merge_attention(trip.stream(), trip[out_a], trip[lse_a], trip[out_b],
                                       trip[lse_b]);
  trip.finish();
}

void apply_rope(Stream& host, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  Trip trip(host, {x}, {out});
  const Rope there = on_device(trip.stream(), rope);
  cuda_ops().rope.apply_rope(trip.stream(), trip[x], there, first_token, trip[out]);
  trip.finish();
}

void host_plain_entries(Ops& ops) {
  host<&Ops::norm, &NormOps::layer_norm>(ops);
  host<&Ops::norm, &NormOps::modulated_layer_norm>(ops);
  host<&Ops::norm, &NormOps::rms_norm>(ops);
  host<&Ops::norm, &NormOps::sum_squares>(ops);
  host<&Ops::norm, &NormOps::rms_scale>(ops);
  host<&Ops::norm, &NormOps::channel_rms_norm>(ops);
  host<&Ops::norm, &NormOps::group_sums>(ops);
  host<&Ops::norm, &NormOps::group_squares>(ops);
  host<&Ops::norm, &NormOps::group_norm>(ops);
  host<&Ops::linear, &LinearOps::linear>(ops);
  host<&Ops::fused, &FusedOps::linear_add>(ops);
  host<&Ops::pointwise, &PointwiseOps::add>(ops);
  host<&Ops::pointwise, &PointwiseOps::gated_add>(ops);
  host<&Ops::pointwise, &PointwiseOps::add_bias>(ops);
  host<&Ops::pointwise, &PointwiseOps::silu>(ops);
  host<&Ops::pointwise, &PointwiseOps::tanh>(ops);
  host<&Ops::pointwise, &PointwiseOps::gelu_tanh>(ops);
  host<&Ops::pointwise, &PointwiseOps::gelu_erf>(ops);
  host<&Ops::pointwise, &PointwiseOps::gelu_quick>(ops);
  host<&Ops::pointwise, &PointwiseOps::gelu_tanh_mul>(ops);
  host<&Ops::pointwise, &PointwiseOps::silu_mul>(ops);
  host<&Ops::pointwise, &PointwiseOps::sigmoid_mul>(ops);
  host<&Ops::pointwise, &PointwiseOps::axpby>(ops);
  host<&Ops::pointwise, &PointwiseOps::clamp>(ops);
  host<&Ops::pointwise, &PointwiseOps::first_non_finite>(ops);
  host<&Ops::pointwise, &PointwiseOps::note_non_finite>(ops);
  host<&Ops::conv, &ConvOps::conv3d>(ops);
  host<&Ops::conv, &ConvOps::upsample_nearest2>(ops);
  host<&Ops::copy, &CopyOps::copy>(ops);
  host<&Ops::copy, &CopyOps::fill_zero>(ops);
  host<&Ops::copy, &CopyOps::gather_rows>(ops);
  host<&Ops::copy, &CopyOps::frames_to_rgb8>(ops);
  host<&Ops::row_code, &RowCodeOps::encode_rows>(ops);
  host<&Ops::row_code, &RowCodeOps::decode_rows>(ops);
}

}  // namespace

const Ops& hosted_ops() {
  static const Ops ops = [] {
    Ops made{};
    made.name = "cuda";
    host_plain_entries(made);
    made.linear.pack_linear = pack_linear;
    made.linear.pack_stored = pack_stored;
    made.conv.pack_conv = pack_conv;
    made.pointwise.combine = combine;
    made.rope.apply_rope = apply_rope;
    made.attention.attention = attention;
    made.attention.merge_attention = merge_attention;
    return made;
  }();
  return ops;
}

}  // namespace weft::test
