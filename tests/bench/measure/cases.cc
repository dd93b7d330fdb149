#include "tests/bench/measure/cases.h"

#include <span>

namespace weft {

Layout MeasuredCase::layout(int ranks, const Generator& generator, const Request& request) const {
  const bool whole = axis.find('=') != std::string::npos;
  Layout layout = parse_layout(whole ? axis : axis + "=" + std::to_string(ranks), ranks,
                               generator.layout_limits(request));
  if (layout.text_ranks == 0) layout.text_ranks = 1;
  if (layout.vae_ranks == 0 && layout.decode_rank < 0) layout.decode_rank = 0;
  return layout;
}

namespace {

bool names_cache(const std::string& text) {
  for (int kind = 1; kind < static_cast<int>(StepCacheKind::kCount); ++kind)
    if (text.starts_with(to_string(static_cast<StepCacheKind>(kind)))) return true;
  return false;
}

}  // namespace

MeasuredCase parse_case(const std::string& text, const std::string& label) {
  const size_t at = text.find('@');
  const std::string name = text.substr(0, at);
  MeasuredCase one{.text = text, .way = {}, .axis = {}};
  if (names_cache(name))
    one.way.cache = parse_step_cache(name, label);
  else
    one.way.method = parse_method(name, label);
  if (at == std::string::npos) return one;
  one.axis = text.substr(at + 1);
  if (one.axis.empty())
    throw Error(ErrorKind::kUsage,
                label + " is '" + text + "', legal after the @: an axis or a layout, as full@ring");
  return one;
}

std::vector<MeasuredCase> given_cases(const Flags& flags, const std::string& label) {
  std::vector<MeasuredCase> cases;
  for (const std::string& text : std::span(flags.operands()).subspan(1))
    cases.push_back(parse_case(text, label));
  return cases;
}

}  // namespace weft
