// weft bench vae: the decoder of Wan's VAE with random weights, latent frame by latent frame,
// beside the time its GEMMs would take at oneDNN's rate.
#include <cstdio>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "io/json.h"
#include "kernels/transfer.h"
#include "models/footprint.h"
#include "models/random_weights/random_weights.h"
#include "models/wan/vae.h"

namespace weft {
namespace {

struct ChunkTimes {
  double seconds = 0;
  uint64_t arena = 0, peak = 0;  // high-water mark so far; resident
};

double median_from(const std::vector<ChunkTimes>& chunks, size_t first) {
  std::vector<double> seconds;
  for (size_t i = std::min(first, chunks.size() - 1); i < chunks.size(); ++i)
    seconds.push_back(chunks[i].seconds);
  return median(seconds);
}

// The extents of the latent that --size and --num-frames ask for.
struct Extents {
  int64_t width, height, h, w, frames;
};

Extents extents_of(const Flags& flags, const WanVaeConfig& config) {
  const Request clip = job_of(flags).spec.request;
  const int64_t width = clip.width ? clip.width : 832, height = clip.height ? clip.height : 480;
  const int64_t scale = config.spatial_factor(), h = height / scale, w = width / scale;
  if (width % scale || height % scale || h < 1 || w < 1)
    throw Error(ErrorKind::kUsage, flags.label("size") + " is '" + flags.text("size") +
                                       "', legal: multiples of " + std::to_string(scale));
  const int64_t frames = config.traits().latent_frames(flags.integer("num-frames").value_or(81));
  if (frames == 1)
    throw Error(ErrorKind::kUsage,
                flags.label("num-frames") + " is 1, legal here: 4n+1 from 5; nearest: 5");
  return {width, height, h, w, frames};
}

// Decodes clips of the same latent frame.
class Decoding {
 public:
  Decoding(const Vae& vae, const WanVaeConfig& config, const Extents& extents, Stream& stream,
           MachineLimits& limits)
      : vae_(vae), extents_(extents), limits_(limits), arena_(size_t{256} << 30, stream.device()) {
    Tensor made(DType::kF32, {config.z_dim, extents.h, extents.w});
    for (int64_t i = 0; i < made.count(); ++i)
      made.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
    latent_ = on_device(stream, std::move(made));
    pixels_ = Tensor(DType::kF32, {config.temporal_factor(), 3, extents.height, extents.width},
                     stream.device());
    before_ = process_bytes("RssAnon:");
  }

  std::vector<ChunkTimes> run(Stream& stream, bool quiet) {
    std::vector<ChunkTimes> chunks;
    VaeDecoder decoder(vae_, extents_.h, extents_.w);
    for (int64_t f = 0; f < extents_.frames; ++f) {
      limits_.sample();
      TimingMeter first;
      const MeterScope scope(f == 0 ? first : later_);
      Context context = seams_.context(stream, arena_, {}, {});
      const double seconds = seconds_of([&] {
        decoder.decode_chunk(context, latent_, pixels_.view().slice(0, 0, decoder.next_frames()));
        stream.sync();
      });
      chunks.push_back({seconds, arena_.high_water(), process_bytes("RssAnon:") - before_});
      if (!quiet)
        std::fprintf(stderr, "latent frame %lld of %lld: %.2f s\n", static_cast<long long>(f + 1),
                     static_cast<long long>(extents_.frames), seconds);
    }
    return chunks;
  }

  size_t arena_bytes() const { return arena_.high_water(); }
  // The ops of all chunks but the first, which is a single frame and warms up.
  const TimingMeter& later() const { return later_; }

