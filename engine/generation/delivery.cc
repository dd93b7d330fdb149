#include "engine/generation/delivery.h"

#include <algorithm>

#include "engine/job/checkpoint.h"
#include "engine/job/resume.h"
#include "io/sha256.h"
#include "kernels/transfer.h"

namespace weft {

// A job that began with the final latent has the file already.
bool Delivery::keeps_file() const {
  return job_.rank.placement.root() && !job_.options.latents_path.empty() &&
         job_.result.resumed_at < job_.result.steps;
}

void Delivery::write_file(const TensorView& latent, const TensorParts& parts) {
  Checkpoint checkpoint;
  checkpoint.job = job_.record;
  checkpoint.notes = job_.options.notes;
  checkpoint.step = checkpoint.total = job_.result.steps;
  checkpoint.signature = job_.result.signature;
  checkpoint.written = written_skips(job_.result.request.cache);
  write_checkpoint(job_.options.latents_path, checkpoint, latent, parts);
  job_.result.latents_path = job_.options.latents_path;
}

// A job that began with the final latent is told by its file which steps were skipped.
void Delivery::tell_file() {
  if (job_.result.resumed_at != job_.result.steps || !job_.options.resume) return;
  job_.result.latents_path = job_.options.resume->path;
  if (auto skipped = read_skips(*job_.options.resume))
    job_.result.request.cache.skipped = std::move(skipped);
}

void Delivery::whole(const TensorView& on_device) {
  job_.meter.stage_ended(MemoryMeter::kDenoise);
  const HostCopy copied(job_.rank.stream, on_device);
  const TensorView& latent = copied.view();
  RunResult& result = job_.result;
  result.signature = sha256_hex({static_cast<const char*>(latent.data), latent.bytes()});
  if (job_.options.tap) job_.options.tap->tap("latents_final", latent);
  tell_file();
  if (keeps_file()) write_file(latent, {});
  decode(latent);
}

void Delivery::keep(const Job::Channels& each) {
  job_.meter.stage_ended(MemoryMeter::kDenoise);
  const auto [channels, frames, height, width] = job_.facts.latent;
  RunResult& result = job_.result;
  const bool root = job_.rank.placement.root();
  Sha256 hash;
  Tensor whole;
  if (root && job_.options.tap) whole = Tensor(DType::kF32, {channels, frames, height, width});
  int64_t seen = 0;
  each([&](const TensorView& channel) {
    hash.update(channel.data, channel.bytes());
    if (whole)
      std::copy_n(channel.as<float>(), channel.count(), whole.view().select(0, seen++).as<float>());
  });
  if (root) result.signature = hash.hex();
  if (whole) job_.options.tap->tap("latents_final", whole);
  tell_file();
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kFile};
  if (!job_.rank.placement.agreed(job_.rank.stream, tag, keeps_file())) return;
  if (root)
    write_file(TensorView(nullptr, DType::kF32, {channels, frames, height, width}), each);
  else
    each({});
}

void Delivery::decode(const TensorView& latent) {
  if (!output_) {
    const auto [channels, frames, height, width] = job_.facts.latent;
    const bool decodes = job_.rank.placement.band(height).size() > 0;
    output_.emplace(
        job_.rank,
        DecoderSettings{.traits = job_.rank.parts().vae_model().traits(),
                        .vae = decodes ? &job_.rank.parts().vae(job_.rank.stream) : nullptr,
                        .latent = {channels, height, width},
                        .total = frames},
        VideoReceivers{job_.sink, job_.options.tap, job_.clock});
  }
  if (!latent.data) return output_->write(latent, job_.options.stop);
  const HostCopy copied(job_.rank.stream, latent);
  output_->write(copied.view(), job_.options.stop);
}

void Delivery::finish() {
  output_->finish(job_.result, job_.started);
  job_.result.decode_high_water = job_.meter.stage_ended(MemoryMeter::kDecode);
}

}  // namespace weft
