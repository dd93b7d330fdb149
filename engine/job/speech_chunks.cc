#include "engine/job/speech_chunks.h"

#include <algorithm>
#include <cmath>

#include "engine/parts/audio_features.h"

namespace weft {

namespace {

constexpr double kPlannedSeconds = 5;  // of a sound that is only planned

// The frames that the sound fills: those of its whole chunks, but for the first ones, which are not
// shown.
int64_t frames_of_sound(const ModelDirectory& model, const Request& request) {
  const int64_t rows = feature_rows(model.audio_model->traits(), request.audio.samples);
  const auto heard = std::ssize(rows_of_frames(rows, request.fps, chunk_pictures(model)));
  const auto lasts = static_cast<int64_t>(std::ceil(request.audio.seconds() * request.fps));
  return std::max<int64_t>(std::min(heard, lasts) - model.chunks.dropped_frames, 1);
}

}  // namespace

int64_t chunk_pictures(const ModelDirectory& model) {
  return model.chunks.latent_frames * model.vae_model->traits.temporal_factor;
}

int clips_of(const ModelDirectory& model, const Request& request) {
  if (!model.chunks.any()) return 1;
  const int64_t each = chunk_pictures(model);
  return static_cast<int>((request.frames + model.chunks.dropped_frames + each - 1) / each);
}

std::optional<SoundLength> sound_of(const ModelDirectory& model, const Request& request) {
  if (!model.chunks.any()) return std::nullopt;
  return SoundLength{request.audio.samples, request.fps, chunk_pictures(model)};
}

Request with_sound_length(const Request& request, const ModelDirectory& model) {
  Request out = request;
  if (!model.chunks.any() || !request.audio.given() || request.frames > 0) return out;
  if (out.fps == 0) out.fps = model.defaults.fps;
  out.frames = frames_of_sound(model, out);
  return out;
}

Request with_any_inputs(Request request, const ModelDirectory& model) {
  const std::string any = "any picture";
  if (model.pictures.least > 0 && !request.image.given()) request.image.path = any;
  if (model.pictures.least > 1 && !request.last_image.given()) request.last_image.path = any;
  if (!model.chunks.any() || request.audio.given()) return request;
  const double fps = request.fps > 0 ? request.fps : model.defaults.fps;
  const double seconds = static_cast<double>(request.frames + model.chunks.dropped_frames) / fps;
  request.audio = {.path = "any sound",
                   .samples = static_cast<int64_t>(std::ceil(std::max(seconds, kPlannedSeconds)) *
                                                   GivenSound::kRate)};
  return request;
}

void validate_sound(const Request& request, const ModelDirectory& model) {
  const std::string& name = model.defaults.name;
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kUsage, message); };
  if (!model.chunks.any()) {
    if (request.audio.given())
      refuse("audio is '" + request.audio.path + "', but the videos of " + name +
             " follow no sound; legal: no sound");
    return;
  }
  if (!request.audio.given()) refuse(name + " makes a video that follows a sound; legal: audio");
  if (const int64_t most = frames_of_sound(model, request); request.frames > most)
    refuse("frames is " + std::to_string(request.frames) + ", and '" + request.audio.path +
           "' lasts " + shown(request.audio.seconds()) + " s; legal: 1 ... " +
           std::to_string(most));
  if (!std::holds_alternative<Full>(request.method))
    refuse("--method is '" + to_string(request.method) + "', but the clips of " + name +
           " follow one another; legal: full");
  if (request.cache.kind != StepCacheKind::kNone)
    refuse("--cache is '" + to_string(request.cache) + "', but the videos of " + name +
           " are several clips, of which each changes in its own steps; legal: none");
}

}  // namespace weft
