#pragma once
// Runs a session on a stream engine.
#include <string>

#include "engine/session/session.h"
#include "engine/session/stream_engine.h"

namespace weft {

// Runs the blocks of a session until it ends, and hands it their pictures; an error fails the
// session. A row of the model's signal holds those of the pictures of a latent frame, one after the
// other. SessionConfig::in_engine blocks are under way at most; StreamPlanConfig::under_way() keep
// the engine full. While a layer ring has blocks, it never waits for sound, because they go round
// with those that follow; hollow blocks take the place of these.
void run_session(StreamEngine& engine, const std::string& caption, Session& session);

}  // namespace weft
