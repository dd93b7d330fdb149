// --weights file and --text-encoder-weights as a user gives them, and --preset.
#include "kernels/linear.h"
#include "models/wan/names.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/scaled_copy.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

class StoredWeightsCommand : public Cli {
 protected:
  Outcome drawn(const std::string& name, const std::string& more) {
    return run("generate --json -q --model models/pocket" + kJob +
               "-p 'a big red ball' --overwrite -o " + path(name) + " " + more);
  }
  std::string hash(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }
  void refused(const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
};

// The pocket model's weights are bf16: half the bytes of f32.
TEST_F(StoredWeightsCommand, FileDrawsTheFramesOfComputeInLessMemory) {
  const Outcome plain = drawn("a.mp4", "--dtype f32"),
                stored = drawn("b.mp4", "--dtype f32 --weights file");
  EXPECT_EQ(hash(stored), hash(plain));
  EXPECT_LT(json::parse(stored.out)["memory_high_water"].get<uint64_t>(),
            json::parse(plain.out)["memory_high_water"].get<uint64_t>());
  const Outcome again = run("replay -q --json " + path("b.mp4"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("differences"), json::object());
}

// Single files of users, whose matrices are 8 bits with a scale per row, or GGUF's blocks.
TEST_F(StoredWeightsCommand, ATransformerFileDrawsTheFramesOfCompute) {
  const auto names = [](const std::string& name) {
    return "model.diffusion_model." + WanNames{.original = true}(name);
  };
  const std::string file = path("transformer.safetensors"), gguf = path("transformer.gguf");
  for (const BlockType type : {BlockType::kI8, BlockType::kF8E4M3, BlockType::kQ8_0}) {
    const bool scaled = type != BlockType::kQ8_0;
    TensorFile from = TensorFile::open("models/pocket/transformer");
    scaled ? test::write_scaled(file, std::move(from), type, names)
           : test::write_gguf(gguf, std::move(from), type, names);
    const std::string flag = " --transformer " + (scaled ? file : gguf);
    for (const char* dtype : {" --dtype f32", " --dtype bf16"}) {
      const std::string about = shape_of(type).name + std::string(dtype);
      const Outcome expanded = drawn("a.mp4", flag + dtype + " --weights compute"),
                    stored = drawn("b.mp4", flag + dtype + " --weights file");
      EXPECT_EQ(hash(stored), hash(expanded)) << about;
      EXPECT_NE(hash(stored), hash(drawn("c.mp4", dtype))) << about;
      EXPECT_LT(json::parse(stored.out)["memory_high_water"].get<uint64_t>(),
                json::parse(expanded.out)["memory_high_water"].get<uint64_t>())
          << about;
    }
  }
}

TEST_F(StoredWeightsCommand, TheTextEncodersFormatIsAFact) {
  const std::string text = "--dtype f32 --text-encoder-weights ";
  const std::string plain = hash(drawn("a.mp4", "--dtype f32"));
  EXPECT_EQ(hash(drawn("b.mp4", text + "file")), plain);
  if (!cpu_has_int8()) GTEST_SKIP() << "no 8-bit weights here";
  const Outcome eight = drawn("c.mp4", text + "int8");
  const std::string drawn_int8 = hash(eight);
  EXPECT_NE(drawn_int8, plain);
  const Outcome again = run("replay -q --json " + path("c.mp4"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), drawn_int8);
}

TEST_F(StoredWeightsCommand, AGpuRefusesThem) {
  for (const char* flag : {"--weights", "--text-encoder-weights"})
    refused(run(std::string("plan --model models/pocket --device cuda -p x ") + flag + " file"),
            std::string(flag) + " is file, which needs --device cpu");
}

TEST_F(StoredWeightsCommand, ThePresetStandsForItsFlags) {
  const std::string preset = "--preset distill-4", steps = "--steps 4 ";
  const auto without_steps = [&](const std::string& name, const std::string& more) {
    return run("generate --json -q --model " + kModel +
               " --width 32 --height 16 --num-frames 9 --seed 5 --threads 1 --progress none -p x "
               "--overwrite -o " +
               path(name) + " " + more);
  };
  const std::string drawn = hash(without_steps("a.mp4", preset));
  EXPECT_EQ(drawn, hash(without_steps("b.mp4", steps + "--solver distill-4 --guidance-scale 1 "
                                                       "--flow-shift 5")));
  EXPECT_EQ(drawn, hash(without_steps("c.mp4", preset + " --steps 4 --guidance-scale 1.0")));
  const json record = json::parse(std::ifstream(path("a.mp4.json"))).at("request");
  EXPECT_EQ(record.at("solver"), "distill-4");
  EXPECT_EQ(record.at("steps"), 4);
  for (const auto& [more, part] :
       {std::pair{" --steps 8", "--steps is 8, but --preset is distill-4; legal with it: 4"},
        {" --solver euler", "legal with it: distill-4"},
        {" --guidance-scale 5", "legal with it: 1"},
        {" --flow-shift 3", "legal with it: 5"},
        {" --sigmas 1,0.5", "legal with it: none"}})
    refused(without_steps("d.mp4", preset + more), part);
}

}  // namespace
}  // namespace weft
