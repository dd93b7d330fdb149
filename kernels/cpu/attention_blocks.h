#pragma once
// This header is shared by the CPU versions of attention: the online softmax in Highway, the list
// of all segments' keys, the last step of a row, and the versions that handle special calls.
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cpu/bf16_rows.h"

namespace weft::cpu {

// One step of the online softmax, for some query rows and one block of keys: logits become
// probabilities, and the running maximum, total and sums are rescaled to the new maximum (Milakov &
// Gimelshein 2018, algorithm 3).
struct OnlineSoftmaxRows {
  int64_t rows = 0, keys = 0, size = 0;  // size = E
  // [rows, keys]: q k^T on entry, probabilities on return, but where `narrow` gets them.
  float* logits = nullptr;
  bf16* narrow = nullptr;  // [rows, keys] the probabilities in bf16, in place of f32; or null
  float scale = 1;
  const float* add = nullptr;  // [rows, keys] added after the scale, or null
  int64_t add_stride = 0;      // row stride; 0 = one row for all
  // The first row sees so many of the keys (or none, below 0), each next row one more. The others
  // get probability 0.
  int64_t first_seen = kAllSeen;
  static constexpr int64_t kAllSeen = int64_t{1} << 60;
  float* sums = nullptr;   // [rows, size], rescaled
  float* top = nullptr;    // [rows] running maximum
  float* total = nullptr;  // [rows] running sum of probabilities
};
void online_softmax_rows(const OnlineSoftmaxRows& block);

void divide_row(float* x, int64_t count, float by);  // in place

// Attention in 8 bits, by the definition: every CPU table uses this one version.
void attention_fp8(Stream& stream, const AttentionArgs& args);

// The attention() of the "simd" table.
void attention_simd(Stream& stream, const AttentionArgs& args);

// True for at most 32 rows of queries per key/value head and E a multiple of 16, where
// attention_decode() is faster.
bool is_decode_attention(const AttentionArgs& args);
void attention_decode(Stream& stream, const AttentionArgs& args);

// Divides one row's sums [E] by its total and stores the output and the log-sum-exp; destroys
// `sums`.
void store_attention_row(const AttentionArgs& args, int64_t row, int64_t head, float* sums,
                         float top, float total);

// Fills starts [segments + 1] with the number of keys before each segment; returns the number of
// all keys.
int64_t fill_starts(std::span<const KVSegment> segments, int64_t* starts);

// Keys [begin, begin + count) of one segment; the first of them is key `column` of all.
struct KeyRun {
  const KVSegment* segment;
  int64_t begin, count, column;
};

// Calls body(run) for every segment's share of keys [begin, begin + count) of all, in order.
template <class Body>
void over_keys(std::span<const KVSegment> segments, const int64_t* starts, int64_t begin,
               int64_t count, Body&& body) {
  const int64_t end = begin + count;
  size_t s = std::upper_bound(starts, starts + segments.size(), begin) - starts - 1;
  for (; s < segments.size() && starts[s] < end; ++s) {
    const int64_t from = std::max(begin, starts[s]), to = std::min(end, starts[s + 1]);
    if (from < to) body(KeyRun{&segments[s], from - starts[s], to - from, from});
  }
}

}  // namespace weft::cpu
