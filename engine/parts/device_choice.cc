#include "engine/parts/device_choice.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "io/legal.h"
#include "kernels/check.h"

namespace weft {

std::string device_identity(const DeviceNames& names) {
  if (names.uuid != std::array<unsigned char, 16>{}) {
    std::string text = "uuid ";
    for (const unsigned char byte : names.uuid) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", byte);
      text += digits;
    }
    return text;
  }
  if (!names.pci.empty()) return names.host + " pci " + names.pci;
  const std::vector<std::string> listed = split(names.visible_list, ',');
  if (names.index < static_cast<int>(listed.size()))
    return names.host + " device " + listed[names.index];
  return names.host + " device " + std::to_string(names.index);
}

std::vector<DeviceChoice> choose_devices(std::span<const VisibleDevices> ranks, int index,
                                         const std::string& absence) {
  std::vector<DeviceChoice> choices;
  std::map<std::string, int> users;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int count = static_cast<int>(ranks[rank].identities.size());
    if (index >= count || count == 0)
      throw Error(
          ErrorKind::kUsage,
          "--device is 'cuda" + (index >= 0 ? ":" + std::to_string(index) : "") + "', " +
              (ranks.size() > 1 ? "rank " + std::to_string(rank) + " sees " : "the machine has ") +
              std::to_string(count) + " CUDA devices" +
              (count > 0         ? ", legal: cpu, cuda, cuda:0 to cuda:" + std::to_string(count - 1)
               : absence.empty() ? ", legal: cpu"
                                 : ": " + absence + "; legal: cpu"));
    choices.push_back({.index = index >= 0 ? index : ranks[rank].rank_here % count});
    ++users[ranks[rank].identities[choices.back().index]];
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    choices[rank].ranks = users[ranks[rank].identities[choices[rank].index]];
  return choices;
}

int most_ranks_per_device(std::span<const DeviceChoice> choices) {
  int most = 1;
  for (const DeviceChoice& choice : choices) most = std::max(most, choice.ranks);
  return most;
}

}  // namespace weft
