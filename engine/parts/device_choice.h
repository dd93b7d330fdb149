#pragma once
// Chooses the GPU of every rank from what each rank's process sees. Pure functions, so that they
// can be tested without GPUs.
#include <array>
#include <span>
#include <string>
#include <vector>

namespace weft {

// DeviceNames holds what the driver and the environment say about one visible device.
struct DeviceNames {
  std::array<unsigned char, 16> uuid{};  // zeros: unknown
  std::string pci;                       // "0000:3b:00.0"; "": unknown
  std::string host;                      // tells machines apart
  std::string visible_list;              // CUDA_VISIBLE_DEVICES; "": not set
  int index = 0;                         // among the visible devices
};
// Text that is equal exactly where two ranks see the same physical device: the UUID, else host and
// PCI bus id, else host and the device's entry in CUDA_VISIBLE_DEVICES, else host and index.
std::string device_identity(const DeviceNames& names);

// The devices that one rank sees, in the order of their indices, as identities.
struct VisibleDevices {
  int rank_here = 0;  // among the ranks of its host
  std::vector<std::string> identities;
};

struct DeviceChoice {
  int index = 0;  // among the devices that the rank sees
  int ranks = 1;  // that use the same physical device, this one included
};

// The device of every rank. Index < 0: a rank takes the visible device of its rank on the host,
// modulo their number, so a rank that sees one device takes that. Otherwise every rank takes
// `index`. Error(kUsage) that names the first rank that sees no such device, and this process's
// `absence`, why it sees none.
std::vector<DeviceChoice> choose_devices(std::span<const VisibleDevices> ranks, int index,
                                         const std::string& absence = "");

// The largest DeviceChoice::ranks.
int most_ranks_per_device(std::span<const DeviceChoice> choices);

}  // namespace weft
