#pragma once
// The devices by which UCX connects a process to those of other hosts. Left to itself UCX takes any
// interface of a host for as good as the others, also one that leads nowhere.
#include <span>
#include <string>
#include <vector>

#include "parallel/host/addresses.h"

namespace weft {

// The interfaces of `here` that have one of the addresses `met`, by which the process has met
// others, but for the loopback: "eth0,eth1".
std::string met_interfaces(std::span<const IpAddress> met, std::span<const HostAddress> here);

// The value of UCX_NET_DEVICES for rank `own`, from the host and the met_interfaces() of every
// rank: its own interfaces, or else those of the ranks beside it, and the InfiniBand and RoCE ports
// that are in operation here. "" where no interface is known, so that UCX chooses.
struct MetRank {
  std::string host, interfaces;
};
std::string ucx_devices(std::span<const MetRank> ranks, int own, const std::string& root = "");

}  // namespace weft
