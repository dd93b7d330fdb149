#include "io/text/bpe/bpe_vocab.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 21) - 1;  // vocabularies in use end near 2^18
constexpr size_t kMaxMergesBytes = size_t{64} << 20;

std::string entry_of(const std::string& place, size_t rank) {
  return place + ": \"merges\", entry " + std::to_string(rank);
}

int32_t merge_part(const BpeVocab& vocab, const std::string& token, size_t rank,
                   const std::string& place) {
  const auto found = vocab.find(token);
  if (found == vocab.end())
    throw Error(ErrorKind::kModel,
                entry_of(place, rank) + ": \"" + token + "\" is not in the vocabulary");
  return found->second;
}

}  // namespace

int32_t read_token_id(const nlohmann::json& id, const std::string& place) {
  // An object for json_int() costs allocations, and a vocabulary has many ids.
  if (id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t{kMaxId}) return id.get<int32_t>();
  return static_cast<int32_t>(json_int({{"id", id}}, "id", place, {0, kMaxId}));
}

BpeMerges read_bpe_merges(const nlohmann::json& list, const BpeVocab& vocab,
                          const std::string& place) {
  BpeMerges merges;
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const nlohmann::json& entry = list[rank];
    std::string left, right;
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      left = entry[0];
      right = entry[1];
    } else if (entry.is_string()) {
      const std::string& text = entry.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != text.npos && text.find(' ', space + 1) == text.npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    }
    if (left.empty() || right.empty())
      throw Error(ErrorKind::kModel,
                  entry_of(place, rank) + " must be \"left right\" or [\"left\", \"right\"]");
    const int32_t left_id = merge_part(vocab, left, rank, place);
    const int32_t right_id = merge_part(vocab, right, rank, place);
    merges.add(left_id, right_id, merge_part(vocab, left + right, rank, place),
               static_cast<int32_t>(rank));
  }
  return merges;
}

nlohmann::json read_merges_file(const std::string& path) {
  nlohmann::json merges = nlohmann::json::array();
  std::istringstream lines(read_text_file(path, kMaxMergesBytes));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    merges.push_back(line);
  }
  return merges;
}

}  // namespace weft
