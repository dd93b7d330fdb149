#include "io/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "tests/io/io_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return std::string("tests/golden/") + GetParam(); }
  std::string model() const { return golden_part(GetParam(), "tokenizer") + "/spiece.model"; }
};

TEST_P(TokenizerGolden, IdsAreEqual) {
  const auto spec = read_json_file(folder() + "/case.json");
  const auto tokenizer = SentencePieceTokenizer::load(model());
  const int max_length = spec.at("max_length");
  ASSERT_EQ(spec.at("texts").size(), spec.at("ids").size());
  ASSERT_GT(spec.at("texts").size(), 10u);
  for (size_t i = 0; i < spec.at("texts").size(); ++i) {
    const auto text = spec["texts"][i].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, max_length), spec["ids"][i].get<std::vector<int32_t>>())
        << text;
  }
}

TEST_P(TokenizerGolden, CutsWithTheEndLast) {
  const auto tokenizer = SentencePieceTokenizer::load(model());
  const std::string text = "A small red ball, moving left; on a gray background.";
  const auto whole = tokenizer.encode(text, 1000);
  ASSERT_GT(whole.size(), 20u);
  for (size_t length = 1; length <= whole.size() + 2; ++length) {
    auto expected = whole;
    if (length < whole.size()) {
      expected.resize(length);
      expected.back() = kEndId;
    }
    EXPECT_EQ(tokenizer.encode(text, static_cast<int>(length)), expected) << length;
  }
  EXPECT_EQ(tokenizer.encode("", 1), std::vector<int32_t>{kEndId});
}

TEST_P(TokenizerGolden, IllFormedTextReadsAsReplacementCharacters) {
  const auto tokenizer = SentencePieceTokenizer::load(model());
  const std::string mark = "\xef\xbf\xbd";
  // There is one mark per maximal ill-formed stretch, as with Python's errors="replace".
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"
       "b",
       "a" + mark + "b"},
      {"\x80\x80", mark + mark},
      {"cut \xe7\x8c", "cut " + mark},
      {"\xf0\x9f\x91 x", mark + " x"},
      {"\xed\xa0\x80", mark + mark + mark},
      {"\xc0\xaf", mark + mark},
      {"\xe0\x80\x80", mark + mark + mark},
      {"\xf4\x90\x80\x80", mark + mark + mark + mark},
      {"\xc3(", mark + "("},
  };
  for (const auto& [text, read] : cases)
    EXPECT_EQ(tokenizer.encode(text, 64), tokenizer.encode(read, 64)) << read;
}

TEST_P(TokenizerGolden, IdsStayInTheVocabulary) {
  const auto tokenizer = SentencePieceTokenizer::load(model());
  uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i)
      text += static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    const auto ids = tokenizer.encode(text, 32);
    ASSERT_LE(ids.size(), 32u);
    ASSERT_EQ(ids.back(), kEndId);
    for (int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer.vocab_size()) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerGolden,
                         testing::Values("tokenizer_spm", "tokenizer_spm_nofallback"));

TEST(Tokenizer, RefusesWhatIsNoModel) {
  TempDir dir;
  expect_error(ErrorKind::kModel, "cannot be opened",
               [&] { SentencePieceTokenizer::load(dir / "none.model"); });
  expect_error(ErrorKind::kModel, "is not a SentencePiece model",
               [&] { SentencePieceTokenizer::load(dir.write("empty.model", "")); });
  expect_error(ErrorKind::kModel, "is not a SentencePiece model",
               [&] { SentencePieceTokenizer::load(dir.write("text.model", "hello")); });
  const std::string model = read_bytes(golden_part("tokenizer_spm", "tokenizer") + "/spiece.model");
  ASSERT_GT(model.size(), 1000u);
  // A model that is cut anywhere is refused or encodes without harm.
  for (size_t size : {size_t{1}, size_t{100}, size_t{4000}, model.size() / 2, model.size() - 1}) {
    try {
      SentencePieceTokenizer::from_bytes(model.substr(0, size), "cut").encode("a red ball", 64);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
    }
  }
}

TEST(Tokenizer, ModelMaxLength) {
  TempDir dir;
  const auto length = [&](const std::string& text) {
    return tokenizer_model_max_length(dir.write("tokenizer_config.json", text));
  };
  EXPECT_EQ(length("{\"model_max_length\": 16}"), 16);
  EXPECT_EQ(length("{\"model_max_length\": 4096}"), 4096);
  EXPECT_EQ(length("{\"model_max_length\": 4097}"), 512);
  EXPECT_EQ(length("{\"model_max_length\": 1000000000000000019884624838656}"), 512);
  EXPECT_EQ(length("{\"model_max_length\": Infinity}"), 512);
  EXPECT_EQ(length("{}"), 512);
  EXPECT_EQ(tokenizer_model_max_length(dir / "none.json"), 512);
  for (const char* text : {"{\"model_max_length\": 0}", "{\"model_max_length\": -1}",
                           "{\"model_max_length\": NaN}", "{\"model_max_length\": \"x\"}"})
    expect_error(ErrorKind::kModel, "\"model_max_length\"", [&] { length(text); });
}

}  // namespace
}  // namespace weft::test
