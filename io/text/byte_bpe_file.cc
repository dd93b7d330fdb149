#include "io/text/byte_bpe_file.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxAddedBytes = 256;  // per token; keeps the search cheap
constexpr size_t kMaxSplits = 16;
// The pattern that ByteLevel itself has, which is GPT-2's.
constexpr const char* kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorKind::kModel, what + ": " + why);
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

class Reader {
 public:
  Reader(const nlohmann::json& root, const std::string& what) : root_(root), what_(what) {}

  ByteBpeFile read() {
    if (!root_.is_object()) refuse(what_, "must hold an object");
    for (const char* field : {"truncation", "padding"})
      if (json_has(root_, field)) refuse(what_, quoted(field) + " must be null");
    read_model();
    read_added();
    if (json_has(root_, "normalizer")) read_normalizer(root_["normalizer"], 0);
    read_pre_tokenizer();
    read_post_processor();
    const std::string decoder = type_of(json_field(root_, "decoder", what_), "decoder");
    if (decoder != "ByteLevel") refuse_type("decoder", decoder, "ByteLevel");
    return std::move(file_);
  }

 private:
  std::string at(const std::string& place) const { return what_ + ", " + place; }
  std::string type_of(const nlohmann::json& object, const std::string& place) const {
    return json_string(object, "type", at(place));
  }
  [[noreturn]] void refuse_type(const std::string& place, const std::string& type,
                                const std::string& legal) const {
    refuse(at(place), "the type " + quoted(type) + " is not supported; legal: " + legal);
  }
  bool flag(const nlohmann::json& object, const char* field, const std::string& place) const {
    return json_bool_or(object, field, at(place), false);
  }
  const nlohmann::json& array(const nlohmann::json& object, const char* field,
                              const std::string& place) const {
    const nlohmann::json& list = json_field(object, field, place);
    if (!list.is_array()) refuse(place, quoted(field) + " must be an array");
    return list;
  }

