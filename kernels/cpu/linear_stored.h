#pragma once
// Matrices that stay as a file stores them (WeightFormat::kFile), for every CPU table. A call
// expands the matrix into the layout that the table computes with, in scratch that all matrices of
// a model share.
#include "kernels/linear.h"

namespace weft::cpu {

// The layout of the expanded values.
enum class ExpandedLayout : uint8_t {
  kRows,    // [out, in], by the reference expansion
  kPanels,  // LinearPanels
  kPairs,   // oneDNN's BA16a64b2a: panels of 64 outputs whose elements are pairs of bf16 values of
            // one output; `in` is rounded up to 32
};

struct StoredWeights : PackedStorage {
  StoredMatrix matrix;
  ExpandedLayout layout = ExpandedLayout::kRows;
  std::shared_ptr<SharedScratch> scratch;

  // A visitor may change the values, so expanded ones are no longer up to date.
  void for_buffers(const BufferVisitor& visit) override {
    content_ = SharedScratch::new_content();
    visit(matrix.blocks);
    visit(matrix.scales);
  }
  void hold(Stream& stream, StoredMatrix given, ExpandedLayout as, DType dtype,
            std::shared_ptr<SharedScratch> shared);
  // Runs use(data) with the values in `layout` and `dtype`.
  template <class Use>
  void with_values(const Stream& stream, DType dtype, Use&& use) {
    scratch->with(
        content_, [&](void* data) { expand(stream, dtype, data); }, use);
  }

 private:
  void expand(const Stream& stream, DType dtype, void* data) const;

  uint64_t content_ = SharedScratch::new_content();
};

// The stored matrix of a table that has one layout for all.
template <ExpandedLayout kLayout>
PackedLinear pack_stored_as(Stream& stream, StoredMatrix matrix, const TensorView& bias,
                            DType dtype, std::shared_ptr<SharedScratch> scratch) {
  PackedLinear packed(matrix.out, matrix.in, dtype, WeightFormat::kFile);
  packed.make_storage<StoredWeights>().hold(stream, std::move(matrix), kLayout, dtype,
                                            std::move(scratch));
  packed.set_bias(stream, bias);
  return packed;
}

// Packs the values of a stored matrix as kCompute, a few rows at a time.
PackedLinear pack_expanded(Stream& stream, const StoredMatrix& matrix, const TensorView& bias,
                           DType dtype);

}  // namespace weft::cpu
