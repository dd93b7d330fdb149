// Flash attention (Dao et al. 2022) with queries in the vector lanes: S^T = K Q^T, an online
// softmax down the columns (Milakov & Gimelshein 2018), O^T += V^T P^T. Keys and values are read
// one value at a time, in place; only the queries are packed and only the result is transposed
// back. Each query is computed in its own lane, in key order, in blocks at fixed places: results do
// not depend on the number of threads or on the other queries.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// For each group of 32 queries, Q^T and O^T are 16 KiB each at E = 128, S^T 16 KiB. A block of keys
// and one of values are 64 KiB each; they stay in L2 and are shared by the groups of a task.
constexpr int64_t kLanes = 32, kKeys = 128, kGroups = 4;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Up to kGroups * 32 queries of one head, and their running state.
struct QueryBlock {
  const AttentionArgs* args;
  int64_t head, row, rows;  // query rows [row, row + rows)
  int64_t lanes;            // 32, or 16 if that holds all rows
  int64_t size;             // E
  float* query;             // [groups, E, lanes], scaled
  float* sum;               // [groups, E, lanes]
  float* top;               // [groups, lanes] running maximum
  float* total;             // [groups, lanes] running sum of exponentials
  float* logits;            // [kKeys, lanes]

  int64_t groups() const { return (rows + lanes - 1) / lanes; }
};

// One block of keys and values of one segment, readable as f32.
struct KeyBlock {
  const KVSegment* segment;
  int64_t begin, count;  // keys of the segment
  int64_t column;        // column of the first key in the bias
  TileLeft k;            // [count, E]
  TileLeft v_columns;    // [E, count]
};

template <class T>
const T* head_row(const TensorView& x, int64_t row, int64_t head) {
  return static_cast<const T*>(x.data) + row * x.stride[0] + head * x.stride[1];
}

template <class T>
void load_queries(const QueryBlock& block) {
  const AttentionArgs& args = *block.args;
  for (int64_t g = 0; g < block.groups(); ++g)
    for (int64_t lane = 0; lane < block.lanes; ++lane) {
      const int64_t i = g * block.lanes + lane;
      float* to = block.query + g * block.size * block.lanes + lane;
      const T* from = head_row<T>(args.q, block.row + std::min(i, block.rows - 1), block.head);
      for (int64_t e = 0; e < block.size; ++e) to[e * block.lanes] = to_float(from[e]) * args.scale;
    }
  const int64_t state = block.groups() * block.lanes;
  std::fill_n(block.sum, state * block.size, 0.0f);
  std::fill_n(block.top, state, kMinusInfinity);
  std::fill_n(block.total, state, 0.0f);
}

struct F32Rows {
  const float* data;
  int64_t stride;
};

// Returns rows of k or v in place if they are f32 and only one group reads them, else a dense
// copy.
template <class T>
F32Rows f32_rows(const TensorView& x, int64_t begin, int64_t count, int64_t head, bool copy,
                 Scratch slot) {
  if constexpr (std::is_same_v<T, float>) {
    if (!copy) return {head_row<float>(x, begin, head), x.stride[0]};
  }
  const int64_t size = x[2];
  float* dense = thread_scratch<float>(slot, kKeys * size);
  for (int64_t j = 0; j < count; ++j) {
    const T* from = head_row<T>(x, begin + j, head);
    if constexpr (std::is_same_v<T, float>)
      std::memcpy(dense + j * size, from, size * sizeof(float));
    else
      convert_row(from, size, dense + j * size);
  }
  return {dense, size};
}

