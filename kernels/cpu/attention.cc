// Reference attention: all logits of a query, then one softmax, in f64. The merge of two states is
// here too; its order of operations makes it symmetric to the bit, so this file must be compiled
// without contraction to fused multiply-add.
#include "kernels/attention.h"

#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/linear_fp8.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/tables.h"
#include "kernels/fp8.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kLn2 = 0.69314718055994530942;

template <class T>
const T* head_row(const TensorView& x, int64_t row, int64_t head) {
  return x.as<T>() + row * x.stride[0] + head * x.stride[1];
}

// Computes the logits of query i, head a, over all keys in segment order; -inf where the mask hides
// a key.
template <class T>
void fill_logits(const AttentionArgs& args, int64_t i, int64_t a, std::vector<double>& logits) {
  const TensorView& q = args.q;
  const T* query = head_row<T>(q, i, a);
  logits.clear();
  for (const KVSegment& segment : args.segments) {
    if (segment.k[0] == 0) continue;
    const int64_t kv_head = a / (q[1] / segment.k[1]);
    for (int64_t j = 0; j < segment.k[0]; ++j) {
      if (args.causal && segment.position + j > args.query_position + i) {
        logits.push_back(kMinusInfinity);
        continue;
      }
      double logit = dot(query, head_row<T>(segment.k, j, kv_head), q[2]) * args.scale;
      if (args.bias)
        logit += args.bias.as<float>()[a * args.bias.stride[0] + i * args.bias.stride[1] +
                                       static_cast<int64_t>(logits.size()) * args.bias.stride[2]];
      logits.push_back(logit + segment.log_bias);
    }
  }
}

template <class T, class Out>
void attend_one(const AttentionArgs& args, int64_t i, int64_t a, std::vector<double>& logits,
                std::vector<double>& sum) {
  const int64_t e = args.q[2];
  fill_logits<T>(args, i, a, logits);
  double top = kMinusInfinity, total = 0;
  for (double logit : logits) top = std::max(top, logit);
  const bool eight_bits = args.format == AttentionFormat::kFp8;
  if (eight_bits) top = std::ceil(top / kLn2) * kLn2;
  sum.assign(e, 0.0);
  size_t at = 0;
  for (const KVSegment& segment : args.segments) {
    if (segment.k[0] == 0) continue;
    const int64_t kv_head = a / (args.q[1] / segment.k[1]);
    for (int64_t j = 0; j < segment.k[0]; ++j, ++at) {
      if (logits[at] == kMinusInfinity) continue;
      double p = std::exp(logits[at] - top);
      const T* value = head_row<T>(segment.v, j, kv_head);
      total += p;
      if (eight_bits) p = from_e4m3(to_e4m3(static_cast<float>(p * 256))) / 256.0;
      for (int64_t x = 0; x < e; ++x) sum[x] += p * to_float(value[x]);
    }
  }
  Out* out = args.out.as<Out>() + i * args.out.stride[0] + a * args.out.stride[1];
  for (int64_t x = 0; x < e; ++x)
    out[x] = from_float<Out>(total == 0 ? 0.0f : static_cast<float>(sum[x] / total));
  if (args.lse)
    args.lse.as<float>()[a * args.lse.stride[0] + i * args.lse.stride[1]] =
        static_cast<float>(total == 0 ? kMinusInfinity : top + std::log(total));
}

void attend_all(Stream& stream, const AttentionArgs& args) {
  int64_t keys = 1;
  for (const KVSegment& segment : args.segments) keys += segment.k[0];
  const int64_t queries = args.q[0], heads = args.q[1];
  const auto run = [&](auto tag, auto out_tag) {
    using T = decltype(tag);
    using Out = decltype(out_tag);
    parallel_for(stream, queries * heads, row_grain(keys * args.q[2]),
                 [&](int64_t begin, int64_t end) {
                   std::vector<double> logits, sum;
                   for (int64_t task = begin; task < end; ++task)
                     attend_one<T, Out>(args, task % queries, task / queries, logits, sum);
                 });
  };
  visit_dtype(args.q.dtype, [&](auto tag) {
    visit_dtype(args.out.dtype, [&](auto out_tag) { run(tag, out_tag); });
  });
}

