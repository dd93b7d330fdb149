#pragma once
// Control groups: the limits that Linux sets to the CPUs and the memory of a process, by version 2
// of its control groups, by version 1, and where both are mounted. A group's limits hold for all
// groups inside it, too. `root` is a folder that stands for /. A limit that cannot be read is none.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// The CPU time that a group may use.
struct CpuQuota {
  std::string group;  // the same in all processes of this host that the group holds
  double cpus;        // 1.5 is three seconds in every two
};

// The quotas of this process's group and of those around it, the innermost first.
std::vector<CpuQuota> cpu_quotas(const std::string& root = "");

// The bytes that the groups of this process still allow; the largest number where none has a limit.
uint64_t control_groups_leave(const std::string& root = "");

}  // namespace weft
