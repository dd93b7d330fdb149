#include "models/files/part_prefix.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "io/weights/weights_file.h"

namespace weft {

namespace {

constexpr const char* kComponentPrefixes[] = {"diffusion_model.",
                                              "dit.",
                                              "vae.",
                                              "first_stage_model.",
                                              "text_encoders.*.",
                                              "text_encoder.",
                                              "text_encoder_2.",
                                              "cond_stage_model.",
                                              "conditioner.embedders.*.",
                                              "image_encoder.",
                                              "clip_vision.",
                                              "audio_encoder.",
                                              "wav2vec2."};
constexpr const char* kWrapperPrefixes[] = {"model.", "module.", "net.", "transformer."};
constexpr const char* kWrapperParts[] = {"_orig_mod.", "_fsdp_wrapped_module."};
constexpr size_t kMostPrefixes = 256;  // that a file may have

// Returns how many characters of a name's beginning the token matches; 0: none.
size_t matched(std::string_view token, std::string_view name) {
  const size_t star = token.find('*');
  if (star == token.npos) return name.starts_with(token) ? token.size() : 0;
  const size_t dot = name.find('.', star);
  return name.starts_with(token.substr(0, star)) && dot != name.npos && dot > star ? dot + 1 : 0;
}

size_t matched(std::span<const char* const> tokens, std::string_view name) {
  for (const char* token : tokens)
    if (const size_t size = matched(std::string_view(token), name)) return size;
  return 0;
}

// The prefix of a name: all tokens that it begins with. `each(size, component)` sees the size of
// the prefix after every one of them.
template <class F>
void walk_prefix(std::string_view name, F&& each) {
  for (size_t at = 0;;) {
    const size_t component = matched(kComponentPrefixes, name.substr(at)),
                 size = component ? component : matched(kWrapperPrefixes, name.substr(at));
    if (size == 0) return;
    at += size;
    each(at, component > 0);
  }
}

bool names_component(std::string_view name) {
  bool found = false;
  walk_prefix(name, [&](size_t, bool component) { found |= component; });
  return found;
}

std::string without_parts(std::string name) {
  for (const std::string_view part : kWrapperParts)
    for (size_t at = name.find(part); at != name.npos; at = name.find(part, at))
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, part.size());
      else
        ++at;
  return name;
}

}  // namespace

std::span<const char* const> component_prefixes() { return kComponentPrefixes; }
std::span<const char* const> wrapper_prefixes() { return kWrapperPrefixes; }
std::span<const char* const> wrapper_parts() { return kWrapperParts; }

PartNames::PartNames(const std::string& path) : PartNames(weight_names(path)) {}

PartNames::PartNames(const std::vector<std::string>& names) {
  std::set<std::string> found{""};
  for (const std::string& name : names) {
    names_.push_back(without_parts(name));
    walk_prefix(names_.back(), [&](size_t size, bool) {
      if (found.size() < kMostPrefixes) found.insert(names_.back().substr(0, size));
    });
  }
  std::ranges::sort(names_);
  prefixes_.assign(found.begin(), found.end());
  std::ranges::stable_sort(prefixes_, {}, &std::string::size);
}

TensorFile::Renaming PartNames::under(const std::string& prefix) {
  return [prefix](const std::string& given) -> std::string {
    const std::string name = without_parts(given);
    if (!name.starts_with(prefix)) return "";
    const std::string own = name.substr(prefix.size());
    return names_component(own) ? "" : own;
  };
}

bool PartNames::same_part(const std::string& prefix, const std::string& longer) {
  return longer.starts_with(prefix) && !names_component(longer.substr(prefix.size()));
}

}  // namespace weft
