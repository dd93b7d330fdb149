#pragma once
// GivenSound: a sound that a job's video follows, as a fact of the job and as samples.
#include <cstdint>
#include <string>

#include "kernels/tensor.h"

namespace weft {

struct GivenSound {
  static constexpr int64_t kRate = 16000;  // samples per second of `samples`

  std::string path{};    // of its file
  std::string sha256{};  // of the file's bytes; "" until the file has been read
  int64_t samples = 0;   // its length; 0 until then

  bool given() const { return !path.empty(); }
  double seconds() const { return static_cast<double>(samples) / kRate; }
};

// Reads the file as samples [n] f32 on the host, at kRate. Error(kUsage) where its bytes are not
// those of the hash, if there is one; kMedia for a file that is no sound. `label` names the sound
// in messages.
Tensor read_given(const GivenSound& sound, const std::string& label);
// Reads the file and fills in hash and length.
void take_facts(GivenSound& sound, const std::string& label);

}  // namespace weft
