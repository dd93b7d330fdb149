#pragma once
// The merging half of byte-pair encoding: the table of pairs and its use on one word.
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace weft {

class BpeMerges {
 public:
  // Reused from word to word; belongs to one thread.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;  // -1: none
    };
    struct Candidate {
      int32_t rank, at, left, right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `rank` is the place in the file's list: lower merges first. A pair given twice has its last.
  void add(int32_t left, int32_t right, int32_t merged, int32_t rank);

  // Replaces the word's ids by those left when the pair of lowest rank, the leftmost of equals, has
  // been merged until no neighbours are a pair of the table. O(n log n) for n ids, at most 2^31
  // - 1.
  void apply(std::vector<int32_t>& word, Scratch& scratch) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void consider(Scratch& scratch, int32_t at) const;

  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace weft
