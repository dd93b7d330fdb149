#include "apps/stream/stream_memory.h"

#include <algorithm>

#include "engine/memory/memory_plan.h"

namespace weft {

std::vector<StreamBytes> stream_memory(StreamEngine& engine, const std::string& caption) {
  std::vector<StreamBytes> devices;
  for (int rank = 0; rank < engine.ranks(); ++rank) {
    const StreamBytes bytes = engine.bytes(caption, rank);
    auto at = std::ranges::find(devices, bytes.device, &StreamBytes::device);
    if (at == devices.end()) at = devices.insert(at, StreamBytes{bytes.device});
    at->encoding = std::max(at->encoding, bytes.encoding);
    at->weights += bytes.weights;
    at->running += bytes.running;
  }
  return devices;
}

FreeMemory::FreeMemory(const StreamEngine& engine) {
  for (int rank = 0; rank < engine.ranks(); ++rank) {
    const Device device = engine.device(rank);
    if (std::ranges::find(free_, device, &std::pair<Device, uint64_t>::first) == free_.end())
      free_.emplace_back(device, available_memory(device));
  }
}

uint64_t FreeMemory::of(Device device) const {
  const auto found = std::ranges::find(free_, device, &std::pair<Device, uint64_t>::first);
  return found == free_.end() ? available_memory(device) : found->second;
}

bool FreeMemory::has(const std::vector<StreamBytes>& needed) const {
  return std::ranges::all_of(
      needed, [&](const StreamBytes& one) { return one.high_water() <= of(one.device); });
}

std::string FreeMemory::shown(const std::vector<StreamBytes>& needed) const {
  std::string text;
  for (const StreamBytes& bytes : needed)
    text += (text.empty() ? "" : "; ") + format_bytes(bytes.high_water()) + " of " +
            format_bytes(of(bytes.device)) + ": weights " + format_bytes(bytes.weights) +
            ", keys and workspace " + format_bytes(bytes.running);
  return text;
}

void FreeMemory::check(const std::vector<StreamBytes>& needed) const {
  for (const StreamBytes& one : needed)
    if (one.high_water() > of(one.device))
      throw Error(ErrorKind::kMemory,
                  "the stream does not fit: it needs " + shown({one}) +
                      "; legal: a smaller --size, --kv-dtype int8, --weights int8 (fp8 on a GPU), "
                      "or --layout layers=2 over two devices");
}

}  // namespace weft
