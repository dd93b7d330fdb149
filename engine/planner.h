#pragma once
// Planner: what a job will hold in memory, stage by stage, computed before step 1 from
// configurations alone, and which components stay resident.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

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

// Bytes of each part, as the models' prediction functions give them.
struct ComponentBytes {
  uint64_t text_encoder = 0;
  std::vector<uint64_t> experts;
  uint64_t vae = 0;
  // What each stage holds besides weights.
  uint64_t encode_text = 0;  // embeddings and workspace
  uint64_t denoise = 0;      // latent, velocities, solver history, keys and values of the text,
                             // workspace
  uint64_t decode = 0;       // latents, remembered frames, workspace, frames waiting for the writer
};

struct MemoryPlan {
  Residency residency = Residency::kAll;
  ComponentBytes parts;
  uint64_t weights = 0;                               // the most held at once
  uint64_t encode_text = 0, denoise = 0, decode = 0;  // held during each stage, weights included
  uint64_t high_water = 0;
  uint64_t available = 0;

  bool fits() const { return high_water <= available; }
  // "weights 2.81 | encode_text ... -> high-water 5.02 of 12.00 GiB  OK"
  std::string to_string() const;
};

// What may be held now: of the host the least of MemAvailable and what the control groups leave, of
// another device what is free there.
uint64_t available_memory(Device device = {});

// The plan under one residency.
MemoryPlan memory_under(Residency residency, const ComponentBytes& parts, uint64_t available);

// The fastest residency that fits in `available`; where none does, the smallest, with fits() false.
MemoryPlan plan_memory(const ComponentBytes& parts, uint64_t available);

// "12.00 GiB", "3.21 MiB".
std::string format_bytes(uint64_t bytes);

}  // namespace weft
