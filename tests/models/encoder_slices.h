#pragma once
// EncoderSlices: the width of an encoder is split. The parts together equal the whole, and each
// takes the memory that was predicted. Each kind of encoders instantiates the suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "kernels/ops.h"
#include "tests/models/encoder_testing.h"
#include "tests/models/slices_testing.h"

namespace weft::test {

// The ids of the small text encoders' prompt.
inline std::vector<int32_t> small_prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 19; ++i) ids.push_back(i * 7 % 50);
  return ids;
}

// A kind has a small model() of odd widths, an input() of it, the prefix of its names in a file,
// and other tensors that a file of one holds.
struct EncoderKind {
  static TensorFile open(const std::string& path) { return TensorFile::open(path); }
  static constexpr const char* kPrefix = "";
  static std::vector<TensorSpec> others() { return {}; }
};

template <class Kind>
class EncoderSlices : public testing::Test {
 protected:
  EncoderSlices() {
    NamedTensors spelled;
    for (auto& [name, tensor] : random_weights(model_->tensors(), 5))
      spelled[Kind::kPrefix + name] = std::move(tensor);
    for (const TensorSpec& spec : Kind::others())
      spelled[spec.name] = Tensor(DType::kF32, spec.shape);
    write_file(file_, spelled);
  }
  ~EncoderSlices() override { std::remove(file_.c_str()); }

  WidthSlice part(int parts, int rank) const {
    return width_part(model_->traits().heads, model_->traits().ffn_columns, parts, rank);
  }
  std::string file_of(int rank) const { return file_ + std::to_string(rank) + ".safetensors"; }
  // Returns what all of the ranks compute, each of which may read its own file.
  std::vector<double> run(int parts, const EncoderLoad& whole = {}, bool own_files = false) const {
    std::vector<std::vector<double>> out(static_cast<size_t>(parts));
    const auto input = Kind::input();
    run_parts(parts, [&](int rank, Reducer& reducer) {
      const TensorFile file = Kind::open(own_files ? file_of(rank) : file_);
      EncoderLoad load = whole;
      load.width = part(parts, rank);
      Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
      const auto encoder = model_->load(stream, file, load);
      Arena arena(size_t{1} << 26);
      SerialSeams seams;
      const auto tokens = TokenRanges::all(rows_of(model_->traits(), input));
      Context context{stream, arena, seams.mixer, reducer, seams.halo, {}, tokens};
      out[rank] = encoded(*encoder, model_->traits(), context, input);
      const TensorFile shapes = without_values(model_->tensors());
      EXPECT_EQ(arena.high_water(), dry_arena(*model_, shapes, load, input, parts, rank));
      if (rounds_to_8bit(load.weights)) return;  // such matrices are padded to tiles
      // Dry runs pack as this table does.
      Stream panels = Stream::cpu(1, Determinism::kFixed, &cpu_ops());
      DryRun dry;
      EXPECT_EQ(model_->load(panels, file, load)->bytes(),
                model_->load(dry.stream(), shapes, load)->bytes());
    });
    for (const auto& other : out)
      EXPECT_TRUE(other.size() == out[0].size() &&
                  std::memcmp(other.data(), out[0].data(), other.size() * sizeof(double)) == 0);
    return out[0];
  }

  const decltype(Kind::model()) model_ = Kind::model();
  const std::string file_ = own_file();

 private:
  static std::string own_file() {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test.test_suite_name()) + "_" + test.name();
    std::ranges::replace(name, '/', '_');
    return testing::TempDir() + "weft_" + name + ".safetensors";
  }
};
TYPED_TEST_SUITE_P(EncoderSlices);

TYPED_TEST_P(EncoderSlices, JoinedTheyAreTheWhole) {
  const std::vector<double> whole = this->run(1), bf16 = this->run(1, {.dtype = DType::kBF16});
  const double own = relative_l2(bf16, whole);
  for (int parts = 2; parts <= 5; ++parts) {
    EXPECT_LT(relative_l2(this->run(parts), whole), kParallelL2) << parts;
    EXPECT_LT(relative_l2(this->run(parts, {.dtype = DType::kBF16}), bf16), own) << parts;
  }
}

// The matrices of the blocks are packed in the format that is asked for.
TYPED_TEST_P(EncoderSlices, EightBitWeightsAreNear) {
  const double error = relative_l2(this->run(1, {.weights = WeightFormat::kInt8}), this->run(1));
  EXPECT_GT(error, 1e-4);
  EXPECT_LT(error, 0.05);
}

REGISTER_TYPED_TEST_SUITE_P(EncoderSlices, JoinedTheyAreTheWhole, EightBitWeightsAreNear);

}  // namespace weft::test
