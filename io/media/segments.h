#pragma once
// Segments: a clip as a row of files, each of which can be played while later ones are written.
#include <cstdint>
#include <memory>
#include <string>

#include "io/media/video.h"

namespace weft {

// The file of a segment: clip.mp4 with index 2 gives clip.002.mp4.
std::string segment_path(const std::string& path, int64_t index);

// Writes the .mp4 or .webm file `path` in segments of `frames` frames; the last one may be shorter.
// Each appears under its name when it is complete, and it stays there if the sink is destroyed
// before finish(). Only the segment in work has a part file.
//
// Segments that exist are taken for an earlier run's of the same job if they have the same metadata
// "weft". Then those of `frames` frames are kept and not written again, and the others are
// replaced. Any other segment is an Error(kOutput) under kRefuse; under kReplace it is replaced,
// and finish() removes those after the last one. Part files that a killed run left are removed.
// finish() returns the path of the first segment.
//
// settings.kept_frames counts those of all segments; what an earlier run has kept of them is not
// looked at for metadata.
std::unique_ptr<FrameSink> make_segmented_sink(const std::string& path,
                                               const VideoSettings& settings, Overwrite overwrite,
                                               int64_t frames);

}  // namespace weft
