#pragma once
// The flags of the commands that listen for clients, as settings of a server.
#include "apps/command_line/flags.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/server_log.h"

namespace weft {

// --listen, the key, origins, TLS and limits; without routes. Error(kUsage).
ServerSettings listener_settings(const Flags& flags);

// Names every flag of a listener that is given, where --listen is not. Error(kUsage).
void refuse_without_listener(const Flags& flags);

// Logs that clients can come, as `message` says it, and prints "http://127.0.0.1:8188/" or with
// --json {"address", "port"} on standard output.
void tell_address(const Flags& flags, ServerLog& log, const std::string& message, uint16_t port);

}  // namespace weft
