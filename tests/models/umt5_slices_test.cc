// A part of a UMT5 encoder's width needs and reads only its own bytes.
#include <gtest/gtest.h>

#include "models/umt5/encoder.h"
#include "tests/models/encoder_slices.h"

namespace weft::test {
namespace {

// `shared` tells whether all layers share a position bias, as in T5.
template <bool shared>
struct SmallUmt5 : EncoderKind {
  static Umt5Config config() {
    return {.d_model = 24,
            .d_kv = 6,
            .d_ff = 37,
            .num_heads = 5,
            .num_layers = 2,
            .vocab_size = 50,
            .num_buckets = 32,
            .max_distance = 128,
            .eps = 1e-6f,
            .shared_bias = shared};
  }
  static auto model() { return make_umt5_model(config()); }
  static std::vector<int32_t> input() { return small_prompt(); }
};
using Umt5Kinds = testing::Types<SmallUmt5<false>, SmallUmt5<true>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Umt5, EncoderSlices, Umt5Kinds);

template <class Kind>
class Umt5Slices : public EncoderSlices<Kind> {
 protected:
  TensorPart held(const TensorSpec& tensor, int parts, int rank) const {
    return umt5_part(Kind::config(), tensor, this->part(parts, rank));
  }
  std::unique_ptr<TextEncoder> load(const TensorFile& file, const WidthSlice& width = {}) {
    return this->model_->load(stream_, file, {.width = width});
  }

  Stream stream_ = Stream::cpu(1, Determinism::kFixed, &reference_ops());
};
TYPED_TEST_SUITE(Umt5Slices, Umt5Kinds);

TYPED_TEST(Umt5Slices, NothingElseIsUsed) {
  const std::vector<TensorSpec> tensors = this->model_->tensors();
  for (int rank = 0; rank < 3; ++rank)
    write_poisoned(this->file_of(rank), tensors, random_weights(tensors, 5),
                   [&](const TensorSpec& tensor, TensorPart* part) {
                     *part = this->held(tensor, 3, rank);
                     return true;
                   });
  EXPECT_LT(relative_l2(this->run(3, {}, true), this->run(1)), kParallelL2);
  for (int rank = 0; rank < 3; ++rank) std::remove(this->file_of(rank).c_str());
}

TYPED_TEST(Umt5Slices, ReadsItsBytesAlone) {
  uint64_t sliced = 0;
  for (const TensorSpec& tensor : this->model_->tensors())
    if (!this->held(tensor, 2, 0).whole(tensor))
      sliced += static_cast<uint64_t>(parameter_count({&tensor, 1})) * sizeof(float);
  const size_t whole = this->load(TensorFile::open(this->file_))->bytes();
  for (int parts = 1; parts <= 5; ++parts) {
    uint64_t read = 0;
    size_t held = 0;
    for (int rank = 0; rank < parts; ++rank) {
      const TensorFile file = TensorFile::open(this->file_);
      held += this->load(file, this->part(parts, rank))->bytes();
      read += file.bytes_read();
    }
    EXPECT_EQ(read, parts == 1 ? 0 : sliced) << parts;
    EXPECT_EQ(held, whole + (parts - 1) * (whole - sliced)) << parts;
  }
}

TYPED_TEST(Umt5Slices, APartWithoutASumIsABug) {
  const TensorFile file = TensorFile::open(this->file_);
  EXPECT_DEATH(this->load(file, {.heads = {5, 5}, .ffn = {30, 37}}), "part");
  EXPECT_DEATH(this->load(file, {.heads = {4, 5}, .ffn = {}}), "heads");
  const auto part = this->load(file, {.heads = {4, 5}, .ffn = {30, 37}});
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  Context alone = seams.context(this->stream_, arena, {}, TokenRanges::all(1));
  const std::vector<int32_t> id{3};
  EXPECT_DEATH(encoded(*part, this->model_->traits(), alone, id), "a sum over 1 parts");
}

}  // namespace
}  // namespace weft::test
