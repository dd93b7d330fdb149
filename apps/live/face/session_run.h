#pragma once
// Runs a session on a stream engine.
#include <functional>
#include <string>

#include "apps/live/face/session.h"
#include "engine/session/stream_engine.h"
#include "io/sound/audio.h"

namespace weft {

// Runs the segments of a session until it ends, and hands it their pictures; an error fails the
// session, and where ranks are processes every later one (StreamEngine::check_ranks). With a
// TurnToken it is called for whoever has the token, and runs one turn: turns do not see each other.
// A row of the model's signal holds the rows of a latent frame's pictures, one after the other; a
// model that hears gets the sound of the segment instead. SessionConfig::in_engine segments are
// under way at most; StreamPlanConfig::under_way() keep the engine full. While a layer ring has
// segments, it never waits for sound, because they go round with those that follow; hollow segments
// take the place of these.
void run_session(StreamEngine& engine, const std::string& caption, Session& session);

// Speaks a sound: one thread reads it in pieces, one runs the engine, and this one calls `take`
// with every slot. Returns when the sound has ended and all of it has been taken. Where `stops`
// says so, no more sound is read, and what was read is played to its end. Throws the first error of
// the three.
void play_sound(
    StreamEngine& engine, const std::string& caption, Session& session, SoundSource& sound,
    const std::function<void(SessionSlot&&)>& take,
    const std::function<bool()>& stops = [] { return false; });

}  // namespace weft
