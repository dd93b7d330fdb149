#pragma once
// Turns a connection that speaks HTTP into a WebSocket.
#include "apps/serve/http/request_reader.h"
#include "apps/serve/http/server_core.h"

namespace weft::serve {

// `message` is the request as Beast read it.
void open_websocket(Core& core, ServerStream stream, SlotPtr slot, const WebSocketRoute& route,
                    HttpRequest request, Parser::value_type message);

}  // namespace weft::serve
