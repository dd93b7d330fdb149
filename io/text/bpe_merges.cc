#include "io/text/bpe_merges.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace weft {
namespace {

bool later(const BpeMerges::Scratch::Candidate& a, const BpeMerges::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

void BpeMerges::add(int32_t left, int32_t right, int32_t merged, int32_t rank) {
  merges_.insert_or_assign(key(left, right), Merge{rank, merged});
}

// Adds the pair that begins at symbol `at` to the candidates if the table has it.
void BpeMerges::consider(Scratch& scratch, int32_t at) const {
  if (at < 0 || scratch.symbols[at].next < 0) return;
  const int32_t left = scratch.symbols[at].id;
  const int32_t right = scratch.symbols[scratch.symbols[at].next].id;
  const auto found = merges_.find(key(left, right));
  if (found == merges_.end()) return;
  scratch.heap.push_back({found->second.rank, at, left, right});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void BpeMerges::apply(std::vector<int32_t>& word, Scratch& scratch) const {
  CHECK(word.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), word.size());
  const auto size = static_cast<int32_t>(word.size());
  if (size < 2) return;
  auto& [symbols, heap] = scratch;
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < size; ++i) symbols.push_back({word[i], i - 1, i + 1 < size ? i + 1 : -1});
  for (int32_t i = 0; i + 1 < size; ++i) consider(scratch, i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[best.at];
    // Later merges may have changed either side of the candidate. A symbol that was merged away has
    // id -1.
    if (left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = merges_.find(key(best.left, best.right))->second.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.at;
    consider(scratch, left.previous);
    consider(scratch, best.at);
  }
  word.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) word.push_back(symbols[i].id);
}

}  // namespace weft
