#include "parallel/bootstrap/meeting_point.h"

#include <algorithm>
#include <cstdlib>

namespace weft {

namespace {

// The first port of Slurm's list of ports that it has reserved for a step ("12000-12003"), else one
// that follows from the job and the step, below those that Linux gives to connections.
int slurm_port(const Environment& environment) {
  const auto of = [&](const char* name) {
    const char* text = environment(name);
    return text ? std::atoi(text) : 0;
  };
  if (const int reserved = of("SLURM_STEP_RESV_PORTS"); reserved > 0) return reserved;
  constexpr int kFirst = 20000, kPorts = 10000, kSteps = 16;
  return kFirst + (of("SLURM_JOB_ID") % kPorts * kSteps + of("SLURM_STEP_ID")) % kPorts;
}

}  // namespace

MeetingPoint meeting_point(const Launch& launch, const Environment& environment) {
  const auto of = [&](const char* name) {
    const char* text = environment(name);
    return std::string(text ? text : "");
  };
  const bool slurm = launch.launcher == Launcher::kSlurm || launch.launcher == Launcher::kSlurmRaw;
  MeetingPoint point{
      .host = of("MASTER_ADDR"), .port = std::atoi(of("MASTER_PORT").c_str()), .job = {}};
  if (slurm) {
    point.job = "slurm " + of("SLURM_JOB_ID") + "." + of("SLURM_STEP_ID");
    if (point.host.empty()) point.host = first_of_hosts(of("SLURM_STEP_NODELIST"));
    if (point.port == 0) point.port = slurm_port(environment);
  }
  // torchrun's agent listens at MASTER_PORT itself.
  if (launch.launcher == Launcher::kTorchrun && of("TORCHELASTIC_USE_AGENT_STORE") == "True" &&
      point.port > 0)
    ++point.port;
  if (point.port == 0) point.port = kMeetingPort;
  return point;
}

std::string first_of_hosts(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] == ']') return "";
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    // "[001-003,7]": its first number.
    const size_t close = list.find(']', at);
    if (close == std::string::npos) return "";
    const std::string range = list.substr(at + 1, close - at - 1);
    const std::string first = range.substr(0, range.find_first_of("-,"));
    if (first.empty() || range.find_first_not_of("0123456789-,") != std::string::npos) return "";
    host += first;
    at = close + 1;
  }
  return host;
}

Launch launch_on_nodes(const std::vector<std::string>& hosts, int rank) {
  const std::string& own = hosts.at(rank);
  return {.launcher = Launcher::kNodes,
          .rank = rank,
          .ranks = static_cast<int>(hosts.size()),
          .rank_here = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, own)),
          .ranks_here = static_cast<int>(std::count(hosts.begin(), hosts.end(), own))};
}

}  // namespace weft
