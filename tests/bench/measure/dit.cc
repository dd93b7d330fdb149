#include <memory>

#include "apps/bench/benches.h"
#include "tests/bench/measure/measure.h"
#include "tests/support/quantised_copy.h"

namespace weft {

int measure_dit(const Flags& flags, DType dtype, int repeat) {
  StoredWeights stored{.name = flags.text("stored"), .quantise = nullptr};
  for (int i = 0; i < static_cast<int>(BlockType::kCount); ++i)
    if (const auto type = static_cast<BlockType>(i); stored.name == shape_of(type).name)
      stored.quantise = [type](TensorFile random) {
        return quantised_copy(std::make_shared<const TensorFile>(std::move(random)), type);
      };
  return bench_dit(flags, dtype, repeat, stored);
}

}  // namespace weft
