// Attention of few queries over many keys (as in decoding a token): reading keys and values once is
// most of the work. All query heads of one key/value head pass over its keys together. Head
// elements lie in the vector lanes, so nothing is padded when a step has one query. The keys are
// cut in parts at fixed places, whose states merge in order: results do not depend on the number of
// threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// The keys of one pass of the softmax: 16 KiB each of bf16 keys and values at E = 128.
constexpr int64_t kBlock = 64;
constexpr int64_t kKeysAtOnce = 4, kDotRows = kTileRows > 6 ? 4 : 2;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One call. Row r of a key/value head is query r / share of its query head r % share.
struct DecodeJob {
  const AttentionArgs* args;
  // heads counts key/value heads, share the query heads of each; rows = N share; size = E.
  int64_t heads, share, rows, size;
  int64_t keys, part, parts;  // part: keys of each part
  const int64_t* starts;      // first key of each segment
  float* query;               // [heads, rows, E], scaled
  float* sums;                // [parts, heads, rows, E]
  float* state;               // [parts, heads, 2, rows]: running maximum, running sum
};

// Keys [begin, begin + count) of one segment for one head, count <= kBlock.
struct DecodeBlock {
  const KVSegment* segment;
  int64_t begin, count, column, head;
  int64_t width;  // logits row stride: count rounded up to whole groups of keys
};

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void sum_four(const TileVec* x, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(x[i]);
}
#else
template <class D>
HWY_INLINE void store_folded(D d, hn::Vec<D> x, float* out) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    store_folded(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), out);
  } else {
    hn::StoreU(x, d, out);
  }
}

// out[i] = the sum over the lanes of x[i]: two exchanges inside blocks of four, then the sum of the
// blocks.
HWY_INLINE void sum_four(const TileVec* x, float* out) {
  const TileTag d;
  const hn::RepartitionToWide<TileTag> pairs;
  const auto ab = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1])));
  const auto cd = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3])));
  store_folded(d,
               hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, cd)),
                       hn::BitCast(d, hn::InterleaveUpper(pairs, ab, cd))),
               out);
}
#endif

