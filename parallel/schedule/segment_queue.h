#pragma once
// The segment queue: the schedule of a long video under a layout, as data. The video is a row of
// segments of latent frames. One segment enters per turn at the tail of a queue, and in a turn
// every segment of the queue performs one denoising step, from the tail to the head. So neighbours
// differ by one step, and the segment at the head leaves after T turns.
//
// Pass (k, i), step i of segment k, is part of turn k + i. It sees C + P frames as queries: the
// last C frames of segment k - 1, one step further, and its own P frames. Segment 0 has C + P
// frames of its own. It also sees, as keys alone, the first C frames of segment k + 1, one step
// back, whose keys pass (k + 1, i - 1) of the same turn has left on the same rank.
//
// Step caches: step i can be skipped (DenoiseStep::skipped), in every segment. Pass (k, i) then
// runs no transformer block. Let c(i) be the last step up to i that is not skipped. The last stage
// embeds the segment's own frames, adds what the transformer blocks added to them in pass (k,
// c(i)), and runs the head. It leaves no keys: a pass (k, i) that is not skipped sees those of (k +
// 1, c(i
// - 1)). The keys and the added rows that a later turn reads have slots of their own, by segment.
//
// Split: guidance branches (cfg), transformer blocks (layers); the tokens of a pass (ulysses),
//   heads and widths inside a forward, by the seams.
// Talk: hidden rows from stage to stage, each branch a message; the updated rows of a segment from
// the
//   last stage to those ranks of the first that read them and, after the last step, to the decoder;
//   velocities between the branches' last stages; with `control` a word of the root to every rank,
//   which it makes when a turn begins and which all obey before the next turn.
// Bytes sent per pass: hidden (P + C) S D e per branch and hop (S tokens of a frame); rows of n C_l
// p
//   4 to the first stage, n the segment's own tokens; as much between branches where cfg = 2. Per
//   turn: 8 to every rank with `control`. A skipped pass has no hidden rows, and no rows go to the
//   first stage for it.
// Memory of a rank: 2 or 3 hidden buffers; the rows of min(T, B) + 1 segments on the first and the
//   last stage; one set of keys per branch (parallel/methods/segment_context.h). For every stretch
//   of n skipped steps n + 1 sets more, and on the last stage as many of n D 4 bytes for the own
//   tokens of a segment (QueuePlanConfig::kept_sets).
// Exact: a pass reads the versions above whatever the ranks and the delays.
// Divisibility: none; at least one transformer block per stage.
// Overlap: sends never wait; hidden rows are received into another buffer while a pass computes.
// Idle slots of a stage, a slot being one forward: N^2 - 1 for N stages that compute one branch per
//   pass, 2 floor(N^2 / 4) + N - 1 where each computes two, if min(T, B) > N.
// Paper: DualParal (Wang et al. 2025, arXiv 2505.21070).
#include <span>
#include <vector>

#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/plan_check.h"

namespace weft {

struct QueuePlanConfig {
  std::vector<DenoisePlanConfig::DenoiseStep> steps{};  // T
  int segments = 1;                                     // B
  // P and C, in frames of tokens; 0 <= C <= P.
  int64_t segment_frames = 1, context_frames = 0;
  int64_t frame_tokens = 0;    // S
  std::vector<int> layers{};   // transformer blocks of each expert
  std::vector<int> prompts{};  // of each segment (Pass::prompt); later segments have the last one
  // data = 1; its sequence axis is ulysses.
  Layout layout{};
  int decoder = 0;           // the rank that decodes
  int first_turn = 0;        // the turns before are done
  bool control = false;      // the root's word for the next turn goes to all ranks
  int64_t hidden_bytes = 0;  // bytes of a token's hidden row on the wire
  int64_t latent_bytes = 0;  // bytes of a token's part of the latent

  // A turn per iteration of the queue, and one more for the last decode.
  Range turns() const { return {first_turn, static_cast<int64_t>(steps.size()) + segments}; }
  Range passes(int turn) const;  // the segments that perform a step in the turn
  // The segments that have rows when a turn begins: those of the queue, and the one before them.
  // Then those among them that have done steps and have some left.
  Range kept_segments(int turn) const;
  Range stepped_segments(int turn) const;
  // The tokens of a pass, which are counted from the first of the C + P frames: all of them, those
  // of the segment's own frames, and those that sequence index `part` holds of either.
  int64_t tokens() const { return (segment_frames + context_frames) * frame_tokens; }
  Range part(int part) const { return partition(tokens(), layout.sequence(), part); }
  Range own(int segment) const { return {segment ? context_frames * frame_tokens : 0, tokens()}; }
  Range own(int segment, int part) const;
  // The slot of those rows. Segments that are in the queue together have different slots.
  SlotId segment_slot(int segment, int part) const;
  int prompt(int segment) const;
  // The last step up to `step` that is not skipped. Step 0 never is.
  int computed(int step) const;
  // The sets of keys and of added rows, and the one that pass (segment, step) writes: 0, which has
  // no added rows, where the next step is not skipped. Passes of which both are still read have
  // different ones.
  int kept_sets() const;
  int kept_set(int segment, int step) const;
  int longest_skip() const;  // steps
};

// The rows of a rank's `part` that precede the own frames of segment `segment` are rows of the
// segment before it. This is their range among that segment's tokens.
Range prefix_tokens(const QueuePlanConfig& config, int part);

// One plan per rank of the replica, of all turns or of a window of them; or a single rank's.
std::vector<Plan> plan_queue(const QueuePlanConfig& config);
std::vector<Plan> plan_queue(const QueuePlanConfig& config, const Range& turns);
Plan plan_queue(const QueuePlanConfig& config, const Range& turns, int rank);

// The rules that the plans follow; `config` must outlive them.
PlanRules queue_rules(const QueuePlanConfig& config);

// The slot in which each step of the plans begins, if a forward takes one slot and nothing else
// takes any time, skipped passes neither.
std::vector<std::vector<int64_t>> slots_of(std::span<const Plan> plans);

}  // namespace weft
