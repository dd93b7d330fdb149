#pragma once
// A FrameSink that writes a movie: every picture is heard with its part of a sound.
#include <memory>
#include <string>

#include "io/media/video.h"
#include "io/sound/audio.h"

namespace weft {

// Writes `path`, which ends in .mp4, as make_movie() does. Sample n of `sound` is heard at n /
// rate; silence follows it, and what is longer than the pictures is left out. The sink keeps
// nothing before it is finished.
std::unique_ptr<FrameSink> make_sounded_sink(const std::string& path, const VideoSettings& settings,
                                             Overwrite overwrite, Sound sound);

}  // namespace weft
