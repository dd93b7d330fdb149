#include "engine/decoding/video_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

// Writes frames / 2 + 1/2, clamped to [0, 1], to video[:, first ..]; those before it are left out.
void keep(const TensorView& frames, const TensorView& video, int64_t first) {
  const int64_t pixels = frames[2] * frames[3];
  for (int64_t f = 0; f < frames[0]; ++f) {
    if (first + f < 0 || first + f >= video[1]) continue;
    for (int64_t c = 0; c < 3; ++c) {
      const float* from = frames.as<float>() + (f * 3 + c) * pixels;
      float* to = video.as<float>() + (c * video[1] + first + f) * pixels;
      for (int64_t k = 0; k < pixels; ++k) to[k] = std::clamp(from[k] * 0.5f + 0.5f, 0.0f, 1.0f);
    }
  }
}

// The number of a chunk in tags. Long videos use the numbers again.
int number_of(int64_t chunk) { return static_cast<int>(chunk % (1 << 16)); }

// Copies picture `index` of a band into the frame, from row `first` on.
void paste(const TensorView& band, int64_t index, int64_t first, Frame& frame) {
  const TensorView rows = band.select(0, index);
  std::memcpy(frame.at(0, static_cast<int>(first)), rows.data, rows.bytes());
}

}  // namespace

VideoDecoder::VideoDecoder(Stream& stream, Arena& arena, const RankPlacement& placement,
                           const DecoderSettings& settings)
    : stream_(stream),
      arena_(arena),
      placement_(placement),
      settings_(settings),
      seams_(placement, settings.latent[1]),
      band_(placement.band(settings.latent[1])),
      height_(settings.latent[1] * settings.traits.spatial_factor),
      width_(settings.latent[2] * settings.traits.spatial_factor) {
  if (band_.size() == 0) return;
  CHECK(settings_.vae, "a rank with a band needs a VAE");
  decoder_.emplace(*settings_.vae, band_.size(), settings_.latent[2]);
  latent_ = Tensor(DType::kF32, {settings_.latent[0], band_.size(), settings_.latent[2]},
                   stream_.device());
}

void VideoDecoder::push(const TensorView& latents) {
  CHECK(latents.rank == 4 && latents[0] == settings_.latent[0] &&
            latents[2] == settings_.latent[1] && latents[3] == settings_.latent[2],
        latents.to_string_shape());
  collect();
  for (int64_t i = 0; i < latents[1]; ++i) {
    const int64_t first = pushed_ == 0 ? 0 : settings_.traits.frames(pushed_);
    const int64_t frames = pushed_ == 0 ? 1 : settings_.traits.temporal_factor;
    const bool shown = shows(first, frames);
    const Tag tag{
        .kind = Payload::kFrames, .pass = {.micro = number_of(pushed_)}, .topic = Topic::kDecode};
    const ZoneScope zone(Zone::kChunk, tag.pass.micro);
    const Arena::Scope scope(arena_);
    if (shown) expect(first, frames, tag);
    TensorView rows;
    if (decoder_) rows = decode_rows(latents, i, tag);
    if (rows && settings_.on_rows) settings_.on_rows(first, rows);
    if (shown && settings_.float_frames) rows = join_floats(rows, first, frames, tag);
    ++pushed_;
    if (shown && rows) show(rows, tag);
  }
}

void VideoDecoder::resume(const TensorView& last, int64_t latent_frames) {
  CHECK(pushed_ == 0 && last[1] == std::min(latent_frames, settings_.traits.history), last[1],
        latent_frames);
  for (int64_t i = 0; decoder_ && i < last[1]; ++i) {
    const Arena::Scope scope(arena_);
    decode_rows(
        last, i,
        {.kind = Payload::kFrames, .pass = {.micro = number_of(i)}, .topic = Topic::kDecode});
  }
  pushed_ = latent_frames;
  if (latent_frames > 0) pictures_ = settings_.traits.frames(latent_frames);
}

// Pictures are good where the job goes on after they have been computed.
void VideoDecoder::require_job() const {
  if (!placement_.alone()) placement_.communicator().require_job();
}

bool VideoDecoder::shows(int64_t first, int64_t frames) const {
  return first < settings_.shown.end && first + frames > settings_.shown.begin;
}

