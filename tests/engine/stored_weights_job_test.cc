// Jobs whose weights stay as their file stores them draw the frames of expanded weights, under
// every split, and take the memory that is planned. A text encoder of 8-bit integers errs by eight
// bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/copy.h"
#include "parallel/transport/local.h"
#include "tests/engine/delivered_job.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/scaled_copy.h"

namespace weft::test {
namespace {

const std::string kPocket = "models/pocket";

Request pocket_job() {
  Request request = job();
  request.prompt = "a big red ball, circling";
  request.width = request.height = 64;
  return request;
}

GeneratorOptions stored_options(DType dtype, WeightFormat weights,
                                WeightFormat text = WeightFormat::kCompute) {
  GeneratorOptions options = options_of(dtype);
  options.weights = weights;
  options.text_weights = text;
  return options;
}

RunResult draw_stored(const std::string& model, const GeneratorOptions& options,
                      const Layout& layout = {}, PipelineTap* tap = nullptr) {
  RunResult result;
  run_ranks(layout.ranks(), [&](Communicator& world) {
    RunOptions run_options;
    run_options.tap = tap;
    RunResult own = Generator(model, options, RankPlacement::of(world, layout))
                        .run(pocket_job(), nullptr, run_options);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

class StoredJob : public testing::Test {
 protected:
  // Types of 8 bits have a scale per row.
  std::string folder(const std::string& part, BlockType type) {
    const std::string to = dir_ / (part + shape_of(type).name);
    if (std::filesystem::exists(to)) return to;
    const bool scaled = type == BlockType::kI8 || type == BlockType::kF8E4M3;
    (scaled ? copy_with_scaled : copy_with_gguf)(kPocket, to, part, type);
    return to;
  }
  TempDir dir_;
};

TEST_F(StoredJob, DrawTheFramesOfExpandedWeights) {
  for (const BlockType type :
       {BlockType::kQ8_0, BlockType::kQ4_0, BlockType::kF16, BlockType::kI8, BlockType::kF8E4M3})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string model = folder("transformer", type);
      EXPECT_EQ(draw_stored(model, stored_options(dtype, WeightFormat::kFile)).framehash,
                draw_stored(model, stored_options(dtype, WeightFormat::kCompute)).framehash)
          << shape_of(type).name << " " << to_string(dtype);
    }
}

TEST_F(StoredJob, EveryLayoutDrawsTheFramesOfExpandedWeights) {
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kI8}) {
    const std::string model = folder("transformer", type);
    for (const Axis axis : {Axis::kCfg, Axis::kUlysses, Axis::kRing, Axis::kTokenRing,
                            Axis::kLayers, Axis::kTensor}) {
      Layout layout;
      layout[axis] = 2;
      EXPECT_EQ(
          draw_stored(model, stored_options(DType::kF32, WeightFormat::kFile), layout).framehash,
          draw_stored(model, stored_options(DType::kF32, WeightFormat::kCompute), layout).framehash)
          << shape_of(type).name << " " << to_string(layout);
    }
  }
}

// Half of 128 columns is no block of 256, and neither is half of 512 columns cut at 170.
TEST_F(StoredJob, ALayoutThatCutsBlocksIsRefusedBeforeTheJob) {
  const std::string model = folder("transformer", BlockType::kQ4_K);
  Generator generator(model, stored_options(DType::kF32, WeightFormat::kFile));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(pocket_job()));
  EXPECT_EQ(limits.stored.head_block, 1);  // matrices of 128 columns are expanded
  EXPECT_EQ(limits.stored.ffn_block, 256);
  Layout layout;
  layout[Axis::kTensor] = 2;
  EXPECT_EQ(refuse(layout, limits), "");
  layout[Axis::kTensor] = 3;
  EXPECT_TRUE(contains(refuse(layout, limits), "cuts the feed-forward at column 171"));
  for (const Layout& legal : legal_layouts(3, limits)) EXPECT_EQ(legal[Axis::kTensor], 1);
}

TEST_F(StoredJob, ThePlanAgreesWithTheMeasuredHighWater) {
  const auto expect_planned = [&](BlockType type, WeightFormat weights, WeightFormat text) {
    SCOPED_TRACE(shape_of(type).name + std::string(" ") + to_string(weights) + to_string(text));
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_planned_memory(pocket_job(), stored_options(dtype, weights, text),
                            folder("transformer", type));
  };
  for (const auto& [weights, text] : {std::pair{WeightFormat::kFile, WeightFormat::kCompute},
                                      {WeightFormat::kFile, WeightFormat::kInt8},
                                      {WeightFormat::kInt8, WeightFormat::kCompute},
                                      {WeightFormat::kCompute, WeightFormat::kInt8},
                                      {WeightFormat::kFile, WeightFormat::kFile}})
    expect_planned(BlockType::kQ8_0, weights, text);
  for (const WeightFormat weights : {WeightFormat::kFile, WeightFormat::kCompute})
    expect_planned(BlockType::kI8, weights, WeightFormat::kCompute);
}

// Keeps the prompt's rows.
struct Rows final : PipelineTap {
  void tap(const char* name, const TensorView& value) override {
    if (std::string(name) != "prompt_embeds") return;
    rows.assign(value.as<float>(), value.as<float>() + value.count());
  }
  std::vector<float> rows;
};

TEST_F(StoredJob, ATextEncoderErrsByEightBits) {
  Rows exact, int8, file, expanded;
  draw_stored(kPocket, stored_options(DType::kF32, WeightFormat::kCompute), {}, &exact);
  draw_stored(kPocket, stored_options(DType::kF32, WeightFormat::kCompute, WeightFormat::kInt8), {},
              &int8);
  const double error = rel_l2(int8.rows, exact.rows);
  EXPECT_GT(error, 1e-4);
  EXPECT_LT(error, 3e-2);
  const std::string model = folder("text_encoder", BlockType::kQ8_0);
  draw_stored(model, stored_options(DType::kF32, WeightFormat::kCompute, WeightFormat::kFile), {},
              &file);
  draw_stored(model, stored_options(DType::kF32, WeightFormat::kCompute), {}, &expanded);
  EXPECT_EQ(file.rows, expanded.rows);
}

// Any number of ranks gives the rows of one, which encodes alone.
TEST_F(StoredJob, OneRankEncodesWithIntegers) {
  const GeneratorOptions options =
      stored_options(DType::kF32, WeightFormat::kCompute, WeightFormat::kInt8);
  Rows alone;
  draw_stored(kPocket, options, {}, &alone);
  Layout layout;
  layout[Axis::kCfg] = 2;
  std::array<Rows, 2> rows;
  run_ranks(2, [&](Communicator& world) {
    RunOptions run_options;
    run_options.tap = &rows[static_cast<size_t>(world.rank())];
    Generator generator(kPocket, options, RankPlacement::of(world, layout));
    EXPECT_EQ(generator.placement().layout().text_ranks, 1);
    generator.run(pocket_job(), nullptr, run_options);
  });
  for (const Rows& each : rows) EXPECT_EQ(each.rows, alone.rows);
}

// The key of the cache and the record of the job state the format.
TEST_F(StoredJob, TheFormatOfTheTextEncoderIsAFact) {
  const std::string cache = dir_ / "rows";
  const auto files = [&](WeightFormat text) {
    RunOptions options;
    options.text_cache = cache;
    Generator generator(kPocket, stored_options(DType::kF32, WeightFormat::kCompute, text));
    generator.run(pocket_job(), nullptr, options);
    return std::distance(std::filesystem::directory_iterator(cache), {});
  };
  EXPECT_EQ(files(WeightFormat::kCompute), 2);
  EXPECT_EQ(files(WeightFormat::kInt8), 4);
  EXPECT_EQ(files(WeightFormat::kCompute), 4);
  const auto record = [&](WeightFormat text) {
    Generator generator(kPocket, stored_options(DType::kF32, WeightFormat::kCompute, text));
    return generator.job_record(generator.resolve(pocket_job()));
  };
  EXPECT_TRUE(contains(record(WeightFormat::kInt8), "\"text_encoder_weights\":\"int8\""));
  EXPECT_FALSE(contains(record(WeightFormat::kCompute), "text_encoder_weights"));
}

}  // namespace
}  // namespace weft::test
