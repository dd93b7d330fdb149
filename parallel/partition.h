#pragma once
// Partition: pure index math for uneven splits. Global and local indices have different types where
// they could be confused.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// A half-open range of global indices.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The indices that are in both; an empty range where there are none.
Range intersection(const Range& a, const Range& b);

// Part `index` of `parts` of [0, total): the first total % parts parts are one longer.
Range partition(int64_t total, int parts, int index);

// The attention heads of part `index` of `parts`: whole groups of query heads with their key/value
// head while parts <= kv_heads; beyond, the query heads of one group are cut over the parts that
// share its key/value head. Needs parts <= heads.
struct HeadPart {
  Range q, kv;
};
HeadPart partition_heads(int64_t heads, int64_t kv_heads, int parts, int index);

// The global token ranges of a rank's rows, in order: usually one, two for zigzag and where other
// pictures are beside the latent.
struct TokenRanges {
  std::vector<Range> ranges;
  int64_t total = 0;  // tokens of the whole sequence

  static TokenRanges all(int64_t total) { return {{{0, total}}, total}; }
  int64_t size() const;
  // Appends a range; it is merged with the last one where it continues it.
  void append(const Range& range);
  // The tokens that are in `range`, in the same order.
  TokenRanges within(const Range& range) const;
};

// Transformer blocks [begin, end) of `total`; embedding runs where begin is 0, the head where end
// is total.
struct BlockRange {
  int begin = 0, end = 0, total = 0;
  static BlockRange all(int total) { return {0, total, total}; }
  bool first() const { return begin == 0; }
  bool last() const { return end == total; }
  bool operator==(const BlockRange&) const = default;
};

std::string to_string(const Range& range);

}  // namespace weft
