#include "models/vae.h"

#include <algorithm>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/dry_run.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {

namespace {

// Returns `count` frames of a video [3, F, H, W] as a chunk [F, 3, H, W].
TensorView frames_first(const TensorView& video, int64_t begin, int64_t count) {
  return video.slice(1, begin, count).permute({1, 0, 2, 3});
}

// The pixels of a p x p cell become channels c p p + dw p + dh (column before row). `pixels` views
// a frame [C, H, W], and `cells` its cells [H / p, W / p, C p p], as [C, dw, dh, H / p, W / p].
TensorView pixels(const TensorView& frame, int64_t p) {
  return frame.reshape({frame[0], frame[1] / p, p, frame[2] / p, p}).permute({0, 4, 2, 1, 3});
}

TensorView cells(const TensorView& x, int64_t p) {
  return x.reshape({x[0], x[1], x[2] / (p * p), p, p}).permute({2, 3, 4, 0, 1});
}

// The scales that the file stores; those of a dry run are of no value.
std::vector<LatentScale> read_scales(const Stream& stream, const TensorFile& file,
                                     const StoredScales& stored, int64_t channels) {
  std::vector<LatentScale> scales(static_cast<size_t>(channels));
  if (is_dry_run(stream)) return scales;
  Stream host = host_stream(stream);
  const Tensor mean = f32_copy(host, file.view(stored.mean), {channels});
  const Tensor variance = f32_copy(host, file.view(stored.variance), {channels});
  for (int64_t c = 0; c < channels; ++c)
    scales[static_cast<size_t>(c)] = {.factor = std::sqrt(variance.as<float>()[c] + stored.eps),
                                      .shift = mean.as<float>()[c]};
  return scales;
}

// Writes change(x, scale of its channel) of every value of x [C, ..] to `out`.
template <class Change>
void change_channels(const std::vector<LatentScale>& scales, const TensorView& x,
                     const TensorView& out, const Change& change) {
  const auto channels = std::ssize(scales);
  CHECK(x[0] == channels && x.contiguous() && out.contiguous() && x.count() == out.count(),
        x.to_string_shape(), out.to_string_shape());
  for (int64_t c = 0, n = x.count() / channels; c < channels; ++c)
    for (int64_t i = c * n; i < (c + 1) * n; ++i)
      out.as<float>()[i] = change(x.as<float>()[i], scales[c]);
}

std::string nearest_two(int64_t value, int64_t step, int64_t offset) {
  const int64_t below = std::max<int64_t>(value - offset, 0) / step * step + offset;
  return std::to_string(below) + " and " + std::to_string(below + step);
}

}  // namespace

int64_t VaeTraits::latent_frames(int64_t frames) const {
  if (frames < 1 || (frames - 1) % temporal_factor != 0)
    throw Error(ErrorKind::kUsage, std::to_string(frames) + " frames: the VAE takes 1 + " +
                                       std::to_string(temporal_factor) + "k; the nearest are " +
                                       nearest_two(frames, temporal_factor, 1));
  return 1 + (frames - 1) / temporal_factor;
}

std::vector<TensorSpec> VaeModel::tensors() const {
  std::vector<TensorSpec> tensors;
  const VaeWeightSource source{
      .take = [&](const std::string& name, std::initializer_list<int64_t> shape) {
        tensors.push_back({name, shape});
        return TensorView();
      }};
  encoder(source);
  decoder(source);
  if (stored_scales)
    for (const std::string& name : {stored_scales->mean, stored_scales->variance})
      tensors.push_back({name, {traits.channels}});
  return tensors;
}

FrameShape VaeModel::encoder_input(int64_t h, int64_t w, Chunk chunk) const {
  const int64_t scale = traits.spatial_factor / patch;
  return {chunk == Chunk::kFirst ? 1 : traits.temporal_factor, h * scale, w * scale,
          3 * patch * patch};
}

std::unique_ptr<Vae> VaeModel::load(Stream& stream, const TensorFile& file, DType dtype,
                                    VaeParts parts) const {
  return std::make_unique<Vae>(*this, file, stream, dtype, parts);
}

Vae::Vae(VaeModel model, const TensorFile& file, Stream& stream, DType dtype, VaeParts parts)
    : model_(std::move(model)), dtype_(dtype), device_(stream.device()) {
  const auto spelled = [&](const std::string& name) {
    return model_.spelled ? model_.spelled(file, name) : name;
  };
  WeightBinder binder(file, "vae", spelled);
  for (const TensorSpec& tensor : model_.tensors()) binder.take(tensor.name, tensor.shape);
  if (model_.stored_scales) binder.ignore(model_.stored_scales->unread);
  binder.finish();
  if (const auto& stored = model_.stored_scales)
    model_.scales = read_scales(stream, file, *stored, model_.traits.channels);
  std::vector<TensorView> taken;
  const VaeWeightSource source{
      .take =
          [&](const std::string& name, std::initializer_list<int64_t> shape) {
            return taken.emplace_back(file.view(spelled(name))).reshape(shape);
          },
      .stream = &stream,
      .dtype = dtype};
  if (parts != VaeParts::kDecoder) encoder_ = model_.encoder(source);
  if (parts != VaeParts::kEncoder) decoder_ = model_.decoder(source);
  for (const TensorView& view : taken) file.drop_pages(view);
}