// Posts the receives of the other ranks' bands on the root.
void VideoDecoder::expect(int64_t first, int64_t frames, const Tag& tag) {
  if (!placement_.root()) return;
  Arrival& arrival = arrivals_.emplace_back();
  arrival.chunk = pushed_;
  arrival.first = first;
  arrival.frames = frames;
  if (settings_.float_frames) return;  // join_floats() receives them
  const int64_t scale = settings_.traits.spatial_factor;
  std::vector<Message> receives;
  for (int rank = 1; rank < placement_.ranks(); ++rank) {
    const Range rows = placement_.band_of(rank, settings_.latent[1]);
    if (rows.size() == 0) continue;
    arrival.bands.emplace_back(rows.begin * scale,
                               Tensor(DType::kU8, {frames, rows.size() * scale, width_, 3},
                                      host_stream(stream_).device()));
    receives.push_back({rank, tag, arrival.bands.back().second});
  }
  if (!receives.empty())
    arrival.pending = placement_.communicator().post(stream_, {}, receives, PostOrder::kPair);
}

// Returns this rank's rows of the pictures, [n, 3, rows, W] f32.
TensorView VideoDecoder::decode_rows(const TensorView& latents, int64_t index, const Tag& tag) {
  const TensorView frame = latents.select(1, index);
  make_on_host(stream_, latent_, [&](const TensorView& to) {
    for (int64_t c = 0; c < frame[0]; ++c) {
      const TensorView rows = frame.select(0, c).slice(0, band_.begin, band_.size());
      CHECK(rows.contiguous(), latents.to_string_shape());
      std::memcpy(to.select(0, c).data, rows.data, rows.bytes());
    }
    settings_.vae->denormalize(to, to);
  });
  Context context = seams_.context(stream_, arena_, tag.pass);
  const TensorView rows =
      arena_.alloc(DType::kF32, {decoder_->next_frames(), 3, decoder_->height(), width_});
  decoder_->decode_chunk(context, latent_, rows);
  const bool finite = first_non_finite(stream_, rows) < 0;
  require_job();
  if (!finite)
    throw Error(ErrorKind::kNonFinite,
                "NaN or infinity in decode, chunk " + std::to_string(pushed_ + 1) +
                    (settings_.total > 0 ? " of " + std::to_string(settings_.total) : ""));
  return rows;
}

// Joins the f32 bands of a chunk. Returns [n, 3, H, W] on the root and an empty view elsewhere.
TensorView VideoDecoder::join_floats(const TensorView& rows, int64_t first, int64_t frames,
                                     const Tag& tag) {
  TensorView whole = rows;
  if (!placement_.root() || band_.size() < settings_.latent[1]) {
    const int64_t scale = settings_.traits.spatial_factor;
    whole =
        placement_.root() ? arena_.alloc(DType::kF32, {frames, 3, height_, width_}) : TensorView();
    std::optional<Arena::Scope> scope;  // of the band that arrives
    const auto landing = [&](int rank) {
      const Range band = placement_.band_of(rank, settings_.latent[1]);
      if (rank == 0 || band.size() == 0) return rank == 0 ? rows : TensorView();
      scope.emplace(arena_);
      return arena_.alloc(DType::kF32, {frames, 3, band.size() * scale, width_});
    };
    placement_.communicator().gather_v(
        stream_, tag, rows, landing, [&](int rank, const TensorView& part) {
          const int64_t row = placement_.band_of(rank, settings_.latent[1]).begin * scale;
          copy(stream_, part, whole.slice(2, row, part[2]));
          scope.reset();
        });
  }
  if (whole && settings_.video)
    keep(HostCopy(stream_, whole), settings_.video,
         settings_.video_begin + first - settings_.shown.begin);
  return whole;
}

TensorView VideoDecoder::Chunk::reserve(const std::array<int64_t, 4>& shape, const Stream& stream) {
  const auto bytes = static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
  if (stream.queue()) {
    if (pinned.bytes() < bytes) pinned = PinnedMemory(bytes);
    return pictures = TensorView(pinned.data(), DType::kU8, shape);
  }
  const Device host = host_stream(stream).device();
  if (memory.view().bytes() < bytes) memory = Tensor(DType::kU8, shape, host);
  return pictures = TensorView(memory.view().data, DType::kU8, shape, host);
}

