#pragma once
// Pass: identifies a forward. It is the key of every tag, cache slot and trace line. The ranges are
// those that a tag carries (parallel/tag.h).
#include <compare>
#include <string>

namespace weft {

struct Pass {
  int prompt = 0;   // < 2^16
  int model = 0;    // < 2, expert: 0 = transformer (high noise), 1 = transformer_2 (low noise)
  int branch = 0;   // < 4, guidance: 0 = conditional, 1 = unconditional
  int segment = 0;  // < 2^16 in a tag
  int step = 0;     // < 2^16 in a tag
  int micro = 0;    // < 2^16, patch or micro-batch
  auto operator<=>(const Pass&) const = default;
};

std::string to_string(const Pass& pass);

// The pass as tags have it: segments and steps of endless plans go round in a circle. Far fewer
// than 2^16 of them are under way at a time.
Pass in_tag(Pass pass);

}  // namespace weft