// Adds the bias and the segment's log_bias to the logits of one group, and applies the causal mask.
void adjust_logits(const QueryBlock& block, const KeyBlock& keys, int64_t group) {
  const AttentionArgs& args = *block.args;
  const int64_t lanes = block.lanes, first = block.row + group * lanes;
  const int64_t used = std::min(lanes, block.rows - group * lanes);
  for (int64_t j = 0; j < keys.count; ++j) {
    float* row = block.logits + j * lanes;
    if (args.bias) {
      const TensorView& bias = args.bias;
      const float* from = static_cast<const float*>(bias.data) + block.head * bias.stride[0] +
                          first * bias.stride[1] + (keys.column + j) * bias.stride[2];
      for (int64_t i = 0; i < used; ++i) row[i] += from[i * bias.stride[1]];
    }
    if (keys.segment->log_bias != 0)
      for (int64_t i = 0; i < lanes; ++i) row[i] += keys.segment->log_bias;
    if (args.causal) {
      // Queries before the key's position do not see it.
      const int64_t hidden =
          keys.segment->position + keys.begin + j - (args.query_position + first);
      for (int64_t i = 0; i < std::min(hidden, lanes); ++i) row[i] = kMinusInfinity;
    }
  }
}

// Turns logits [count, lanes] into exponentials and rescales the running state to the new maximum.
void online_softmax(const QueryBlock& block, int64_t count, int64_t group) {
  const TileTag d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d)), lanes = block.lanes;
  for (int64_t lane = 0; lane < lanes; lane += step) {
    float* column = block.logits + lane;
    float* top_at = block.top + group * lanes + lane;
    float* total_at = block.total + group * lanes + lane;
    const TileVec before = hn::LoadU(d, top_at);
    TileVec top = before;
    for (int64_t j = 0; j < count; ++j) top = hn::Max(top, hn::LoadU(d, column + j * lanes));
    // No key has been seen yet if the maximum is -inf: any finite shift then turns -inf into 0.
    const TileVec shift = hn::IfThenZeroElse(hn::Eq(top, hn::Set(d, kMinusInfinity)), top);
    TileVec total = hn::Zero(d);
    for (int64_t j = 0; j < count; ++j) {
      const TileVec p = exp_f32(hn::Sub(hn::LoadU(d, column + j * lanes), shift));
      hn::StoreU(p, d, column + j * lanes);
      total = hn::Add(total, p);
    }
    hn::StoreU(top, d, top_at);
    const TileVec rescale = exp_f32(hn::Sub(before, shift));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, total_at), rescale, total), d, total_at);
    if (hn::AllTrue(d, hn::Eq(rescale, hn::Set(d, 1.0f)))) continue;
    float* sum = block.sum + group * block.size * lanes + lane;
    for (int64_t e = 0; e < block.size; ++e, sum += lanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, sum), rescale), d, sum);
  }
}

template <class Out>
void store_rows(const QueryBlock& block) {
  const AttentionArgs& args = *block.args;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t group = i / block.lanes, lane = i % block.lanes;
    const float total = block.total[i];
    // If no key was seen, the sum is 0 and stays 0.
    const float divisor = total == 0 ? 1.0f : total;
    const float* sum = block.sum + group * block.size * block.lanes + lane;
    Out* out = const_cast<Out*>(head_row<Out>(args.out, block.row + i, block.head));
    for (int64_t e = 0; e < block.size; ++e)
      out[e] = from_float<Out>(sum[e * block.lanes] / divisor);
    if (args.lse)
      static_cast<float*>(
          args.lse.data)[block.head * args.lse.stride[0] + (block.row + i) * args.lse.stride[1]] =
          total == 0 ? kMinusInfinity : block.top[i] + std::log(total);
  }
}

