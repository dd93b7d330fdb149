#include "engine/decode.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

FrameWriter::FrameWriter(FrameSink* sink)
    : sink_(sink),
      meter_(thread_meter() ? thread_meter()->helper("writer") : nullptr),
      thread_([this] { work(); }) {}

FrameWriter::~FrameWriter() {
  if (!thread_.joinable()) return;
  queue_.cancel(std::make_exception_ptr(Error(ErrorKind::kStopped, "the decoder stopped")));
  thread_.join();
}

void FrameWriter::work() {
  std::optional<MeterScope> scope;
  if (meter_) scope.emplace(*meter_);
  try {
    while (std::optional<Frame> frame = queue_.pop()) {
      const ZoneScope zone(Zone::kEncodeVideo, frames_);
      hash_.add(*frame);
      if (sink_) sink_->push(*frame);
      ++frames_;
    }
  } catch (...) {
    error_ = std::current_exception();
    queue_.cancel(error_);
  }
}

void FrameWriter::push(Frame frame) { queue_.push(std::move(frame)); }

void FrameWriter::finish() {
  queue_.close();
  thread_.join();
  if (error_) std::rethrow_exception(error_);
}

Frame to_frame(const TensorView& frames, int64_t index) {
  const int64_t height = frames[2], width = frames[3];
  Frame frame(static_cast<int>(width), static_cast<int>(height));
  const float* planes = frames.select(0, index).as<float>();
  for (int64_t k = 0; k < height * width; ++k) {
    for (int64_t c = 0; c < 3; ++c) {
      const float x = planes[c * height * width + k] * 0.5f + 0.5f;
      frame.rgb[3 * k + c] =
          static_cast<uint8_t>(std::nearbyint(std::clamp(x, 0.0f, 1.0f) * 255.0f));
    }
  }
  return frame;
}

namespace {

// video[:, first ..] = frames / 2 + 1/2, clamped.
void keep(const TensorView& frames, const TensorView& video, int64_t first) {
  const int64_t pixels = frames[2] * frames[3];
  for (int64_t f = 0; f < frames[0]; ++f) {
    for (int64_t c = 0; c < 3; ++c) {
      const float* from = frames.as<float>() + (f * 3 + c) * pixels;
      float* to = video.as<float>() + (c * video[1] + first + f) * pixels;
      for (int64_t k = 0; k < pixels; ++k) to[k] = std::clamp(from[k] * 0.5f + 0.5f, 0.0f, 1.0f);
    }
  }
}

// The bands of a chunk joined on the root: frames [n, 3, H, W] there, empty elsewhere.
TensorView join_bands(Stream& stream, Arena& arena, Replica& replica, int64_t latent_rows,
                      const TensorView& band, const Tag& tag) {
  if (replica.bands(latent_rows) == 1) return band;
  if (!replica.root()) {
    replica.communicator().send(stream, 0, tag, band);
    return {};
  }
  const int64_t scale = band[2] / replica.band(latent_rows).size();
  const TensorView whole = arena.alloc(DType::kF32, {band[0], 3, latent_rows * scale, band[3]});
  copy(stream, band, whole.slice(2, 0, band[2]));
  for (int rank = 1; rank < replica.bands(latent_rows); ++rank) {
    const Arena::Scope scope(arena);
    const Range rows = replica.band_of(rank, latent_rows);
    const TensorView part = arena.alloc(DType::kF32, {band[0], 3, rows.size() * scale, band[3]});
    replica.communicator().receive(stream, rank, tag, part);
    copy(stream, part, whole.slice(2, rows.begin * scale, rows.size() * scale));
  }
  return whole;
}

// Error(kStopped) on every rank where the root is asked to stop, unless little is left to do.
void heed_stop(Stream& stream, Replica& replica, const DecodeJob& job, int chunk,
               std::chrono::steady_clock::time_point begun) {
  if (!job.stop) return;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  const auto chunks = static_cast<int>(job.latents[1]);
  const double left = chunk ? taken.count() / chunk * (chunks - chunk) : HUGE_VAL;
  const bool stop = job.stop->load() && left > kFinishSeconds;
  const Tag tag{.kind = Traffic::kControl, .branch = kDecodeWord, .segment = chunk};
  if (!replica.agreed(stream, tag, stop)) return;
  throw Error(ErrorKind::kStopped, "stopped in decode after chunk " + std::to_string(chunk) +
                                       " of " + std::to_string(chunks));
}

}  // namespace

void decode(Stream& stream, Arena& arena, const WanVae& vae, Replica& replica,
            const DecodeJob& job) {
  const TensorView& latents = job.latents;
  const Range band = replica.band(latents[2]);
  const auto begun = std::chrono::steady_clock::now();
  if (band.size() == 0) {  // more ranks than latent rows
    for (int chunk = 0; chunk < latents[1]; ++chunk) heed_stop(stream, replica, job, chunk, begun);
    return;
  }
  Tensor plain(DType::kF32, latents.shape());
  denormalize_latents(vae.config(), latents, plain);
  WanVaeDecoder decoder(vae, band.size(), latents[3]);
  Tensor latent(DType::kF32, {latents[0], band.size(), latents[3]});
  int64_t first = 0;
  for (int64_t chunk = 0; chunk < latents[1]; ++chunk) {
    heed_stop(stream, replica, job, static_cast<int>(chunk), begun);
    const ZoneScope zone(Zone::kChunk, static_cast<int>(chunk));
    const Arena::Scope scope(arena);
    Context context =
        replica.vae_context(stream, arena, Pass{.micro = static_cast<int>(chunk)}, latents[2]);
    copy(stream, plain.view().select(1, chunk).slice(1, band.begin, band.size()), latent);
    const TensorView rows =
        arena.alloc(DType::kF32, {decoder.next_frames(), 3, decoder.height(), decoder.width()});
    decoder.decode_chunk(context, latent, rows);
    if (first_non_finite(stream, rows) >= 0) {
      throw Error(ErrorKind::kNonFinite, "NaN or infinity in decode, chunk " +
                                             std::to_string(chunk + 1) + " of " +
                                             std::to_string(latents[1]));
    }
    const TensorView frames =
        join_bands(stream, arena, replica, latents[2], rows,
                   {.kind = Traffic::kFrames, .segment = static_cast<int>(chunk)});
    if (!frames) continue;
    if (job.video) keep(frames, job.video, first);
    for (int64_t f = 0; f < frames[0]; ++f) job.writer->push(to_frame(frames, f));
    first += frames[0];
    if (job.on_chunk) job.on_chunk(static_cast<int>(chunk) + 1);
  }
}

}  // namespace weft
