#include "parallel/partition.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

Range intersection(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range partition(int64_t total, int parts, int index) {
  CHECK(total >= 0 && parts > 0 && index >= 0 && index < parts, "total", total, "parts", parts,
        "index", index);
  const int64_t size = total / parts, longer = total % parts;
  const int64_t begin = size * index + std::min<int64_t>(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

HeadPart partition_heads(int64_t heads, int64_t kv_heads, int parts, int index) {
  CHECK(kv_heads > 0 && heads % kv_heads == 0 && parts <= heads, "heads", heads, "kv heads",
        kv_heads, "parts", parts);
  const int64_t per_group = heads / kv_heads;
  if (parts <= kv_heads) {
    const Range kv = partition(kv_heads, parts, index);
    return {{kv.begin * per_group, kv.end * per_group}, kv};
  }
  // partition(parts, kv_heads, group) share a group; none has more parts than query heads.
  int64_t group = 0;
  Range sharing = partition(parts, static_cast<int>(kv_heads), 0);
  while (index >= sharing.end)
    sharing = partition(parts, static_cast<int>(kv_heads), static_cast<int>(++group));
  const Range q = partition(per_group, static_cast<int>(sharing.size()),
                            static_cast<int>(index - sharing.begin));
  return {{group * per_group + q.begin, group * per_group + q.end}, {group, group + 1}};
}

int64_t TokenRanges::size() const {
  int64_t n = 0;
  for (const Range& range : ranges) n += range.size();
  return n;
}

void TokenRanges::append(const Range& range) {
  if (range.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

TokenRanges TokenRanges::within(const Range& range) const {
  TokenRanges out{{}, total};
  for (const Range& each : ranges) out.append(intersection(each, range));
  return out;
}

std::string to_string(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

}  // namespace weft
