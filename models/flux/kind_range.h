#pragma once
// The blocks of one kind where a transformer has two kinds: FLUX.1 and FLUX.2.
#include <algorithm>

#include "models/transformer.h"
#include "models/weight_offload.h"
#include "parallel/partition.h"

namespace weft {

// The blocks of a kind among those that are loaded, and how many of them are resident.
struct KindRange {
  Range blocks;
  int resident;
};

inline KindRange kind_range(const Range& kind, const TransformerLoad& load) {
  const Range own = intersection(kind, {load.blocks.begin, load.blocks.end});
  const int64_t all = load.blocks.end - load.blocks.begin;
  if (load.resident == 0 || load.resident >= all || own.size() == 0) return {own, 0};
  const int64_t share = load.resident * own.size() / all;
  return {own, static_cast<int>(std::max<int64_t>(share, kWindowSlots))};
}

}  // namespace weft
