#pragma once
// Ulysses: tokens are split outside of attention, heads inside it.
//
// Split: the sequence outside (uneven), heads inside (uneven).
// Talk: every rank with every other of its group, twice a layer: one fused all-to-all of q, k and v
//   in, one of the result out.
// Bytes sent by rank r per layer: e E [3 n_r (A - h_r) + h_r (S - n_r)]; n_r tokens and h_r heads
//   of rank r, S tokens of the group; grouped queries: n_r (h_u + 2 k_u) to every other rank u with
//   its k_u key/value heads, and h_r (S - n_r).
// Replicated rows: every rank takes its heads of them; one all-gather of the result: (P - 1) e E R
//   h_r more bytes for R rows.
// Past: the inner mixer's: all tokens of this rank's heads, as tensor parallelism over the same
//   heads keeps them (Shift Parallelism).
// Memory: (2 h_r + 2 k_r) (S + R) E + n_r (2 A + 2 Akv) E elements of the arena.
// Exact: to the bit where the inner mixer sees the same keys in the same order.
// Divisibility: none; every rank needs a token and a query head, so P <= A. Beyond Akv ranks a
//   key/value head goes to several.
// Overlap: none; the own part is copied while messages travel.
// Paper: DeepSpeed Ulysses (Jacobs et al. 2023, arXiv 2309.14509), section 3.
#include <memory>

#include "parallel/communicator.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

class UlyssesMixer final : public TokenMixer {
 public:
  // Rank i of the group holds the global tokens tokens[i]. `inner` attends over the rows of all
  // ranks in turn (tokens.joined()) with this rank's heads.
  UlyssesMixer(Communicator group, SequenceMap tokens, std::unique_ptr<TokenMixer> inner);

  void begin(const Pass& pass) override;
  void finish() override;
  void attend(Context& context, const Attend& attend) override;

 private:
  HeadPart heads_of(int rank, const Attend& attend) const;
  TensorView to_heads(Context& context, const Attend& attend, const Tag& tag);
  void to_tokens(Context& context, const Attend& attend, const AttendTags& tags,
                 const TensorView& result);

  Communicator group_;
  SequenceMap tokens_;
  std::unique_ptr<TokenMixer> inner_;
};

}  // namespace weft