// Converts rows to 8-bit RGB in host memory. On a device they are handed over one chunk later.
void VideoDecoder::show(const TensorView& rows, const Tag& tag) {
  Chunk& chunk = chunks_[shown_++ % 2];
  if (!chunk.sent.empty()) placement_.communicator().wait(chunk.sent);
  chunk.tag = tag;
  const TensorView pictures = chunk.reserve({rows[0], rows[2], rows[3], 3}, stream_);
  if (host_stream(stream_).device() == stream_.device()) {
    frames_to_rgb8(stream_, rows, pictures);
    return hand_over(chunk);
  }
  const TensorView converted = arena_.alloc(DType::kU8, pictures.shape());
  frames_to_rgb8(stream_, rows, converted);
  copy(stream_, converted, pictures);
  if (stream_.queue()) chunk.copied.record(stream_);
  if (handed_ + 1 < shown_) hand_over(chunks_[shown_ % 2]);
}

void VideoDecoder::hand_over(Chunk& chunk) {
  ++handed_;
  if (stream_.queue()) chunk.copied.sync();
  require_job();
  if (placement_.root()) return deliver(chunk.pictures);
  const Message message{0, chunk.tag, chunk.pictures};
  chunk.sent = placement_.communicator().post(stream_, {&message, 1}, {}, PostOrder::kPair);
}

// Passes the pictures of the oldest arrival to the writer. `own` are this rank's rows of them, or
// the whole pictures.
void VideoDecoder::deliver(const TensorView& own) {
  Arrival& arrival = arrivals_.front();
  if (!arrival.pending.empty()) placement_.communicator().wait(arrival.pending);
  for (int64_t f = 0; f < arrival.frames && !is_dry_run(stream_); ++f) {
    if (!shows(arrival.first + f, 1)) continue;
    Frame frame(static_cast<int>(width_), static_cast<int>(height_));
    const int64_t first =
        own && own[1] < height_ ? band_.begin * settings_.traits.spatial_factor : 0;
    if (own) paste(own, f, first, frame);
    for (const auto& [row, band] : arrival.bands) paste(band, f, row, frame);
    settings_.writer->push(std::move(frame));
  }
  pictures_ += std::min(arrival.first + arrival.frames, settings_.shown.end) -
               std::max(arrival.first, settings_.shown.begin);
  const int64_t done = arrival.chunk + 1;
  arrivals_.pop_front();
  if (settings_.on_chunk) settings_.on_chunk(done, pictures_);
}

// Delivers what came from others where this rank adds nothing to it. Pictures that are joined in
// f32 are shown here, and hand_over() delivers them.
void VideoDecoder::collect() {
  if (band_.size() > 0 || settings_.float_frames) return;
  while (!arrivals_.empty()) deliver({});
}

void VideoDecoder::finish() {
  if (handed_ < shown_) hand_over(chunks_[handed_ % 2]);
  collect();
  for (Chunk& chunk : chunks_)
    if (!chunk.sent.empty()) placement_.communicator().wait(chunk.sent);
}

// Throws Error(kStopped) on every rank when the root was asked to stop and more than kFinishSeconds
// of work are left. `seconds` is the time that the frames so far have taken.
void VideoDecoder::heed_stop(const std::atomic<bool>& asked, double seconds) {
  const auto done = static_cast<double>(pushed_), total = static_cast<double>(settings_.total);
  const double left = pushed_ ? seconds / done * (total - done) : HUGE_VAL;
  const Tag tag{
      .kind = Payload::kControl, .pass = {.micro = number_of(pushed_)}, .topic = Topic::kDecode};
  if (!placement_.broadcast_from_root(stream_, tag, asked.load() && left > kFinishSeconds)) return;
  throw Error(ErrorKind::kStopped, "stopped in decode after chunk " + std::to_string(pushed_) +
                                       " of " + std::to_string(settings_.total));
}

void VideoDecoder::decode(const TensorView& latents, const std::atomic<bool>* stop) {
  if (pushed_ == 0) begun_ = std::chrono::steady_clock::now();
  for (int64_t chunk = 0; chunk < latents[1]; ++chunk) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun_;
    if (stop) heed_stop(*stop, taken.count());
    push(latents[1] == 1 ? latents : latents.slice(1, chunk, 1));
  }
}

}  // namespace weft
