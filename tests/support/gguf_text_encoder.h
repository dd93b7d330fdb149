#pragma once
// Files of text encoders as llama.cpp's converter writes them: GGUF with the tokenizer inside.
#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "models/umt5/names.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/single_files.h"

namespace weft::test {

inline std::string gguf_texts(const std::string& key, const std::vector<std::string>& texts) {
  std::string list = le<uint32_t>(8) + le<uint64_t>(texts.size());
  for (const std::string& text : texts) list += gguf_text(text);
  return gguf_entry("tokenizer.ggml." + key, 9, list);
}

template <class T>
std::string gguf_numbers(const std::string& key, uint32_t type, const std::vector<T>& values) {
  std::string list = le(type) + le<uint64_t>(values.size());
  for (const T value : values) {
    const auto bits = std::bit_cast<std::conditional_t<sizeof(T) == 1, uint8_t, uint32_t>>(value);
    list += le(bits);
  }
  return gguf_entry("tokenizer.ggml." + key, 9, list);
}

// The fields of a serialized protocol buffer, by number: those of bytes and of floats.
inline std::multimap<int, std::string> fields_of(const std::string& message) {
  std::multimap<int, std::string> out;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    size_t size = 0;
    if ((key & 7) == 0) {
      out.emplace(static_cast<int>(key >> 3), std::to_string(varint()));
      continue;
    }
    size = (key & 7) == 5 ? 4 : varint();
    out.emplace(static_cast<int>(key >> 3), message.substr(at, size));
    at += size;
  }
  return out;
}

// The metadata that llama.cpp's converter makes of a spiece.model.
inline std::vector<std::string> t5_metadata(const std::string& model) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  const auto fields = fields_of(model);
  const auto [first, last] = fields.equal_range(1);
  for (auto each = first; each != last; ++each) {
    const auto piece = fields_of(each->second);
    tokens.push_back(piece.find(1)->second);
    float score = 0;
    if (const auto found = piece.find(2); found != piece.end())
      std::memcpy(&score, found->second.data(), sizeof score);
    scores.push_back(score);
    types.push_back(piece.contains(3) ? std::stoi(piece.find(3)->second) : 1);
  }
  for (int i = 0; i < 3; ++i) {  // as transformers adds them after the pieces
    tokens.push_back("<extra_id_" + std::to_string(i) + ">");
    scores.push_back(-1000);
    types.push_back(4);
  }
  std::vector<std::string> entries{
      gguf_entry("general.architecture", 8, gguf_text("t5encoder")),
      gguf_entry("tokenizer.ggml.model", 8, gguf_text("t5")),
      gguf_texts("tokens", tokens),
      gguf_numbers("scores", 6, scores),
      gguf_numbers("token_type", 5, types),
      gguf_entry("tokenizer.ggml.add_space_prefix", 7, le<uint8_t>(1))};
  const auto normalizer = fields_of(fields.find(3)->second);
  if (const auto map = normalizer.find(2); map != normalizer.end())
    entries.push_back(gguf_numbers("precompiled_charsmap", 0,
                                   std::vector<uint8_t>(map->second.begin(), map->second.end())));
  const auto spaces = normalizer.find(4);
  entries.push_back(gguf_entry("tokenizer.ggml.remove_extra_whitespaces", 7,
                               le<uint8_t>(spaces == normalizer.end() || spaces->second == "1")));
  return entries;
}

// Writes the text encoder of a Wan pipeline's folder with its tokenizer as one GGUF file. Its
// matrices are `type`, or F32 without one.
inline void save_gguf_text_encoder(const std::string& model, const std::string& path,
                                   std::optional<BlockType> type) {
  write_gguf(
      path, TensorFile::open(model + "/text_encoder"), type,
      [](const std::string& name) { return umt5_name(Umt5Spelling::kGguf, name); },
      t5_metadata(file_bytes(model + "/tokenizer/spiece.model")));
}

}  // namespace weft::test
