#pragma once
// Makes small byte-level vocabularies for tests, in the form of a tokenizer.json.
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/text/byte_alphabet.h"
#include "io/text/byte_bpe.h"
#include "io/text/utf8.h"

namespace weft::test {

// The pattern in Qwen's tokenizer.json.
inline constexpr const char* kQwenPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

using BytePairs = std::vector<std::pair<std::string, std::string>>;

inline nlohmann::json byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"use_regex", use_regex}};
}

inline nlohmann::json split_by(const nlohmann::json& pattern, const char* behavior, bool invert) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

inline nlohmann::json sequence(std::vector<nlohmann::json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Gives the 256 bytes the ids 0 to 255, and each merge in order the next id.
inline nlohmann::json byte_bpe_json(const BytePairs& merges) {
  nlohmann::json vocab = nlohmann::json::object(), list = nlohmann::json::array();
  const auto put = [&](const std::string& bytes) {
    const std::string token = spell_bytes(bytes);
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  };
  for (int byte = 0; byte < 256; ++byte) put(std::string(1, static_cast<char>(byte)));
  for (const auto& [left, right] : merges) {
    put(left + right);
    list.push_back({spell_bytes(left), spell_bytes(right)});
  }
  return {{"added_tokens", nlohmann::json::array()},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", sequence({split_by({{"Regex", kQwenPattern}}, "Isolated", false),
                                      byte_level(false, false)})},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline void add_token(nlohmann::json& file, const std::string& content, bool special,
                      bool normalized = false) {
  int64_t id = 0;
  for (const auto& [token, value] : file["model"]["vocab"].items())
    id = std::max(id, value.get<int64_t>() + 1);
  for (const auto& token : file["added_tokens"]) id = std::max(id, token["id"].get<int64_t>() + 1);
  file["added_tokens"].push_back(
      {{"content", content}, {"id", id}, {"special", special}, {"normalized", normalized}});
}

inline ByteBpeTokenizer tokenizer_of(const nlohmann::json& file) {
  return ByteBpeTokenizer::from_json(file.dump(), "tokenizer.json");
}

// Makes `count` merges of tokens that exist already, starting from the bytes of `letters`.
inline BytePairs random_merges(std::mt19937& random, const std::string& letters, int count) {
  std::vector<std::string> tokens;
  for (const char letter : letters) tokens.emplace_back(1, letter);
  BytePairs merges;
  for (int i = 0; i < count; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  return merges;
}

// Makes a text of characters from all planes, without surrogates; lower code points are more
// frequent.
inline std::string random_text(std::mt19937& random, int points) {
  std::u32string text;
  for (int i = 0; i < points; ++i) {
    static constexpr char32_t kEnds[] = {0x80, 0x80, 0x300, 0x370, 0x3000, 0xd800, 0x110000};
    char32_t point = random() % kEnds[random() % std::size(kEnds)];
    if (random() % 4 == 0) point = U" \n\r\t'se\x301"[random() % 8];
    if (point >= 0xd800 && point < 0xe000) point = 0x301;
    text += point;
  }
  return encode_utf8(text);
}

inline std::string random_bytes(std::mt19937& random, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(random());
  return bytes;
}

}  // namespace weft::test
