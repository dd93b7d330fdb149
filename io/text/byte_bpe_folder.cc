// ByteBpeTokenizer::open_folder: folders that have vocab.json and merges.txt in place of a
// tokenizer.json.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/text/bpe/bpe_vocab.h"
#include "io/text/byte_bpe.h"
#include "kernels/check.h"

namespace weft {

namespace {

// The words that Qwen2's own tokenizer splits a text into.
constexpr const char* kWords =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// The added tokens of a tokenizer_config.json, as tokenizer.json lists them.
nlohmann::json read_added(const std::string& path) {
  nlohmann::json added = nlohmann::json::array();
  const nlohmann::json config = read_json_file(path);
  if (!json_has(config, "added_tokens_decoder")) return added;
  const std::string what = path + ": added_tokens_decoder";
  const nlohmann::json& tokens = config.at("added_tokens_decoder");
  if (!tokens.is_object()) throw Error(ErrorKind::kModel, what + " must be an object");
  for (const auto& [id, token] : tokens.items()) {
    const bool number =
        !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!number || !token.is_object())
      throw Error(ErrorKind::kModel, what + ": \"" + id + "\" (legal: an id and its token)");
    nlohmann::json entry = token;
    entry["id"] = std::stoll(id);
    added.push_back(std::move(entry));
  }
  return added;
}

// The tokenizer of those parts that a tokenizer.json has and that splits texts as Qwen2's does.
ByteBpeTokenizer of_parts(nlohmann::json added, nlohmann::json vocab, nlohmann::json merges,
                          const std::string& what) {
  nlohmann::json words{{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
  words["pattern"]["Regex"] = kWords;
  const nlohmann::json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const nlohmann::json file{
      {"added_tokens", std::move(added)},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({words, bytes})}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}}}};
  return ByteBpeTokenizer::from_json(
      file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), what);
}

}  // namespace

ByteBpeTokenizer ByteBpeTokenizer::from_lists(const ByteBpeLists& lists, const std::string& what) {
  nlohmann::json added = nlohmann::json::array(), vocab = nlohmann::json::object();
  for (size_t id = 0; id < lists.tokens.size(); ++id) {
    const auto& [text, kind] = lists.tokens[id];
    if (kind == ByteBpeLists::Kind::kUnused) continue;
    if (kind == ByteBpeLists::Kind::kNormal && !vocab.emplace(text, id).second)
      throw Error(ErrorKind::kModel,
                  what + ": the token " + std::to_string(id) + " is that of another id, too");
    if (kind != ByteBpeLists::Kind::kNormal)
      added.push_back(
          {{"id", id}, {"content", text}, {"special", kind == ByteBpeLists::Kind::kSpecial}});
  }
  return of_parts(std::move(added), std::move(vocab), lists.merges, what);
}

ByteBpeTokenizer ByteBpeTokenizer::open_folder(const std::string& folder) {
  const std::string whole = folder + "/tokenizer.json", vocab = folder + "/vocab.json";
  if (std::filesystem::exists(whole) || !std::filesystem::exists(vocab)) return open(whole);
  return of_parts(read_added(folder + "/tokenizer_config.json"), read_json_file(vocab),
                  read_merges_file(folder + "/merges.txt"), folder);
}

}  // namespace weft
