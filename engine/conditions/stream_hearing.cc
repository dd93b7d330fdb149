#include "engine/conditions/stream_hearing.h"

#include <algorithm>
#include <cmath>

#include "engine/parts/audio_features.h"
#include "kernels/transfer.h"
#include "models/footprint.h"

namespace weft {

StreamHearing::StreamHearing(std::shared_ptr<const OpenModel> model, Device device, DType dtype,
                             int threads, int64_t fps)
    : fps_(fps),
      stream_(stream_on(device, threads)),
      arena_(size_t{256} << 30, device),
      parts_(std::move(model), {.dtype = dtype}, DType::kF32, alone_) {
  const int64_t rate = parts_.audio_model().traits().rate;
  CHECK(fps > 0 && rate % fps == 0, fps, rate);
}

int64_t StreamHearing::samples_of_frame() const {
  return parts_.audio_model().traits().rate / fps_ * parts_.vae_model().traits.temporal_factor;
}

uint64_t StreamHearing::bytes(DryRun& dry, const AudioEncoder& encoder, int64_t frames) {
  const AudioEncoderTraits& traits = parts_.audio_model().traits();
  const TransformerTraits& transformer = parts_.expert_model(0).traits();
  const int64_t past = kPastSeconds * traits.rate / samples_of_frame(), all = past + frames;
  const int64_t samples = all * samples_of_frame();
  Context context = seams_.context(dry.stream(), dry.arena(), Pass{}, traits, traits.rows(samples));
  const Tensor sound(DType::kF32, {samples}, {Device::Kind::kMeasuredHost});
  const Footprint ran = dry_encode(dry, encoder, context, sound, [](auto...) {});
  const int64_t of_features = traits.states * traits.columns * all *
                              parts_.vae_model().traits.temporal_factor,
                of_signal = all / transformer.patch[0] * transformer.signal_columns;
  return ran.held + ran.passing + ran.arena +
         static_cast<uint64_t>(of_features + of_signal) * sizeof(float);
}

std::vector<float> StreamHearing::rows(std::span<const float> samples) {
  const AudioEncoderTraits& traits = parts_.audio_model().traits();
  const TransformerModel& transformer = parts_.expert_model(0);
  const int64_t of_picture = traits.rate / fps_,
                of_row = samples_of_frame() * transformer.traits().patch[0];
  CHECK(!samples.empty() && std::ssize(samples) % of_row == 0, samples.size(), of_row);
  heard_.insert(heard_.end(), samples.begin(), samples.end());
  const int64_t count = std::ssize(heard_), pictures = count / of_picture;

  // The last pictures may lie after the last row, whose window ends with the sound.
  const int64_t rows = feature_rows(traits, count);
  std::vector<int64_t> taken(static_cast<size_t>(pictures));
  for (int64_t picture = 0; picture < pictures; ++picture) {
    const double at = static_cast<double>(picture) / static_cast<double>(fps_);
    taken[static_cast<size_t>(picture)] =
        std::min(static_cast<int64_t>(std::nearbyint(at * kFeatureRate)), rows - 1);
  }
  if (!encoder_) encoder_ = parts_.audio_encoder(stream_);
  const Tensor features(DType::kF32, {traits.states, traits.columns, pictures});
  Context context = seams_.context(stream_, arena_, Pass{}, traits, traits.rows(count));
  encode_frames(context, *encoder_, {TensorView(heard_.data(), DType::kF32, {count}), rows, taken},
                features);

  // The rows of the whole sound: the first ones of a segment reach back before it.
  const int64_t columns = transformer.traits().signal_columns, all = count / of_row;
  const Tensor signal(DType::kF32, {all, columns});
  transformer.signal_rows(features, signal);
  const float* last = signal.as<float>() + signal.view().count();
  std::vector<float> out(last - std::ssize(samples) / of_row * columns, last);
  const int64_t past = kPastSeconds * traits.rate / of_row * of_row;
  if (count > past) heard_.erase(heard_.begin(), heard_.end() - past);
  return out;
}

}  // namespace weft
