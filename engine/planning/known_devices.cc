#include "engine/planning/known_devices.h"

#include <cctype>

#include "io/nearest.h"

namespace weft {
namespace {

// clang-format off
constexpr KnownDevice kKnownDevices[] = {
    // name, the driver's name, multiprocessors, capability, MiB, bf16 and f32 TFLOP/s, GB/s of memory, host and link
    {"H100 SXM", "NVIDIA H100 80GB HBM3", 132, 9, 0, 81559, 989, 67, 3350, 55, 450},
    {"H100 PCIe", "NVIDIA H100 PCIe", 114, 9, 0, 81559, 756, 51, 2000, 55, 50},
    {"H200", "NVIDIA H200", 132, 9, 0, 143156, 989, 67, 4800, 55, 450},
    {"B200", "NVIDIA B200", 148, 10, 0, 183359, 2250, 75, 8000, 55, 900},
    {"A100 40GB", "NVIDIA A100-SXM4-40GB", 108, 8, 0, 40536, 312, 19.5, 1555, 25, 300},
    {"A100 80GB", "NVIDIA A100-SXM4-80GB", 108, 8, 0, 81251, 312, 19.5, 2039, 25, 300},
    {"L40S", "NVIDIA L40S", 142, 8, 9, 46068, 362, 91.6, 864, 25, 22},
    {"L4", "NVIDIA L4", 58, 8, 9, 23034, 121, 30.3, 300, 25, 22},
    {"RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 142, 8, 9, 49140, 364, 91.1, 960, 25, 22},
    {"RTX PRO 6000 Blackwell", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 12, 0, 97887, 504, 126, 1792, 50, 45},
    {"RTX 3090", "NVIDIA GeForce RTX 3090", 82, 8, 6, 24268, 71, 35.6, 936, 25, 12},
    {"RTX 4090", "NVIDIA GeForce RTX 4090", 128, 8, 9, 24217, 165, 82.6, 1008, 25, 12},
    {"RTX 5090", "NVIDIA GeForce RTX 5090", 170, 12, 0, 32112, 209.5, 104.8, 1792, 50, 22},
};
// clang-format on

// The shares of its datasheet that an H200 reaches in GEMMs, in attention and in a decoder's
// convolutions: 760, 600 and 455 of 989 TFLOP/s in bf16, 48, 26 and 11.5 of 67 in f32; and in
// copies 4.05 of 4.8 TB/s (tests/bench/results/gpu.jsonl).
struct Shares {
  double linear, attention, conv;
};
constexpr Shares kOfBf16{0.77, 0.61, 0.46}, kOfF32{0.72, 0.39, 0.17};
constexpr double kOfMemory = 0.84;

std::string plain(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_')
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string word : {"nvidia", "geforce"})
    if (const size_t at = text.find(word); at != std::string::npos) text.erase(at, word.size());
  return text;
}

}  // namespace

DeviceTraits KnownDevice::traits() const {
  return {.name = driver_name,
          .multiprocessors = multiprocessors,
          .major = major,
          .minor = minor,
          .bytes = static_cast<size_t>(mebibytes) << 20};
}

DeviceModel KnownDevice::model(DType dtype) const {
  const bool half = dtype == DType::kBF16;
  const double flop_per_s = (half ? bf16_tflops : f32_tflops) * 1e12;
  const Shares& reached = half ? kOfBf16 : kOfF32;
  DeviceModel device;
  const auto rate = [&](OpFamily family) -> double& {
    return device.flop_per_s[static_cast<size_t>(family)];
  };
  rate(OpFamily::kLinear) = reached.linear * flop_per_s;
  rate(OpFamily::kAttention) = reached.attention * flop_per_s;
  rate(OpFamily::kConv) = reached.conv * flop_per_s;
  device.bytes_per_s.fill(kOfMemory * memory_gbs * 1e9);
  device.copy_bytes_per_s = device.bytes_per_s[0] / 2;
  device.message_s = 30e-6;
  return device;
}

const KnownDevice& assumed_device() { return *find_known_device("H200"); }

const KnownDevice* find_known_device(const std::string& name) {
  for (const KnownDevice& device : kKnownDevices)
    if (plain(name) == plain(device.name) || plain(name) == plain(device.driver_name))
      return &device;
  return nullptr;
}

std::string known_device_names() { return listed(kKnownDevices, &KnownDevice::name); }

std::string PlannedDevice::description() const {
  return traits.name + (named  ? " (by its name)"
                        : here ? ", " + to_string(*here)
                               : " (assumed: no such device is here)");
}

}  // namespace weft
