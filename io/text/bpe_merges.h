#pragma once
// The merge step of byte-pair encoding: the table of pairs, and its application to one word.
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace weft {

class BpeMerges {
 public:
  // Buffers that are reused from word to word. Only one thread at a time may use them.
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

  // `rank` is the pair's position in the file's list; lower ranks merge first. If a pair is added
  // twice, its last rank counts.
  void add(int32_t left, int32_t right, int32_t merged, int32_t rank);

  // Merges the word's ids: repeatedly merges the pair of lowest rank, the leftmost of equal ones,
  // until no two neighbours form a pair of the table. Takes O(n log n) for n ids, n < 2^31.
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
