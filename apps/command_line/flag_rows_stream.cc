// The flags that say what a stream speaks and shows.
#include "apps/command_line/flag_rows.h"

namespace weft {
namespace {

using enum FlagType;
using enum FlagLevel;

constexpr FlagSpec kStreamInput[] = {
    {.name = "render",
     .value = "FILE",
     .help = "the sound that the face speaks: WAV, FLAC, MP3, Ogg, M4A, or the sound of a video",
     .commands = kStream},
    {.name = "say",
     .help = "the text that the face speaks, by espeak-ng where it is installed; @FILE reads it "
             "from a file, - from standard input",
     .commands = kStream},
    {.name = "voice",
     .fallback = "en",
     .help = "the voice of --say, one of those that espeak-ng --voices lists",
     .commands = kStream,
     .level = kAdvanced},
    {.name = "live",
     .type = kSwitch,
     .fallback = "off",
     .help = "show each picture when it is due, and write fragments of an MP4 to standard output; "
             "without --render and --say the sound is PCM samples of one channel on standard input",
     .commands = kStream},
    {.name = "live",
     .type = kSwitch,
     .fallback = "off",
     .help = "show each picture when it is due, not earlier (bench stream)",
     .commands = kBench},
    {.name = "caption",
     .fallback = "model's",
     .is_default = false,
     .help = "what the face looks like; {mood} stands for --mood; @FILE reads it from a file",
     .commands = kStream},
    {.name = "mood",
     .fallback = "model's first",
     .is_default = false,
     .help = "the face's mood, one of the model's, as calm, happy, stern",
     .commands = kStream},
    {.name = "image",
     .aliases = "-i",
     .value = "FILE",
     .help = "a picture of the face, for models whose streams show one",
     .commands = kStream},
    {.name = "first-block",
     .type = kInteger,
     .fallback = "a whole block",
     .is_default = false,
     .legal = "1 ... 1024",
     .help = "latent frames of the first block of a speech: fewer are seen earlier",
     .commands = kStream,
     .level = kAdvanced},
    {.name = "kv-dtype",
     .fallback = "compute",
     .legal = "compute|fp8|int8",
     .help = "number format of the keys and values of earlier blocks: that of --dtype, or 8-bit "
             "floats or integers in a quarter or half of the memory",
     .commands = kStream | kPlan,
     .level = kAdvanced},
    {.name = "pcm-format",
     .fallback = "s16",
     .legal = "s16|f32",
     .help = "samples on standard input: 16-bit integers or 32-bit floats, little endian",
     .commands = kStream,
     .level = kAdvanced},
    {.name = "pcm-rate",
     .type = kInteger,
     .fallback = "16000",
     .legal = "4000 ... 384000",
     .help = "samples per second on standard input",
     .commands = kStream,
     .level = kAdvanced},
};

}  // namespace

std::span<const FlagSpec> stream_flags() { return kStreamInput; }

}  // namespace weft
