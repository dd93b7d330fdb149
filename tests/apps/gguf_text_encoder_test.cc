// Clips whose text encoder is a GGUF file with its tokenizer inside, as users share them.
#include "tests/support/gguf_text_encoder.h"

#include "io/weights/weights_file.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Cli, test::kJob, test::kPocket, test::Outcome, test::run;

// The errors that tests of whole models allow for values of 8 bits and of 4.
constexpr double kEightBits = 3e-2, kFourBits = 0.2;

class GgufTextEncoder : public Cli {
 protected:
  struct Drawn {
    std::string framehash;
    std::vector<double> latents;
  };
  Drawn drawn(const std::string& arguments) {
    const std::string name = "clip" + std::to_string(clips_++);
    const Outcome outcome =
        run("generate --json -q --keep-latents --dtype f32 -p 'a big red ball'" + kJob + arguments +
            " -o " + path(name + ".mp4"));
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
    if (outcome.code != 0) return {};
    const TensorFile kept = TensorFile::open(path(name + ".mp4.latents.safetensors"));
    return {json::parse(outcome.out).at("framehash"),
            test::to_f64(test::load_tensor(kept, "latents"))};
  }
  // Writes the encoder as `type` (F32 without one), and the values that it stands for with the
  // names and the format of the folder. Returns whether they are the folder's values.
  bool save(std::optional<BlockType> type) const {
    test::save_gguf_text_encoder(kPocket, path("text.gguf"), type);
    const TensorFile own = TensorFile::open(kPocket + "/text_encoder"),
                     stored = open_weights(path("text.gguf"));
    std::vector<std::pair<std::string, Tensor>> values;
    bool exact = true;
    for (const std::string& name : own.names()) {
      values.emplace_back(name, test::load_tensor(stored, umt5_name(Umt5Spelling::kGguf, name)));
      exact &= test::to_f64(values.back().second) == test::to_f64(test::load_tensor(own, name));
    }
    write_safetensors(path("values.safetensors"), {values.begin(), values.end()});
    return exact;
  }

 private:
  int clips_ = 0;
};

// The folder's tokenizer_config.json tells a length that GGUF files do not have, so all of these
// read the pieces without it.
TEST_F(GgufTextEncoder, DrawsWhatItsValuesDrawFromSafetensors) {
  const std::string model = "--model " + kPocket;
  const std::string gguf =
      model + " --text-encoder " + path("text.gguf") + " --tokenizer " + path("text.gguf");
  const std::string pieces = model + " --tokenizer " + kPocket + "/tokenizer/spiece.model";
  const Drawn plain = drawn(pieces);
  for (const std::optional<BlockType> type :
       {std::optional<BlockType>(), std::optional(BlockType::kBF16), std::optional(BlockType::kF16),
        std::optional(BlockType::kQ8_0), std::optional(BlockType::kQ4_0)}) {
    const std::string about = type ? shape_of(*type).name : "F32";
    const bool exact = save(type);
    EXPECT_EQ(exact, !type || type == BlockType::kBF16) << about;  // the folder's values are bf16
    const Drawn inside = drawn(gguf);
    const Drawn values = drawn(pieces + " --text-encoder " + path("values.safetensors"));
    EXPECT_EQ(inside.framehash, values.framehash) << about;
    EXPECT_TRUE(inside.latents == values.latents) << about;
    EXPECT_TRUE(drawn(gguf + " --text-encoder-weights file").latents == values.latents) << about;
    const bool same = inside.latents == plain.latents, blocks = type && shape_of(*type).values > 1;
    EXPECT_TRUE(same || !exact) << about;
    EXPECT_FALSE(same && blocks) << about;
    const double error = test::relative_l2(inside.latents, plain.latents);
    std::printf("[   text   ] %s: relative L2 of the latents %.3g\n", about.c_str(), error);
    EXPECT_LT(error, type == BlockType::kQ4_0 ? kFourBits : kEightBits) << about;
  }
}

// The tokens of the prompt come from the file: another one's tokenizer draws something else.
TEST_F(GgufTextEncoder, ItsTokenizerIsRead) {
  save({});
  const std::string gguf = "--model " + kPocket + " --text-encoder " + path("text.gguf"),
                    pieces = kPocket + "/tokenizer/spiece.model";
  const Drawn plain = drawn(gguf + " --tokenizer " + pieces);
  std::vector<std::string> entries = test::t5_metadata(test::file_bytes(pieces));
  const auto text = [](const std::string& name) { return umt5_name(Umt5Spelling::kGguf, name); };
  std::erase_if(entries, [](const std::string& entry) {
    return entry.find("add_space_prefix") != std::string::npos;
  });
  entries.push_back(test::gguf_entry("tokenizer.ggml.add_space_prefix", 7, test::le<uint8_t>(0)));
  test::write_gguf(path("other.gguf"), TensorFile::open(kPocket + "/text_encoder"), {}, text,
                   entries);
  EXPECT_TRUE(drawn(gguf + " --tokenizer " + path("text.gguf")).latents == plain.latents);
  EXPECT_FALSE(drawn(gguf + " --tokenizer " + path("other.gguf")).latents == plain.latents);
}

}  // namespace
}  // namespace weft
