#include "parallel/transport/processes/ucx_devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace weft {

namespace {

// "mlx5_0:1" for each port that Linux says is active.
std::vector<std::string> active_ports(const std::string& root) {
  std::vector<std::string> ports;
  std::error_code none;  // most hosts have no such folder
  const std::string devices = root + "/sys/class/infiniband";
  for (const auto& device : std::filesystem::directory_iterator(devices, none))
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", none)) {
      std::string state;  // "4: ACTIVE"
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.ends_with("ACTIVE"))
        ports.push_back(device.path().filename().string() + ":" + port.path().filename().string());
    }
  std::ranges::sort(ports);
  return ports;
}

}  // namespace

std::string met_interfaces(std::span<const IpAddress> met, std::span<const HostAddress> here) {
  std::vector<std::string> names;
  for (const HostAddress& one : here)
    if (!one.loopback && std::ranges::find(met, one.address) != met.end() &&
        std::ranges::find(names, one.interface) == names.end())
      names.push_back(one.interface);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::string ucx_devices(std::span<const MetRank> ranks, int own, const std::string& root) {
  std::string names = ranks[own].interfaces;
  for (const MetRank& other : ranks)
    if (names.empty() && other.host == ranks[own].host) names = other.interfaces;
  if (names.empty()) return "";
  for (const std::string& port : active_ports(root)) names += "," + port;
  return names;
}

}  // namespace weft
