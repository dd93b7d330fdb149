#pragma once
// TokenMixer: the seam that self-attention asks. It decides which keys and values a rank's
// attention sees and where they come from. FullMixer is the answer for one rank.
#include <vector>

#include "kernels/attention.h"
#include "kernels/rope.h"
#include "parallel/pass.h"

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

// One self-attention. q [n, A, E] and k, v [n, Akv, E] are normed, before rope: the mixer applies
// rope, because only it knows whose keys it holds. out [n, A, E], dtype of q. q and k are
// overwritten.
struct Attend {
  int layer = 0;
  TensorView q, k, v, out;
  const Rope* rope = nullptr;  // null: no positions (the VAE's mid attention)
  Mask mask = Mask::kFull;
  float scale = 1;
  AttentionFormat format = AttentionFormat::kCompute;
  ContextKV* past = nullptr;
};

struct TokenMixer {
  virtual ~TokenMixer() = default;
  virtual void begin(const Pass& pass) = 0;
  virtual void attend(Context& context, const Attend& attend) = 0;
};

// Applies rope to attend.q and attend.k in place, at the global positions of context.tokens. Does
// nothing where attend.rope is null.
void apply_positions(Context& context, const Attend& attend);

// Copies k and v [n, Akv, E], after rope, to past->append_slots. Does nothing where there are none.
void append_to_cache(Stream& stream, const ContextKV* past, const TensorView& k,
                     const TensorView& v);

// This rank holds all tokens: rope, then one attention over past and own keys.
class FullMixer final : public TokenMixer {
 public:
  void begin(const Pass&) override {}
  void attend(Context& context, const Attend& attend) override;
};

}  // namespace weft
