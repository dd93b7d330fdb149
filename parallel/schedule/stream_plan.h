#pragma once
// The plan of a stream: an endless row of segments, each denoised in T steps. Step s of segment n
// needs step s - 1 of the same segment, and the keys that step s of the segments before it has left
// on the same ranks (parallel/methods/causal_window.h). No clean pass follows, so the segments may
// follow each other through the steps.
//
// Split: the steps (step), by groups of consecutive steps, so that every group denoises another
//   segment (timestep pipeline); transformer blocks (layers), so that several segments go around
//   the stages (layer ring); both; heads and widths inside a forward (tensor), by the seams; tokens
//   and heads inside a forward (ulysses), after which every rank gets the velocity of all tokens.
//   One rank does everything. The latents are the same bits, but for tensor's sums.
// Segments: their number and sizes need not be known before. The first rank knows a segment's word:
//   how many frames it has (up to P, or none: it only keeps the pipeline moving), what it belongs
//   to, whether the stream ends, and the signal that it follows. The word travels in the rows after
//   those of the first message of the segment that a rank gets; other messages have no such rows.
//   All ranks end with the same segment, a few hollow ones after the one that says so (end_after).
//   Messages have the size of a whole segment.
// Talk: the rows of a segment from a group to the next and from the last group to the decoder;
// hidden
//   rows from stage to stage, and updated rows from the last stage to the first. A receiver that
//   has computed with a segment sends a permit for a later one, so that no rank is ever more than
//   `credits` segments ahead of its successor, whatever a transport buffers. So does the last stage
//   of a first group of one step, since nothing else returns to the first stage.
// Bytes sent per segment (P frames of S tokens, r bytes per token, a word of w bytes: 16, and 4 for
//   each value of the signal): (P S + ceil(w / r)) r from a group to each receiver in the next one,
//   (P S + ceil(16 / r)) r to a decoder, which follows no signal; 8 of a permit. Per forward and
//   stage: P S D e hidden, with ceil(w / (D e)) rows more in the first step of a group, and P S r
//   back to the first stage. Where several ranks split the forwards of the first stage (tensor,
//   ulysses), the first of them sends each of the others the w bytes.
//   A sink's messages bring no word, and its hidden rows have the joint ones too.
// Memory of a rank beside its weights and keys: credits + stages + 1 segments of rows.
// Exact, whatever the ranks and the delays.
// Divisibility: none; at least one step per group and one transformer block per stage.
// Overlap: sends never wait; rows and hidden rows are received while another pass computes.
// A turn is a denoising step. A segment enters every interval() turns: T of them on one rank, one
// where every step has a rank.
// Turns and segments are counted in 31 bits, of which the tags of messages have 16: at 4 steps on
// one rank and two segments a second they last 8 years, and then the stream ends (most_segments).
// Sink: every rank makes the keys of the sink before its first segment. Before segment
// `swap_segment` the first frames of segment 0, as they were generated, take its place. They are
// sent when segment 0 is done and used at that segment on every rank; nothing waits unless the
// pipeline is longer than that. Paper: Live Avatar (2025, arXiv 2512.04677).
#include <algorithm>
#include <limits>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/schedule/plan_check.h"

namespace weft {

struct StreamPlanConfig {
  static constexpr int kEndless = std::numeric_limits<int>::max();

  int steps = 1;                                 // T
  int segments = 1;                              // kEndless until the last one is known
  int64_t segment_frames = 1, frame_tokens = 0;  // P, in frames of tokens, and S
  int64_t sink_frames = 0;
  int64_t sink_joint_rows = 0;  // hidden rows of a sink beside its tokens; every rank makes them
  int swap_segment = 0;         // 0: the sink stays
  int credits = 2;
  int layers = 1;     // transformer blocks
  int64_t heads = 0;  // of attention: ulysses has at most so many ranks
  // Its axes are step, layers and tensor, or step, tensor and ulysses.
  Layout layout{};
  // A rank after those of the layout decodes and does nothing else. Without it the rank that
  // updates the last step does.
  bool decodes_apart = false;
  int64_t hidden_bytes = 0;  // bytes of a token's hidden row on the wire
  int64_t latent_bytes = 0;  // bytes of a token's part of the latent
  int64_t signal_bytes = 0;  // of the signal of a whole segment

