#include "apps/serve/listen_flags.h"

#include <charconv>
#include <cstdio>

#include "apps/serve/http/access.h"
#include "io/json.h"
#include "kernels/check.h"

namespace weft {
namespace {

void read_address(const Flags& flags, ServerSettings& settings) {
  const std::string address = flags.text("listen");
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const char* end = port.data() + port.size();
  const auto [stopped, error] = std::from_chars(port.data(), end, settings.port);
  if (host.empty() || port.empty() || error != std::errc() || stopped != end)
    throw Error(ErrorKind::kUsage, flags.label("listen") + " is '" + address +
                                       "'; legal: HOST:PORT with a port of 0 ... 65535, as "
                                       "127.0.0.1:8188 or [::1]:8188");
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  settings.host = bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string shown_address(const ServerSettings& settings, uint16_t port) {
  const bool is_v6 = settings.host.find(':') != std::string::npos;
  return std::string(settings.certificate_file.empty() ? "http" : "https") + "://" +
         (is_v6 ? "[" + settings.host + "]" : settings.host) + ":" + std::to_string(port) + "/";
}

}  // namespace

ServerSettings listener_settings(const Flags& flags) {
  ServerSettings settings;
  read_address(flags, settings);
  if (flags.given("api-key-file")) settings.api_key = read_key_file(flags.text("api-key-file"));
  settings.allowed_origins = list_header(flags.text("allow-origin"));
  if (flags.given("tls-cert") != flags.given("tls-key"))
    throw Error(ErrorKind::kUsage,
                "--tls-cert and --tls-key belong together, but only " +
                    flags.label(flags.given("tls-cert") ? "tls-cert" : "tls-key") +
                    " is given; legal: both or none");
  settings.certificate_file = flags.text("tls-cert");
  settings.key_file = flags.text("tls-key");
  settings.insecure = flags.on("insecure");
  settings.limits.connections = static_cast<int>(*flags.integer("max-connections"));
  settings.limits.connections_per_address =
      static_cast<int>(*flags.integer("max-connections-per-address"));
  ServerLimits& limits = settings.limits;
  const auto seconds = [&](const char* flag) { return std::chrono::seconds(*flags.integer(flag)); };
  limits.header_timeout = seconds("header-timeout");
  limits.body_timeout = seconds("body-timeout");
  limits.idle_timeout = seconds("idle-timeout");
  limits.header_bytes = flags.bytes("max-header-bytes");
  if (find_flag(flags.command(), "max-json-bytes"))
    limits.body_bytes = flags.bytes("max-json-bytes");
  if (find_flag(flags.command(), "max-upload-bytes"))
    limits.form_bytes = flags.bytes("max-upload-bytes");
  return settings;
}

void refuse_without_listener(const Flags& flags) {
  for (const FlagSpec& spec : flag_table())
    if (spec.group == FlagGroup::kListen && (spec.commands & flags.command()) &&
        flags.typed(spec.name))
      throw Error(ErrorKind::kUsage, flags.label(spec.name) + " is legal beside --listen");
}

void tell_address(const Flags& flags, ServerLog& log, const std::string& message, uint16_t port) {
  const std::string address = shown_address(listener_settings(flags), port);
  log.write(LogLevel::kInfo, "ready", message, {{"address", address}});
  if (flags.on("json"))
    std::printf("%s\n", Json{{"address", address}, {"port", port}}.dump().c_str());
  else
    std::printf("%s\n", address.c_str());
  std::fflush(stdout);
}

}  // namespace weft
