#include "engine/parts/audio_features.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/parts/seams.h"
#include "io/sound/audio.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

int64_t feature_rows(const AudioEncoderTraits& traits, int64_t samples) {
  const double states_per_second =
      static_cast<double>(traits.rate) / static_cast<double>(traits.hop);
  // The order of these operations decides the last row: 205 states of 50 per second give 122.
  const auto rows = static_cast<int64_t>(static_cast<double>(traits.rows(samples)) /
                                         states_per_second * kFeatureRate);
  if (rows < 1)
    throw Error(ErrorKind::kMedia, "the sound has " + std::to_string(samples) + " samples at " +
                                       std::to_string(traits.rate) + " Hz (legal: at least " +
                                       std::to_string(traits.window + traits.hop) + ")");
  return rows;
}

void resample_rows(const TensorView& state, const TensorView& out) {
  CHECK(state.rank == 2 && out.rank == 2 && state[1] == out[1] && state[0] > 0,
        state.to_string_shape(), out.to_string_shape());
  const int64_t last = state[0] - 1, columns = state[1];
  const double step =
      out[0] > 1 ? static_cast<double>(last) / static_cast<double>(out[0] - 1) : 0.0;
  for (int64_t row = 0; row < out[0]; ++row) {
    const double at = static_cast<double>(row) * step;
    const int64_t before = std::min(static_cast<int64_t>(at), last);
    const auto share = static_cast<float>(std::min(at - static_cast<double>(before), 1.0));
    const float* a = state.as<float>() + before * columns;
    const float* b = state.as<float>() + std::min(before + 1, last) * columns;
    float* to = out.as<float>() + row * columns;
    for (int64_t c = 0; c < columns; ++c) to[c] = (1 - share) * a[c] + share * b[c];
  }
}

std::vector<int64_t> rows_of_frames(int64_t rows, double fps, int64_t chunk_frames) {
  CHECK(rows > 0 && fps > 0 && chunk_frames > 0, rows, fps, chunk_frames);
  const double rows_per_chunk = static_cast<double>(chunk_frames) * (kFeatureRate / fps);
  const int64_t chunks = static_cast<int64_t>(static_cast<double>(rows) / rows_per_chunk) + 1;
  const int64_t frames = chunks * chunk_frames;
  // A frame's time is a multiple of the mean frame time, so that times halfway between two rows
  // round as the reference's do; std::nearbyint rounds exact ties to even.
  const double frame_s = static_cast<double>(frames) / fps / static_cast<double>(frames);
  std::vector<int64_t> taken(static_cast<size_t>(frames));
  for (int64_t frame = 0; frame < frames; ++frame) {
    const auto row =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(frame) * frame_s * kFeatureRate));
    taken[static_cast<size_t>(frame)] = row < rows ? row : -1;
  }
  return taken;
}

void take_rows(const TensorView& rows, std::span<const int64_t> of_frames, const TensorView& out) {
  CHECK(rows.rank == 2 && out.rank == 2 && out[0] == rows[1] && out[1] == std::ssize(of_frames),
        rows.to_string_shape(), out.to_string_shape());
  const float* from = rows.as<float>();
  for (int64_t c = 0; c < out[0]; ++c) {
    float* to = out.as<float>() + c * out[1];
    for (const int64_t row : of_frames) *to++ = row < 0 ? 0 : from[row * rows[1] + c];
  }
}

Tensor read_sound(const std::string& path, int64_t rate) {
  const std::unique_ptr<SoundSource> source = open_sound(path, static_cast<int>(rate));
  const auto most = static_cast<size_t>(kMostEncodedSeconds * rate);
  constexpr size_t kPiece = 1 << 16;
  std::vector<float> samples;
  for (size_t count = 1; count > 0;) {
    const size_t before = samples.size();
    samples.resize(before + kPiece);
    count = source->read(std::span(samples).subspan(before));
    samples.resize(before + count);
    if (samples.size() > most)
      throw Error(ErrorKind::kMedia, path + ": longer than " + std::to_string(kMostEncodedSeconds) +
                                         " seconds, the most that is encoded");
  }
  Tensor out(DType::kF32, {std::ssize(samples)});
  std::ranges::copy(samples, out.as<float>());
  return out;
}

void encode_frames(Context& context, const AudioEncoder& encoder, const HeardRows& heard,
                   const TensorView& features) {
  Tensor resampled(DType::kF32, {heard.rows, features[1]});
  encoder.encode(context, heard.samples, [&](int64_t k, const TensorView& state) {
    if (is_dry_run(context.stream)) return;
    if (first_non_finite(context.stream, state) >= 0)
      throw Error(ErrorKind::kNonFinite,
                  "NaN or infinity in encode_audio, hidden state " + std::to_string(k) +
                      ". Try --dtype f32, or check the weights with weft inspect");
    resample_rows(HostCopy(context.stream, state), resampled);
    take_rows(resampled, heard.taken, features.select(0, k));
  });
}

Tensor encode_audio(const Rank& rank, const HeardSound& sound) {
  Components& parts = rank.parts();
  Stream& stream = rank.stream;
  const RankPlacement& placement = rank.placement;
  const AudioEncoderTraits& traits = parts.audio_model().traits();
  const int64_t rows = feature_rows(traits, sound.samples[0]);
  const std::vector<int64_t> taken = rows_of_frames(rows, sound.fps, sound.chunk_frames);
  Tensor features(DType::kF32, {traits.states, traits.columns, std::ssize(taken)});
  const Tag given{.kind = Payload::kText, .topic = Topic::kAudio};
  placement.share_with_encoders(stream, traits, given, sound.samples);
  if (placement.encodes_text(traits)) {
    const std::unique_ptr<AudioEncoder> encoder = parts.audio_encoder(stream);
    EncoderSeams seams(placement);
    Context context =
        seams.context(stream, rank.arena, Pass{}, traits, traits.rows(sound.samples[0]));
    encode_frames(context, *encoder, {sound.samples, rows, taken}, features);
  }
  const Tag encoded{.kind = Payload::kText, .layer = 1, .topic = Topic::kAudio};
  placement.share_encoded(stream, traits, encoded, features);
  return features;
}

}  // namespace weft
