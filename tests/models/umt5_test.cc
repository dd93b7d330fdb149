#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "models/umt5/encoder.h"
#include "tests/models/encoder_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

std::vector<int32_t> to_ids(const Tensor& tensor) {
  return {tensor.as<int32_t>(), tensor.as<int32_t>() + tensor.count()};
}

class Umt5Golden : public testing::TestWithParam<std::tuple<const char*, OpsRun>> {};

TEST_P(Umt5Golden, MatchesReference) {
  const auto& [name, run] = GetParam();
  const GoldenCase golden(name);
  Stream stream = Stream::cpu(1, Determinism::kFast, &run.table());
  const TensorFile file = TensorFile::open(golden.folder + "/model/text_encoder");
  const Umt5Config config =
      Umt5Config::from_json_file(golden.folder + "/model/text_encoder/config.json");
  const Umt5Encoder encoder = Umt5Encoder::load(file, config, stream, {.dtype = run.dtype});
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  for (const std::string& input : golden.inputs.names()) {
    const std::vector<int32_t> ids = to_ids(golden.input(input));
    const auto n = static_cast<int64_t>(ids.size());
    Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
    Tensor out(DType::kF32, {n, config.d_model});
    arena.reset_high_water();
    encoder.encode(context, ids, out);
    EXPECT_TRUE(
        golden.matches("last_hidden_state" + input.substr(input.find('.')), out, run.dtype));
    EXPECT_EQ(arena.used(), 0u);
    EXPECT_EQ(arena.high_water(),
              dry_arena(*make_umt5_model(config), file, {.dtype = run.dtype}, ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Umt5Golden,
                         testing::Combine(testing::Values("umt5", "umt5_uneven", "t5"),
                                          testing::ValuesIn(kOpsRuns)));

// Known buckets; delta = key - query.
TEST(Umt5, Buckets) {
  const std::pair<int64_t, int64_t> kExpected[] = {
      {0, 0},   {1, 17},  {-1, 1},  {7, 23},   {-7, 7},    {8, 24},   {-8, 8},   {11, 24}, {12, 25},
      {15, 25}, {16, 26}, {22, 26}, {23, 27},  {31, 27},   {32, 28},  {45, 28},  {46, 29}, {63, 29},
      {64, 30}, {90, 30}, {91, 31}, {128, 31}, {-128, 15}, {500, 31}, {-500, 15}};
  for (const auto& [delta, bucket] : kExpected)
    EXPECT_EQ(umt5_bucket(delta, 32, 128), bucket) << delta;
}

TEST(Umt5, CountsOfTheXxlEncoder) {
  const std::vector<TensorSpec> tensors = umt5_tensors(Umt5Config());
  EXPECT_EQ(parameter_count(tensors), 5'680'910'336);
  EXPECT_EQ(tensors.size(), 242u);
}

TEST(Umt5, CountsOfTheT5XxlEncoder) {
  const std::vector<TensorSpec> tensors = umt5_tensors({.vocab_size = 32128, .shared_bias = true});
  EXPECT_EQ(parameter_count(tensors), 4'762'310'656);
  EXPECT_EQ(tensors.size(), 219u);
}

TEST(Umt5, ForeignTokenIsAnError) {
  const std::string folder = "tests/golden/umt5/model/text_encoder";
  Stream stream = Stream::cpu(1);
  const TensorFile file = TensorFile::open(folder);
  const Umt5Encoder encoder =
      Umt5Encoder::load(file, Umt5Config::from_json_file(folder + "/config.json"), stream);
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(2));
  Tensor out(DType::kF32, {2, 32});
  for (const int32_t bad : {-1, 256}) {
    const int32_t ids[] = {3, bad};
    expect_error(ErrorKind::kModel, std::to_string(bad),
                 [&] { encoder.encode(context, ids, out); });
  }
}

// The embedding may have either of its names, or both, as in some files.
TEST(Umt5, EmbeddingByEitherName) {
  const std::string folder = "tests/golden/umt5/model/text_encoder";
  const TensorFile source = TensorFile::open(folder);
  const Umt5Config config = Umt5Config::from_json_file(folder + "/config.json");
  std::vector<std::pair<std::string, TensorView>> tensors;
  std::vector<Tensor> owned;
  for (const std::string& name : source.names()) {
    owned.push_back(load_tensor(source, name));
    tensors.emplace_back(name == "shared.weight" ? "encoder.embed_tokens.weight" : name,
                         owned.back().view());
  }
  const std::string path = testing::TempDir() + "weft_umt5_names.safetensors";
  Stream stream = Stream::cpu(1);
  write_safetensors(path, tensors);
  {
    const TensorFile file = TensorFile::open(path);
    EXPECT_NO_THROW(Umt5Encoder::load(file, config, stream));
  }
  for (const auto& [name, view] : tensors)
    if (name == "encoder.embed_tokens.weight") {
      tensors.emplace_back("shared.weight", view);
      break;
    }
  write_safetensors(path, tensors);
  const TensorFile file = TensorFile::open(path);
  EXPECT_NO_THROW(Umt5Encoder::load(file, config, stream));
}

}  // namespace
}  // namespace weft::test