// Copies views with every value rounded to e4m3 and back.
class Rounded {
 public:
  // Finds the largest magnitude of each key/value head of x, or NaN if the head holds NaN or Inf.
  // most.size() is the number of key/value heads.
  static void measure(const TensorView& x, std::vector<float>& most) {
    const int64_t share = x[1] / static_cast<int64_t>(most.size());
    for_each(x, [&](int64_t, int64_t head, int64_t, float value) {
      float& largest = most[head / share];
      largest = larger_e4m3(largest, value);
    });
  }

  TensorView operator()(const TensorView& x, const std::vector<float>& most) {
    const int64_t share = x[1] / static_cast<int64_t>(most.size());
    std::vector<float>& copy = copies_.emplace_back(static_cast<size_t>(x.count()));
    for_each(x, [&](int64_t row, int64_t head, int64_t column, float value) {
      const float scale = e4m3_scale(most[head / share]);  // a NaN scale makes the whole head NaN
      copy[(row * x[1] + head) * x[2] + column] = from_e4m3(to_e4m3(value / scale)) * scale;
    });
    return TensorView(copy.data(), DType::kF32, {x[0], x[1], x[2]});
  }

 private:
  template <class Body>
  static void for_each(const TensorView& x, const Body& body) {
    visit_dtype(x.dtype, [&](auto tag) {
      for (int64_t row = 0; row < x[0]; ++row)
        for (int64_t head = 0; head < x[1]; ++head) {
          const auto* from = head_row<decltype(tag)>(x, row, head);
          for (int64_t column = 0; column < x[2]; ++column)
            body(row, head, column, to_float(from[column]));
        }
    });
  }

  std::deque<std::vector<float>> copies_;
};

}  // namespace

void attention_fp8(Stream& stream, const AttentionArgs& args) {
  const size_t heads = args.segments.empty() ? 1 : static_cast<size_t>(args.segments[0].k[1]);
  std::vector<float> q(heads), k(heads), v(heads);
  Rounded::measure(args.q, q);
  for (const KVSegment& segment : args.segments) {
    Rounded::measure(segment.k, k);
    Rounded::measure(segment.v, v);
  }
  Rounded rounded;
  AttentionArgs copy = args;
  copy.q = rounded(args.q, q);
  std::vector<KVSegment> segments(args.segments.begin(), args.segments.end());
  for (KVSegment& segment : segments) {
    segment.k = rounded(segment.k, k);
    segment.v = rounded(segment.v, v);
  }
  copy.segments = segments;
  attend_all(stream, copy);
}

namespace {

void attention(Stream& stream, const AttentionArgs& args) {
  if (args.format == AttentionFormat::kFp8) return attention_fp8(stream, args);
  attend_all(stream, args);
}

void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b) {
  const int64_t rows = out_a[0], heads = out_a[1], e = out_a[2];
  parallel_for(stream, rows, row_grain(heads * e), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t h = 0; h < heads; ++h) {
        float& la = lse_a.as<float>()[h * lse_a.stride[0] + i * lse_a.stride[1]];
        const float lb = lse_b.as<float>()[h * lse_b.stride[0] + i * lse_b.stride[1]];
        const float top = std::max(la, lb);
        float* a = out_a.as<float>() + i * out_a.stride[0] + h * out_a.stride[1];
        const float* b = out_b.as<float>() + i * out_b.stride[0] + h * out_b.stride[1];
        // Both states are empty. NaN does not take this branch and propagates.
        if (la == lb && top == -std::numeric_limits<float>::infinity()) {
          for (int64_t x = 0; x < e; ++x) a[x] = 0;
          continue;
        }
        const float weight_a = std::exp(la - top), weight_b = std::exp(lb - top);
        const float total = weight_a + weight_b;
        for (int64_t x = 0; x < e; ++x) a[x] = (weight_a * a[x] + weight_b * b[x]) / total;
        la = top + std::log(total);
      }
  });
}

}  // namespace

void fill_attention_reference(Ops& ops) {
  ops.attention = {.attention = attention, .merge_attention = merge_attention};
}

}  // namespace weft::cpu
