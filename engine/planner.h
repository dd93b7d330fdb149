#pragma once
// Planner: what a job will hold in memory, stage by stage, computed before step 1 from
// configurations alone, and which components stay resident.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

enum class Residency : uint8_t {
  kAll,         // everything loaded once and kept
  kStaged,      // the text encoder is released before the transformer loads; all experts kept
  kOneExpert,   // staged, and one expert at a time
  kSequential,  // one component at a time; the VAE loads after the transformer is released
};

std::string_view to_string(Residency residency);

// Bytes of each part, as the models' prediction functions give them.
struct ComponentBytes {
  uint64_t text_encoder = 0;
  std::vector<uint64_t> experts;
  uint64_t vae = 0;
  uint64_t text_workspace = 0, denoise_workspace = 0, decode_workspace = 0;
  uint64_t embeddings = 0;  // both prompts, f32
  uint64_t latents = 0;     // latent, velocities and solver history, f32
  uint64_t frames = 0;      // decoded frames waiting for the writer
};

struct MemoryPlan {
  Residency residency = Residency::kAll;
  ComponentBytes bytes;
  uint64_t encode_text = 0, denoise = 0, decode = 0;  // held during each stage
  uint64_t high_water = 0;
  uint64_t available = 0;

  bool fits() const { return high_water <= available; }
  // "weights 0.01 | activations ... -> high-water 0.03 of 12.0 GiB  OK"
  std::string to_string() const;
};

// The most that may be held now: the cgroup's limit less its use, else MemAvailable.
uint64_t available_memory();

// The fastest residency that fits in `available`; where none does, the smallest, with fits() false.
MemoryPlan plan_memory(const ComponentBytes& bytes, uint64_t available);

// The stages of a plan under one residency (a pure part of plan_memory, for tests).
MemoryPlan memory_under(Residency residency, const ComponentBytes& bytes, uint64_t available);

}  // namespace weft
