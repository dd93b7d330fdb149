#pragma once
// Tag: identifies a message. Payload: what a message carries, for plans, tags, counters and
// reports.
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "parallel/pass.h"

namespace weft {

// The kinds of messages. They have the compute dtype, or f32 where the comment says so.
enum class Payload : uint8_t {
  kControl,     // decisions, sizes, times
  kText,        // prompt rows, f32
  kHidden,      // hidden rows between layer stages
  kFirstBlock,  // hidden rows after the first block, f32
  kHeadsIn,     // Ulysses: q, k, v from tokens to heads
  kHeadsOut,    // Ulysses: the result from heads to tokens
  kKeyValue,    // ring: blocks of k and v
  kQuery,       // token ring: blocks of q
  kState,       // attention states (out, lse), f32
  kPartial,     // partial sums of row-parallel linears, f32
  kStatistic,   // partial sums of full-width norms, f32
  kGathered,    // parts of a split width
  kVelocity,    // a branch's velocity, f32
  kLatent,      // latents, f32
  kHalo,        // rows of a neighbour's band
  kFrames,  // pictures: given ones, u8, and decoded rows, u8, or f32 where a tap wants the video
  kCount,
};
std::string_view to_string(Payload kind);  // ends with a 0 in memory

// A topic is what a message is for. No message is taken for one of another topic.
enum class Topic : uint8_t {
  kPass,      // it is part of a plan or a forward
  kShare,     // what ranks tell each other before the first job
  kJob,       // the root's next job
  kStart,     // where a job begins: the decision, and a checkpoint's tensors
  kStep,      // whether a job goes on
  kSkip,      // whether a step is skipped; all ranks have a part in it
  kSegment,   // the next segment of a stream, by the first of the ranks that read it
  kText,      // rows of prompts, and whether the root has kept them
  kAudio,     // a sound, and rows of it
  kPictures,  // pictures, their rows and latents
  kDecode,    // decoded rows, and whether decoding goes on
  kFile,      // whether the root could write
  kChanges,   // what a step cache has measured, for the root
  kPreview,   // colours
  kKept,      // tensors of a checkpoint, for the root
  kChannels,  // channels of a final latent
  kClip,      // a latent that is done, of a checkpoint
  kOutput,    // what the decoder of a queue keeps
  kCheck,     // of commands that verify and measure
  kCount
};

constexpr int kMaxGroup = 255;  // ids of groups of ranks

// A tag on the wire. It is compared as a whole.
struct TagBits {
  uint64_t high = 0, low = 0;
  auto operator<=>(const TagBits&) const = default;
};

// Two messages that may be under way between the same ranks at the same time must have different
// tags. The Communicator adds the group's id and the job.
struct Tag {
  Payload kind = Payload::kControl;
  Pass pass{};
  int layer = 0;  // < 2^12
  Topic topic = Topic::kPass;
  int hop = 0;                                 // < 2^15: ring hop, chunk, number
  TagBits bits(int group, int job = 0) const;  // group < 2^8, job < 2^16; CHECKs every range
};
std::string to_string(const Tag& tag);
std::string tag_text(const TagBits& bits);  // describes the tag of a header, group and job included
Payload payload_of(const TagBits& bits);    // the kind in the tag of a header

// A job's number in tags: 0 before the first job, then 1 ... 65535 in a circle.
int next_job(int job);
// Returns whether the job `a` comes before `b`, of which at most half the circle lies between them.
bool earlier_job(int64_t a, int64_t b);
// Returns whether a message with this tag belongs to a job before `job`. Messages of the whole
// world (group 0) belong to no job.
bool of_earlier_job(const TagBits& bits, int job);

}  // namespace weft

template <>
struct std::hash<weft::TagBits> {
  size_t operator()(const weft::TagBits& bits) const {
    return std::hash<uint64_t>()(bits.high * 0x9e3779b97f4a7c15u ^ bits.low);
  }
};
