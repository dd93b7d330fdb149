#include "engine/generation/decode.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

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

FrameCopies::FrameCopies(Stream& stream, FrameWriter& writer) : stream_(stream), writer_(writer) {}

void FrameCopies::push(Arena& arena, const TensorView& frames) {
  const int64_t n = frames[0], height = frames[2], width = frames[3];
  if (!stream_.queue()) {  // on a CPU, convert straight into the frames' own memory
    for (int64_t f = 0; f < n; ++f) {
      Frame frame(static_cast<int>(width), static_cast<int>(height));
      const TensorView rgb(frame.rgb.data(), DType::kU8, {1, height, width, 3});
      frames_to_rgb8(stream_, frames.slice(0, f, 1), rgb);
      if (!is_dry_run(stream_)) writer_.push(std::move(frame));
    }
    return;
  }
  const Arena::Scope scope(arena);
  const TensorView pictures = arena.alloc(DType::kU8, {n, height, width, 3});
  frames_to_rgb8(stream_, frames, pictures);
  Chunk& chunk = chunks_[next_ % 2];
  if (chunk.memory.bytes() < pictures.bytes()) chunk.memory = PinnedMemory(pictures.bytes());
  chunk.view = TensorView(chunk.memory.data(), DType::kU8, pictures.shape());
  copy(stream_, pictures, chunk.view);
  chunk.copied.record(stream_);
  ++next_;
  if (next_ > 1) hand_over(chunks_[next_ % 2]);
}

void FrameCopies::finish() {
  if (next_ > 0) hand_over(chunks_[(next_ + 1) % 2]);
  next_ = 0;
}

void FrameCopies::hand_over(Chunk& chunk) {
  chunk.copied.sync();
  for (int64_t f = 0; f < chunk.view[0]; ++f) {
    Frame frame(static_cast<int>(chunk.view[2]), static_cast<int>(chunk.view[1]));
    std::memcpy(frame.rgb.data(), chunk.view.select(0, f).data, frame.rgb.size());
    writer_.push(std::move(frame));
  }
}

namespace {

// Writes frames / 2 + 1/2, clamped to [0, 1], to video[:, first ..].
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

// Joins the bands of a chunk. Returns frames [n, 3, H, W] on the root and an empty view elsewhere.
TensorView join_bands(Stream& stream, Arena& arena, RankPlacement& placement, int64_t latent_rows,
                      const TensorView& band, const Tag& tag) {
  if (placement.bands(latent_rows) == 1) return band;
  const int64_t scale = band[2] / placement.band(latent_rows).size();
  TensorView whole;
  if (placement.root())
    whole = arena.alloc(DType::kF32, {band[0], 3, latent_rows * scale, band[3]});
  std::optional<Arena::Scope> scope;  // of the band that arrives
  const auto landing = [&](int rank) {
    if (rank == 0) return band;
    if (rank >= placement.bands(latent_rows)) return TensorView();
    scope.emplace(arena);
    const int64_t rows = placement.band_of(rank, latent_rows).size() * scale;
    return arena.alloc(DType::kF32, {band[0], 3, rows, band[3]});
  };
  placement.communicator().gather_v(
      stream, tag, band, landing, [&](int rank, const TensorView& part) {
        const int64_t first = placement.band_of(rank, latent_rows).begin * scale;
        copy(stream, part, whole.slice(2, first, part[2]));
        scope.reset();
      });
  return whole;
}

// Throws Error(kStopped) on every rank when the root was asked to stop and more than kFinishSeconds
// of work are left.
void heed_stop(Stream& stream, RankPlacement& placement, const DecodeJob& job, int chunk,
               std::chrono::steady_clock::time_point begun) {
  if (!job.stop) return;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  const auto chunks = static_cast<int>(job.latents[1]);
  const double left = chunk ? taken.count() / chunk * (chunks - chunk) : HUGE_VAL;
  const bool stop = job.stop->load() && left > kFinishSeconds;
  const Tag tag{.kind = Payload::kControl, .pass = {.micro = chunk}, .hop = kDecodeDecision};
  if (!placement.agreed(stream, tag, stop)) return;
  throw Error(ErrorKind::kStopped, "stopped in decode after chunk " + std::to_string(chunk) +
                                       " of " + std::to_string(chunks));
}

}  // namespace

void decode(Stream& stream, Arena& arena, const Vae& vae, RankPlacement& placement,
            const DecodeJob& job) {
  const TensorView& latents = job.latents;
  const Range band = placement.band(latents[2]);
  const auto begun = std::chrono::steady_clock::now();
  if (band.size() == 0) {  // more ranks than latent rows
    for (int chunk = 0; chunk < latents[1]; ++chunk)
      heed_stop(stream, placement, job, chunk, begun);
    return;
  }
  Tensor plain(DType::kF32, latents.shape());
  vae.denormalize(latents, plain);
  plain = on_device(stream, std::move(plain));
  const std::unique_ptr<VaeDecoder> decoder = vae.decoder(band.size(), latents[3]);
  Tensor latent(DType::kF32, {latents[0], band.size(), latents[3]}, stream.device());
  int64_t first = 0;
  std::optional<FrameCopies> copies;
  if (job.writer) copies.emplace(stream, *job.writer);
  for (int64_t chunk = 0; chunk < latents[1]; ++chunk) {
    heed_stop(stream, placement, job, static_cast<int>(chunk), begun);
    const ZoneScope zone(Zone::kChunk, static_cast<int>(chunk));
    const Arena::Scope scope(arena);
    Context context =
        placement.vae_context(stream, arena, Pass{.micro = static_cast<int>(chunk)}, latents[2]);
    copy(stream, plain.view().select(1, chunk).slice(1, band.begin, band.size()), latent);
    const TensorView rows =
        arena.alloc(DType::kF32, {decoder->next_frames(), 3, decoder->height(), decoder->width()});
    decoder->decode_chunk(context, latent, rows);
    if (first_non_finite(stream, rows) >= 0) {
      throw Error(ErrorKind::kNonFinite, "NaN or infinity in decode, chunk " +
                                             std::to_string(chunk + 1) + " of " +
                                             std::to_string(latents[1]));
    }
    const TensorView frames = join_bands(stream, arena, placement, latents[2], rows,
                                         {.kind = Payload::kFrames, .pass = context.pass});
    if (!frames) continue;
    if (job.video) keep(HostCopy(stream, frames), job.video, first);
    copies->push(arena, frames);
    first += frames[0];
    if (job.on_chunk) job.on_chunk(static_cast<int>(chunk) + 1);
  }
  if (copies) copies->finish();
}

}  // namespace weft
