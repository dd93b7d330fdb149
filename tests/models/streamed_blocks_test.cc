// Every transformer gives the same bits if only a part of its blocks is in memory and the others
// are read from the file ahead of use.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "models/footprint.h"
#include "models/lora/lora.h"
#include "models/random_weights/random_weights.h"
#include "models/registry.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/transport/local.h"
#include "tests/models/config_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/quantised_copy.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

constexpr int kBlocks = 6;
constexpr std::array<int64_t, 3> kStreamedGrid{1, 2, 4};
constexpr int64_t kStreamedTokens = 8, kText = 5;

struct Family {
  const char *name, *golden;
  nlohmann::json blocks;  // the fields of the configuration that count them
};
const Family kStreamedFamilies[] = {
    {"wan", "dit_wan_tiny", {{"num_layers", kBlocks}}},
    {"z_image", "dit_zimage", {{"n_layers", kBlocks}}},
    {"qwen_image", "dit_qwen_image", {{"num_layers", kBlocks}}},
    {"krea2", "dit_krea2", {{"num_layers", kBlocks}}},
    {"flux", "dit_flux", {{"num_layers", kBlocks / 2}, {"num_single_layers", kBlocks}}}};

std::shared_ptr<const TransformerModel> model_of(const Family& family) {
  nlohmann::json config = read_json_file(std::string("tests/golden/") + family.golden +
                                         "/model/transformer/config.json");
  config.update(family.blocks);
  return open_transformer(ConfigFile(config).path());
}

struct Passes {
  std::vector<Tensor> out;  // of forwards at two timesteps
  WeightOffload streamed{};
  size_t streamed_bytes = 0, weights_bytes = 0;
};

// Prepares a prompt and runs two forwards. `reducer` is that of a part of the width.
Passes run(Stream& stream, const Transformer& transformer, Reducer* reducer = nullptr) {
  const TransformerTraits& traits = transformer.traits();
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  IdentityReducer whole;
  Context context{stream,
                  arena,
                  seams.mixer,
                  reducer ? *reducer : whole,
                  seams.halo,
                  {},
                  TokenRanges::all(kStreamedTokens)};
  const Tensor text = waves({kText, traits.text_columns}, 0.7);
  const Tensor pooled = traits.pooled_columns ? waves({traits.pooled_columns}, 0.7) : Tensor();
  const auto conditioning = transformer.prepare(
      context, {.text = text, .text_length = kText, .pooled = pooled, .guidance = 3.5},
      kStreamedGrid);
  const Rope rope = transformer.rope(kStreamedGrid, {}, *conditioning);
  const BlockRange blocks = transformer.loaded().blocks;
  const Tensor in = waves({kStreamedTokens, traits.row()}, 0.7);
  Passes passes;
  for (const float timestep : {900.f, 400.f}) {
    const TimeSegment segment{.tokens = {0, kStreamedTokens}, .timestep = timestep};
    Tensor embedding(DType::kF32, {1, traits.time_columns});
    transformer.timestep_embedding(stream, {&segment, 1}, embedding);
    Tensor out(DType::kF32, {kStreamedTokens, traits.row()});
    transformer.forward(context, {.blocks = blocks,
                                  .in = in,
                                  .times = {&segment, 1},
                                  .embedding = embedding,
                                  .conditioning = *conditioning,
                                  .rope = rope,
                                  .out = out});
    passes.out.push_back(std::move(out));
  }
  passes.streamed = transformer.streamed();
  passes.streamed_bytes = transformer.streamed_bytes();
  passes.weights_bytes = transformer.weights_bytes();
  return passes;
}
Passes run(const TransformerModel& model, const TensorFile& file, const TransformerLoad& load,
           Reducer* reducer = nullptr) {
  Stream stream = Stream::cpu(1);
  return run(stream, *model.load(stream, file, load), reducer);
}

