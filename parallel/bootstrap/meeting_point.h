#pragma once
// MeetingPoint: the host and port at which the processes of a job find each other where their
// launcher does not connect them: the first rank listens there (meeting.h).
#include <string>

#include "parallel/bootstrap/launch.h"

namespace weft {

struct MeetingPoint {
  std::string host;  // "" where the environment names none
  int port = 0;
  std::string job;  // tells jobs apart that share a host

  std::string text() const { return host + " port " + std::to_string(port); }
};

constexpr int kMeetingPort = 29400;  // where nothing names another

// The one that the launcher's variables name; MASTER_ADDR and MASTER_PORT come first.
MeetingPoint meeting_point(const Launch& launch, const Environment& environment);

// The first host of Slurm's short list of hosts: "n001" of "n[001-003,7],m1". "" where the list
// is malformed.
std::string first_of_hosts(const std::string& list);

// A process on each of `hosts`, some of which may be the same one; this is that of number `rank`.
Launch launch_on_nodes(const std::vector<std::string>& hosts, int rank);

}  // namespace weft
