#pragma once
// KV cache of one rank: pages of one pool, so that sequences of any length share memory without
// gaps (PagedAttention: Kwon et al. 2023, arXiv 2309.06180, section 4). move_cache changes how a
// cache is split among ranks.
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/arena.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"
#include "parallel/token_mixer.h"

namespace weft {

// The shape of a page: `rows` tokens of every layer of the rank.
struct KVShape {
  int layers = 0;
  int64_t kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  int64_t rows = 128;
  Device device{};

  int64_t pages_for(int64_t tokens) const { return (tokens + rows - 1) / rows; }
  size_t page_bytes() const {
    return static_cast<size_t>(2 * layers * rows * kv_heads * head_dim) * size_of(dtype);
  }
};

class KVPool {
 public:
  // At most `limit` pages; each is allocated when it is first needed and used again.
  KVPool(const KVShape& shape, int64_t limit) : shape_(shape), limit_(limit) {}

  const KVShape& shape() const { return shape_; }
  int64_t limit() const { return limit_; }
  void raise_limit(int64_t limit) { limit_ = std::max(limit, limit_); }
  int64_t free_pages() const { return limit_ - taken_; }
  int64_t pages_for(int64_t tokens) const { return shape_.pages_for(tokens); }
  // The bytes of all pages that were allocated.
  size_t bytes() const {
    return (static_cast<size_t>(taken_) + idle_.size()) * shape_.page_bytes();
  }

 private:
  friend class KVCache;
  Tensor take();  // [layers, 2, rows, Akv, E]
  void give_back(Tensor page);

  KVShape shape_;
  int64_t limit_, taken_ = 0;
  std::vector<Tensor> idle_;
};

// The cache of one sequence: reserve() before a pass, which writes the append slots, and commit()
// after it.
class KVCache {
 public:
  explicit KVCache(KVPool& pool);  // the pool must outlive it
  ~KVCache();
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  // The tokens held, in the order of their rows.
  const TokenRanges& tokens() const { return held_; }
  // Makes append slots for `tokens`. Error(kMemory), with nothing changed, where the pool has too
  // few pages.
  void reserve(const TokenRanges& tokens);
  void commit();  // the reserved tokens are held from now on
  void drop();    // the pass failed: the append slots are freed

  // One per layer of the rank: held tokens are segments, reserved tokens are append slots.
  std::span<ContextKV> layers() { return layers_; }
  std::span<const ContextKV> layers() const { return layers_; }
  const KVShape& shape() const { return pool_->shape(); }

 private:
  void lay_out();

  KVPool* pool_;
  TokenRanges held_, reserved_;
  std::vector<Tensor> pages_;
  std::vector<ContextKV> layers_;
};

// A rank holds the keys and values of these tokens for these heads.
struct KVPlace {
  TokenRanges tokens;
  Range heads;
};

// The move of a sequence from `held[i]` to `wanted[i]` (all tokens of some heads) for every rank i
// of a group. Where several ranks hold the same, a rank reads its own copy, else the first one's.
struct KVMove {
  std::vector<KVPlace> held, wanted;

  // The heads that `rank` sends to `reader`; they are contiguous.
  Range heads(int rank, int reader) const;
};

// Carries out a move with one exchange per layer. `to` is empty before, and after an error.
void move_cache(Communicator& group, Stream& stream, Arena& arena, const KVMove& move,
                const KVCache& from, KVCache& to);

}  // namespace weft
