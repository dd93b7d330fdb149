#pragma once
// The cases of weft_measure truth and long: a method or a step cache, and how ranks share its work.
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"

namespace weft {

// A method, or full attention with a step cache.
struct Approximation {
  Method method = Full();
  StepCache cache{};

  std::string name() const {
    return cache.kind == StepCacheKind::kNone ? to_string(method) : to_string(cache);
  }
};

// METHOD or CACHE alone, METHOD@AXIS (full@ring) or METHOD@LAYOUT (full@cfg=2,ring=2).
struct MeasuredCase {
  std::string text;
  Approximation way;
  std::string axis;  // or a whole layout; empty where the case names none

  // All ranks share the axis. Where the case does not say otherwise, the first rank alone encodes
  // and decodes, so that what is sent between ranks belongs to the steps.
  Layout layout(int ranks, const Generator& generator, const Request& request) const;
};

// `label` begins the errors.
MeasuredCase parse_case(const std::string& text, const std::string& label);
// The cases that the command line names.
std::vector<MeasuredCase> given_cases(const Flags& flags, const std::string& label);

}  // namespace weft
