#include "io/text/bpe/clip_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/text/byte_alphabet.h"
#include "io/text/normal_form.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20, kMaxTextBytes = size_t{1} << 20;
constexpr std::string_view kStart = "<|startoftext|>", kEnd = "<|endoftext|>", kWordEnd = "</w>";
constexpr const char* kWords = "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+";

int32_t id_of(const BpeVocab& vocab, const std::string& token, const std::string& what) {
  const auto found = vocab.find(token);
  if (found == vocab.end())
    throw Error(ErrorKind::kModel, what + ": the vocabulary lacks \"" + token + "\"");
  return found->second;
}

}  // namespace

ClipTokenizer ClipTokenizer::open_folder(const std::string& folder) {
  const std::string vocab = folder + "/vocab.json", whole = folder + "/tokenizer.json";
  if (std::filesystem::exists(vocab) || !std::filesystem::exists(whole))
    return from_json(parse_json(read_text_file(vocab, kMaxFileBytes), vocab),
                     read_merges_file(folder + "/merges.txt"), folder);
  return open(whole);
}

bool ClipTokenizer::recognise(const std::string& path) {
  const nlohmann::json file = parse_json(read_text_file(path, kMaxFileBytes), path);
  if (!json_has(file, "model")) return false;
  const nlohmann::json& model = file.at("model");
  return json_has(model, "end_of_word_suffix") && model.at("end_of_word_suffix") == kWordEnd;
}

ClipTokenizer ClipTokenizer::open(const std::string& path) {
  const nlohmann::json file = parse_json(read_text_file(path, kMaxFileBytes), path);
  const nlohmann::json& model = json_field(file, "model", path);
  const std::string place = path + ", model",
                    end = json_string_or(model, "end_of_word_suffix", place, "");
  if (end != kWordEnd)
    throw Error(ErrorKind::kModel, place + ": \"end_of_word_suffix\" is \"" + end +
                                       "\" (legal: \"" + std::string(kWordEnd) + "\")");
  return from_json(json_field(model, "vocab", place), json_field(model, "merges", place), place);
}

ClipTokenizer ClipTokenizer::from_json(const nlohmann::json& vocab, const nlohmann::json& merges,
                                       const std::string& what) {
  if (!vocab.is_object())
    throw Error(ErrorKind::kModel, what + ": \"vocab\" must be an object of token to id");
  if (!merges.is_array()) throw Error(ErrorKind::kModel, what + ": \"merges\" must be an array");
  BpeVocab tokens;
  for (const auto& [token, id] : vocab.items())
    tokens.emplace(token, read_token_id(id, what + ", vocab"));
  ClipTokenizer out(SplitPattern::from_regex(kWords, what));
  out.merges_ = read_bpe_merges(merges, tokens, what);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter = encode_utf8(std::u32string(1, byte_letter(byte)));
    out.inner_[byte] = id_of(tokens, letter, what);
    out.last_[byte] = id_of(tokens, letter + std::string(kWordEnd), what);
  }
  out.start_ = id_of(tokens, std::string(kStart), what);
  out.end_ = id_of(tokens, std::string(kEnd), what);
  return out;
}

std::vector<int32_t> ClipTokenizer::encode(std::string_view text, int max_length) const {
  CHECK(max_length >= 2, "max_length", max_length);
  if (text.size() > kMaxTextBytes)
    throw Error(ErrorKind::kUsage, "a prompt of " + std::to_string(text.size()) +
                                       " bytes is too long to be encoded; the limit is " +
                                       std::to_string(kMaxTextBytes));
  std::vector<int32_t> ids{start_};
  std::string_view rest = text;
  const auto most = static_cast<size_t>(max_length) - 1;
  while (ids.size() < most) {  // the names of the two special tokens stand for them in a text, too
    const size_t start = rest.find(kStart), end = rest.find(kEnd), at = std::min(start, end);
    encode_words(rest.substr(0, at), ids);
    if (at == rest.npos) break;
    ids.push_back(start < end ? start_ : end_);
    rest.remove_prefix(at + (start < end ? kStart : kEnd).size());
  }
  ids.resize(std::min(ids.size(), most));
  ids.push_back(end_);
  return ids;
}

void ClipTokenizer::encode_words(std::string_view text, std::vector<int32_t>& ids) const {
  const std::string plain = encode_utf8(to_lower(to_nfc(decode_utf8(text))));
  const SplitPattern::TimeLimit limit(plain.size());
  BpeMerges::Scratch scratch;
  std::vector<int32_t> word;
  for (const SplitPattern::Match& match : words_.find_all(plain, limit)) {
    word.clear();
    for (size_t i = match.begin; i < match.end; ++i)
      word.push_back((i + 1 < match.end ? inner_ : last_)[static_cast<unsigned char>(plain[i])]);
    merges_.apply(word, scratch);
    ids.insert(ids.end(), word.begin(), word.end());
  }
}

}  // namespace weft
