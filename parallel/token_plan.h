#pragma once
// The schedule of rounds of passes through the stages of a model that feeds on its own output: what
// the last stage makes of round t is what the first stage reads in round t + 1.
//
// Split: blocks (layers); tokens, heads and widths are split inside a pass, by the seams.
// Talk: hidden rows from stage to stage; what the last stage made, to every other stage.
// Bytes sent per micro-batch of n rows and m results and round: n hidden_bytes by every stage but
//   the last; (L - 1) m result_bytes by the last.
// Memory: one hidden buffer and one of results per micro-batch.
// Exact: messages alone.
// Divisibility: none; at least one block per stage.
// Overlap: with as many micro-batches as stages, or more, every stage has one to work on while the
//   others travel; sends never block.
#include <vector>

#include "parallel/plan.h"

namespace weft {

struct TokenPlanConfig {
  int blocks = 1, stages = 1;
  int rounds = 1;
  struct Micro {
    int64_t rows = 0;     // hidden, of this sequence index
    int64_t results = 0;  // of the last stage
  };
  std::vector<Micro> micros{};  // at most; a round may have less
  int64_t hidden_bytes = 0;     // of a row
  int64_t result_bytes = 0;     // of a result
};

// Slots of micro-batch m. Slot 0 holds what every stage knows before.
constexpr int result_slot(int micro) { return 1 + 2 * micro; }
constexpr int hidden_slot(int micro) { return 2 + 2 * micro; }

// One plan per stage: peers are stages. Pass::step is the round, Pass::micro the micro-batch;
// kUpdate makes the results of a pass on the last stage.
std::vector<Plan> plan_tokens(const TokenPlanConfig& config);

}  // namespace weft
