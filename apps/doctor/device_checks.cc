#include "apps/doctor/device_checks.h"

#include <filesystem>
#include <map>

#include "apps/device.h"
#include "engine/memory/memory_plan.h"
#include "kernels/cuda/device.h"

namespace weft {
namespace {

// The text holds for cards from a compute capability on; the newest come first.
struct CardSupport {
  int major, minor;
  const char* text;
};
constexpr CardSupport kCardSupport[] = {
    {10, 0, "mma kernels and cuDNN attention, bf16, fp8 weights; no fp8 attention"},
    {9, 0, "wgmma kernels and cuDNN attention, bf16, fp8 weights and attention"},
    {8, 9, "mma kernels and cuDNN attention, bf16, fp8 weights; no fp8 attention"},
    {8, 0,
     "mma kernels and cuDNN attention, bf16, fp8 weights multiplied in bf16; no fp8 attention"},
};

HealthCheck driver_check(const Flags& flags) {
  HealthCheck check{.name = "cuda", .detail = cuda_versions(), .remedy = {}};
  if (check.detail.empty()) {
    check.detail = std::filesystem::exists("/proc/driver/nvidia/version")
                       ? "not built, but an NVIDIA driver is loaded"
                       : "not built; CPU only";
    if (!wants_cuda(flags)) return check;
    check.remedy = cuda_absence();
  } else {
    try {
      const int devices = cuda_device_count();
      check.detail += ", " + std::to_string(devices) + " devices";
      if (devices > 0) return check;
      check.remedy = cuda_absence() + "; --device cpu works";
    } catch (const Error& error) {
      check.detail += std::string(": ") + error.what();
      check.remedy = "no device is usable: check nvidia-smi; --device cpu works";
    }
  }
  check.health = wants_cuda(flags) ? Health::kFail : Health::kWarn;
  return check;
}

// One check per op family: whether the vendor's libraries on --device accept what models need.
HealthChecks library_checks(const Flags& flags) {
  std::map<std::string, HealthCheck> families;
  Stream stream = stream_of(flags);
  for (const LibraryAnswer& answer : ask_cuda_libraries(stream)) {
    HealthCheck& check = families[answer.family];
    check.name = "library " + answer.family;
    check.detail += (check.detail.empty() ? "" : "; ") + answer.what +
                    (answer.refusal.empty() ? " taken" : " refused: " + answer.refusal);
    if (answer.refusal.empty()) continue;
    check.health = Health::kWarn;
    check.remedy =
        "slower kernels of our own are used in their place; CUDA 13 and cuDNN 9.19 are known to "
        "work";
  }
  HealthChecks out;
  for (auto& [family, check] : families) out.push_back(std::move(check));
  return out;
}

}  // namespace

HealthCheck card_check(int index, const DeviceTraits& card) {
  HealthCheck check{.name = "cuda:" + std::to_string(index), .detail = {}, .remedy = {}};
  check.detail =
      card.name + " (" + std::to_string(card.major) + "." + std::to_string(card.minor) + "): ";
  for (const CardSupport& support : kCardSupport)
    if (std::pair(card.major, card.minor) >= std::pair(support.major, support.minor)) {
      check.detail += support.text;
      return check;
    }
  check.health = Health::kWarn;
  check.detail += "not supported: needs 8.0";
  check.remedy = "a card of compute capability 8.0 (Ampere) or newer; --device cpu works";
  return check;
}

HealthChecks device_checks(const Flags& flags) {
  HealthChecks checks{driver_check(flags)};
  if (cuda_versions().empty() || checks.front().health != Health::kPass) return checks;
  for (int index = 0, count = cuda_device_count(); index < count; ++index) {
    const Device device{Device::Kind::kCuda, static_cast<int8_t>(index)};
    checks.push_back(card_check(index, device_traits(device)));
    checks.back().detail += "; " + format_bytes(available_memory(device)) + " free";
  }
  if (wants_cuda(flags))
    for (HealthCheck& check : library_checks(flags)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace weft
