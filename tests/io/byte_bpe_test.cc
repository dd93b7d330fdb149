#include "io/text/byte_bpe.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "io/json.h"
#include "io/text/normal_form.h"
#include "tests/io/byte_bpe_testing.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Ids = std::vector<int32_t>;

std::string nfc(std::string_view text) { return encode_utf8(to_nfc(decode_utf8(text))); }

class ByteBpeGolden : public testing::TestWithParam<const char*> {};

TEST_P(ByteBpeGolden, IdsAndTextsAreEqual) {
  const std::string folder = std::string("tests/golden/") + GetParam();
  const auto spec = read_json_file(folder + "/case.json");
  const auto tokenizer = ByteBpeTokenizer::open(folder + "/model/tokenizer/tokenizer.json");
  ASSERT_GT(spec.at("texts").size(), 10u);
  for (size_t i = 0; i < spec.at("texts").size(); ++i) {
    const auto text = spec["texts"][i].get<std::string>();
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(ids, spec.at("ids").at(i).get<Ids>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), spec.at("decoded").at(i).get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ByteBpeGolden,
                         testing::Values("tokenizer_bpe", "tokenizer_bpe_qwen",
                                         "tokenizer_bpe_llama3"));

// Byte-pair encoding by its definition: repeatedly applies the lowest merge, leftmost first.
Ids slow_bpe(const std::string& text, const BytePairs& merges, const ByteBpeTokenizer& tokenizer) {
  std::vector<std::string> parts;
  for (const char byte : text) parts.emplace_back(1, byte);
  for (;;) {
    int best = std::numeric_limits<int>::max();
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (int rank = static_cast<int>(merges.size()) - 1; rank >= 0; --rank)
        if (merges[rank].first == parts[i] && merges[rank].second == parts[i + 1]) {
          if (rank < best) best = rank, at = i;
          break;  // the last rank of a pair that occurs twice counts
        }
    if (best == std::numeric_limits<int>::max()) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(*tokenizer.id_of(spell_bytes(part)));
  return ids;
}

// A folder of the slow tokenizer has the same ids as the tokenizer.json made from it.
TEST(ByteBpe, AFolderMayHoldVocabularyAndMergesApart) {
  namespace fs = std::filesystem;
  const std::string golden = "tests/golden/tokenizer_bpe_qwen",
                    folder = testing::TempDir() + "weft_bpe_folder";
  const auto spec = read_json_file(golden + "/case.json");
  const auto whole = read_json_file(golden + "/model/tokenizer/tokenizer.json");
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream(folder + "/vocab.json") << whole.at("model").at("vocab").dump();
  std::ofstream merges(folder + "/merges.txt");
  merges << "#version: 0.2\n";
  for (const auto& merge : whole.at("model").at("merges"))
    merges << merge.at(0).get<std::string>() << " " << merge.at(1).get<std::string>() << "\n";
  merges.close();
  nlohmann::json config;
  for (const auto& token : whole.at("added_tokens")) {
    auto& entry = config["added_tokens_decoder"][std::to_string(token.at("id").get<int>())] = token;
    entry.erase("id");
  }
  std::ofstream(folder + "/tokenizer_config.json") << config.dump();
  const auto tokenizer = ByteBpeTokenizer::open_folder(folder);
  for (size_t i = 0; i < spec.at("texts").size(); ++i)
    EXPECT_EQ(tokenizer.encode(spec["texts"][i].get<std::string>()),
              spec.at("ids").at(i).get<Ids>());
  const auto message = [&] {
    return test::error_of([&] { ByteBpeTokenizer::open_folder(folder); });
  };
  std::ofstream(folder + "/tokenizer_config.json") << R"({"added_tokens_decoder": {"x": {}}})";
  EXPECT_TRUE(contains(message(), "added_tokens_decoder: \"x\""));
  fs::remove(folder + "/merges.txt");
  EXPECT_NE(message(), "");
  fs::remove(folder + "/vocab.json");
  EXPECT_TRUE(contains(message(), "tokenizer.json"));
  fs::remove_all(folder);
}

TEST(ByteBpe, EqualsTheSlowDefinitionOnRandomVocabularies) {
  std::mt19937 random(1);
  int64_t merged = 0;
  for (int vocabulary = 0; vocabulary < 40; ++vocabulary) {
    const std::string letters = std::string("abc\xc3\xa9").substr(0, 2 + 3 * (vocabulary % 2));
    const BytePairs merges = random_merges(random, letters, 5 + vocabulary);
    const auto tokenizer = tokenizer_of(byte_bpe_json(merges));
    for (int i = 0; i < 30; ++i) {
      std::string text;
      for (uint32_t n = random() % 60; n > 0; --n)
        text += (random() % 5 == 0 && letters.size() > 2) ? "\xc3\xa9"
                                                          : std::string(1, letters[random() % 2]);
      const Ids ids = tokenizer.encode(text);
      ASSERT_EQ(ids, slow_bpe(text, merges, tokenizer)) << vocabulary << ' ' << text;
      merged += static_cast<int64_t>(text.size() - ids.size());
    }
  }
  EXPECT_GT(merged, 5000);
}

TEST(ByteBpe, DecodesWhatItEncodesInNormalForm) {
  std::mt19937 random(2);
  const auto merges = random_merges(random, "ab \xc3\xa9\xe7\x8c\xab", 60);
  const auto tokenizer = tokenizer_of(byte_bpe_json(merges));
  for (int i = 0; i < 400; ++i) {
    const std::string text =
        i % 2 ? random_text(random, random() % 60) : random_bytes(random, random() % 60);
    for (const AddedTokens added : {AddedTokens::kSplit, AddedTokens::kAsText}) {
      const Ids ids = tokenizer.encode(text, added);
      EXPECT_EQ(tokenizer.decode(ids), nfc(text)) << i;
      for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer.size()) << id;
    }
  }
}

TEST(ByteBpe, LongWordsAreNotQuadratic) {
  const auto tokenizer = tokenizer_of(byte_bpe_json({{"a", "a"}, {"aa", "aa"}, {" ", " "}}));
  EXPECT_EQ(tokenizer.encode(std::string(200'000, 'a')), Ids(50'000, 257));
  EXPECT_EQ(tokenizer.encode(std::string(200'000, ' ')), Ids(100'000, 258));
  EXPECT_EQ(tokenizer.encode(std::string(199'999, '\n')), Ids(199'999, 10));
}

TEST(ByteBpe, AddedTokensComeFirstAndTheLongestWins) {
  auto file = byte_bpe_json({});
  for (const char* content : {"<|im|>", "<|im_start|>", "<|im", "|>x", " "})
    add_token(file, content, content[0] == '<');
  const auto t = tokenizer_of(file);
  EXPECT_EQ(t.size(), 261);
  EXPECT_EQ(t.id_of("<|im_start|>"), 257);
  EXPECT_TRUE(t.is_special(257));
  EXPECT_FALSE(t.is_special(260));
  EXPECT_FALSE(t.is_special(97) || t.is_special(-1) || t.is_special(1000));
  EXPECT_FALSE(t.id_of("<|im_stop|>"));
  EXPECT_EQ(t.encode("<|im_start|>x"), (Ids{257, 'x'}));
  EXPECT_EQ(t.encode("<|im_s|>x<|im|>x"), (Ids{258, '_', 's', 259, 256, 'x'}));
  EXPECT_EQ(t.encode("a b"), (Ids{'a', 260, 'b'}));
  EXPECT_EQ(t.encode("a <|im|>", AddedTokens::kAsText),
            (Ids{'a', ' ', '<', '|', 'i', 'm', '|', '>'}));
  const Ids ids = t.encode("<|im_start|>a b<|im|>");
  EXPECT_EQ(t.decode(ids), "<|im_start|>a b<|im|>");
  EXPECT_EQ(t.decode(ids, SpecialTokens::kSkip), "a b");
}

TEST(ByteBpe, TokensOfTheNormalisedTextAreFoundThere) {
  auto file = byte_bpe_json({});
  add_token(file, "\xc3\xa9!", false, true);
  add_token(file, "\xc3\xa9?", false, false);
  const auto t = tokenizer_of(file);
  EXPECT_EQ(t.encode("\xc3\xa9!"), Ids{256});
  EXPECT_EQ(t.encode("e\xcc\x81!"), Ids{256});
  EXPECT_EQ(t.encode("\xc3\xa9?"), Ids{257});
  EXPECT_EQ(t.encode("e\xcc\x81?"), (Ids{0xc3, 0xa9, '?'}));
}

TEST(ByteBpe, PartsReadAsOneTextAndBringNoTokensIn) {
  auto file = byte_bpe_json({{"\n", "\n"}, {"a", "b"}});
  add_token(file, "<s>", true);
  const auto t = tokenizer_of(file);
  const TextPart parts[] = {{"<s>a"}, {"b<s>\n", AddedTokens::kAsText}, {"\n<"}, {"s>"}};
  EXPECT_EQ(t.encode(parts), (Ids{258, 257, '<', 's', '>', 256, '<', 's', '>'}));
  EXPECT_EQ(t.encode(std::span<const TextPart>{}), Ids{});
}

TEST(ByteBpe, PreTokenizersFollowTheFile) {
  const auto words = [&](const nlohmann::json& pre_tokenizer, const std::string& text) {
    auto file = byte_bpe_json({});
    for (const char* word : {"a", "b", "ab", "aa", " ", " a", " b", "  ", "12", "xa", "x"}) {
      // Every word is a token of its own, so that the ids show the split.
      const std::string token = spell_bytes(word);
      auto& vocab = file["model"]["vocab"];
      if (!vocab.contains(token)) vocab[token] = vocab.size();
    }
    file["model"]["ignore_merges"] = true;
    file["pre_tokenizer"] = pre_tokenizer;
    const auto tokenizer = tokenizer_of(file);
    std::string shown;
    for (const int32_t id : tokenizer.encode(text))
      shown += "[" + std::string(tokenizer.bytes_of(id)) + "]";
    return shown;
  };
  const nlohmann::json as = {{"Regex", "a+"}}, x = {{"String", "x"}}, plain = byte_level(0, 0);
  EXPECT_EQ(words(plain, "aab"), "[a][a][b]");
  EXPECT_EQ(words(sequence({plain}), "ab"), "[ab]");
  EXPECT_EQ(words(byte_level(false, true), "ab a  b12"), "[ab][ a][ ][ b][12]");
  EXPECT_EQ(words(byte_level(true, true), "a  b"), "[ a][ ][ b]");
  EXPECT_EQ(words(byte_level(true, false), "b"), "[ b]");
  EXPECT_EQ(words(byte_level(true, false), " b"), "[ b]");
  EXPECT_EQ(words(sequence({split_by(as, "Isolated", false), plain}), "aabxa"), "[aa][b][x][a]");
  EXPECT_EQ(words(sequence({split_by(as, "Isolated", true), plain}), "aabxa"), "[aa][b][x][a]");
  EXPECT_EQ(words(sequence({split_by(as, "Removed", false), plain}), "aabxa"), "[b][x]");
  EXPECT_EQ(words(sequence({split_by(as, "Removed", true), plain}), "aabxa"), "[aa][a]");
  EXPECT_EQ(words(sequence({split_by(x, "Removed", false), split_by(as, "Isolated", false),
                            byte_level(true, false)}),
                  "xaxb"),
            "[ a][ b]");
}

TEST(ByteBpe, MergesMayBeStringsAndVocabularyTextOutsideTheAlphabet) {
  auto file = byte_bpe_json({{"a", "b"}});
  file["model"]["merges"] = {"a b"};
  file["model"]["vocab"]["\xe7\x8c\xab"] = 300;
  file["normalizer"] = nullptr;
  file["post_processor"] = {{"type", "ByteLevel"}};
  const auto t = tokenizer_of(file);
  EXPECT_EQ(t.encode("ab\xe7\x8c\xab"), (Ids{256, 0xe7, 0x8c, 0xab}));
  EXPECT_EQ(t.encode("e\xcc\x81"), (Ids{'e', 0xcc, 0x81}));
  EXPECT_EQ(t.decode(Ids{300, 256, 299, -5, 1 << 30}),
            "\xe7\x8c\xab"
            "ab");
  EXPECT_EQ(t.size(), 301);
}

// Newer tokenizer files hold a template whose form of a single text is the text.
TEST(ByteBpe, ATemplateThatAddsNothingIsAccepted) {
  auto file = byte_bpe_json({{"a", "b"}});
  const auto plain = tokenizer_of(file).encode("abba");
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", nlohmann::json::array({text})}};
  EXPECT_EQ(tokenizer_of(file).encode("abba"), plain);
  const nlohmann::json token = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  for (const nlohmann::json& single : {nlohmann::json::array({token, text}),
                                       nlohmann::json::array({token}), nlohmann::json::array()}) {
    file["post_processor"]["single"] = single;
    EXPECT_THROW(tokenizer_of(file), Error) << single;
  }
}

TEST(StreamingDecoder, GivesWholeCharactersAndAllOfTheText) {
  std::mt19937 random(3);
  auto file = byte_bpe_json(random_merges(random, "\xe7\x8c\xab\xf0\x9f\x9a\x80 ", 60));
  add_token(file, "<|end|>", true);
  const auto t = tokenizer_of(file);
  for (int i = 0; i < 500; ++i) {
    Ids ids;
    if (i % 2)
      ids = t.encode(random_text(random, random() % 20), AddedTokens::kAsText);
    else
      for (uint32_t n = random() % 30; n > 0; --n)
        ids.push_back(static_cast<int32_t>(random() % (t.size() + 2)) - 1);
    for (const SpecialTokens special : {SpecialTokens::kKeep, SpecialTokens::kSkip}) {
      StreamingDecoder decoder(t, special);
      std::string text;
      for (const int32_t id : ids) {
        const std::string part = decoder.push(id);
        ASSERT_EQ(encode_utf8(decode_utf8(part)), part);
        text += part;
      }
      text += decoder.finish();
      EXPECT_EQ(text, t.decode(ids, special));
    }
  }
}

TEST(StreamingDecoder, HoldsBackOnlyWhatCanStillBecomeACharacter) {
  const auto t = tokenizer_of(byte_bpe_json({}));
  StreamingDecoder decoder(t, SpecialTokens::kKeep);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xe7), "");
  EXPECT_EQ(decoder.push(0x8c), "");
  EXPECT_EQ(decoder.push(0xab), "\xe7\x8c\xab");
  EXPECT_EQ(decoder.push(0xff), "\xef\xbf\xbd");
  EXPECT_EQ(decoder.push(0xed), "");
  EXPECT_EQ(decoder.push(0xa0), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push('b'),
            "\xef\xbf\xbd"
            "b");
  EXPECT_EQ(decoder.push(0xc3), "");
  EXPECT_EQ(decoder.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace weft::test
