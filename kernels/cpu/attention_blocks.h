#pragma once
// What the versions of attention share: the online softmax in Highway, the list of all segments'
// keys, the last step of a row, and the versions that others leave some calls to.
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/dtype.h"

namespace weft::cpu {

// Some query rows against one block of keys: logits become probabilities, the running state and the
// running sums follow the new maximum (Milakov & Gimelshein 2018, algorithm 3).
struct OnlineSoftmaxRows {
  int64_t rows = 0, keys = 0, size = 0;  // size = E
  float* logits = nullptr;               // [rows, keys]: products in, probabilities out
  bf16* narrow = nullptr;                // [rows, keys] the probabilities rounded, or null
  float scale = 1;
  const float* add = nullptr;  // [rows, keys] added after the scale, or null
  int64_t add_stride = 0;      // from row to row; 0 = one row for all
  float* sums = nullptr;       // [rows, size], faded
  float* top = nullptr;        // [rows] running maximum
  float* total = nullptr;      // [rows] running sum of probabilities
};
void online_softmax_rows(const OnlineSoftmaxRows& block);

void divide_row(float* x, int64_t count, float by);  // in place
void narrow_bf16(const float* x, int64_t count, bf16* out);

// Attention in 8 bits by the definition: every table of the CPU has this alone.
void attention_fp8(Stream& stream, const AttentionArgs& args);

// attention() of the "simd" table.
void attention_simd(Stream& stream, const AttentionArgs& args);

// At most 32 rows of queries per key/value head, E a multiple of 16: attention_decode() is faster.
bool is_decode_attention(const AttentionArgs& args);
void attention_decode(Stream& stream, const AttentionArgs& args);

// One row's sums [E], destroyed, and its state become its output and log-sum-exp.
void store_attention_row(const AttentionArgs& args, int64_t row, int64_t head, float* sums,
                         float top, float total);

// starts [segments + 1]: how many keys lie before each segment; returns how many there are.
int64_t fill_starts(std::span<const KVSegment> segments, int64_t* starts);

// Keys [begin, begin + count) of one segment; the first is key `column` of all.
struct KeyRun {
  const KVSegment* segment;
  int64_t begin, count, column;
};

// Calls body(run) for what keys [begin, begin + count) of all are in their segments, in order.
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
