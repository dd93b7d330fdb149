#pragma once
// Planner: what a job will hold in memory, stage by stage, computed before step 1 from
// configurations alone, and which components stay resident.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device_plan.h"

namespace weft {

// From fastest to smallest.
enum class Residency : uint8_t {
  kAll,         // everything loaded once and kept
  kStaged,      // the text encoder stands alone; the rest loads after it is released
  kOneExpert,   // staged, and one expert at a time
  kSequential,  // one component at a time: the VAE loads after the transformer is released
  kCount,
};

std::string_view to_string(Residency residency);

// What a device's job holds of the host's memory, but for a process's own and a driver's.
struct HostBytes {
  uint64_t streamed = 0;  // pinned: weights of the layers that pass through the device
  uint64_t copies = 0;    // pinned: what goes between host and device, frames among it
  uint64_t buffers = 0;   // latents, checkpoints, frames that wait for the writer

  uint64_t pinned() const { return streamed + copies; }
  uint64_t total() const { return pinned() + buffers; }
};

// Bytes of each part, as the models' prediction functions give them.
struct ComponentBytes {
  uint64_t text_encoder = 0;
  std::vector<uint64_t> experts;
  uint64_t vae = 0;
  std::vector<uint64_t> streamed{};  // of each expert: what a forward copies from the host
  HostBytes host{};                  // beside a device's; `streamed` as the residency has it
  // What each stage holds besides weights.
  uint64_t encode_text = 0;  // embeddings and workspace
  uint64_t denoise = 0;      // latent, velocities, solver history, keys and values of the text,
                             // workspace
  uint64_t decode = 0;       // latents, remembered frames, workspace, frames waiting for the writer
  // Of these, on a device: what single ops take in each stage, the most of it in any.
  uint64_t scratch = 0;
};

// A stage beside its weights, as the models' predictions give it: tensors, the arena, what single
// ops take, and what loading inside the stage takes before they do.
struct StageBytes {
  uint64_t tensors = 0, arena = 0, scratch = 0, loading = 0;

  // `device`: where ranges have memory by the piece, and small tensors by the slab.
  uint64_t held(bool device) const {
    if (!device) return tensors + arena;
    const uint64_t ran = committed_bytes(arena) + committed_bytes(scratch);
    return tensors + std::max(ran, loading + committed_bytes(kTransferPiece)) + kDeviceSlab;
  }
};

struct MemoryPlan {
  Residency residency = Residency::kAll;
  ComponentBytes parts;
  uint64_t weights = 0;                               // the most held at once
  uint64_t encode_text = 0, denoise = 0, decode = 0;  // held during each stage, weights included
  uint64_t high_water = 0;
  uint64_t available = 0;
  HostBytes host{};  // all zero where the device is the host
  uint64_t host_available = UINT64_MAX;

  bool fits() const { return fits_device() && fits_host(); }
  bool fits_device() const { return high_water <= available; }
  bool fits_host() const { return host.total() <= host_available; }
  // "weights 2.81 | encode_text ... -> high-water 5.02 of 12.00 GiB  OK"
  std::string to_string() const;
};

// What may be held now: of the host the least of MemAvailable and what the control groups leave, of
// another device what is free there.
uint64_t available_memory(Device device = {});

// The same of a device that is not here: its memory, less as much.
uint64_t available_memory(const DeviceTraits& device);

// The plan under one residency.
MemoryPlan memory_under(Residency residency, const ComponentBytes& parts, uint64_t available,
                        uint64_t host_available = UINT64_MAX);

// The fastest residency that fits in `available`; where none does, the smallest, with fits() false.
MemoryPlan plan_memory(const ComponentBytes& parts, uint64_t available,
                       uint64_t host_available = UINT64_MAX);

// "12.00 GiB", "3.21 MiB".
std::string format_bytes(uint64_t bytes);

}  // namespace weft
