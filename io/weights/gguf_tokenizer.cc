#include "io/weights/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/weights/mapping.h"
#include "io/weights/safetensors_header.h"

namespace weft {
namespace {

constexpr uint64_t kMostTokens = uint64_t{1} << 21;  // vocabularies in use end near 2^18
constexpr uint64_t kLongestToken = 4096;             // bytes
constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // of all tokens, or of all merges
constexpr uint64_t kLongestMap = uint64_t{16} << 20;
const std::string kPrefix = "tokenizer.ggml.";

class Reader {
 public:
  Reader(std::string_view file, const GgufHeader& header, const std::string& path)
      : file_(file), header_(header), path_(path) {}

  std::optional<GgufTokenizer> read() const {
    if (!list("tokens")) return std::nullopt;
    GgufTokenizer out;
    out.model = text("model");
    out.words = text("pre");
    out.tokens = strings("tokens");
    out.merges = strings("merges");
    out.scores = numbers<float>("scores", {kGgufF32}, out.tokens.size());
    out.types = numbers<int32_t>("token_type", {kGgufI32, kGgufU32}, out.tokens.size());
    for (const float score : out.scores)
      if (!std::isfinite(score)) refuse("scores", "holds a value that is not finite");
    for (const int32_t type : out.types)
      if (type < GgufTokenizer::kNormal || type > GgufTokenizer::kByte)
        refuse("token_type", "holds " + std::to_string(type) + " (legal: 1 to 6)");
    const std::vector<char> map = numbers<char>("precompiled_charsmap", {kGgufU8, kGgufI8}, 0);
    out.charsmap.assign(map.begin(), map.end());
    out.add_space_prefix = flag("add_space_prefix", out.add_space_prefix);
    out.remove_extra_whitespaces = flag("remove_extra_whitespaces", out.remove_extra_whitespaces);
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw Error(ErrorKind::kModel, path_ + ": metadata " + kPrefix + key + " " + why);
  }
  const GgufList* list(const std::string& key) const {
    const auto found = header_.lists.find(kPrefix + key);
    return found == header_.lists.end() ? nullptr : &found->second;
  }
  std::string text(const std::string& key) const {
    const auto found = header_.metadata.find(kPrefix + key);
    return found == header_.metadata.end() ? "" : found->second;
  }
  bool flag(const std::string& key, bool fallback) const {
    const std::string value = text(key);
    if (!value.empty() && value != "true" && value != "false")
      refuse(key, "is " + quoted_name(value) + " (legal: true, false)");
    return value.empty() ? fallback : value == "true";
  }

  std::vector<std::string> strings(const std::string& key) const {
    std::vector<std::string> out;
    const GgufList* found = list(key);
    if (!found) return out;
    if (found->type != kGgufString) refuse(key, "is no list of texts");
    if (found->count > kMostTokens)
      refuse(key, "is a list of " + std::to_string(found->count) + " texts (legal: at most " +
                      std::to_string(kMostTokens) + ")");
    out.reserve(found->count);
    uint64_t total = 0;
    std::string_view rest = file_.substr(std::min<uint64_t>(found->at, file_.size()));
    for (uint64_t i = 0; i < found->count; ++i) {
      uint64_t size = 0;
      if (rest.size() < sizeof size) refuse(key, "is cut off");
      std::memcpy(&size, rest.data(), sizeof size);
      rest.remove_prefix(sizeof size);
      if (size > rest.size()) refuse(key, "is cut off");
      total += size;
      if (size > kLongestToken || total > kMostBytes)
        refuse(key, "has a text of " + std::to_string(size) + " bytes at " + std::to_string(i) +
                        " (legal: at most " + std::to_string(kLongestToken) + ", and " +
                        size_text(kMostBytes) + " in all)");
      out.emplace_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    return out;
  }

  // A list of numbers of one of the types; there must be `count`, unless that is 0.
  template <class T>
  std::vector<T> numbers(const std::string& key, std::initializer_list<uint32_t> types,
                         uint64_t count) const {
    const GgufList* found = list(key);
    if (!found) return {};
    if (std::ranges::find(types, found->type) == types.end())
      refuse(key, "is a list of the value type " + std::to_string(found->type));
    if (count ? found->count != count : found->count > kLongestMap)
      refuse(key, "is a list of " + std::to_string(found->count) + " values (legal: " +
                      (count ? std::to_string(count) + ", one per token"
                             : "at most " + std::to_string(kLongestMap)) +
                      ")");
    if (found->at > file_.size() || found->count > (file_.size() - found->at) / sizeof(T))
      refuse(key, "is cut off");
    std::vector<T> out(found->count);
    if (!out.empty()) std::memcpy(out.data(), file_.data() + found->at, out.size() * sizeof(T));
    return out;
  }

  std::string_view file_;
  const GgufHeader& header_;
  const std::string& path_;
};

}  // namespace

std::optional<GgufTokenizer> read_gguf_tokenizer(std::string_view file, const GgufHeader& header,
                                                 const std::string& path) {
  return Reader(file, header, path).read();
}

std::optional<GgufTokenizer> read_gguf_tokenizer(const std::string& path) {
  const Mapping file(path);
  const std::string_view bytes(file.data(), file.size());
  return read_gguf_tokenizer(bytes, parse_gguf_header(bytes, path), path);
}

}  // namespace weft
