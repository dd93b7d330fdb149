#include "apps/command_line/process_place.h"

#include <algorithm>
#include <cstdlib>

#include "io/legal.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMostNodes = 1024;

[[noreturn]] void refuse_flag(const Flags& flags, const char* name, const std::string& why) {
  throw Error(ErrorKind::kUsage, flags.label(name) + " is " + flags.text(name) + why);
}

std::vector<std::string> hosts_of(const Flags& flags) {
  const std::string text = flags.text("nodes");
  std::vector<std::string> hosts = split(text, ',');
  const auto commas = static_cast<size_t>(std::count(text.begin(), text.end(), ','));
  if (hosts.size() < 2 || hosts.size() > kMostNodes || hosts.size() != commas + 1)
    refuse_flag(flags, "nodes",
                ", legal: 2 ... " + std::to_string(kMostNodes) +
                    " names of hosts, separated by commas, one for each process");
  return hosts;
}

// The launch of --nodes, or that which the environment tells.
Launch launch_of(const Flags& flags, const Launch& started) {
  if (!flags.given("nodes")) {
    if (flags.given("node-rank"))
      refuse_flag(flags, "node-rank", ", which needs --nodes HOST,HOST");
    return started;
  }
  if (started.launcher != Launcher::kNone)
    refuse_flag(flags, "nodes",
                ", but the job was started as " + to_string(started) + "; legal: no --nodes");
  const std::vector<std::string> hosts = hosts_of(flags);
  const std::string legal = "legal: 0 ... " + std::to_string(hosts.size() - 1);
  const auto rank = flags.integer("node-rank");
  if (!rank) refuse_flag(flags, "nodes", ", which needs --node-rank; " + legal);
  if (*rank >= static_cast<int64_t>(hosts.size()))
    refuse_flag(flags, "node-rank",
                ", but --nodes names " + std::to_string(hosts.size()) + " hosts; " + legal);
  return launch_on_nodes(hosts, static_cast<int>(*rank));
}

MeetingPoint point_of(const Flags& flags, const Launch& launch, const Environment& environment) {
  MeetingPoint point;
  if (launch.launcher == Launcher::kNodes)
    point = {.host = split(flags.text("nodes"), ',').front(), .port = kMeetingPort, .job = {}};
  else
    point = meeting_point(launch, environment);
  if (const auto port = flags.integer("port")) point.port = static_cast<int>(*port);
  return point;
}

// The last value of a flag among arguments that may be no command line.
std::string argument_of(std::span<const std::string> arguments, const char* name) {
  std::string value;
  for (const std::string& spelling : spellings({.name = name, .help = "", .commands = 0}))
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i] == spelling && i + 1 < arguments.size())
        value = arguments[i + 1];
      else if (arguments[i].starts_with(spelling + "="))
        value = arguments[i].substr(spelling.size() + 1);
  return value;
}

}  // namespace

std::optional<ProcessPlace> process_place(const Flags& flags, const Environment& environment) {
  const Launch launch = launch_of(flags, detect_launch(environment));
  refuse_foreign_launcher(launch);
  const std::string wanted = flags.text("transport");
  const bool several = launch.launcher != Launcher::kNone;
  const ProcessPlace place{
      .launch = launch,
      .point = point_of(flags, launch, environment),
      .network = launch.mpi() && wanted != "ucx" ? Network::kMpi : Network::kUcx};
  const bool ucx = several && place.network == Network::kUcx;
  if (ucx && place.point.host.empty())
    throw Error(ErrorKind::kUsage, "started as " + to_string(launch) +
                                       ", which does not say where they meet; UCX needs "
                                       "MASTER_ADDR, the host of rank 0" +
                                       (launch.mpi() ? "; legal without it: --transport mpi" : ""));
  const std::string legal = !several ? "local" : launch.mpi() ? "mpi, ucx, nccl" : "ucx, nccl";
  if (!wanted.empty() && wanted != "auto" &&
      (", " + legal).find(", " + wanted) == std::string::npos)
    refuse_flag(flags, "transport",
                ", but the job is " + to_string(launch) + "; legal here: auto, " + legal);
  if (!ucx && flags.given("port"))
    refuse_flag(flags, "port",
                ", which processes that meet by UCX take; the job is " + to_string(launch) +
                    "; legal here: no --port");
  if (!several) return std::nullopt;
  return place;
}

std::optional<ProcessPlace> process_place(const Flags& flags) {
  return process_place(flags, [](const char* name) { return std::getenv(name); });
}

ProcessPlace place_of_arguments(std::span<const std::string> arguments) {
  ProcessPlace place = detect_place();
  const std::vector<std::string> hosts = split(argument_of(arguments, "nodes"), ',');
  const std::string number = argument_of(arguments, "node-rank");
  const int port = std::atoi(argument_of(arguments, "port").c_str());
  const auto rank = static_cast<size_t>(std::max(std::atoi(number.c_str()), 0));
  if (place.launch.launcher == Launcher::kNone && hosts.size() > 1 && !number.empty() &&
      rank < hosts.size()) {
    place.launch = launch_on_nodes(hosts, static_cast<int>(rank));
    place.point = {.host = hosts.front(), .port = kMeetingPort, .job = {}};
  }
  if (port > 0 && port < 1 << 16) place.point.port = port;
  return place;
}

}  // namespace weft
