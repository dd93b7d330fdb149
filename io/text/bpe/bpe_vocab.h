#pragma once
// Vocabularies and merges of byte-pair encodings as Hugging Face writes them: fields of a
// tokenizer.json, or the files vocab.json and merges.txt.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>

#include "io/text/bpe_merges.h"

namespace weft {

using BpeVocab = std::unordered_map<std::string, int32_t>;  // token to id

// Checks an id of a vocabulary. Throws Error(kModel) that begins with `place`.
int32_t read_token_id(const nlohmann::json& id, const std::string& place);

// Reads a list of "left right" or ["left", "right"], whose tokens and results `vocab` must have.
// Throws Error(kModel) that begins with `place` and names the entry.
BpeMerges read_bpe_merges(const nlohmann::json& list, const BpeVocab& vocab,
                          const std::string& place);

// Reads the lines of a merges.txt as such a list.
nlohmann::json read_merges_file(const std::string& path);

}  // namespace weft
