#pragma once
// The parts that attention over blocks of products (attention_onednn.cc) takes from elsewhere: the
// online softmax in Highway, and the attention that needs no products for what is small.
#include "kernels/attention.h"
#include "kernels/dtype.h"

namespace weft::cpu {

// Some query rows against one block of keys: logits become probabilities, the running state and the
// running sums follow the new maximum (Milakov & Gimelshein 2018, algorithm 3).
struct SoftenRows {
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
void soften_rows(const SoftenRows& block);

void divide_row(float* x, int64_t count, float by);  // in place
void narrow_bf16(const float* x, int64_t count, bf16* out);

// attention() of the "simd" table.
void attention_simd(Stream& stream, const AttentionArgs& args);

}  // namespace weft::cpu
