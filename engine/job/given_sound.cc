#include "engine/job/given_sound.h"

#include <filesystem>

#include "engine/parts/audio_features.h"
#include "io/sha256.h"

namespace weft {

Tensor read_given(const GivenSound& sound, const std::string& label) {
  Tensor samples = read_sound(sound.path, GivenSound::kRate);
  if (const std::string hash = file_hash(sound.path); !sound.sha256.empty() && hash != sound.sha256)
    throw Error(ErrorKind::kUsage, label + " is '" + sound.path +
                                       "', whose bytes have the SHA-256 " + hash.substr(0, 16) +
                                       "..., legal: the sound that the job began with (" +
                                       sound.sha256.substr(0, 16) + "...)");
  return samples;
}

void take_facts(GivenSound& sound, const std::string& label) {
  if (sound.path.empty()) return;
  sound.path = std::filesystem::absolute(sound.path).lexically_normal().string();
  sound.samples = read_given(sound, label).view()[0];
  sound.sha256 = file_hash(sound.path);
}

}  // namespace weft
