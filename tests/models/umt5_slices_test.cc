// The width of a UMT5 encoder is split. The parts together equal the whole, and each reads only its
// own bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "kernels/ops.h"
#include "models/umt5/encoder.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/golden_case.h"

namespace weft {
namespace {

using test::relative_l2;
using test::to_f64;
using test::width_part;

// The parameter tells whether all layers share a position bias, as in T5.
class Umt5Slices : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    config_ = {.d_model = 24,
               .d_kv = 6,
               .d_ff = 37,
               .num_heads = 5,
               .num_layers = 2,
               .vocab_size = 50,
               .num_buckets = 32,
               .max_distance = 128,
               .eps = 1e-6f,
               .shared_bias = GetParam()};
    weights_ = test::random_weights(umt5_tensors(config_), 5);
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(name, '/', '_');
    file_ = testing::TempDir() + "weft_umt5_slices_" + name;
    test::write_file(file_ + ".safetensors", weights_);
  }
  void TearDown() override {
    for (const char* end : {".safetensors", ".0.safetensors", ".1.safetensors", ".2.safetensors"})
      std::remove((file_ + end).c_str());
  }
  // Returns the states of 19 ids, which must be equal on all ranks. Each rank reads its own file.
  Tensor run(int parts, DType dtype, bool own_files = false) {
    std::vector<Tensor> out(static_cast<size_t>(parts));
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 19; ++i) ids.push_back(i * 7 % 50);
    test::run_parts(parts, [&](int rank, Reducer& reducer) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
      const std::string own = own_files ? "." + std::to_string(rank) : "";
      const TensorFile file = TensorFile::open(file_ + own + ".safetensors");
      const WidthSlice width = width_part(config_.num_heads, config_.d_ff, parts, rank);
      const Umt5Encoder encoder = Umt5Encoder::load(file, config_, stream, {dtype, width});
      DryRun dry;
      // Dry runs pack as this table does.
      Stream panels = Stream::cpu(1, Determinism::kFixed, &cpu_ops());
      const TensorFile again = TensorFile::open(file_ + own + ".safetensors");
      EXPECT_EQ(Umt5Encoder::load(again, config_, panels, {dtype, width}).bytes(),
                load_dry(dry, dtype, width).bytes());
      Arena arena(size_t{1} << 26);
      SerialSeams seams;
      Context context{stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(19)};
      out[rank] = Tensor(DType::kF32, {19, config_.d_model});
      encoder.encode(context, ids, out[rank]);
      const Umt5Encoder same = load_dry(dry, dtype, width);
      const auto silent = test::silent_reducer(parts, rank);
      Context dry_context{dry.stream(), dry.arena(), seams.mixer,         *silent,
                          seams.halo,   {},          TokenRanges::all(19)};
      EXPECT_EQ(arena.high_water(), dry_encode(dry, same, dry_context, ids,
                                               dry.tensor(DType::kF32, {19, config_.d_model}))
                                        .arena);
    });
    for (const Tensor& other : out) EXPECT_TRUE(test::bitwise_equal(other, out[0]));
    return std::move(out[0]);
  }

  Umt5Encoder load_dry(DryRun& run, DType dtype, const WidthSlice& width) const {
    return Umt5Encoder::load(without_values(umt5_tensors(config_)), config_, run.stream(),
                             {dtype, width});
  }

  Umt5Config config_;
  test::NamedTensors weights_;
  std::string file_;
};

TEST_P(Umt5Slices, JoinedTheyAreTheWhole) {
  const Tensor whole = run(1, DType::kF32), bf16 = run(1, DType::kBF16);
  const double own = relative_l2(to_f64(bf16), to_f64(whole));
  for (int parts = 2; parts <= 5; ++parts) {
    EXPECT_LT(relative_l2(to_f64(run(parts, DType::kF32)), to_f64(whole)), test::kParallelL2)
        << parts;
    EXPECT_LT(relative_l2(to_f64(run(parts, DType::kBF16)), to_f64(bf16)), own) << parts;
  }
}

TEST_P(Umt5Slices, NothingElseIsUsed) {
  const Tensor whole = run(1, DType::kF32);
  for (int rank = 0; rank < 3; ++rank)
    test::write_poisoned(file_ + "." + std::to_string(rank) + ".safetensors", umt5_tensors(config_),
                         weights_, [&](const TensorSpec& tensor, TensorPart* part) {
                           *part = umt5_part(config_, tensor, width_part(5, 37, 3, rank));
                           return true;
                         });
  EXPECT_LT(relative_l2(to_f64(run(3, DType::kF32, true)), to_f64(whole)), test::kParallelL2);
}

TEST_P(Umt5Slices, ReadsItsBytesAlone) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  uint64_t sliced = 0;
  for (const TensorSpec& tensor : umt5_tensors(config_))
    if (!umt5_part(config_, tensor, width_part(5, 37, 2, 0)).whole(tensor))
      sliced += static_cast<uint64_t>(parameter_count({&tensor, 1})) * sizeof(float);
  for (int parts = 1; parts <= 5; ++parts) {
    uint64_t read = 0;
    size_t held = 0;
    for (int rank = 0; rank < parts; ++rank) {
      const TensorFile file = TensorFile::open(file_ + ".safetensors");
      const WidthSlice width = width_part(5, 37, parts, rank);
      held += Umt5Encoder::load(file, config_, stream, {.width = width}).bytes();
      read += file.bytes_read();
    }
    const size_t whole =
        Umt5Encoder::load(TensorFile::open(file_ + ".safetensors"), config_, stream).bytes();
    EXPECT_EQ(read, parts == 1 ? 0 : sliced) << parts;
    EXPECT_EQ(held, whole + (parts - 1) * (whole - sliced)) << parts;
  }
}

TEST_P(Umt5Slices, APartWithoutASumIsABug) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  const TensorFile file = TensorFile::open(file_ + ".safetensors");
  const auto load = [&](const WidthSlice& width) {
    return Umt5Encoder::load(file, config_, stream, {.width = width});
  };
  EXPECT_DEATH(load({.heads = {5, 5}, .ffn = {30, 37}}), "part");
  EXPECT_DEATH(load({.heads = {4, 5}, .ffn = {}}), "heads");
  const Umt5Encoder part = load({.heads = {4, 5}, .ffn = {30, 37}});
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  Context alone = seams.context(stream, arena, {}, TokenRanges::all(1));
  Tensor out(DType::kF32, {1, config_.d_model});
  const int32_t id = 3;
  EXPECT_DEATH(part.encode(alone, {&id, 1}, out), "a sum over 1 parts");
}

INSTANTIATE_TEST_SUITE_P(SharedBias, Umt5Slices, testing::Bool());

}  // namespace
}  // namespace weft