  void read_model() {
    const nlohmann::json& model = json_field(root_, "model", what_);
    const std::string place = at("model");
    const std::string type = json_string_or(model, "type", place, "BPE");
    if (type != "BPE") refuse_type("model", type, "BPE");
    if (json_has(model, "dropout") && json_number(model, "dropout", place) != 0)
      refuse(place, "\"dropout\" must be null");
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!json_string_or(model, field, place, "").empty())
        refuse(place, quoted(field) + " must be null in a byte-level vocabulary");
    file_.ignore_merges = flag(model, "ignore_merges", "model");
    const nlohmann::json& vocab = json_field(model, "vocab", place);
    if (!vocab.is_object()) refuse(place, "\"vocab\" must be an object of token to id");
    for (const auto& [token, id] : vocab.items())
      take_id(token, read_token_id(id, at("vocab")), "vocab");
    file_.merges = read_bpe_merges(array(model, "merges", place), file_.vocab, place);
  }

  void take_id(const std::string& token, int32_t id, const std::string& place) {
    if (!ids_.insert(id).second)
      refuse(at(place), "the id " + std::to_string(id) + " of " + quoted(token) +
                            " belongs to another token too");
    file_.vocab.emplace(token, id);
  }

  void read_added() {
    if (!json_has(root_, "added_tokens")) return;
    std::unordered_set<std::string> seen;
    for (const nlohmann::json& entry : array(root_, "added_tokens", what_)) {
      const std::string place = at("added_tokens");
      ByteBpeFile::AddedToken token;
      token.content = json_string(entry, "content", place);
      const std::string named = "added_tokens, " + quoted(token.content.substr(0, 64));
      token.id = read_token_id(json_field(entry, "id", place), at(named));
      token.special = flag(entry, "special", named);
      token.normalized = flag(entry, "normalized", named);
      for (const char* field : {"single_word", "lstrip", "rstrip"})
        if (flag(entry, field, named)) refuse(at(named), quoted(field) + " must be false");
      if (token.content.empty() || token.content.size() > kMaxAddedBytes)
        refuse(at(named), "\"content\" has " + std::to_string(token.content.size()) +
                              " bytes; legal are 1 to " + std::to_string(kMaxAddedBytes));
      if (!seen.insert(token.content).second) refuse(at(named), "is listed twice");
      const auto known = file_.vocab.find(token.content);
      if (known == file_.vocab.end())
        take_id(token.content, token.id, named);
      else if (known->second != token.id)
        refuse(at(named), "\"id\" is " + std::to_string(token.id) + ", and " +
                              std::to_string(known->second) + " in the vocabulary");
      file_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const nlohmann::json& normalizer, int depth) {
    const std::string type = type_of(normalizer, "normalizer");
    if (type == "NFC") {
      file_.nfc = true;
    } else if (type == "Sequence" && depth == 0) {
      for (const nlohmann::json& part : array(normalizer, "normalizers", at("normalizer")))
        read_normalizer(part, depth + 1);
    } else {
      refuse_type("normalizer", type, "NFC");
    }
  }

  void read_pre_tokenizer() {
    const std::string place = at("pre_tokenizer");
    const nlohmann::json& top = json_field(root_, "pre_tokenizer", what_);
    std::vector<const nlohmann::json*> steps;
    if (type_of(top, "pre_tokenizer") == "Sequence") {
      for (const nlohmann::json& step : array(top, "pretokenizers", place)) steps.push_back(&step);
    } else {
      steps.push_back(&top);
    }
    if (steps.empty() || steps.size() > kMaxSplits)
      refuse(place, "has " + std::to_string(steps.size()) + " steps; legal are 1 to " +
                        std::to_string(kMaxSplits));
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::string type = type_of(*steps[i], "pre_tokenizer");
      if (type == "Split")
        read_split(*steps[i], place);
      else if (type != "ByteLevel")
        refuse_type("pre_tokenizer", type, "Split, ByteLevel");
      if ((type == "ByteLevel") != (i + 1 == steps.size()))
        refuse(place, "the last step, and only that, must be ByteLevel");
    }
    file_.add_prefix_space = json_bool(*steps.back(), "add_prefix_space", place);
    file_.splits_before_prefix = file_.splits.size();
    if (json_bool_or(*steps.back(), "use_regex", place, true))
      file_.splits.push_back({SplitPattern::from_regex(kByteLevelPattern, place)});
  }

  void read_split(const nlohmann::json& split, const std::string& place) {
    const std::string behavior = json_string(split, "behavior", place);
    if (behavior != "Isolated" && behavior != "Removed")
      refuse(place,
             "the behavior " + quoted(behavior) + " is not supported; legal: Isolated, Removed");
    const nlohmann::json& pattern = json_field(split, "pattern", place);
    const bool regex = json_has(pattern, "Regex");
    const std::string where = place + ", \"pattern\"";
    const std::string text = json_string(pattern, regex ? "Regex" : "String", where);
    file_.splits.push_back(
        {regex ? SplitPattern::from_regex(text, where) : SplitPattern::from_literal(text, where),
         behavior == "Isolated" ? ByteBpeFile::Behavior::kIsolated
                                : ByteBpeFile::Behavior::kRemoved,
         flag(split, "invert", "pre_tokenizer")});
  }

  // ByteLevel only changes offsets, which are not used here. A template that adds tokens would
  // change ids and is refused.
  void read_post_processor() const {
    if (!json_has(root_, "post_processor")) return;
    const nlohmann::json& processor = root_["post_processor"];
    const std::string type = type_of(processor, "post_processor");
    const bool adds_nothing =
        type == "ByteLevel" || (type == "TemplateProcessing" && is_the_text_alone(processor));
    if (!adds_nothing)
      refuse_type("post_processor", type,
                  "null, ByteLevel, TemplateProcessing that adds no tokens to a single text");
  }
  // Returns whether a template's form of a single text is the text.
  static bool is_the_text_alone(const nlohmann::json& processor) {
    if (!processor.contains("single") || !processor["single"].is_array()) return false;
    const nlohmann::json& pieces = processor["single"];
    return pieces.size() == 1 && pieces[0].is_object() && pieces[0].contains("Sequence");
  }

  const nlohmann::json& root_;
  const std::string& what_;
  ByteBpeFile file_;
  std::unordered_set<int32_t> ids_;
};

}  // namespace

ByteBpeFile ByteBpeFile::parse(std::string_view json, const std::string& what) {
  const nlohmann::json root = parse_json(json, what, JsonDialect::kStrict);
  return Reader(root, what).read();
}

}  // namespace weft
