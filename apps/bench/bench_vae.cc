#include "apps/bench/bench_vae.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench/bench_limits.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "kernels/transfer.h"
#include "models/random_weights.h"
#include "models/wan/vae.h"

namespace weft {
namespace {

struct Measured {
  double seconds = 0;
  uint64_t arena = 0, peak = 0;  // high-water mark so far; resident
};

double median_from(const std::vector<Measured>& chunks, size_t first) {
  std::vector<double> seconds;
  for (size_t i = std::min(first, chunks.size() - 1); i < chunks.size(); ++i)
    seconds.push_back(chunks[i].seconds);
  return median(seconds);
}

}  // namespace

int bench_vae(const Flags& flags, DType dtype, int) {
  const WanVaeConfig config;
  const auto [width, height] = size_of_flag(flags).value_or(std::pair<int64_t, int64_t>{832, 480});
  const int64_t scale = config.spatial_factor(), h = height / scale, w = width / scale;
  if (width % scale || height % scale || h < 1 || w < 1)
    throw Error(ErrorKind::kUsage, flags.label("size") + " is '" + flags.text("size") +
                                       "', legal: multiples of " + std::to_string(scale));
  const int64_t frames = config.traits().latent_frames(flags.integer("num-frames").value_or(81));
  if (frames == 1)
    throw Error(ErrorKind::kUsage,
                flags.label("num-frames") + " is 1, legal here: 4n+1 from 5; nearest: 5");
  Stream bare = stream_of(flags), stream = bare.with(metered_ops());
  const WanVae vae = [&] {
    const TensorFile weights = random_tensors(wan_vae_tensors(config));
    return WanVae::load(weights, config, stream, dtype, VaeParts::kDecoder);
  }();
  const size_t workspace = vae_decode_workspace_bytes(config, h, w, dtype, frames);
  const size_t state = vae_decode_state_bytes(config, h, w, dtype);
  // The limits are measured with the transformer's GEMMs, so that all benches compare with one
  // rate; on a device with the tokens of a whole clip.
  const int64_t rows = std::max<int64_t>(1, h * w / 4) * (bare.queue() ? frames : 1);
  MachineLimits limits(bare, dtype,
                       {{rows, 1536, 1536, 6}, {rows, 1536, 8960, 1}, {rows, 8960, 1536, 1}});
  Arena arena(size_t{256} << 30, stream.device());
  SerialSeams seams;
  Tensor made(DType::kF32, {config.z_dim, h, w});
  for (int64_t i = 0; i < made.count(); ++i)
    made.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
  const Tensor latent = on_device(stream, std::move(made));
  const Tensor pixels(DType::kF32, {config.temporal_factor(), 3, height, width}, stream.device());

  const uint64_t before = process_bytes("RssAnon:");
  TimingMeter later;  // the first chunk is a single frame and warms up
  const auto decode = [&](Stream& on) {
    std::vector<Measured> chunks;
    WanVaeDecoder decoder(vae, h, w);
    for (int64_t f = 0; f < frames; ++f) {
      limits.sample();
      TimingMeter first;
      const MeterScope scope(f == 0 ? first : later);
      Context context = seams.context(on, arena, {}, {});
      const double begun = wall_seconds();
      decoder.decode_chunk(context, latent, pixels.view().slice(0, 0, decoder.next_frames()));
      on.sync();
      chunks.push_back(
          {wall_seconds() - begun, arena.high_water(), process_bytes("RssAnon:") - before});
      if (!flags.on("json"))
        std::fprintf(stderr, "latent frame %lld of %lld: %.2f s\n", static_cast<long long>(f + 1),
                     static_cast<long long>(frames), chunks.back().seconds);
    }
    return chunks;
  };
  // A meter waits for a device after every op. So a device is timed without one, and its op
  // families are measured in a second decode.
  std::vector<Measured> chunks = decode(bare.queue() ? bare : stream);
  const std::vector<Measured> metered = bare.queue() ? decode(stream) : chunks;
  const double seconds = median_from(chunks, 1);
  double total = 0;
  for (size_t i = 1; i < metered.size(); ++i) total += metered[i].seconds;
  const double flop = executed_flop(later) / static_cast<double>(frames - 1);
  const double floor = flop / (limits.gemm_gflops() * 1e9);
  nlohmann::json object{{"bench", "vae"},
                        {"size", std::to_string(width) + "x" + std::to_string(height)},
                        {"frames", config.traits().frames(frames)},
                        {"dtype", to_string(dtype)},
                        {"threads", stream.threads()},
                        {"isa", cpu_isa()},
                        {"seconds_first_latent_frame", chunks[0].seconds},
                        {"seconds_per_latent_frame", seconds},
                        {"flop_per_latent_frame", flop},
                        {"gflops", flop / seconds * 1e-9},
                        {"floor_seconds", floor},
                        {"ratio", seconds / floor},
                        {"weights_bytes", vae.bytes()},
                        {"arena_bytes", arena.high_water()},
                        {"arena_bytes_second_latent_frame", chunks[1].arena},
                        {"arena_bytes_predicted", workspace},
                        {"state_bytes_predicted", state},
                        {"rss_anon_bytes_second_latent_frame", chunks[1].peak},
                        {"rss_anon_bytes_last_latent_frame", chunks.back().peak}};
  limits.describe(object);
  if (stream.queue()) object["device"] = to_string(stream.device());
  object["families"] = families_json(later, total, limits);
  if (flags.on("json")) {
    std::printf("%s\n", object.dump().c_str());
    return 0;
  }
  print_families(later, total, limits);
  std::printf("latent frame %.3f s (first %.3f), floor %.3f s at %.1f GFLOP/s (%s): ratio %.2f\n",
              seconds, chunks[0].seconds, floor, limits.gemm_gflops(),
              limits.gemm_description().c_str(), seconds / floor);
  std::printf(
      "workspace %.1f MiB, predicted %.1f; resident after the second latent frame %.1f MiB, "
      "after the last %.1f\n",
      static_cast<double>(arena.high_water()) * 0x1p-20, static_cast<double>(workspace) * 0x1p-20,
      static_cast<double>(chunks[1].peak) * 0x1p-20,
      static_cast<double>(chunks.back().peak) * 0x1p-20);
  return 0;
}

}  // namespace weft
