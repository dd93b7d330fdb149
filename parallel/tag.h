#pragma once
// Tag: identifies a message. Payload: what a message carries, for plans, tags, counters and
// reports.
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

// The kinds of messages. They have the compute dtype, or f32
// where the comment says so.
enum class Payload : uint8_t {
  kControl,    // decisions, sizes, times
  kText,       // prompt rows, f32
  kHidden,     // hidden rows between layer stages
  kHeadsIn,    // Ulysses: q, k, v from tokens to heads
  kHeadsOut,   // Ulysses: the result from heads to tokens
  kKeyValue,   // ring: blocks of k and v
  kQuery,      // token ring: blocks of q
  kState,      // attention states (out, lse), f32
  kPartial,    // partial sums of row-parallel linears, f32
  kStatistic,  // partial sums of full-width norms, f32
  kGathered,   // parts of a split width
  kVelocity,   // a branch's velocity, f32
  kLatent,     // latents, f32
  kHalo,       // rows of a neighbour's band
  kFrames,     // decoded rows, f32
  kCount,
};
std::string_view to_string(Payload kind);  // ends with a 0 in memory

constexpr int kMaxGroup = 255;  // ids of groups of ranks

// A tag is 64 bits on the wire. Two messages that may be under way between the same ranks at the
// same time must have different tags; the Communicator adds the group's id.
struct Tag {
  Payload kind = Payload::kControl;
  int step = 0;                    // < 2^16
  int branch = 0;                  // < 2^2
  int layer = 0;                   // < 2^12
  int segment = 0;                 // < 2^20: ring hop, micro-batch, chunk
  uint64_t bits(int group) const;  // group < 2^8; CHECKs every range
};
std::string to_string(const Tag& tag);
std::string tag_text(uint64_t bits);  // describes the tag of a header, group included
Payload payload_of(uint64_t bits);    // the kind in the tag of a header

}  // namespace weft
