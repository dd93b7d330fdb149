#pragma once
// Plan: the schedule as data. A pure function makes the list of steps per rank
// (parallel/schedule/denoise_plan.h), one interpreter runs it, one checker proves it
// (parallel/schedule/plan_check.h), `weft plan` prints it.
#include <compare>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/partition.h"
#include "parallel/pass.h"
#include "parallel/tag.h"

namespace weft {

// A kind says what a slot holds, and means the same in the plans of all programs.
enum class SlotKind : uint8_t {
  kLatent,      // the rank's rows of the latent
  kPatch,       // the rows of a patch
  kVelocity,    // of a branch
  kHidden,      // hidden rows of a branch or a micro-batch
  kBuffer,      // hidden rows of any forward; a stage takes its buffers in turn
  kFirstBlock,  // rows that have passed the first block, of a branch
  kKeys,        // that a pass leaves for others, of a branch and a patch or set
  kAdded,       // what transformer blocks added to the rows, of a branch and set
  kWhole,       // a sequence index's part of the gathered latent
  kSentFrame,   // the own part of a frame
  kFramePart,   // a sequence index's part of a frame; frames take two (`block`) in turn
  kFrames,      // what was decoded
  kSegment,     // a part of the rows of a segment of the video
  kSink,        // the sink's rows, of a group of steps
  kWord,        // the root's word
  kPermit,      // of a block, as its receiver `part` has sent it
  kGranted,     // a permit that is sent
  kPrompt,      // what every stage has before the first round of tokens
  kResults,     // of a micro-batch
  kCount
};

// A slot is a buffer of one rank. The numbers say which of its kind, and are -1 where that does not
// ask for them.
struct SlotId {
  SlotKind kind = SlotKind::kLatent;
  int segment = -1, part = -1, branch = -1;
  auto operator<=>(const SlotId&) const = default;
};
inline constexpr SlotId kLatentSlot{SlotKind::kLatent}, kFramesSlot{SlotKind::kFrames},
    kSentFrameSlot{SlotKind::kSentFrame}, kWordSlot{SlotKind::kWord},
    kPromptSlot{SlotKind::kPrompt};
constexpr SlotId velocity_slot(int branch) {
  return {.kind = SlotKind::kVelocity, .branch = branch};
}
constexpr SlotId first_block_slot(int branch) {
  return {.kind = SlotKind::kFirstBlock, .branch = branch};
}
constexpr SlotId patch_slot(int patch) { return {.kind = SlotKind::kPatch, .part = patch}; }
constexpr SlotId hidden_slot(int part) { return {.kind = SlotKind::kHidden, .part = part}; }
constexpr SlotId result_slot(int micro) { return {.kind = SlotKind::kResults, .part = micro}; }
constexpr SlotId buffer_slot(int64_t number) {
  return {.kind = SlotKind::kBuffer, .part = static_cast<int>(number)};
}
constexpr SlotId keys_slot(int part, int branch) {
  return {.kind = SlotKind::kKeys, .part = part, .branch = branch};
}
constexpr SlotId added_slot(int set, int branch) {
  return {.kind = SlotKind::kAdded, .part = set, .branch = branch};
}

// The content of a slot: the rows that belong to turn `turn`, after the first `blocks` of the
// model's blocks. Where a slot serves several passes of a turn, `order` counts them.
struct SlotVersion {
  SlotId slot{};
  int turn = 0, blocks = 0, order = 0;
  bool operator==(const SlotVersion&) const = default;
  auto operator<=>(const SlotVersion& other) const {  // by age
    return std::tie(slot, turn, order, blocks) <=>
           std::tie(other.slot, other.turn, other.order, other.blocks);
  }
};

struct Step {
  enum class Kind : uint8_t {
    kLoad,     // makes expert `pass.model` resident
    kCompute,  // runs `blocks` of a forward
    kSend,     // posts the slot that it reads; never blocks
    kPost,     // posts a receive into the slot that it writes; never blocks
    kAwait,    // blocks until the receive posted into the slot that it writes has arrived
    kReceive,  // posts and awaits at once
    kWait,     // blocks until what was sent from the slot that it reads is taken
    kUpdate,   // makes the rows of the next turn
    kDecode,
    kEnter,  // makes rows that enter in this turn or are for a later one: the first ones of clip
             // `pass.segment`, or a part of others that is about to be sent
    kWord,   // makes or takes a word of control: the root's, or a permit
  };
  Kind kind = Kind::kCompute;
  int turn = 0;  // a denoise step, a round of tokens; decoding is a turn after the last step
  Pass pass{};
  BlockRange blocks{};
  Range tokens{};       // rows of the sequence that are computed, updated or carried
  bool reuses = false;  // adds what the blocks added in an earlier turn in place of running them
  int stale = 0;        // how many turns old the rows may be that it reads
  bool ahead = false;   // it reads and makes rows of the turn after its own
  int peer = -1;
  Payload payload = Payload::kControl;
  int64_t bytes = 0;
  std::vector<SlotVersion> reads{}, writes{};
};

// One rank's plan, or a window of it: the steps of some consecutive turns. The windows of all turns
// make the plan when they are joined in order.
struct Plan {
  int rank = 0, ranks = 1;
  Range turns{};                              // of the window
  bool upper_bounds = false;                  // messages may have fewer bytes than the steps say
  std::vector<SlotVersion> begins{}, ends{};  // held before the first step and after the last
  std::vector<Step> steps{};
};

void append(Plan& plan, const Plan& next);  // `next` is the window that follows

// The work of all ranks in consecutive turns that are alike; the counts are those of one turn.
struct TurnSummary {
  Range turns;
  int loads = 0, forwards = 0, updates = 0, decodes = 0, messages = 0;
  int64_t bytes = 0;
  bool alike(const TurnSummary& other) const;
};
std::vector<TurnSummary> summarize_turns(std::span<const Plan> plans);

// The kind's name, the block without a blank, and ".part" and ".branch": "latent", "block3.1".
std::string to_string(const SlotId& slot);
// "slot@turn.order/blocks", without an order or a block count of 0.
std::string to_string(const SlotVersion& version);
std::string to_string(const Step& step);
std::string to_string(const Plan& plan);

}  // namespace weft
