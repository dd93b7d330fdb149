#include "kernels/attention.h"

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

void attention(Stream& stream, const AttentionArgs& args) {
  const TensorView& q = args.q;
  CHECK(is_heads(stream, q) && is_heads(stream, args.out) && same_shape(q, args.out) &&
            (q.dtype == args.out.dtype || args.out.dtype == DType::kF32),
        "q", q.to_string_shape(), "out", args.out.to_string_shape());
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) {
    const TensorView& k = segment.k;
    CHECK(is_heads(stream, k) && is_heads(stream, segment.v) && same_shape(k, segment.v) &&
              k.dtype == q.dtype && segment.v.dtype == q.dtype,
          "k", k.to_string_shape(), "v", segment.v.to_string_shape());
    CHECK(k[2] == q[2] && k[1] == args.segments[0].k[1] && k[1] > 0 && q[1] % k[1] == 0, "q",
          q.to_string_shape(), "k", k.to_string_shape());
    keys += k[0];
  }
  CHECK(!args.bias || (args.bias.rank == 3 && args.bias.dtype == DType::kF32 &&
                       args.bias[0] == q[1] && args.bias[1] == q[0] && args.bias[2] == keys),
        "bias", args.bias.to_string_shape(), "q", q.to_string_shape(), "keys", keys);
  CHECK(args.format == AttentionFormat::kCompute || (!args.bias && q[2] <= kLargestFp8Head),
        "8-bit attention of q", q.to_string_shape(), "bias", args.bias.to_string_shape());
  CHECK(!args.lse || (args.lse.rank == 2 && args.lse.dtype == DType::kF32 && args.lse[0] == q[1] &&
                      args.lse[1] == q[0]),
        "lse", args.lse.to_string_shape(), "q", q.to_string_shape());
  if (q.count() == 0) return;
  stream.ops().attention.attention(stream, args);
}

void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b) {
  CHECK(is_heads(stream, out_a) && is_heads(stream, out_b) && same_shape(out_a, out_b) &&
            out_a.dtype == DType::kF32 && out_b.dtype == DType::kF32,
        "out_a", out_a.to_string_shape(), "out_b", out_b.to_string_shape());
  CHECK(lse_a.rank == 2 && lse_a.dtype == DType::kF32 && lse_b.dtype == DType::kF32 &&
            same_shape(lse_a, lse_b) && lse_a[0] == out_a[1] && lse_a[1] == out_a[0],
        "lse_a", lse_a.to_string_shape(), "lse_b", lse_b.to_string_shape());
  if (out_a.count() == 0) return;
  stream.ops().attention.merge_attention(stream, out_a, lse_a, out_b, lse_b);
}

}  // namespace weft
