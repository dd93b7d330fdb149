#pragma once
// Turns a connection that speaks HTTP into a stream of events.
#include "apps/serve/http/server_core.h"

namespace weft::serve {

// `response` has `events`. A client of HTTP/1.0 reads no chunks.
void open_events(Core& core, ServerStream stream, SlotPtr slot, const HttpResponse& response,
                 bool in_chunks);

}  // namespace weft::serve
