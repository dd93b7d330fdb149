#pragma once
// Token ring: keys and values stay, queries go around, and attention states go straight to the
// owner of the queries.
//
// Split: the sequence (uneven).
// Talk: queries to the next rank of the group, P - 1 times a layer; attention states from the rank
//   that made them to the owner of the queries.
// Bytes sent by rank r per layer: queries e A E times the rows of every rank but rank r + 1's,
//   states (A E + A) 4 times the rows of every other rank; causal: of the rows that see something
//   there or further on.
// Replicated rows: the tokens of a rank see the replicated keys with their own block. Every rank
//   attends with the replicated queries to its own keys and sends all others that state: 4 (P - 1)
//   R (A E + A) more bytes for R rows.
// Memory: two blocks of queries; four attention states in f32; P + 1 states of the replicated rows.
// Exact: states are f32, merged in the order of the hops (of replicated rows: of the ranks) and
//   rounded once.
// Divisibility: none; every rank needs a token.
// Overlap: queries travel on and states travel home while the present block is attended to.
// Paper: TokenRing (arXiv 2412.20501), section 3; states in f32 are ours.
#include "parallel/communicator.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

class TokenRingMixer final : public TokenMixer {
 public:
  // Rank i of the group holds the global tokens tokens[i].
  TokenRingMixer(Communicator group, SequenceMap tokens)
      : group_(std::move(group)), tokens_(std::move(tokens)) {}

  // Causal queries go around backwards, so that rows of low positions meet all they see first and
  // need not go on.
  void attend(Context& context, const Attend& attend) override;

 private:
  Communicator group_;
  SequenceMap tokens_;
};

}  // namespace weft
