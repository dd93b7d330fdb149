#pragma once
// The schedule of token generation over pipeline stages. A round is one pass per micro-batch; the
// last stage's results of round t are the first stage's input of round t + 1.
//
// Split: blocks (layers); tokens, heads and widths are split inside a pass, by the seams.
// Talk: hidden rows from stage to stage; the last stage's results to every other stage.
// Bytes sent per micro-batch of n rows and m results and round: n hidden_bytes by every stage but
//   the last; (L - 1) m result_bytes by the last.
// Memory: one hidden buffer and one of results per micro-batch.
// Exact: messages alone.
// Divisibility: none; at least one block per stage.
// Overlap: with as many micro-batches as stages, or more, every stage has one to work on while the
//   others travel; sends never block. In the first round a stage posts the receive of its next
//   micro-batch before it computes.
#include <vector>

#include "parallel/schedule/plan.h"

namespace weft {

struct TokenPlanConfig {
  int blocks = 1, stages = 1;
  int rounds = 1;
  struct Micro {
    int64_t rows = 0;     // hidden rows of this sequence index
    int64_t results = 0;  // results of the last stage
  };
  std::vector<Micro> micros{};  // upper bounds; a round may have fewer rows
  int64_t hidden_bytes = 0;     // bytes of a hidden row
  int64_t result_bytes = 0;     // bytes of a result
};

// One plan per stage, of all turns or of a window of them: peers are stages. A turn is a round; the
// turn after the last round receives its results. Pass::step is the round, Pass::micro the
// micro-batch; kUpdate makes the results of a pass on the last stage.
std::vector<Plan> plan_tokens(const TokenPlanConfig& config);
std::vector<Plan> plan_tokens(const TokenPlanConfig& config, const Range& turns);

// The bytes of a message by the formula above, from its payload and tokens.
int64_t message_bytes(const TokenPlanConfig& config, const Step& message);

}  // namespace weft
