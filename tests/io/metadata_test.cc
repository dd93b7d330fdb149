#include "io/media/metadata.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/io/media_testing.h"

namespace weft {
namespace {

GenerationFacts facts() {
  GenerationFacts out;
  out.prompt = "a red ball, moving left";
  out.steps = 20;
  out.sampler = "unipc";
  out.guidance_scale = 4.5;
  out.seed = 18446744073709551615u;
  out.width = 128;
  out.height = 96;
  out.model = "pocket";
  out.rng = "portable";
  out.version = "weft 0.1.0";
  return out;
}

TEST(Metadata, ParametersTextHasThePublishedForm) {
  GenerationFacts f = facts();
  const std::string last =
      "Steps: 20, Sampler: unipc, CFG scale: 4.5, Seed: 18446744073709551615, Size: 128x96, "
      "Model: pocket, RNG: portable, Version: weft 0.1.0";
  EXPECT_EQ(parameters_text(f), "a red ball, moving left\n" + last);
  f.negative_prompt = "blurry";
  EXPECT_EQ(parameters_text(f), "a red ball, moving left\nNegative prompt: blurry\n" + last);
}

TEST(Metadata, ValuesThatWouldBreakThePairsAreQuoted) {
  GenerationFacts f = facts();
  f.rng = "torch-cuda:108x2048";
  f.model = "my \"own\", tuned";
  const std::string text = parameters_text(f);
  EXPECT_NE(text.find("RNG: \"torch-cuda:108x2048\", "), std::string::npos) << text;
  EXPECT_NE(text.find("Model: \"my \\\"own\\\", tuned\", "), std::string::npos) << text;
}

TEST(Metadata, TextFilesAppearWholeAndAreNotReplacedUnasked) {
  const TempFolder folder;
  write_text_file(folder / "a.json", "{}\n", Overwrite::kRefuse);
  expect_output_error([&] { write_text_file(folder / "a.json", "[]\n", Overwrite::kRefuse); });
  {
    const FileSizeLimit limit(4);
    expect_output_error(
        [&] { write_text_file(folder / "a.json", "[1, 2, 3]\n", Overwrite::kReplace); });
  }
  std::ifstream file(folder / "a.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "{}\n");
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"a.json"});
}

}  // namespace
}  // namespace weft
