#include "io/weights/gguf_tokenizer.h"

#include <chrono>
#include <cmath>

#include "io/text/byte_bpe.h"
#include "io/text/tokenizer.h"
#include "tests/io/gguf_testing.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

std::string list(const std::string& key, uint32_t type, uint64_t count, const std::string& bytes) {
  return gguf_entry("tokenizer.ggml." + key, 9, le(type) + le(count) + bytes);
}

std::string texts(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) bytes += gguf_text(value);
  return list(key, 8, values.size(), bytes);
}

std::string floats(const std::string& key, const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += le(std::bit_cast<uint32_t>(value));
  return list(key, 6, values.size(), bytes);
}

std::string integers(const std::string& key, const std::vector<int32_t>& values) {
  std::string bytes;
  for (const int32_t value : values) bytes += le(value);
  return list(key, 5, values.size(), bytes);
}

std::vector<std::string> good_tokenizer() {
  return {gguf_entry("tokenizer.ggml.model", 8, gguf_text("t5")),
          texts("tokens", {"<pad>", "</s>", "<unk>", "a", "b"}),
          floats("scores", {0, 0, 0, -1.5, -2}),
          integers("token_type", {3, 3, 2, 1, 1}),
          texts("merges", {"a b"}),
          list("precompiled_charsmap", 0, 3, "xyz"),
          gguf_entry("tokenizer.ggml.add_space_prefix", 7, le<uint8_t>(0))};
}

std::optional<GgufTokenizer> read(const std::string& bytes) {
  return read_gguf_tokenizer(bytes, parse_gguf_header(bytes, "x.gguf"), "x.gguf");
}

std::string header(std::vector<std::string> entries) {
  GgufBytes out;
  out.entries = std::move(entries);
  return out.header();
}

std::optional<GgufTokenizer> read_entries(std::vector<std::string> entries) {
  return read(header(std::move(entries)));
}

TEST(GgufTokenizer, ReadsTheLists) {
  const auto tokenizer = read_entries(good_tokenizer());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->model, "t5");
  EXPECT_EQ(tokenizer->words, "");
  EXPECT_EQ(tokenizer->tokens, (std::vector<std::string>{"<pad>", "</s>", "<unk>", "a", "b"}));
  EXPECT_EQ(tokenizer->scores, (std::vector<float>{0, 0, 0, -1.5, -2}));
  EXPECT_EQ(tokenizer->types, (std::vector<int32_t>{3, 3, 2, 1, 1}));
  EXPECT_EQ(tokenizer->merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(tokenizer->charsmap, "xyz");
  EXPECT_FALSE(tokenizer->add_space_prefix);
  EXPECT_TRUE(tokenizer->remove_extra_whitespaces);
  EXPECT_FALSE(read_entries({gguf_entry("general.architecture", 8, gguf_text("wan"))}));
}

TEST(GgufTokenizer, FaultsAreNamed) {
  const auto refused = [](size_t at, const std::string& entry, const std::string& part) {
    SCOPED_TRACE(part);
    std::vector<std::string> entries = good_tokenizer();
    entries[at] = entry;
    expect_error(ErrorKind::kModel, part, [&] { read_entries(entries); });
  };
  refused(1, integers("tokens", {1}), "tokenizer.ggml.tokens is no list of texts");
  refused(1, texts("tokens", {std::string(4097, 'a')}), "has a text of 4097 bytes at 0");
  refused(2, floats("scores", {0, 0}), "a list of 2 values (legal: 5, one per token)");
  refused(2, floats("scores", {0, 0, 0, NAN, 0}), "holds a value that is not finite");
  refused(2, integers("scores", {0, 0, 0, 0, 0}), "scores is a list of the value type 5");
  refused(3, integers("token_type", {3, 3, 2, 1, 7}), "holds 7 (legal: 1 to 6)");
  refused(3, integers("token_type", {3, 3, 2, 1, 0}), "holds 0");
  refused(6, gguf_entry("tokenizer.ggml.add_space_prefix", 4, le<uint32_t>(2)),
          "is \"2\" (legal: true, false)");
}

// A list may claim any length. What is not in the file is refused before memory is taken.
TEST(GgufTokenizer, ListsThatExhaustAreRefusedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  constexpr uint64_t kMany = (uint64_t{1} << 21) + 1;
  expect_error(ErrorKind::kModel, "2097153 texts (legal: at most 2097152)",
               [&] { read_entries({list("tokens", 8, kMany, std::string(kMany * 8, '\0'))}); });
  for (const uint64_t count : {uint64_t{1} << 40, uint64_t{1} << 61, UINT64_MAX})
    for (const uint32_t type : {0u, 5u, 6u, 8u})
      EXPECT_THROW(read_entries({list("tokens", type, count, std::string(64, '\0'))}), Error);
  std::string large;
  for (int i = 0; i < 17000; ++i) large += gguf_text(std::string(4096, 'a'));
  expect_error(ErrorKind::kModel, "in all)",
               [&] { read_entries({list("tokens", 8, 17000, large)}); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5);
}

TEST(GgufTokenizer, EveryCutAndEveryChangedByteIsReadOrRefused) {
  const std::string whole = header(good_tokenizer());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(read(whole.substr(0, size)), Error) << size;
  int read_through = 0;
  for (size_t at = 0; at < whole.size(); ++at)
    for (const int change : {1, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      try {
        read(bytes);
        ++read_through;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kModel);
      }
    }
  EXPECT_GT(read_through, 0);
}

TEST(SentencePieces, BecomeAModel) {
  SentencePieces lists{.pieces = {{"<pad>", 0, 3},
                                  {"</s>", 0, 3},
                                  {"<unk>", 0, 2},
                                  {"\xe2\x96\x81", -2},
                                  {"a", -3},
                                  {"\xe2\x96\x81"
                                   "a",
                                   -2.5f}}};
  const auto tokenizer = SentencePieceTokenizer::from_bytes(lists.model(), "lists");
  EXPECT_EQ(tokenizer.encode("a  aa", 16), (std::vector<int32_t>{5, 5, 4, 1}));
  lists.remove_extra_whitespaces = false;
  lists.add_space_prefix = false;
  EXPECT_EQ(SentencePieceTokenizer::from_bytes(lists.model(), "lists").encode("a  aa", 16),
            (std::vector<int32_t>{4, 3, 5, 4, 1}));
  lists.pieces[4].text = lists.pieces[5].text;
  expect_error(ErrorKind::kModel, "lists: is not a SentencePiece model",
               [&] { SentencePieceTokenizer::from_bytes(lists.model(), "lists"); });
}

TEST(ByteBpeLists, TokensStandOnce) {
  ByteBpeLists lists{.tokens = {{"a"}, {"a"}}, .merges = {}};
  expect_error(ErrorKind::kModel, "the token 1 is that of another id, too",
               [&] { ByteBpeTokenizer::from_lists(lists, "x"); });
}

}  // namespace
}  // namespace weft::test
