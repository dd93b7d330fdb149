#include "io/text/byte_bpe_file.h"

#include "tests/io/byte_bpe_testing.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

// Returns a tokenizer.json with `value` at a JSON pointer.
nlohmann::json with(const char* pointer, const nlohmann::json& value) {
  auto file = byte_bpe_json({{"a", "b"}});
  add_token(file, "<s>", true);
  file[nlohmann::json::json_pointer(pointer)] = value;
  return file;
}

void expect_refused_with(const char* pointer, const nlohmann::json& value,
                         const std::string& part) {
  SCOPED_TRACE(std::string(pointer) + " " + value.dump());
  expect_error(ErrorKind::kModel, part, [&] { tokenizer_of(with(pointer, value)); });
}

TEST(ByteBpeFile, FaultsNameTheirField) {
  const std::string file = "tokenizer.json";
  expect_refused_with("", 1, file);
  expect_refused_with("/truncation", {{"max_length", 4}}, "\"truncation\" must be null");
  expect_refused_with("/padding", {{"pad_id", 0}}, "\"padding\" must be null");
  expect_refused_with("/model", nullptr, "\"model\"");
  expect_refused_with("/model/type", "Unigram",
                      "model: the type \"Unigram\" is not supported; legal: BPE");
  expect_refused_with("/model/dropout", 0.1, "model: \"dropout\" must be null");
  expect_refused_with("/model/end_of_word_suffix", "</w>", "\"end_of_word_suffix\" must be null");
  expect_refused_with("/model/continuing_subword_prefix", "##",
                      "\"continuing_subword_prefix\" must be null");
  expect_refused_with("/model/ignore_merges", 1, "\"ignore_merges\"");
  expect_refused_with("/model/vocab", nlohmann::json::array(), "\"vocab\" must be an object");
  auto short_of_a_byte = byte_bpe_json({});
  short_of_a_byte["model"]["vocab"].erase("a");
  expect_error(ErrorKind::kModel, "model: \"vocab\" lacks the byte 97, spelled \"a\"",
               [&] { tokenizer_of(short_of_a_byte); });
  expect_refused_with("/model/vocab/zz", -1, "vocab");
  expect_refused_with("/model/vocab/zz", 1 << 21, "vocab");
  expect_refused_with("/model/vocab/zz", "1", "vocab");
  expect_refused_with("/model/vocab/zz", 97, "the id 97 of");
  expect_refused_with("/model/merges", nullptr, "\"merges\"");
  expect_refused_with("/model/merges", {"ab"}, "\"merges\", entry 0 must be");
  expect_refused_with("/model/merges", {"a b", "a b c"}, "\"merges\", entry 1 must be");
  expect_refused_with("/model/merges", nlohmann::json::array({nlohmann::json::array({"a", 1})}),
                      "\"merges\", entry 0 must be");
  expect_refused_with("/model/merges", nlohmann::json::array({{"a", "b", "c"}}),
                      "\"merges\", entry 0 must be");
  expect_refused_with("/model/merges", {"b a"},
                      "\"merges\", entry 0: \"ba\" is not in the vocabulary");
  expect_refused_with("/model/merges", {"a xy"},
                      "\"merges\", entry 0: \"xy\" is not in the vocabulary");
  expect_refused_with("/added_tokens", 1, "\"added_tokens\" must be an array");
  expect_refused_with("/added_tokens/0", {{"id", 300}}, "\"content\"");
  expect_refused_with("/added_tokens/0/id", 97,
                      "the id 97 of \"<s>\" belongs to another token too");
  expect_refused_with("/added_tokens/0/id", 1.5, "added_tokens, \"<s>\"");
  expect_refused_with("/added_tokens/0/content", "", "\"content\" has 0 bytes");
  expect_refused_with("/added_tokens/0/content", std::string(257, 'x'),
                      "\"content\" has 257 bytes");
  expect_refused_with("/added_tokens/0/content", "a", "\"id\" is 257, and 97 in the vocabulary");
  expect_refused_with("/added_tokens/1", {{"content", "<s>"}, {"id", 257}}, "is listed twice");
  for (const char* field : {"single_word", "lstrip", "rstrip"})
    expect_refused_with((std::string("/added_tokens/0/") + field).c_str(), true,
                        std::string("\"<s>\": \"") + field + "\" must be false");
  expect_refused_with("/normalizer", {{"type", "NFKC"}},
                      "normalizer: the type \"NFKC\" is not supported");
  expect_refused_with("/normalizer",
                      {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
                      "normalizer: the type \"Lowercase\"");
  expect_refused_with("/post_processor", {{"type", "TemplateProcessing"}},
                      "post_processor: the type \"TemplateProcessing\" is not supported");
  expect_refused_with("/decoder", nullptr, "\"decoder\"");
  expect_refused_with("/decoder", {{"type", "Metaspace"}}, "decoder: the type \"Metaspace\"");
}

TEST(ByteBpeFile, PreTokenizersThatAreNotReadAreNamed) {
  const auto level = byte_level(false, false);
  const nlohmann::json space = {{"String", " "}};
  expect_refused_with("/pre_tokenizer", nullptr, "\"pre_tokenizer\"");
  expect_refused_with("/pre_tokenizer", {{"type", "Whitespace"}},
                      "the type \"Whitespace\" is not supported");
  expect_refused_with("/pre_tokenizer", {{"type", "ByteLevel"}}, "\"add_prefix_space\"");
  expect_refused_with("/pre_tokenizer", sequence({}), "has 0 steps");
  expect_refused_with("/pre_tokenizer", split_by(space, "Isolated", false), "the last step");
  expect_refused_with("/pre_tokenizer", sequence({level, level}), "the last step");
  expect_refused_with("/pre_tokenizer", sequence({{{"type", "Digits"}}, level}),
                      "the type \"Digits\"");
  for (const char* behavior : {"MergedWithPrevious", "MergedWithNext", "Contiguous", ""})
    expect_refused_with("/pre_tokenizer", sequence({split_by(space, behavior, false), level}),
                        "the behavior \"" + std::string(behavior) + "\" is not supported");
  expect_refused_with("/pre_tokenizer",
                      sequence({split_by({{"Glob", "*"}}, "Isolated", false), level}),
                      "\"pattern\"");
  expect_refused_with("/pre_tokenizer",
                      sequence({split_by({{"Regex", "(a"}}, "Isolated", false), level}),
                      "pre_tokenizer, \"pattern\": the pattern cannot be read");
}

TEST(ByteBpeFile, CutAnywhereItIsRefused) {
  const std::string text = with("/truncation", nullptr).dump();
  for (size_t size = 0; size < text.size(); size += 7)
    expect_error(ErrorKind::kModel, "cut",
                 [&] { ByteBpeTokenizer::from_json(text.substr(0, size), "cut"); });
  expect_error(ErrorKind::kModel, "cannot be opened",
               [] { ByteBpeTokenizer::open("no/tokenizer.json"); });
}

}  // namespace
}  // namespace weft::test
