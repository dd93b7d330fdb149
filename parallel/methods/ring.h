#pragma once
// Ring attention: every rank keeps its queries, keys and values go around.
//
// Split: the sequence (uneven).
// Talk: each rank sends the block it holds to the next of its group and takes the previous one's,
//   P - 1 times a layer, before the attention of the block it has.
// Bytes sent by rank r per layer: 2 e Akv E times the keys of every rank but those of rank r + 1.
// Past: keys kept by earlier passes go around with the present ones.
// Replicated rows: none travels. The tokens of a rank see the replicated keys with their own block;
//   the replicated queries see every block that goes by, on every rank.
// Memory: two blocks of keys and values; two attention states in f32; P + 1 states of the
//   replicated rows.
// Exact: states are f32, merged in the order of the hops (of replicated rows: of the ranks) and
//   rounded once.
// Divisibility: none; every rank needs a token.
// Overlap: the next block travels while the present one is attended to.
// Paper: Ring Attention (Liu et al. 2023, arXiv 2310.01889), section 3; the merge: Milakov &
//   Gimelshein 2018, arXiv 1805.02867.
#include "parallel/communicator.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

class RingMixer final : public TokenMixer {
 public:
  // Rank i of the group computes the global tokens tokens[i] and holds the keys and values of
  // keys[i]: past ones in the order of Attend::past's segments, then its own.
  RingMixer(Communicator group, SequenceMap tokens, SequenceMap keys)
      : group_(std::move(group)), tokens_(std::move(tokens)), keys_(std::move(keys)) {}
  RingMixer(Communicator group, SequenceMap tokens) : RingMixer(std::move(group), tokens, tokens) {}

  // Causal attention leaves out the queries that see nothing of a block and the keys that nobody
  // sees; SequenceMap::zigzag gives every rank the same work in every hop.
  void attend(Context& context, const Attend& attend) override;

 private:
  TensorView own_block(Stream& stream, const Attend& own, const TensorView& block) const;

  Communicator group_;
  SequenceMap tokens_, keys_;
};

}  // namespace weft
