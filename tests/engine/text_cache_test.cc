// A job whose prompts' rows are kept in a folder draws the same frames, and needs no text encoder.
#include "engine/conditions/text_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

RunResult draw_with_cache(const std::string& folder, const Request& request,
                          const Layout& layout = {}, DType dtype = DType::kF32,
                          const std::string& model = kModel) {
  RunResult result;
  run_ranks(layout.ranks(), [&](Communicator& world) {
    RunOptions options;
    options.text_cache = folder;
    RunResult own = Generator(model, options_of(dtype), RankPlacement::of(world, layout))
                        .run(request, nullptr, options);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

bool encodes(const RunResult& result) {
  return std::ranges::any_of(
      result.stages, [](const StageSeconds& stage) { return stage.stage == "encode_text"; });
}

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(TextCache, ASecondJobEncodesNothing) {
  const TempDir dir;
  const std::string folder = dir / "rows";
  const RunResult plain = draw_with_cache("", job()), first = draw_with_cache(folder, job()),
                  second = draw_with_cache(folder, job());
  EXPECT_EQ(files_in(folder), 2u);  // the prompt and the negative one
  EXPECT_TRUE(encodes(first));
  EXPECT_FALSE(encodes(second));
  EXPECT_LT(second.tensor_bytes_peak, first.tensor_bytes_peak);
  EXPECT_EQ(first.framehash, plain.framehash);
  EXPECT_EQ(second.framehash, plain.framehash);
}

TEST(TextCache, RanksReceiveTheRows) {
  const TempDir dir;
  const std::string folder = dir / "rows";
  for (const Axis axis : {Axis::kCfg, Axis::kUlysses, Axis::kLayers}) {
    Layout layout;
    layout[axis] = 2;
    const std::string text = to_string(layout);
    const RunResult plain = draw_with_cache("", job(), layout),
                    first = draw_with_cache(folder, job(), layout),
                    second = draw_with_cache(folder, job(), layout);
    EXPECT_TRUE(encodes(first)) << text;
    EXPECT_FALSE(encodes(second)) << text;
    EXPECT_EQ(first.framehash, plain.framehash) << text;
    EXPECT_EQ(second.framehash, plain.framehash) << text;
    fs::remove_all(folder);
  }
}

// A model that reads a prompt as rows and as a vector has a file for either.
TEST(TextCache, HoldsThePromptsOfTwoEncoders) {
  const TempDir dir;
  const std::string folder = dir / "rows", model = "tests/golden/pipeline_flux_schnell/model";
  Request request;
  request.prompt = "a small red ball";
  request.width = request.height = 32;
  request.steps = 2;
  request.seed = 3;
  for (const int ranks : {1, 3}) {  // three ranks split one encoder over all, the other over two
    Layout layout;
    layout[Axis::kUlysses] = ranks;
    const auto run = [&](const std::string& kept) {
      return draw_with_cache(kept, request, layout, DType::kF32, model);
    };
    const RunResult plain = run(""), first = run(folder), second = run(folder);
    EXPECT_EQ(files_in(folder), 2u);
    EXPECT_TRUE(encodes(first));
    EXPECT_FALSE(encodes(second));
    EXPECT_EQ(first.framehash, plain.framehash);
    EXPECT_EQ(second.framehash, plain.framehash);
    fs::remove(*fs::directory_iterator(folder));
    EXPECT_TRUE(encodes(run(folder)));
    EXPECT_EQ(files_in(folder), 2u);
    fs::remove_all(folder);
  }
}

TEST(TextCache, AnotherPromptOrDtypeIsEncoded) {
  const TempDir dir;
  const std::string folder = dir.path();
  draw_with_cache(folder, job());
  Request other = job();
  other.prompt = "a blue cube";
  EXPECT_TRUE(encodes(draw_with_cache(folder, other)));
  EXPECT_FALSE(encodes(draw_with_cache(folder, other)));
  EXPECT_TRUE(encodes(draw_with_cache(folder, job(), {}, DType::kBF16)));
}

TEST(TextCache, ADamagedFileIsReplaced) {
  const TempDir dir;
  const std::string folder = dir.path();
  const RunResult plain = draw_with_cache(folder, job());
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  const RunResult repaired = draw_with_cache(folder, job());
  EXPECT_TRUE(encodes(repaired));
  EXPECT_EQ(repaired.framehash, plain.framehash);
  EXPECT_FALSE(encodes(draw_with_cache(folder, job())));
}

TEST(TextCache, AFileInPlaceOfTheFolderIsRefused) {
  const TempDir dir;
  const std::string path = dir / "file";
  std::ofstream(path) << "x";
  expect_error(ErrorKind::kOutput, "--cache-text is '" + path,
               [&] { draw_with_cache(path, job()); });
}

}  // namespace
}  // namespace weft::test
