#pragma once
// The chunks of a video that follows a sound (SpeechChunks): their number, their pictures, and the
// refusals of what does not go with them.
#include "engine/job/job_facts.h"

namespace weft {

// The chunks of a resolved request; 1 for a model whose videos follow no sound.
int clips_of(const ModelDirectory& model, const Request& request);
// The pictures of a chunk.
int64_t chunk_pictures(const ModelDirectory& model);
// The sound of a resolved request, and the video that it is heard with; nullopt where there is
// none.
std::optional<SoundLength> sound_of(const ModelDirectory& model, const Request& request);

// Gives a request without a number of frames that of its sound.
Request with_sound_length(const Request& request, const ModelDirectory& model);
// Gives a request that is only planned the pictures and the sound that the model needs. They have
// no files.
Request with_any_inputs(Request request, const ModelDirectory& model);

// Refuses a sound that a model does not follow, a request without the one that it needs, more
// frames than the sound has, and settings that do not go with chunks. Error(kUsage).
void validate_sound(const Request& request, const ModelDirectory& model);

}  // namespace weft
