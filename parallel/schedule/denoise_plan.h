#pragma once
// The schedule of one generation under a layout, as data.
//
// Split: guidance branches (cfg), blocks (layers); tokens, heads and widths are split inside a
//   forward, by the seams.
// Talk: hidden rows from stage to stage, each branch a micro-batch (GPipe order: Huang et al. 2019,
//   section 2.3); velocities between the branches' last stages; the updated latent from the last
//   stage to the first; at the end every last stage's tokens to all ranks, once, before decoding.
//   With clips they go to the ranks that decode alone, one frame after the other: a frame is under
//   way while the one before it is decoded, and no rank holds the latent of all frames.
//   In a skipped step (DenoiseStep::skipped) there are only the velocities.
// Bytes sent per step by a rank that owns n of the tokens: hidden (n + b + j) D e per branch and
//   hop (b tokens of pictures beside the latent, j rows of joint text); velocity n C p 4 (C
//   channels, p places of the latent per token) where cfg = 2; latent n C p 4 where layers > 1,
//   last stage alone, before a step that its branch computes; once per run (L S - 1) n C p 4 from
//   each last stage. With clips instead n C p 4 to every other rank of its branch and width that
//   decodes.
// Memory: one hidden buffer per branch on each side of a hop. With clips, where a rank decodes: the
//   tokens of others of two frames.
// Exact: every rank updates its own tokens by the same rule.
// Divisibility: none; at least one block per stage.
// Overlap: a stage sends while it computes the next branch; sends never block. A step's
//   receives of hidden rows and velocities are posted before the rank computes.
// Paper: GPipe (arXiv 1811.06965); CFG parallel as in xDiT.
//
// Displaced steps (parallel/methods/patches/pipefusion.h) are performed patch by patch of the
// tokens, in order: a stage computes one patch while others compute the next ones, and the last
// stage updates it. Between displaced steps no stage waits for a whole step.
//   Talk: hidden rows and the updated latent go from stage to stage patch by patch.
//   Bytes of a displaced step: hidden (n + M j) D e per branch and hop for M patches; the rest as
//     above.
//   Memory: 2 or 3 hidden buffers of a patch; the rows of the latent are those above.
//   Overlap: hidden rows are received into another buffer while a patch computes, and a patch's
//     latent as soon as the one before it is computed. With T_c for a patch on a stage and t_c for
//     its message a step takes max(M T_c, N (T_c + t_c)) on N stages.
#include <array>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/schedule/plan_check.h"

namespace weft {

struct DenoisePlanConfig {
  struct DenoiseStep {
    int model = 0;
    int branches = 1;        // 2 with guidance
    bool displaced = false;  // performed patch by patch; never the first step of a run or an expert
    // The last stage adds what the blocks added in the last step that ran them. It has the latent,
    // so it embeds that itself: no other stage does anything, and no message is sent to it.
    bool skipped = false;
    bool audited = false;  // skipped, but the positive branch runs its blocks, too, to compare
    bool runs_blocks(int branch) const { return !skipped || (audited && branch == 0); }
  };
  std::vector<DenoiseStep> steps{};
  int first_step = 0;                   // the steps before are done
  std::vector<int> blocks{};            // blocks of each expert
  Layout layout{};                      // data = 1: the plans of one replica
  std::vector<int64_t> tokens{};        // per sequence index
  int64_t frames = 1;                   // the latent's frames, which are equal parts of all tokens
  int64_t hidden_bytes = 0;             // bytes of a token's hidden row on the wire
  int64_t latent_bytes = 0;             // bytes of a token's part of the latent
  std::vector<int64_t> beside{};        // Sequence::beside per sequence index, or empty: none
  std::array<int64_t, 2> joint_rows{};  // per branch: rows of text that travel with the hidden rows
  std::vector<int64_t> patches{};       // tokens of each patch, where steps are displaced
  // The first block of a step runs before the step is planned, so that what it adds can decide
  // whether the others are skipped. The last stage gets its rows, too.
  int64_t first_block_bytes = 0;  // bytes of a token's row after that block; 0: none runs before

  // The rows of a sequence index, one index after the other: all of them, or those of patch 1, 2
  // ... (Pass::micro).
  Range rows_of(int index) const;
  Range rows_of(int index, int patch) const;
  // Returns whether the first block of a step runs in the turn before. It runs in its own turn
  // where the step is always computed: it is the first one of the run or of an expert, or the last.
  bool runs_ahead(int step) const;
};

// Marks the steps that are displaced: all but the first `warmup`, every resync-th (0: none) and the
// first one of each expert.
void displace_steps(std::vector<DenoisePlanConfig::DenoiseStep>& steps, int warmup, int resync = 0);

// Returns whether a rank of a layout gets the final latent in order to decode it.
bool receives_frames(const Layout& layout, int rank);

// The turns of a plan: a turn per step from first_step on, and one that gathers and decodes.
Range denoise_turns(const DenoisePlanConfig& config);

// One plan per rank of the replica, of all turns or of a window of them.
std::vector<Plan> plan_denoise(const DenoisePlanConfig& config);
std::vector<Plan> plan_denoise(const DenoisePlanConfig& config, const Range& turns);

// The bytes of a message by the formula above, from its payload, tokens and branch.
int64_t message_bytes(const DenoisePlanConfig& config, const Step& message);
PlanRules denoise_rules(const DenoisePlanConfig& config);

// Blocks of stage `index` of `stages`. Blocks that remain after an even split go to the stages with
// the least load; embedding and head count as `ends` blocks each on the first and the last stage.
BlockRange stage_blocks(int blocks, int stages, int index, double ends = 0.5);

}  // namespace weft
