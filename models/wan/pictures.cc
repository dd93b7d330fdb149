#include "models/wan/pictures.h"

#include <algorithm>
#include <cmath>

#include "models/wan/family.h"

namespace weft {

namespace {

int64_t rounded_down(double size, int64_t multiple) {
  return std::max<int64_t>(static_cast<int64_t>(size) / multiple, 1) * multiple;
}

// The side of a picture of `area` pixels whose sides are to each other as side : other.
double side_of(int64_t area, int64_t side, int64_t other) {
  return std::sqrt(static_cast<double>(area) * static_cast<double>(side) /
                   static_cast<double>(other));
}

// The quotient of two shapes, at least 1.
double difference(double shape, double other) { return std::max(shape / other, other / shape); }

}  // namespace

std::array<int64_t, 2> wan_floor_size(int64_t width, int64_t height, int64_t area,
                                      int64_t multiple) {
  return {rounded_down(side_of(area, width, height), multiple),
          rounded_down(side_of(area, height, width), multiple)};
}

std::array<int64_t, 2> wan_closest_size(int64_t width, int64_t height, int64_t area,
                                        int64_t multiple) {
  const double shape = static_cast<double>(width) / static_cast<double>(height);
  const auto other_side = [&](int64_t side) {
    return rounded_down(static_cast<double>(area) / static_cast<double>(side), multiple);
  };
  const int64_t by_width = rounded_down(side_of(area, width, height), multiple),
                by_height = rounded_down(side_of(area, height, width), multiple);
  const std::array<int64_t, 2> first{by_width, other_side(by_width)},
      second{other_side(by_height), by_height};
  const auto differs = [&](const std::array<int64_t, 2>& size) {
    return difference(shape, static_cast<double>(size[0]) / static_cast<double>(size[1]));
  };
  return differs(first) < differs(second) ? first : second;
}

void wan_given_channels(int pictures, const TensorView& encoded, const TensorView& out) {
  const int64_t channels = encoded[0], frames = encoded[1], mask = out[0] - channels;
  CHECK(mask > 0 && encoded.contiguous() && out.contiguous() && out[1] == frames &&
            out[2] == encoded[2] && out[3] == encoded[3],
        encoded.to_string_shape(), out.to_string_shape());
  const int64_t plane = encoded[2] * encoded[3], last = (frames - 1) * mask;
  float* to = out.as<float>();
  for (int64_t k = 0; k < mask; ++k)
    for (int64_t f = 0; f < frames; ++f) {
      const int64_t frame = f == 0 ? 0 : (f - 1) * mask + k + 1;  // of the clip
      const bool is_picture = frame == 0 || (pictures > 1 && frame == last);
      to = std::fill_n(to, plane, is_picture ? 1.0f : 0.0f);
    }
  std::copy_n(encoded.as<float>(), encoded.count(), to);
}

PictureConditioning wan_pictures(const ModelDirectory& model) {
  const TransformerTraits& traits = model.expert(0).traits();
  const VaeTraits& vae = model.vae_model->traits;
  const auto refuse = [&](int64_t legal, const std::string& why) {
    throw Error(ErrorKind::kModel, model.transformer + "/config.json: in_channels is " +
                                       std::to_string(traits.in_channels) + " (legal" + why + ": " +
                                       std::to_string(legal) + ")");
  };
  const int64_t given = traits.given_channels();
  if (model.expand_timesteps) {
    if (given != 0) refuse(traits.out_channels, " where model_index.json has expand_timesteps");
    return {.form = PictureForm::kFirstFrame, .most = 1, .clip_size = wan_closest_size};
  }
  const bool is_text_alone = given == 0 && model.family != &kWanPictureFamily;
  if (is_text_alone) return {};
  if (given != vae.channels + vae.temporal_factor)
    refuse(traits.out_channels + vae.channels + vae.temporal_factor,
           " beside " + std::to_string(traits.out_channels) + " output channels");
  return {.form = PictureForm::kChannels,
          .least = std::max(traits.images, 1),
          .most = traits.images ? traits.images : 2,
          .given_channels = given,
          .clip_size = wan_floor_size,
          .give_channels = wan_given_channels};
}

}  // namespace weft
