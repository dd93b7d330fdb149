#pragma once
// The sound that a stream speaks.
#include <memory>
#include <string>

#include "apps/command_line/flags.h"
#include "io/sound/audio.h"

namespace weft {

// The sound of --render, of --say, or of standard input under --live, at SoundBands::kRate samples
// per second. Error(kUsage) unless it is given once; Error(kMedia) where it cannot be read.
std::unique_ptr<SoundSource> sound_of(const Flags& flags);

// The text as espeak-ng speaks it with one of its voices. Error(kUsage) where it is not installed
// or has no such voice.
Sound spoken(const std::string& text, const std::string& voice, int rate);

}  // namespace weft
