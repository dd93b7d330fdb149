#pragma once
// Zone: what time is spent on. The one set of names of profiles and traces, sorted by name.
#include <cstdint>

namespace weft {

enum class Zone : uint8_t {
  kAttention,
  kBlock,  // index = of the model
  kChunk,  // of the decoder; index = latent frame
  kCommunication,
  kConv,
  kCopy,
  kDecode,
  kDenoise,
  kEncodeText,
  kEncodeVideo,
  kForward,  // index = branch of guidance
  kLinear,
  kLoad,
  kNorm,
  kPointwise,
  kRope,
  kStep,  // of the schedule, with its update
  kWrite,
  kCount
};
inline constexpr int kZones = static_cast<int>(Zone::kCount);

const char* to_string(Zone zone);

// Stages of a job, by the names users see. Ops and messages (families) happen inside of stages;
// steps, forwards, chunks and blocks stand between the two.
bool is_stage(Zone zone);
bool is_family(Zone zone);

}  // namespace weft
