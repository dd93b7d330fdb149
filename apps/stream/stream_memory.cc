#include "apps/stream/stream_memory.h"

#include <algorithm>

#include "engine/memory/memory_plan.h"

namespace weft {

std::vector<StreamMemory> stream_memory(StreamEngine& engine, const std::string& caption) {
  std::vector<StreamMemory> devices;
  for (int rank = 0; rank < engine.ranks(); ++rank) {
    const StreamBytes bytes = engine.bytes(caption, rank);
    auto at = std::ranges::find(devices, engine.device(rank), &StreamMemory::device);
    if (at == devices.end()) at = devices.insert(at, StreamMemory{engine.device(rank)});
    at->bytes.encoding = std::max(at->bytes.encoding, bytes.encoding);
    at->bytes.weights += bytes.weights;
    at->bytes.running += bytes.running;
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

bool FreeMemory::has(const std::vector<StreamMemory>& needed) const {
  return std::ranges::all_of(needed,
                             [&](const StreamMemory& one) { return one.fits(of(one.device)); });
}

std::string FreeMemory::shown(const std::vector<StreamMemory>& needed) const {
  std::string text;
  for (const auto& [device, bytes] : needed)
    text += (text.empty() ? "" : "; ") + format_bytes(bytes.high_water()) + " of " +
            format_bytes(of(device)) + ": weights " + format_bytes(bytes.weights) +
            ", keys and workspace " + format_bytes(bytes.running);
  return text;
}

void FreeMemory::check(const std::vector<StreamMemory>& needed) const {
  for (const StreamMemory& one : needed)
    if (!one.fits(of(one.device)))
      throw Error(ErrorKind::kMemory,
                  "the stream does not fit: it needs " + shown({one}) +
                      "; legal: a smaller --size, --kv-dtype int8, --weights int8 (fp8 on a GPU), "
                      "or --layout layers=2 over two devices");
}

}  // namespace weft
