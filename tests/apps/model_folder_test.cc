// A --model that names no folder is told what it is and what to do.
#include "apps/model_folder.h"

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::Cli, test::lines, test::Outcome, test::run;

class ModelFolder : public Cli {
 protected:
  std::string refusal(const std::string& model, const std::string& command = "generate -p x") {
    const Outcome outcome = run(command + " -m " + model);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_EQ(outcome.err.find("weft: -m is '" + model + "', "), 0u) << outcome.err;
    return outcome.err;
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

TEST_F(ModelFolder, NamesOfRepositoriesGetTheDownloadCommand) {
  const std::string error = refusal("Wan-AI/Wan2.1-T2V-1.3B-Diffusers");
  expect_part(error, "Hugging Face repository");
  expect_part(
      error,
      "hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers --local-dir "
      "models/Wan2.1-T2V-1.3B-Diffusers, then give --model models/Wan2.1-T2V-1.3B-Diffusers");
  expect_part(refusal("https://huggingface.co/Qwen/Qwen3-0.6B", "complete x"),
              "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B");
  // A folder that is merely missing is not taken for one.
  for (const char* path : {"./models/none", "/nowhere/at-all", "models/none", "none", "a/b/c"})
    EXPECT_EQ(download_advice(path), "") << path;
  const Outcome inspected = run("inspect Wan-AI/Wan2.1-T2V-1.3B-Diffusers");
  EXPECT_EQ(inspected.code, 3);
  expect_part(inspected.err, "hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers");
}

TEST_F(ModelFolder, SingleFilesAreNamedForWhatTheyAre) {
  std::ofstream(path("wan.safetensors")) << "x";
  std::ofstream(path("wan.gguf")) << "x";
  const std::string weights = refusal(path("wan.safetensors"));
  expect_part(weights,
              "a single file of weights, which --transformer, --text-encoder or --vae takes");
  expect_part(weights, "legal: a model folder in the diffusers layout");
  expect_part(weights, "hf download Wan-AI/");
  expect_part(refusal("models/pocket/vae/diffusion_pytorch_model.safetensors"),
              "This file belongs to such a folder: give --model models/pocket\n");
  const std::string gguf = refusal(path("wan.gguf"));
  expect_part(gguf, "a GGUF file");
  expect_part(gguf, "which --transformer, --text-encoder or --vae takes (weft inspect FILE tells");
  expect_part(refusal(path("wan.pth")), "a pickle file");
  expect_part(refusal("README.md"), "a file; legal: a model folder");
  expect_part(refusal("models/none"), "no folder that exists, and no model of that name in ");
  for (const char* command : {"plan", "complete x", "bench load"})
    expect_part(refusal(path("wan.gguf"), command), "a GGUF file");
}

TEST_F(ModelFolder, AMissingFlagIsAUsageError) {
  const Outcome outcome = run("generate -p x");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "weft: weft generate needs --model FOLDER or --transformer FILE\n");
}

}  // namespace
}  // namespace weft
