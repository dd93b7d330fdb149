#include "models/lora/names.h"

#include <algorithm>
#include <cctype>
#include <span>

#include "io/weights/safetensors_header.h"

namespace weft {

namespace {

// The characters of `name` that the prefix covers; 0: it does not begin so.
size_t covered(std::string_view prefix, std::string_view name) {
  size_t at = 0;
  for (const char c : prefix) {
    const size_t start = at;
    if (c == '#') {
      while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
    } else if (c == '*') {
      at = std::min(name.find('.', at), name.size());
      if (at == start) return 0;
    } else if (at == name.size() || name[at++] != c) {
      return 0;
    }
  }
  return at;
}

// Returns the meaning of a name that has the form before its last `rest` characters.
LoraName named(std::string_view name, const LoraForm& form, size_t rest) {
  const size_t cut = rest + form.text.size() - form.kept;  // one more than the name where it is all
  LoraName out{.module = std::string(name.substr(0, name.size() - std::min(cut, name.size()))),
               .role = form.role};
  std::string_view key = out.module;
  for (bool more = true; more;) {
    more = false;
    // The module of a tensor that has no other is a prefix without its dot.
    const std::string dotted = std::string(key) + ".";
    for (const LoraPrefix& prefix : kLoraPrefixes) {
      const size_t size = covered(prefix.text, dotted);
      if (size == 0) continue;
      out.text |= prefix.kind == LoraPrefix::kText || prefix.kind == LoraPrefix::kTextName;
      out.flat |= prefix.kind == LoraPrefix::kFlat;
      more = prefix.kind != LoraPrefix::kTextName;
      if (more) key.remove_prefix(std::min(size, key.size()));
      break;
    }
  }
  // Some files of FLUX.2 lack the beginning of a name that is no prefix.
  out.key = (key.starts_with("sformer_blocks.") ? "tran" : "") + std::string(key);
  return out;
}

}  // namespace

std::optional<LoraName> parse_lora_name(std::string_view name) {
  const std::string dotted = "." + std::string(name);
  for (const auto& forms : {std::span<const LoraForm>(kLoraOthers), {kLokrFactors}, {kLohaFactors}})
    for (const LoraForm& form : forms)
      if (dotted.ends_with(form.text)) return named(name, form, 0);
  for (const std::string_view end : {".weight", ".bias"}) {
    if (!dotted.ends_with(end)) continue;
    const std::string_view stem = std::string_view(dotted).substr(0, dotted.size() - end.size());
    for (const std::string_view whole : {stem, stem.substr(0, stem.rfind('.'))})
      for (LoraForm form : kLoraFactors) {
        if (!whole.ends_with(form.text)) continue;
        if (end == ".bias" && form.role != LoraRole::kUp) continue;
        if (end == ".bias") form.role = LoraRole::kUpBias;
        return named(name, form, dotted.size() - whole.size());
      }
  }
  return std::nullopt;
}

LoraMethod method_of(LoraRole role) {
  if (role == LoraRole::kDown || role == LoraRole::kUp || role == LoraRole::kUpBias)
    return LoraMethod::kLora;
  if (std::ranges::count(kLokrFactors, role, &LoraForm::role)) return LoraMethod::kLokr;
  if (std::ranges::count(kLohaFactors, role, &LoraForm::role)) return LoraMethod::kLoha;
  return LoraMethod::kNone;
}

std::string counted(const std::vector<std::string>& names, const std::string& what) {
  constexpr size_t kMostNamed = 12;
  std::string text = std::to_string(names.size()) + " " + what + ": ";
  for (size_t i = 0; i < std::min(kMostNamed, names.size()); ++i)
    text += (i ? ", " : "") + quoted_name(names[i]);
  return text + (names.size() > kMostNamed ? ", ..." : "");
}

}  // namespace weft