// logits [rows, 4] = query [rows, E] times four keys.
template <int kRows, class T>
HWY_INLINE void dot_block(const float* query, int64_t size, const T* const* keys, float* logits,
                          int64_t logits_row) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  TileVec sum[kRows][kKeysAtOnce];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kKeysAtOnce; ++i) sum[r][i] = hn::Zero(d);
  for (int64_t e = 0; e < size; e += lanes) {
    TileVec k[kKeysAtOnce];
#pragma GCC unroll 4
    for (int i = 0; i < kKeysAtOnce; ++i) k[i] = load(keys[i] + e);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const TileVec q = hn::LoadU(d, query + r * size + e);
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) sum[r][i] = hn::MulAdd(q, k[i], sum[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum_four(sum[r], logits + r * logits_row);
}

template <class T>
const T* head_row(const TensorView& x, int64_t row, int64_t head) {
  return static_cast<const T*>(x.data) + row * x.stride[0] + head * x.stride[1];
}

template <class T>
void fill_logits(const DecodeJob& job, const DecodeBlock& block, float* logits) {
  constexpr int64_t kAhead = 32;  // keys; the hardware prefetcher does not follow such strides
  const TensorView& k = block.segment->k;
  for (int64_t j = 0; j < block.count; j += kKeysAtOnce) {
    const T* keys[kKeysAtOnce];
    for (int64_t i = 0; i < kKeysAtOnce; ++i) {
      keys[i] = head_row<T>(k, block.begin + std::min(j + i, block.count - 1), block.head);
      for (int64_t e = 0; e < job.size; e += 64 / static_cast<int64_t>(sizeof(T)))
        hwy::Prefetch(keys[i] + kAhead * k.stride[0] + e);
    }
    const float* query = job.query + block.head * job.rows * job.size;
    for (int64_t r = 0; r < job.rows; r += kDotRows)
      with_rows<kDotRows>(std::min(kDotRows, job.rows - r), [&](auto n) {
        dot_block<n>(query + r * job.size, job.size, keys, logits + r * block.width + j,
                     block.width);
      });
  }
}

// Adds the bias and the segment's log_bias and applies the causal mask; logits without a key become
// -inf.
void adjust_logits(const DecodeJob& job, const DecodeBlock& block, float* logits) {
  const AttentionArgs& args = *job.args;
  for (int64_t r = 0; r < job.rows; ++r, logits += block.width) {
    const int64_t i = r / job.share, head = block.head * job.share + r % job.share;
    if (args.bias) {
      const TensorView& bias = args.bias;
      const float* from = static_cast<const float*>(bias.data) + head * bias.stride[0] +
                          i * bias.stride[1] + block.column * bias.stride[2];
      for (int64_t j = 0; j < block.count; ++j) logits[j] += from[j * bias.stride[2]];
    }
    const float log_bias = block.segment->log_bias;
    if (log_bias != 0)
      for (int64_t j = 0; j < block.count; ++j) logits[j] += log_bias;
    int64_t seen = block.count;
    if (args.causal)
      seen = std::clamp<int64_t>(
          args.query_position + i + 1 - block.segment->position - block.begin, 0, block.count);
    std::fill(logits + seen, logits + block.width, kMinusInfinity);
  }
}

template <class T>
void attend_part(const DecodeJob& job, int64_t head, int64_t part) {
  const AttentionArgs& args = *job.args;
  float* logits = thread_scratch<float>(Scratch::kLogits, job.rows * kBlock);
  float* sums = job.sums + (part * job.heads + head) * job.rows * job.size;
  float* top = job.state + (part * job.heads + head) * 2 * job.rows;
  std::fill_n(sums, job.rows * job.size, 0.0f);
  std::fill_n(top, job.rows, kMinusInfinity);
  std::fill_n(top + job.rows, job.rows, 0.0f);
  const int64_t first = part * job.part, count = std::min(job.part, job.keys - first);
  over_keys(args.segments, job.starts, first, count, [&](const KeyRun& run) {
    const KVSegment& segment = *run.segment;
    int64_t end = run.begin + run.count;
    if (args.causal)  // no query sees keys past the last query
      end = std::min(end, args.query_position + args.q[0] - segment.position);
    for (int64_t begin = run.begin; begin < end; begin += kBlock) {
      DecodeBlock block{.segment = &segment,
                        .begin = begin,
                        .count = std::min(kBlock, end - begin),
                        .column = run.column + begin - run.begin,
                        .head = head,
                        .width = 0};
      block.width = (block.count + kKeysAtOnce - 1) / kKeysAtOnce * kKeysAtOnce;
      fill_logits<T>(job, block, logits);
      if (args.causal || args.bias || segment.log_bias != 0 || block.width != block.count)
        adjust_logits(job, block, logits);
      online_softmax_rows({.rows = job.rows,
                           .keys = block.width,
                           .size = job.size,
                           .logits = logits,
                           .sums = sums,
                           .top = top,
                           .total = top + job.rows});
      tile_gemv<T>({logits, block.width, 1}, job.rows, job.size, block.count,
                   {head_row<T>(segment.v, begin, head), segment.v.stride[0]},
                   {sums, job.size, true});
    }
  });
}

// Merges the parts' states of one head, in order, into the first part's, and stores the head's rows
// of the output.
void merge_parts(const DecodeJob& job, int64_t head) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t state_step = job.heads * 2 * job.rows, sums_step = job.heads * job.rows * job.size;
  for (int64_t r = 0; r < job.rows; ++r) {
    float* top = job.state + head * 2 * job.rows + r;
    float* total = top + job.rows;
    float* sums = job.sums + (head * job.rows + r) * job.size;
    for (int64_t part = 1; part < job.parts; ++part) {
      const float other = top[part * state_step], most = std::max(*top, other);
      if (total[part * state_step] == 0) continue;  // this part has seen no key
      const float keep = std::exp(*top - most), take = std::exp(other - most);
      const float* from = sums + part * sums_step;
      const TileVec kept = hn::Set(d, keep), taken = hn::Set(d, take);
      for (int64_t e = 0; e < job.size; e += lanes)
        hn::StoreU(hn::MulAdd(hn::LoadU(d, from + e), taken, hn::Mul(hn::LoadU(d, sums + e), kept)),
                   d, sums + e);
      *total = *total * keep + total[part * state_step] * take;
      *top = most;
    }
    store_attention_row(*job.args, r / job.share, head * job.share + r % job.share, sums, *top,
                        *total);
  }
}

