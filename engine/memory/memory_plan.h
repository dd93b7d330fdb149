#pragma once
// The memory plan: from a dry run it tells how much memory each stage of a job will hold, and it
// decides which components stay resident.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/parts/residency.h"
#include "kernels/device_plan.h"

namespace weft {

// The host memory of a job that runs on a device, without that of the process and the driver.
struct HostBytes {
  uint64_t streamed = 0;  // pinned: weights of offloaded layers
  uint64_t copies = 0;    // pinned: buffers of copies and of messages, frames included
  uint64_t buffers = 0;   // latents, checkpoints, frames that wait for the writer

  uint64_t pinned() const { return streamed + copies; }
  uint64_t total() const { return pinned() + buffers; }
};

// The bytes of each part, as a dry run found them.
struct ComponentBytes {
  uint64_t text_encoder = 0;
  uint64_t audio_encoder = 0;  // released when the sound is encoded, under every residency
  std::vector<uint64_t> experts;
  uint64_t vae = 0;
  // Per expert: weight bytes that a forward copies from the host, or reads from the file.
  std::vector<uint64_t> streamed{};
  bool streams_from_file = false;  // else host memory holds the streamed bytes
  // A thread reads layers from the file ahead of use, to the end of the job. It takes so many bytes
  // beside their weights while it reads; `denoise` and `decode` count them.
  uint64_t reading = 0;
  HostBytes host{};  // on a device; `streamed` depends on the residency
  // Bytes that each stage holds besides weights.
  uint64_t encode_text = 0;  // embeddings and workspace
  // The encoders of pictures are loaded one after the other and released: the largest of them, and
  // what their stage holds with them. 0: the job has no pictures.
  uint64_t picture_encoder = 0, encode_image = 0;
  uint64_t encode_audio = 0;  // 0: the job hears nothing
  uint64_t denoise = 0;       // latent, velocities, solver history, keys and values of the text,
                              // workspace
  uint64_t decode = 0;  // latents, remembered frames, workspace, frames waiting for the writer
  // The same while the weights of the stage are loaded.
  uint64_t load_text = 0, load_audio = 0, load_expert = 0, load_vae = 0;
  // True where frames are decoded between denoise steps: the VAE then stays beside the
  // transformers, and `denoise` contains what decoding holds.
  bool decodes_meanwhile = false;
  // True where there are steps after decoded frames: the VAE then stays, unless one component is
  // resident at a time.
  bool decodes_between = false;
  // The part of these bytes that is scratch of single ops on a device: the most of any stage.
  uint64_t scratch = 0;
};

// The bytes of a stage without its weights: tensors, the arena, the
// scratch of single ops, and the memory that loading weights needs before the stage computes.
struct StageBytes {
  uint64_t tensors = 0, arena = 0, scratch = 0, loading = 0;

  // `device` is true where memory is committed in pieces and small tensors share slabs.
  uint64_t held(bool device) const {
    if (!device) return tensors + std::max(arena, loading);
    const uint64_t ran = committed_bytes(arena) + committed_bytes(scratch);
    return tensors + std::max(ran, loading + committed_bytes(kTransferPiece)) + kDeviceSlab;
  }
};

struct MemoryPlan {
  Residency residency = Residency::kAll;
  int resident_layers = 0;  // of a transformer in memory at once; 0: all
  std::string reason{};     // why it was chosen (choose_plan), and what it is
  ComponentBytes parts;
  uint64_t weights = 0;  // the most that are held at once
  // Held during each stage, weights included. 0: the job has no pictures, or hears nothing.
  uint64_t encode_text = 0, encode_image = 0, encode_audio = 0, denoise = 0, decode = 0;
  uint64_t high_water = 0;
  uint64_t available = 0;
  HostBytes host{};  // all zero where the device is the host
  uint64_t host_available = UINT64_MAX;

  bool fits() const { return fits_device() && fits_host(); }
  bool fits_device() const { return high_water <= available; }
  bool fits_host() const { return host.total() <= host_available; }
  // "weights 2.81 | encode_text ... -> high-water 5.02 of 12.00 GiB  OK", without the last four
  // words where memory has no limit.
  std::string to_string() const;
};

// The bytes that a forward copies or reads, on the rank with the most of them.
uint64_t most_streamed(std::span<const MemoryPlan> ranks);

// The memory that may be used now. For the host it is the smaller of MemAvailable and what the
// control groups still allow. For a device it is the free memory less a reserve.
uint64_t available_memory(Device device = {});

// The same for a device that is not present: all of its memory less the same reserve.
uint64_t available_memory(const DeviceTraits& device);

// The plan under one residency.
MemoryPlan memory_under(Residency residency, const ComponentBytes& parts, uint64_t available,
                        uint64_t host_available = UINT64_MAX);

}  // namespace weft
