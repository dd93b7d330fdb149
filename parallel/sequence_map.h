#pragma once
// SequenceMap: says which tokens each rank of a sequence holds. Pure index math; every rank knows
// all of it.
#include <vector>

#include "parallel/partition.h"

namespace weft {

class SequenceMap {
 public:
  // Index i holds parts[i]: at least one token, its ranges ascending.
  explicit SequenceMap(std::vector<TokenRanges> parts);
  // One range each.
  SequenceMap(const std::vector<Range>& ranges);  // NOLINT: a list of ranges is a map

  // Sequence index = ring * ulysses + its place in the Ulysses group, which shares a block.
  static SequenceMap contiguous(int64_t total, int parts);
  // The balance of causal rings (ring-flash-attention's zigzag): of 2 R chunks ring block r is
  // chunks r and 2 R - 1 - r, so that every block sees as many keys; its rows are cut in turn over
  // `ulysses` indices. Needs R * ulysses <= total.
  static SequenceMap zigzag(int64_t total, int rings, int ulysses = 1);

  int size() const { return static_cast<int>(parts_.size()); }
  const TokenRanges& operator[](int index) const { return parts_[index]; }
  int64_t rows(int index) const { return parts_[index].size(); }
  int64_t rows() const;        // sum over all indices
  int64_t longest() const;     // rows of the index with the most
  TokenRanges joined() const;  // the rows of all indices in turn; neighbours become one range
  // The same map with every token `by` positions further on, in a sequence that is `by` longer.
  SequenceMap shifted(int64_t by) const;
  // Indices [begin, begin + count): a Ulysses group.
  SequenceMap slice(int begin, int count) const;
  // Every `count` neighbours become one index: the blocks of the rings above Ulysses groups.
  SequenceMap blocks(int count) const;

 private:
  std::vector<TokenRanges> parts_;
};

// The part of `tokens` after its first `rows` rows.
TokenRanges rows_from(const TokenRanges& tokens, int64_t rows);

}  // namespace weft
