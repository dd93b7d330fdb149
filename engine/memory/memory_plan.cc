#include "engine/memory/memory_plan.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>

#include "kernels/check.h"
#include "kernels/device_memory.h"
#include "parallel/host/control_groups.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(Residency::kCount)> kNames = {
    "all resident", "text encoder released", "one expert at a time", "one component at a time"};

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

std::string fixed2(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace

std::string_view to_string(Residency residency) { return kNames[static_cast<size_t>(residency)]; }

uint64_t most_streamed(std::span<const MemoryPlan> ranks) {
  uint64_t most = 0;
  for (const MemoryPlan& plan : ranks)
    for (const uint64_t bytes : plan.parts.streamed) most = std::max(most, bytes);
  return most;
}

// Free device memory minus a reserve for memory that no plan counts: kernel code, recorded graphs
// and the libraries' own allocations.
uint64_t left_of_device(uint64_t free) { return free - std::min(free / 16, kGiB); }

uint64_t available_memory(const DeviceTraits& device) { return left_of_device(device.bytes); }

uint64_t available_memory(Device device) {
  if (device.kind != Device::Kind::kCpu) return left_of_device(device_memory_info(device).free);
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t kib = 0;
    if (fields >> name >> kib && name == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, control_groups_leave());
}

MemoryPlan memory_under(Residency residency, const ComponentBytes& parts, uint64_t available,
                        uint64_t host_available) {
  CHECK(!parts.experts.empty());
  const bool all = residency == Residency::kAll, all_experts = residency <= Residency::kStaged;
  uint64_t text = parts.text_encoder,
           denoise = all_experts
                         ? std::accumulate(parts.experts.begin(), parts.experts.end(), uint64_t{0})
                         : std::ranges::max(parts.experts),
           decode = parts.vae + (residency == Residency::kSequential ? 0 : denoise);
  uint64_t load_text = parts.load_text, load_expert = parts.load_expert, load_vae = parts.load_vae;
  if (all) {  // everything is loaded before the first stage, the VAE last
    load_text = std::max({load_text, load_expert - std::min(load_expert, parts.vae), load_vae});
    load_expert = load_vae = 0;
    text = denoise = decode += text;
  }
  if (parts.decodes_meanwhile && !all) decode = denoise += parts.vae;
  if (parts.decodes_between && residency != Residency::kSequential) denoise = decode;
  MemoryPlan plan;
  plan.residency = residency;
  plan.parts = parts;
  plan.available = available;
  plan.host = parts.host;
  if (!parts.streams_from_file)
    for (const uint64_t bytes : parts.streamed)
      plan.host.streamed =
          all_experts ? plan.host.streamed + bytes : std::max(plan.host.streamed, bytes);
  plan.host_available = host_available;
  // While pictures and the sound are encoded.
  const uint64_t beside = all ? text : 0;
  plan.weights = std::max(
      {text, beside + std::max(parts.picture_encoder, parts.audio_encoder), denoise, decode});
  plan.encode_text = text + std::max(parts.encode_text, load_text);
  plan.denoise = denoise + std::max(parts.denoise, load_expert);
  plan.decode = decode + std::max(parts.decode, load_vae);
  if (parts.encode_image > 0) plan.encode_image = beside + parts.encode_image;
  if (parts.encode_audio > 0)
    plan.encode_audio =
        beside + parts.audio_encoder + std::max(parts.encode_audio, parts.load_audio);
  plan.high_water =
      std::max({plan.encode_text, plan.encode_image, plan.encode_audio, plan.denoise, plan.decode});
  return plan;
}

std::string MemoryPlan::to_string() const {
  const bool large = high_water >= kGiB;
  const auto number = [&](uint64_t bytes) {
    return fixed2(static_cast<double>(bytes) / (large ? kGiB : kMiB));
  };
  const auto stage = [&](const char* name, uint64_t bytes) {
    return std::string(" | ") + name + " " + number(bytes);
  };
  std::string text = "weights " + number(weights) + stage("encode_text", parts.encode_text);
  if (parts.encode_image > 0)
    text += stage("encode_image", parts.encode_image - parts.picture_encoder);
  if (parts.encode_audio > 0) text += stage("encode_audio", parts.encode_audio);
  text += stage("denoise", parts.denoise) + stage("decode", parts.decode) + " -> high-water " +
          number(high_water) + (large ? " GiB" : " MiB");
  if (available != UINT64_MAX)
    text += " of " + format_bytes(available) + (fits_device() ? "  OK" : "  DOES NOT FIT");
  text += " (" + std::string(weft::to_string(residency));
  if (resident_layers > 0) text += ", " + std::to_string(resident_layers) + " layers in memory";
  text += ")";
  if (host.total() == 0) return text;
  text +=
      "; host " + format_bytes(host.total()) + ", " + format_bytes(host.pinned()) + " of it pinned";
  if (host_available != UINT64_MAX) text += ", of " + format_bytes(host_available);
  return text + (fits_host() ? "" : "  DOES NOT FIT");
}

}  // namespace weft