size_t Vae::bytes() const {
  size_t total = 0;
  for (const VaeNetwork* network : {&encoder_, &decoder_})
    for (const auto& layer : *network) total += layer->weight_bytes();
  return total;
}

void Vae::denormalize(const TensorView& latents, const TensorView& out) const {
  change_channels(model_.scales, latents, out, [](float x, const LatentScale& scale) {
    return x / scale.divisor * scale.factor + scale.shift;
  });
}

void Vae::normalize(const TensorView& mean, const TensorView& out) const {
  change_channels(model_.scales, mean, out, [](float x, const LatentScale& scale) {
    return (x - scale.shift) / scale.factor * scale.divisor;
  });
}

TensorView latent_places(const TensorView& latent, int64_t cell) {
  TensorView view = latent;
  view.rank = 5;
  view.extent = {latent[1], cell, latent[2], cell, latent[0] / (cell * cell)};
  view.stride = {latent.stride[1], cell * latent.stride[0], latent.stride[2], latent.stride[0],
                 cell * cell * latent.stride[0]};
  return view;
}

VaeDecoder::VaeDecoder(const Vae& vae, int64_t h, int64_t w)
    : model_(vae.model_),
      state_(vae.decoder_, VaeOrder::kGrowing, model_.decoder_input(h, w),
             model_.decoder_input(h, w), vae.dtype_, vae.device_) {}

void VaeDecoder::decode_chunk(Context& context, const TensorView& latent,
                              const TensorView& frames) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  state_.run(
      context,
      [&](const TensorView& in) {
        const FrameShape whole = state_.input();
        const int64_t cell = model_.cell;
        copy(context.stream, latent_places(latent, cell),
             in.reshape({whole.height / cell, cell, whole.width / cell, cell, whole.channels}));
      },
      [&](const TensorView& out) {
        for (int64_t f = 0; f < out[0]; ++f)
          copy(context.stream, cells(out.select(0, f), model_.patch),
               pixels(frames.select(0, f), model_.patch));
      });
  if (model_.clamps) clamp(context.stream, frames, -1, 1, frames);
}

VaeEncoder::VaeEncoder(const Vae& vae, int64_t h, int64_t w)
    : model_(vae.model_),
      state_(vae.encoder_, VaeOrder::kShrinking, model_.encoder_input(h, w, Chunk::kFirst),
             model_.encoder_input(h, w, Chunk::kLater), vae.dtype_, vae.device_) {}

void VaeEncoder::encode_chunk(Context& context, const TensorView& frames, const TensorView& mean) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  state_.run(
      context,
      [&](const TensorView& in) {
        for (int64_t f = 0; f < in[0]; ++f)
          copy(context.stream, pixels(frames.select(0, f), model_.patch),
               cells(in.select(0, f), model_.patch));
      },
      [&](const TensorView& out) {  // may also hold the log-variance, after the mean
        const int64_t cell = model_.cell, channels = mean[0] / (cell * cell);
        const TensorView own = out.select(0, 0).slice(2, 0, channels);
        TensorView places = latent_places(mean, cell);
        places.data = own.data;
        places.dtype = own.dtype;
        places.stride = {cell * own.stride[0], own.stride[0], cell * own.stride[1], own.stride[1],
                         own.stride[2]};
        copy(context.stream, places, latent_places(mean, cell));
      });
}

void vae_decode(Context& context, const Vae& vae, const TensorView& latents,
                const TensorView& video) {
  CHECK(latents.rank == 4 && video.rank == 4 && video[1] == vae.traits().frames(latents[1]),
        latents.to_string_shape(), video.to_string_shape());
  VaeDecoder decoder(vae, latents[2], latents[3]);
  for (int64_t i = 0, frame = 0; i < latents[1]; ++i) {
    const Arena::Scope scope(context.arena);
    const int64_t count = decoder.next_frames();
    const TensorView frames =
        context.arena.alloc(DType::kF32, {count, video[0], decoder.height(), decoder.width()});
    decoder.decode_chunk(context, latents.select(1, i), frames);
    copy(context.stream, frames, frames_first(video, frame, count));
    frame += count;
  }
}

void vae_encode(Context& context, const Vae& vae, const TensorView& video, const TensorView& mean) {
  const VaeTraits& traits = vae.traits();
  const int64_t latent_frames = traits.latent_frames(video[1]);
  const int64_t factor = traits.spatial_factor;
  for (const int64_t size : {video[2], video[3]})
    if (size < factor || size % factor != 0)
      throw Error(ErrorKind::kUsage, "size " + std::to_string(video[3]) + "x" +
                                         std::to_string(video[2]) + ": " + std::to_string(size) +
                                         " is no multiple of " + std::to_string(factor) +
                                         "; the nearest are " + nearest_two(size, factor, 0));
  CHECK(mean.rank == 4 && mean[1] == latent_frames, mean.to_string_shape());
  VaeEncoder encoder(vae, video[2] / factor, video[3] / factor);
  for (int64_t i = 0, frame = 0; i < latent_frames; ++i) {
    const Arena::Scope scope(context.arena);
    const int64_t count = encoder.next_frames();
    const TensorView frames =
        context.arena.alloc(DType::kF32, {count, video[0], video[2], video[3]});
    copy(context.stream, frames_first(video, frame, count), frames);
    encoder.encode_chunk(context, frames, mean.select(1, i));
    frame += count;
  }
}

}  // namespace weft
