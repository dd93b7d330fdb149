#pragma once
// --replicas: how many teams of a server draw side by side, and the flags of each of them.
#include "apps/command_line/flags.h"

namespace weft {

struct ReplicaFlags {
  int replicas = 1;
  Flags flags;  // of one team: its ranks, its share of the CPUs and of the memory
};
// --dp N and --layout data=N stand for --replicas N. Error(kUsage) where they contradict each
// other, and for several replicas on GPUs.
ReplicaFlags replica_flags(const Flags& flags);

}  // namespace weft
