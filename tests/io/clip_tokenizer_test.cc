#include "io/text/bpe/clip_tokenizer.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/text/byte_alphabet.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

const std::string kCase = "tests/golden/tokenizer_clip";

// A vocabulary of all bytes, inside and at the end of a word, of "re", "red</w>" and the two ends.
struct Files {
  nlohmann::json vocab = nlohmann::json::object(),
                 merges = nlohmann::json::array({"r e", "re d</w>"});

  Files() {
    for (const char* end : {"", "</w>"})
      for (int byte = 0; byte < 256; ++byte)
        put(spell_bytes(std::string(1, static_cast<char>(byte))) + end);
    for (const char* token : {"re", "red</w>", "<|startoftext|>", "<|endoftext|>"}) put(token);
  }
  void put(const std::string& token) { vocab[token] = vocab.size(); }
  int32_t id(const std::string& token) const { return vocab.at(token).get<int32_t>(); }
  ClipTokenizer made() const { return ClipTokenizer::from_json(vocab, merges, "a vocabulary"); }
};

TEST(ClipTokenizer, AgreesWithTheReference) {
  const nlohmann::json spec = read_json_file(kCase + "/case.json");
  const ClipTokenizer tokenizer = ClipTokenizer::open_folder(kCase + "/model/tokenizer");
  for (size_t i = 0; i < spec.at("texts").size(); ++i)
    EXPECT_EQ(tokenizer.encode(spec["texts"][i].get<std::string>(), 77),
              spec["ids"][i].get<std::vector<int32_t>>())
        << spec["texts"][i];
}

TEST(ClipTokenizer, ReadsBothFormsOfAFolder) {
  const Files files;
  const TempDir whole, parts;
  const nlohmann::json model{
      {"vocab", files.vocab}, {"merges", files.merges}, {"end_of_word_suffix", "</w>"}};
  whole.write("tokenizer.json", nlohmann::json{{"model", model}}.dump());
  parts.write("vocab.json", files.vocab.dump());
  parts.write("merges.txt", "#version: 0.2\nr e\nre d</w>\n");
  const std::vector<int32_t> ids{
      files.id("<|startoftext|>"), files.id("red</w>"),      files.id("re"), files.id("d"),
      files.id("s</w>"),           files.id("<|endoftext|>")};
  for (const TempDir* folder : {&whole, &parts})
    EXPECT_EQ(ClipTokenizer::open_folder(folder->path()).encode(" Red  REDS ", 77), ids);
  EXPECT_EQ(ClipTokenizer::open(whole / "tokenizer.json").encode(" Red  REDS ", 77), ids);
  EXPECT_TRUE(ClipTokenizer::recognise(whole / "tokenizer.json"));
  for (const char* other :
       {R"({"model": {"type": "Unigram"}})", R"({"version": "1.0"})",
        R"({"model": {"end_of_word_suffix": ""}})", R"({"model": [1]})", "[]"}) {
    parts.write("tokenizer.json", other);
    EXPECT_FALSE(ClipTokenizer::recognise(parts / "tokenizer.json")) << other;
  }
  EXPECT_THROW(ClipTokenizer::recognise(parts / "merges.txt"), Error);
}

TEST(ClipTokenizer, CutsALongText) {
  const Files files;
  const ClipTokenizer tokenizer = files.made();
  const std::vector<int32_t> ends{files.id("<|startoftext|>"), files.id("<|endoftext|>")};
  EXPECT_EQ(tokenizer.encode("", 77), ends);
  EXPECT_EQ(tokenizer.encode("red red", 2), ends);
  EXPECT_EQ(tokenizer.encode("red red", 3),
            (std::vector<int32_t>{ends[0], files.id("red</w>"), ends[1]}));
  EXPECT_EQ(tokenizer.encode("red<|endoftext|>", 77),
            (std::vector<int32_t>{ends[0], files.id("red</w>"), ends[1], ends[1]}));
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'x'), 77).size(), 77u);
  expect_error(ErrorKind::kUsage, "a prompt of 1048577 bytes is too long",
               [&] { tokenizer.encode(std::string((1 << 20) + 1, 'x'), 77); });
}

TEST(ClipTokenizer, FaultsAreNamed) {
  const auto refused = [](const std::string& part, const auto& change) {
    Files files;
    change(files);
    expect_error(ErrorKind::kModel, part, [&] { files.made(); });
  };
  refused("a vocabulary: \"vocab\" must be an object", [](Files& f) { f.vocab = 1; });
  refused("a vocabulary: \"merges\" must be an array", [](Files& f) { f.merges = 1; });
  refused("lacks \"<|endoftext|>\"", [](Files& f) { f.vocab.erase("<|endoftext|>"); });
  refused("lacks \"a</w>\"", [](Files& f) { f.vocab.erase("a</w>"); });
  refused("a vocabulary, vocab: \"id\"", [](Files& f) { f.vocab["a"] = -1; });
  refused("\"merges\", entry 1: \"red</w>\" is not in", [](Files& f) { f.vocab.erase("red</w>"); });
  refused("\"merges\", entry 2 must be", [](Files& f) { f.merges.push_back("a"); });
  const TempDir folder;
  expect_error(ErrorKind::kModel, "merges.txt: cannot be opened",
               [&] { ClipTokenizer::open_folder(folder.path()); });
  folder.write("tokenizer.json", R"({"model": {"vocab": {}, "merges": []}})");
  expect_error(ErrorKind::kModel, "\"end_of_word_suffix\" is \"\" (legal: \"</w>\")",
               [&] { ClipTokenizer::open_folder(folder.path()); });
}

}  // namespace
}  // namespace weft::test