 private:
  const Vae& vae_;
  const Extents& extents_;
  MachineLimits& limits_;
  Arena arena_;
  SerialSeams seams_;
  TimingMeter later_;
  Tensor latent_, pixels_;
  uint64_t before_ = 0;
};

Footprint predict(const WanVaeConfig& config, const Extents& extents, DType dtype) {
  DryRun run;
  const Vae vae(make_wan_vae_model(config), without_values(wan_vae_tensors(config)), run.stream(),
                dtype, VaeParts::kDecoder);
  SerialSeams seams;
  Context context = seams.context(run.stream(), run.arena(), {}, {});
  return dry_decode(run, vae, context, extents.h, extents.w, extents.frames);
}

void print_vae(const Json& object) {
  const auto number = [&](const char* key) { return object.number(key); };
  const auto text = [&](const char* key) { return object.text(key); };
  std::printf("latent frame %.3f s (first %.3f), floor %.3f s at %.1f GFLOP/s (%s): ratio %.2f\n",
              number("seconds_per_latent_frame"), number("seconds_first_latent_frame"),
              number("floor_seconds"), number("gemm_gflops"),
              (text("gemm_dtype") + " " + text("gemm")).c_str(), number("ratio"));
  std::printf(
      "workspace %.1f MiB, predicted %.1f; resident after the second latent frame %.1f MiB, "
      "after the last %.1f\n",
      number("arena_bytes") * 0x1p-20, number("arena_bytes_predicted") * 0x1p-20,
      number("rss_anon_bytes_second_latent_frame") * 0x1p-20,
      number("rss_anon_bytes_last_latent_frame") * 0x1p-20);
}

}  // namespace

int bench_vae(const Flags& flags, DType dtype, int) {
  const WanVaeConfig config;
  const Extents extents = extents_of(flags, config);
  const auto [width, height, h, w, frames] = extents;
  const bool json = flags.on("json");
  Stream bare = stream_of(flags), stream = bare.with(metered_ops());
  const Vae vae(make_wan_vae_model(config), random_tensors(wan_vae_tensors(config)), stream, dtype,
                VaeParts::kDecoder);
  // The limits are measured with the transformer's GEMMs, so that all benches compare with one
  // rate; on a device with the tokens of a whole clip.
  const int64_t rows = std::max<int64_t>(1, h * w / 4) * (bare.queue() ? frames : 1);
  MachineLimits limits(bare, dtype,
                       {{rows, 1536, 1536, 6}, {rows, 1536, 8960, 1}, {rows, 8960, 1536, 1}});
  Decoding decoding(vae, config, extents, stream, limits);
  // A device's library prepares every shape in a first decode. A meter waits for a device after
  // every op, so the second is timed without one, and the op families are measured in a third.
  if (bare.queue()) decoding.run(bare, json);
  const std::vector<ChunkTimes> chunks = decoding.run(bare.queue() ? bare : stream, json);
  const std::vector<ChunkTimes> metered = bare.queue() ? decoding.run(stream, json) : chunks;
  const double seconds = median_from(chunks, 1);
  double total = 0;
  for (size_t i = 1; i < metered.size(); ++i) total += metered[i].seconds;
  const double flop = executed_flop(decoding.later()) / static_cast<double>(frames - 1);
  const double floor = flop / (limits.gemm_gflops() * 1e9);
  const Footprint predicted = predict(config, extents, dtype);
  Json object{{"bench", "vae"},
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
              {"arena_bytes", decoding.arena_bytes()},
              {"arena_bytes_second_latent_frame", chunks[1].arena},
              {"arena_bytes_predicted", predicted.arena},
              {"state_bytes_predicted", predicted.held},
              {"rss_anon_bytes_second_latent_frame", chunks[1].peak},
              {"rss_anon_bytes_last_latent_frame", chunks.back().peak}};
  limits.describe(object);
  if (stream.queue()) object["device"] = to_string(stream.device());
  object["families"] = families_json(decoding.later(), total, limits);
  if (json) {
    std::printf("%s\n", object.dump().c_str());
  } else {
    print_families(decoding.later(), total, limits);
    print_vae(object);
  }
  return 0;
}

}  // namespace weft
