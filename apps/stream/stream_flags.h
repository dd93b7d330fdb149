#pragma once
// The flags of streams, as settings of an engine and of a session.
#include <memory>
#include <optional>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/device.h"
#include "apps/live/face/session.h"
#include "engine/session/stream_engine.h"
#include "engine/session/stream_split.h"

namespace weft {

// The model of --model, or of the files that take the place of its parts. Error(kModel) unless it
// draws streams that follow a sound. The process that speaks warns of its files on standard error.
std::shared_ptr<const OpenModel> stream_model(const Flags& flags, bool speaks = true);

// The names of the two for messages.
struct CaptionLabels {
  std::string caption = "caption", mood = "mood";
};
// The caption, or the model's own, with the mood in it. Error(kUsage) that lists the moods.
std::string stream_caption(const StreamDefaults& model, const std::optional<std::string>& caption,
                           const std::optional<std::string>& mood,
                           const CaptionLabels& labels = {});
// The same from --caption and --mood.
std::string caption_of(const Flags& flags, const StreamDefaults& model);

// The ranks of a stream that is measured: threads. Error(kUsage) where they are processes.
Ranks stream_threads(const Flags& flags);

// All processes call it, and the first one reads the picture. A layout that is left open is that of
// one rank. Otherwise `ranks` becomes as many as it has;
// Error(kUsage) where they are processes, and others in number.
StreamSettings stream_settings(const Flags& flags, Ranks& ranks, const OpenModel& model);

// Adds the device of each rank of this process, and what a stream may take of every rank's device.
// All processes call it.
void take_devices(const Flags& flags, const Ranks& ranks, StreamSettings& settings);

// The stream of these ranks, on their devices. Every process gets the same seed.
PlannedStream planned_stream(const Flags& flags, Ranks ranks);

// Calls work(stream), which draws streams with the stream's engines, and returns its exit code.
// The first process of ranks that are processes calls it, and the others follow its engines; an
// Error of the first one is one of all.
int lead_streams(const Ranks& ranks, PlannedStream stream,
                 const std::function<int(const PlannedStream&)>& work);

// The session that joins the segments of an engine with their sound.
SessionConfig session_config(const Flags& flags, const StreamEngine& engine);

}  // namespace weft
