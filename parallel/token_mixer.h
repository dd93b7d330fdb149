#pragma once
// TokenMixer: the seam that self-attention asks. It decides which keys and values a rank's
// attention sees and where they come from. FullMixer is the answer for one rank.
#include <map>
#include <vector>

#include "kernels/attention.h"
#include "kernels/rope.h"
#include "parallel/tag.h"

namespace weft {

struct Context;

// One layer's KV cache: the segments that attention reads before its own keys, and the append slots
// that the present tokens' keys and values are written to. The slots are pieces of [n, Akv, E] that
// together have one row per token the mixer holds, in its order. Keys are stored after rope.
struct ContextKV {
  std::vector<KVSegment> segments;        // by ascending position
  std::vector<KVSegment> append_slots{};  // empty: nothing is written
};

enum class Mask : uint8_t { kFull, kCausal };

// The norms of queries and keys. Without weights they are normed already.
struct HeadNorms {
  TensorView q, k;  // weights, see HeadNorm
  float eps = 0;
};

// One self-attention. q [n + R, A, E] and k, v [n + R, Akv, E] are before rope: the mixer applies
// rope, because only it knows whose keys it holds. out [n + R, A, E], dtype of q. q and k are
// overwritten.
//
// The first n rows are this rank's tokens (Context::tokens). The last R rows are replicated: they
// are the same bits on every rank that shares the sequence (joint text, learned padding). Every
// token sees them once, they see every token, and every rank gets the same bits for them. They need
// Mask::kFull. Rows that are all replicated need no exchange: give them to a FullMixer.
struct Attend {
  int layer = 0;
  TensorView q, k, v, out;
  const Rope* rope = nullptr;  // null: no positions (the VAE's mid attention)
  // The positions of the tokens after those of the grid of `rope` (Sequence::beside).
  const Rope* beside_rope = nullptr;
  Mask mask = Mask::kFull;
  float scale = 1;
  AttentionFormat format = AttentionFormat::kCompute;
  ContextKV* past = nullptr;
  int64_t replicated = 0;  // R
  // The positions of the first of the replicated rows, one per token of its grid. Rows after them
  // and all rows where it is null have none.
  const Rope* replicated_rope = nullptr;
  // The norms that are left to apply, to the tokens and to the replicated rows: norm_and_attend().
  HeadNorms norms{}, replicated_norms{};
};

// The same attention with q, k, v and out cut to this rank's tokens, and to the replicated rows.
Attend own_rows(const Attend& attend);
Attend replicated_rows(const Attend& attend);

// The tags of one attend's messages. No other attend of the forward has them.
struct AttendTags {
  Pass pass{};
  int layer = 0, first = 0;  // first: the number of hop 0
  Tag operator()(Payload kind, int hop = 0) const {
    return {.kind = kind, .pass = pass, .layer = layer, .hop = first + hop};
  }
};

// Every rank of a mixer's groups calls begin(), attend() and finish() in the same order.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  // A forward begins: the messages of its attends carry `pass` and are numbered anew. Whoever makes
  // a Context for a pass calls it; models do not.
  virtual void begin(const Pass& pass);
  virtual void attend(Context& context, const Attend& attend) = 0;
  // True if attend() applies the norms of its heads together with rope, which a device does in one
  // pass. Others get heads that are normed.
  virtual bool norms_heads() const { return false; }
  // Returns when no message of the mixer is under way. Called when the steps of a job have ended,
  // before decoding; the next attend needs a begin().
  virtual void finish() { begun_ = false; }

 protected:
  // Takes `hops` fresh numbers of a layer. CHECKs that a forward has begun.
  AttendTags take_tags(int layer, int hops);

 private:
  bool begun_ = false;
  Pass pass_{};
  std::map<int, int> taken_;  // numbers in use since begin(), by layer
};

// Attends by the mixer. Where it does not take norms, they are applied before.
void norm_and_attend(Context& context, TokenMixer& mixer, Attend attend);

// Applies the norms and the ropes to attend.q and attend.k in place: the ropes to this rank's
// tokens at the global positions of context.tokens, to the replicated rows at theirs.
void apply_positions(Context& context, const Attend& attend);

// Copies k and v [n, Akv, E], after rope, to past->append_slots. Does nothing where there are none.
void append_to_cache(Stream& stream, const ContextKV* past, const TensorView& k,
                     const TensorView& v);

// This rank holds all tokens: rope, then one attention over past and own keys.
class FullMixer final : public TokenMixer {
 public:
  void attend(Context& context, const Attend& attend) override;
  bool norms_heads() const override { return true; }
};

}  // namespace weft
