#pragma once
// TokenMixer: the seam asked by self-attention. Which keys and values does a rank's attention see,
// where do they come from, and how old may they be? FullMixer is the serial answer.
#include <vector>

#include "kernels/attention.h"
#include "kernels/rope.h"
#include "parallel/pass.h"

namespace weft {

struct Context;

// What one layer's attention sees from before (KV cache, block context, sink), and where the
// present tokens' keys and values are kept for later: pieces of [n, Akv, E] that together have a
// row for each that the mixer holds, in its order. Keys are kept behind rope.
struct ContextKV {
  std::vector<KVSegment> segments;  // by ascending position
  std::vector<KVSegment> room{};    // empty: nothing is kept
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

// Turns attend.q and attend.k in place by the global positions of context.tokens; nothing where
// attend.rope is null.
void apply_positions(Context& context, const Attend& attend);

// Copies k and v [n, Akv, E], roped, to past->room; nothing where there is none.
void keep(Stream& stream, const ContextKV* past, const TensorView& k, const TensorView& v);

// All tokens are here: rope, then one attention over past and own keys.
class FullMixer final : public TokenMixer {
 public:
  void begin(const Pass&) override {}
  void attend(Context& context, const Attend& attend) override;
};

}  // namespace weft
