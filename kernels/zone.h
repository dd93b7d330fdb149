#pragma once
// A Zone names what time is spent on. Profiles and traces use this one set of names, sorted by
// name.
#include <cstdint>

namespace weft {

enum class Zone : uint8_t {
  kAttention,
  kBlock,  // index = block of the model
  kChunk,  // chunk of the decoder; index = latent frame
  kCommunication,
  kConv,
  kCopy,
  kDecode,
  kDenoise,
  kEncodeAudio,
  kEncodeImage,
  kEncodeText,
  kEncodeVideo,
  kForward,  // index = branch of classifier-free guidance
  kLinear,
  kLoad,
  kNorm,
  kPointwise,
  kRope,
  kStep,  // step of the schedule, with the sampler's update
  kWrite,
  kCount
};
inline constexpr int kZones = static_cast<int>(Zone::kCount);

const char* to_string(Zone zone);

// Stages are the parts of a job that users see by name. Ops and messages (families) happen inside
// stages; steps, forwards, chunks and blocks lie between the two.
bool is_stage(Zone zone);
bool is_family(Zone zone);

}  // namespace weft