  int ranks() const { return layout.ranks() + decodes_apart; }
  int finisher() const;  // the rank that has the final rows of every segment
  int decoder() const { return decodes_apart ? layout.ranks() : finisher(); }
  int interval() const;
  // From this segment on the ranks are full, and the stream repeats itself.
  int settled_segment() const { return 2 * (steps + ranks()) + swap_segment; }
  // A stream of this kind that ends once it has repeated itself, if this one is longer.
  StreamPlanConfig brief() const {
    StreamPlanConfig out = *this;
    out.segments = std::min(segments, settled_segment() + under_way() + credits + 4);
    return out;
  }
  bool swaps() const { return sink_frames > 0 && swap_segment > 0 && swap_segment < segments; }
  int turn(int segment, int step) const { return segment * interval() + step; }
  Range turns() const { return {0, int64_t{segments - 1} * interval() + steps + 1}; }
  // A rank that plans this many turns at a time knows early enough which segment is the last one.
  int window() const { return interval(); }
  // The segments of a stream whose segment `last` says that no other follows. Those after it are
  // hollow: every rank learns of it before it plans anything after them, and a sink that was sent
  // is used.
  int end_after(int last) const { return std::max(last + credits + 4, swap_segment + 1); }
  // A segment enters while at most so many before it are not decoded: in each group those that take
  // turns with its steps and the one that enters, and between two ranks the credits.
  int under_way() const {
    const int groups = layout[Axis::kStep], most = (steps + groups - 1) / groups;
    return groups * ((most + interval() - 1) / interval() + 1) +
           (groups - 1 + decodes_apart + (layout[Axis::kLayers] > 1)) * credits;
  }
  // The last segment must be one of these.
  int most_segments() const { return (kEndless - steps) / interval() - credits - 8; }
  Range group(int index) const { return partition(steps, layout[Axis::kStep], index); }
  bool begins_group(int step) const {
    int index = 0;
    while (group(index).end <= step) ++index;
    return group(index).begin == step;
  }
  Range tokens() const { return {0, segment_frames * frame_tokens}; }
  // A word's bytes beside those of the signal.
  static constexpr int64_t kWordBytes = 16;
  int64_t word_bytes() const { return kWordBytes + signal_bytes; }
  // The part of the word that the messages of a pass bring: all of it to the first step of a group,
  // and all but the signal to the decoder.
  int64_t word_bytes(const Pass& pass) const {
    if (pass.micro == kSinkPass) return 0;
    return pass.step == steps ? kWordBytes : begins_group(pass.step) ? word_bytes() : 0;
  }
  // The rows of a message of so many tokens, with those of the word. A plan of times alone has no
  // bytes.
  int64_t rows(const Pass& pass, const Range& of, Payload payload) const {
    const bool hidden = payload == Payload::kHidden;
    const int64_t row = hidden ? hidden_bytes : latent_bytes;
    const int64_t joint = hidden && pass.micro == kSinkPass ? sink_joint_rows : 0;
    return of.size() + joint + (row > 0 ? (word_bytes(pass) + row - 1) / row : 0);
  }
  Range sink_tokens() const { return {0, sink_frames * frame_tokens}; }

  // A rank has at most so many segments at a time.
  int live() const { return credits + layout[Axis::kLayers] + 1; }
  // A sink's pass has this Pass::micro; a segment's has 0.
  static constexpr int kSinkPass = 1;
};

// One plan per rank, of all turns or of a window of them; or a single rank's.
std::vector<Plan> plan_stream(const StreamPlanConfig& config);
Plan plan_stream(const StreamPlanConfig& config, const Range& turns, int rank);

// The rules that the plans follow; `config` must outlive them.
PlanRules stream_rules(const StreamPlanConfig& config);

}  // namespace weft
