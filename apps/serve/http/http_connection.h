#pragma once
// Speaks HTTP on a connection that was accepted.
#include "apps/serve/http/server_core.h"

namespace weft::serve {

void open_http(Core& core, ServerStream stream, SlotPtr slot);

}  // namespace weft::serve