template <class T>
void attend_segment(const QueryBlock& block, const KVSegment& segment, int64_t column) {
  const AttentionArgs& args = *block.args;
  int64_t count = segment.k[0];
  if (args.causal)  // no query sees keys past the last query
    count = std::min(count, args.query_position + block.row + block.rows - segment.position);
  const int64_t head = block.head / (args.q[1] / segment.k[1]);
  const bool copy = block.groups() > 1;
  const int64_t lanes = block.lanes, size = block.size;
  for (int64_t begin = 0; begin < count; begin += kKeys) {
    const int64_t block_keys = std::min(kKeys, count - begin);
    const F32Rows k = f32_rows<T>(segment.k, begin, block_keys, head, copy, Scratch::kKeys);
    const F32Rows v = f32_rows<T>(segment.v, begin, block_keys, head, copy, Scratch::kValues);
    const KeyBlock keys{.segment = &segment,
                        .begin = begin,
                        .count = block_keys,
                        .column = column + begin,
                        .k = {k.data, k.stride, 1},
                        .v_columns = {v.data, 1, v.stride}};
    for (int64_t g = 0; g < block.groups(); ++g) {
      tile_gemm(keys.k, keys.count, lanes, size, {block.query + g * size * lanes, lanes},
                {block.logits, lanes, false});
      if (args.bias || args.causal || segment.log_bias != 0) adjust_logits(block, keys, g);
      online_softmax(block, keys.count, g);
      tile_gemm(keys.v_columns, size, lanes, keys.count, {block.logits, lanes},
                {block.sum + g * size * lanes, lanes, true});
    }
  }
}

template <class T>
void attend_block(const AttentionArgs& args, int64_t head, int64_t row, int64_t rows) {
  QueryBlock block{};
  block.args = &args;
  block.head = head;
  block.row = row;
  block.rows = rows;
  block.lanes = rows <= kLanes / 2 ? kLanes / 2 : kLanes;
  block.size = args.q[2];
  const int64_t state = block.groups() * block.lanes;
  block.query = thread_scratch<float>(Scratch::kQuery, state * block.size);
  block.sum = thread_scratch<float>(Scratch::kSums, state * block.size);
  block.top = thread_scratch<float>(Scratch::kState, 2 * state);
  block.total = block.top + state;
  block.logits = thread_scratch<float>(Scratch::kLogits, kKeys * block.lanes);
  load_queries<T>(block);
  int64_t column = 0;
  for (const KVSegment& segment : args.segments) {
    if (segment.k[0] > 0) attend_segment<T>(block, segment, column);
    column += segment.k[0];
  }
  if (args.out.dtype == DType::kF32)
    store_rows<float>(block);
  else
    store_rows<bf16>(block);
}

void attend(const Stream& stream, const AttentionArgs& args) {
  const int64_t queries = args.q[0], heads = args.q[1];
  // Blocks are smaller where large ones would leave threads without work.
  int64_t groups = kGroups;
  while (groups > 1 &&
         heads * ((queries + groups * kLanes - 1) / (groups * kLanes)) < 4 * stream.threads())
    groups /= 2;
  const int64_t rows = groups * kLanes, blocks = (queries + rows - 1) / rows;
  const auto task = [&](int64_t i) {
    // Heads are the outer loop, so that tasks close in time share keys and values in the cache.
    const int64_t row = i % blocks * rows, count = std::min(rows, queries - row);
    if (args.q.dtype == DType::kF32)
      attend_block<float>(args, i / blocks, row, count);
    else
      attend_block<bf16>(args, i / blocks, row, count);
  };
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) keys += segment.k[0];
  // Below about 20 us of work a second thread costs more than it gains.
  if (queries * heads * keys * args.q[2] < int64_t{1} << 19)
    for (int64_t i = 0; i < heads * blocks; ++i) task(i);
  else
    parallel_tasks(stream, heads * blocks, task);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(attend);

void attention_simd(Stream& stream, const AttentionArgs& args) {
  if (args.format == AttentionFormat::kFp8)
    attention_fp8(stream, args);
  else if (is_decode_attention(args))
    attention_decode(stream, args);
  else
    HWY_DYNAMIC_DISPATCH(attend)(stream, args);
}

void fill_attention_simd(Ops& ops) { ops.attention.attention = attention_simd; }

}  // namespace weft::cpu
#endif
