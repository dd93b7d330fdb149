#include "parallel/partition.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

Range partition(int64_t total, int parts, int index) {
  CHECK(total >= 0 && parts > 0 && index >= 0 && index < parts, "total", total, "parts", parts,
        "index", index);
  const int64_t size = total / parts, longer = total % parts;
  const int64_t begin = size * index + std::min<int64_t>(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

int64_t TokenRanges::size() const {
  int64_t n = 0;
  for (const Range& range : ranges) n += range.size();
  return n;
}

std::string to_string(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

}  // namespace weft
