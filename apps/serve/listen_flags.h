#pragma once
// The flags of the commands that listen for clients, as settings of a server.
#include "apps/command_line/flags.h"
#include "apps/serve/http_server.h"

namespace weft {

// --listen, the key, origins, TLS and limits; without routes. Error(kUsage).
ServerSettings listener_settings(const Flags& flags);

// Names every flag of a listener that is given, where --listen is not. Error(kUsage).
void refuse_without_listener(const Flags& flags);

// "http://127.0.0.1:8188/", for people.
std::string address_of(const ServerSettings& settings, uint16_t port);

}  // namespace weft
