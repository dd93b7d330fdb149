// The flags of the commands that listen for clients.
#include "apps/command_line/flag_rows.h"

namespace weft {
namespace {

using enum FlagType;
using enum FlagLevel;

constexpr FlagSpec kListen[] = {
    {.name = "listen",
     .value = "HOST:PORT",
     .help =
         "serve browsers and programs at this address, as 127.0.0.1:8188; port 0 takes any free "
         "one",
     .commands = kStream},
    {.name = "listen",
     .value = "HOST:PORT",
     .fallback = "127.0.0.1:8188",
     .help = "serve browsers and programs at this address; port 0 takes any free one",
     .commands = kServe},
    {.name = "api-key-file",
     .value = "FILE",
     .help = "the key that clients must give, one line of 16 to 4096 characters; an address that "
             "others reach needs one",
     .commands = kStream | kServe},
    {.name = "allow-origin",
     .value = "ORIGIN,...",
     .help = "pages of these origins may connect too, as https://example.org",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "tls-cert",
     .value = "FILE",
     .help = "the server's certificate chain in PEM, for https and wss; with --tls-key",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "tls-key",
     .value = "FILE",
     .help = "the private key of --tls-cert, in PEM",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "insecure",
     .type = kSwitch,
     .fallback = "off",
     .help = "allow an address that others reach although no key is needed",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "max-sessions",
     .type = kInteger,
     .fallback = "8",
     .legal = "1 ... 256",
     .help = "faces at the same time; they take turns on one engine",
     .commands = kStream,
     .level = kAdvanced},
    {.name = "max-connections",
     .type = kInteger,
     .fallback = "1024",
     .legal = "1 ... 100000",
     .help = "connections at the same time; further ones are answered with 503",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "max-connections-per-address",
     .type = kInteger,
     .fallback = "64",
     .legal = "1 ... 100000",
     .help = "connections of one address at the same time",
     .commands = kStream | kServe,
     .level = kAdvanced},
    {.name = "drain-seconds",
     .type = kInteger,
     .fallback = "10",
     .legal = "0 ... 3600",
     .help = "time that work under way gets to end after SIGTERM",
     .commands = kStream | kServe,
     .level = kAdvanced},
};

}  // namespace

std::span<const FlagSpec> listen_flags() { return kListen; }

}  // namespace weft