template <class T>
void load_queries(const DecodeJob& job) {
  const AttentionArgs& args = *job.args;
  float* to = job.query;
  for (int64_t head = 0; head < job.heads; ++head)
    for (int64_t r = 0; r < job.rows; ++r) {
      const T* from = head_row<T>(args.q, r / job.share, head * job.share + r % job.share);
      for (int64_t e = 0; e < job.size; ++e) *to++ = to_float(from[e]) * args.scale;
    }
}

void attend_decode(const Stream& stream, const AttentionArgs& args) {
  DecodeJob job{};
  job.args = &args;
  job.heads = args.segments[0].k[1];
  job.share = args.q[1] / job.heads;
  job.rows = args.q[0] * job.share;
  job.size = args.q[2];
  const int64_t segments = static_cast<int64_t>(args.segments.size());
  int64_t* starts = thread_scratch<int64_t>(Scratch::kStarts, segments + 1);
  job.starts = starts;
  job.keys = fill_starts(args.segments, starts);
  // The states of all parts then take at most an eighth of the memory of the keys and values.
  job.part = 256 * ((job.rows + 7) / 8);
  job.parts = std::max<int64_t>(1, (job.keys + job.part - 1) / job.part);
  const int64_t states = job.parts * job.heads * job.rows;
  job.query = thread_scratch<float>(Scratch::kQuery, job.heads * job.rows * job.size);
  job.sums = thread_scratch<float>(Scratch::kSums, states * job.size);
  job.state = thread_scratch<float>(Scratch::kState, 2 * states);
  const bool wide = args.q.dtype == DType::kF32;
  wide ? load_queries<float>(job) : load_queries<bf16>(job);
  // Parts are the outer loop, so that tasks close in time read neighbouring heads of the same rows.
  const auto task = [&](int64_t i) {
    wide ? attend_part<float>(job, i % job.heads, i / job.heads)
         : attend_part<bf16>(job, i % job.heads, i / job.heads);
  };
  const int64_t tasks = job.parts * job.heads;
  const int64_t bytes =
      2 * job.keys * job.heads * job.size * static_cast<int64_t>(size_of(args.q.dtype));
  // One core takes about 20 us for 256 KiB of keys and values.
  if (bytes < int64_t{1} << 18) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    for (int64_t head = 0; head < job.heads; ++head) merge_parts(job, head);
    return;
  }
  parallel_tasks(stream, tasks, task);
  parallel_for(stream, job.heads, row_grain(job.parts * job.rows * job.size),
               [&](int64_t begin, int64_t end) {
                 for (int64_t head = begin; head < end; ++head) merge_parts(job, head);
               });
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(attend_decode);

bool is_decode_attention(const AttentionArgs& args) {
  if (args.segments.empty()) return false;
  const int64_t rows = args.q[0] * (args.q[1] / args.segments[0].k[1]);
  return rows <= 32 && args.q[2] % 16 == 0;
}

void attention_decode(Stream& stream, const AttentionArgs& args) {
  HWY_DYNAMIC_DISPATCH(attend_decode)(stream, args);
}

int64_t fill_starts(std::span<const KVSegment> segments, int64_t* starts) {
  *starts = 0;
  for (const KVSegment& segment : segments) {
    starts[1] = starts[0] + segment.k[0];
    ++starts;
  }
  return *starts;
}

void store_attention_row(const AttentionArgs& args, int64_t row, int64_t head, float* sums,
                         float top, float total) {
  const TensorView& out = args.out;
  const int64_t at = row * out.stride[0] + head * out.stride[1];
  divide_row(sums, out[2], total == 0 ? 1 : total);
  if (out.dtype == DType::kF32)
    std::memcpy(out.as<float>() + at, sums, out[2] * sizeof(float));
  else
    narrow_bf16(sums, out[2], out.as<bf16>() + at);
  if (args.lse)
    args.lse.as<float>()[head * args.lse.stride[0] + row * args.lse.stride[1]] =
        total == 0 ? -std::numeric_limits<float>::infinity() : top + std::log(total);
}

}  // namespace weft::cpu
#endif
