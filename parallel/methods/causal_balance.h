#pragma once
// LightSeq: causal attention over contiguous tokens; ranks that would idle help the others.
// (Zigzag, the other balance, is a SequenceMap under the rings.)
//
// Split: the sequence, contiguous and in rank order (uneven).
// Talk: at time t in 1 ... P / 2 rank r takes the keys of rank r - t; where there is none it takes
//   the queries of rank r - t + P instead and sends that owner their attention state.
// Bytes sent by rank r per layer: with T = P / 2 and T' = (P - 1) / 2 (rounded down), n_r times
//   2 e Akv E min(T, P - 1 - r) as keys and e A E max(0, r - P + 1 + T') as queries, and
//   4 (A E + A) the rows of ranks P - T' + r ... P - 1 as states.
// Memory: three blocks of keys and values, three of queries; five attention states in f32.
// Exact: states are f32, merged in the order of time and rounded once.
// Divisibility: none; every rank needs a token. With even P half of the ranks idle at time P / 2.
// Overlap: what is needed next travels, and states go home, while the present is attended to.
// Paper: DistFlashAttn (Li et al. 2023, arXiv 2310.03294), section 3.
#include "parallel/communicator.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

// The pair of blocks that a rank works on at time t in 0 ... P / 2.
struct BalanceStep {
  int queries = -1, keys = -1;  // the ranks that own them; -1: idle
  bool idle() const { return queries < 0; }
  bool operator==(const BalanceStep&) const = default;
};
BalanceStep balance_step(int ranks, int rank, int time);

class LightSeqMixer final : public TokenMixer {
 public:
  // Rank i of the group holds the global tokens tokens[i]: one range each, ascending.
  LightSeqMixer(Communicator group, SequenceMap tokens);

  void attend(Context& context, const Attend& attend) override;  // causal alone

 private:
  Communicator group_;
  SequenceMap tokens_;
};

}  // namespace weft