void expect_same(const Passes& is, const Passes& wants, const std::string& about) {
  for (size_t i = 0; i < wants.out.size(); ++i)
    EXPECT_TRUE(bitwise_equal(is.out[i], wants.out[i])) << about << ", forward " << i;
}

class StreamedBlocks : public testing::TestWithParam<Family> {
 protected:
  StreamedBlocks()
      : model(model_of(GetParam())),
        path(testing::TempDir() + "streamed_" + GetParam().name + ".safetensors") {
    write_random(path, random_tensors(model->tensors()));
  }
  ~StreamedBlocks() override { fs::remove(path); }

  std::shared_ptr<const TransformerModel> model;
  std::string path;
};

TEST_P(StreamedBlocks, GiveTheSameBits) {
  const TensorFile file = TensorFile::open(path);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const WeightFormat weights :
         {WeightFormat::kCompute, WeightFormat::kInt8, WeightFormat::kFile}) {
      TransformerLoad load{.dtype = dtype, .weights = weights};
      const Passes whole = run(*model, file, load);
      EXPECT_EQ(whole.streamed_bytes, 0u);
      for (load.resident = 2; load.resident <= 4; ++load.resident) {
        const std::string about = std::string(to_string(dtype)) + ", " + to_string(weights) + ", " +
                                  std::to_string(load.resident) + " resident";
        const Passes streamed = run(*model, file, load);
        expect_same(streamed, whole, about);
        EXPECT_LT(streamed.weights_bytes, whole.weights_bytes) << about;
        EXPECT_GT(streamed.streamed_bytes, 0u) << about;
        // Every streamed block was read once for each forward, and before that for the prompt where
        // a prompt needs the blocks. The first two were there when it was loaded, and two are read
        // in advance.
        EXPECT_EQ(streamed.streamed.bytes % static_cast<int64_t>(streamed.streamed_bytes), 0)
            << about;
        EXPECT_GE(streamed.streamed.bytes, 2 * static_cast<int64_t>(streamed.streamed_bytes))
            << about;
        EXPECT_GT(streamed.streamed.copying_s, 0) << about;
      }
    }
}

// Matrices of 8 bits with a scale per row, which are kept as they are stored, or expanded.
TEST_P(StreamedBlocks, OfAFileInEightBitsGiveTheSameBits) {
  const TensorFile file =
      quantised_copy(std::make_shared<const TensorFile>(TensorFile::open(path)), BlockType::kI8);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Passes expanded = run(*model, file, {.dtype = dtype});
    for (const WeightFormat weights : {WeightFormat::kCompute, WeightFormat::kFile}) {
      const TransformerLoad load{.dtype = dtype, .weights = weights, .resident = 2};
      const std::string about = std::string(to_string(dtype)) + ", " + to_string(weights);
      const Passes streamed = run(*model, file, load);
      expect_same(streamed, expanded, about);
      EXPECT_GT(streamed.streamed_bytes, 0u) << about;
    }
  }
}

// The ranks of a split width each read their part alone.
TEST_P(StreamedBlocks, EveryRankReadsItsPart) {
  const TransformerTraits& traits = model->traits();
  std::array<std::array<Passes, 2>, 2> passes;  // by whether they are streamed, and rank
  std::array<uint64_t, 2> read{};
  run_ranks(2, [&](Communicator& world) {
    const TensorFile file = TensorFile::open(path);
    const int rank = world.rank();
    for (const bool streamed : {false, true}) {
      TensorReducer reducer(world.group({0, 1}, 1));
      passes[streamed][rank] = run(*model, file,
                                   {.width = {.heads = partition(traits.heads, 2, rank),
                                              .ffn = partition(traits.ffn_columns, 2, rank)},
                                    .resident = streamed ? 2 : 0},
                                   &reducer);
    }
    read[rank] = file.bytes_read();
  });
  constexpr int kLoads = 2 + 3;  // both, and three passes over the streamed blocks at most
  const size_t bytes = TensorFile::open(path).bytes();
  for (int rank = 0; rank < 2; ++rank) {
    expect_same(passes[true][rank], passes[false][rank], "rank " + std::to_string(rank));
    EXPECT_GT(passes[true][rank].streamed.bytes, 0);
    EXPECT_LT(static_cast<double>(read[rank]), 0.6 * kLoads * static_cast<double>(bytes));
  }
}

