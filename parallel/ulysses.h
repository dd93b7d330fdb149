#pragma once
// Ulysses: tokens are split outside of attention, heads inside it.
//
// Split: the sequence outside (uneven), heads inside (uneven).
// Talk: every rank with every other of its group, twice a layer: one fused all-to-all of q, k and v
//   in, one of the result out.
// Bytes sent by rank r per layer: e E [3 n_r (H - h_r) + h_r (S - n_r)]; n_r tokens and h_r heads
// of
//   rank r, S tokens and H heads of the group (ulysses_sent_bytes).
// Memory: 3 S h_r E + 2 n_r H E elements of the arena.
// Exact: to the bit where the inner mixer sees the same keys in the same order.
// Divisibility: none; every rank needs a token and a head, so P <= H.
// Overlap: none; the own part is copied while messages travel.
// Paper: DeepSpeed Ulysses (Jacobs et al. 2023, arXiv 2309.14509), section 3.
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/partition.h"
#include "parallel/token_mixer.h"

namespace weft {

class UlyssesMixer final : public TokenMixer {
 public:
  // `tokens[i]`: the global tokens of rank i of the group, adjacent in that order. `inner` attends
  // over all of them with this rank's heads.
  UlyssesMixer(Communicator group, std::vector<Range> tokens, std::unique_ptr<TokenMixer> inner);

  void begin(const Pass& pass) override { inner_->begin(pass); }
  // k and v have as many heads as q, or a divisor of it that is at least P: then whole groups of
  // query heads go to a rank.
  void attend(Context& context, const Attend& attend) override;

 private:
  Communicator group_;
  std::vector<Range> tokens_;
  std::unique_ptr<TokenMixer> inner_;
};

// Bytes that `rank` sends for one layer; element_bytes of the compute dtype.
int64_t ulysses_sent_bytes(const std::vector<Range>& tokens, int rank, int64_t heads,
                           int64_t kv_heads, int64_t head_dim, int64_t element_bytes);

}  // namespace weft
