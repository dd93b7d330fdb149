#pragma once
// SequenceMap: says which tokens each rank of a sequence holds. Pure index math; every rank knows
// all of it.
#include <vector>

#include "parallel/partition.h"

namespace weft {

// The tokens of a forward. A video's are `frames` equal parts, one per latent frame. After them
// come those `beside` it, of other pictures, which are split as well and of which a rank may have
// none.
struct Sequence {
  int64_t tokens = 0, frames = 1, beside = 0;
  Sequence(int64_t tokens, int64_t frames = 1,  // NOLINT: a number of tokens is a sequence
           int64_t beside = 0);
  int64_t frame_tokens() const { return tokens / frames; }
  bool operator==(const Sequence&) const = default;
};

class SequenceMap {
 public:
  // Index i holds parts[i]: at least one token, its ranges ascending.
  explicit SequenceMap(std::vector<TokenRanges> parts);
  // One range each.
  SequenceMap(const std::vector<Range>& ranges);  // NOLINT: a list of ranges is a map

  // Sequence index = ring * ulysses + its place in the Ulysses group, which shares a block.
  static SequenceMap contiguous(int64_t total, int parts);
  // The frames of a video are cut into clips, and the tokens of each clip among `ulysses` indices.
  static SequenceMap clips(const Sequence& video, int clips, int ulysses = 1);
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
  // The same map where each index also holds its part of so many tokens after all of these.
  SequenceMap with_beside(int64_t tokens) const;
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