// A dry run holds what a run holds, whatever part of the blocks is in memory.
TEST_P(StreamedBlocks, TakeThePlannedMemory) {
  const TensorFile file = TensorFile::open(path);
  const TensorFile stored =
      quantised_copy(std::make_shared<const TensorFile>(TensorFile::open(path)), BlockType::kI8);
  for (const int resident : {0, 2, 3, 4})
    for (const TensorFile* from : {&file, &stored}) {
      const TransformerLoad load{
          .dtype = DType::kBF16,
          .weights = from == &stored ? WeightFormat::kFile : WeightFormat::kCompute,
          .resident = resident};
      DryRun dry;
      const DryTransformer planned = dry_load(dry, *model, *from, load);
      Stream stream = Stream::cpu(1);
      const size_t before = tensor_bytes_live();
      const std::unique_ptr<Transformer> loaded = model->load(stream, *from, load);
      const std::string about = std::to_string(resident) + " " + to_string(load.weights);
      EXPECT_EQ(planned.weights.held, tensor_bytes_live() - before) << about;
      EXPECT_EQ(planned.model->weights_bytes(), loaded->weights_bytes()) << about;
      EXPECT_EQ(planned.model->streamed_bytes(), loaded->streamed_bytes()) << about;
    }
}

// A file that became shorter while its blocks are read ends the forward with a line that says so.
TEST_P(StreamedBlocks, AFileThatBecomesShorterIsAnError) {
  const TensorFile file = TensorFile::open(path);
  Stream stream = Stream::cpu(1);
  const std::unique_ptr<Transformer> transformer = model->load(stream, file, {.resident = 2});
  fs::resize_file(path, fs::file_size(path) / 2);
  const std::string message = error_of([&] { run(stream, *transformer); }, ErrorKind::kModel);
  EXPECT_TRUE(contains(message, "became shorter"));
}

INSTANTIATE_TEST_SUITE_P(Families, StreamedBlocks, testing::ValuesIn(kStreamedFamilies),
                         [](const testing::TestParamInfo<Family>& info) {
                           return std::string(info.param.name);
                         });

// Blocks are read with the changes of a LoRA.
TEST(StreamedBlocksOf, AChangedModel) {
  const auto model = model_of(kStreamedFamilies[0]);
  const std::string name = "blocks.3.attn1.to_q";
  const int64_t width = model->traits().width;
  Tensor a = waves({2, width}, 0.7), b = waves({width, 2}, 0.7);
  const std::string path = testing::TempDir() + "streamed_lora.safetensors";
  write_safetensors(path, {{"transformer." + name + ".lora_A.weight", a},
                           {"transformer." + name + ".lora_B.weight", b}});
  const std::string base = testing::TempDir() + "streamed_base.safetensors";
  write_random(base, random_tensors(model->tensors()));
  const auto weights = std::make_shared<const TensorFile>(TensorFile::open(base));
  std::vector<std::string> notes;
  const std::vector<Lora> loras{{.file = path, .scale = 0.5}};
  const TensorFile changed = with_loras(weights, *model, loras, notes);
  const Passes whole = run(*model, changed, {.dtype = DType::kBF16});
  expect_same(run(*model, changed, {.dtype = DType::kBF16, .resident = 2}), whole, "changed");
  EXPECT_FALSE(bitwise_equal(run(*model, *weights, {.dtype = DType::kBF16}).out[0], whole.out[0]));
  fs::remove(path);
  fs::remove(base);
}

}  // namespace
}  // namespace weft::test
