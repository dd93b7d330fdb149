#include "apps/preview/bench_preview.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/device.h"
#include "apps/model_folder.h"
#include "engine/generation/generator.h"
#include "engine/generation/rank_placement.h"
#include "engine/preview/preview_fit.h"
#include "io/atomic_file.h"
#include "kernels/check.h"
#include "kernels/transfer.h"
#include "models/vae.h"

namespace weft {
namespace {

constexpr int kClips = 96;
constexpr int64_t kLatentSide = 12, kLatentFrames = 2;

struct Shape {
  double x = 0, y = 0, dx = 0, dy = 0, size = 0;  // in sides of the picture
  bool round = false;
  std::array<double, 3> colour{};
};

// Moving shapes on a background whose colour changes smoothly, [3, frames, side, side] in [-1, 1].
class ClipDrawer {
 public:
  explicit ClipDrawer(uint32_t seed) : random_(seed) {
    for (auto& corner : corners_) corner = colour();
    shapes_.resize(1 + random_() % 4);
    for (Shape& shape : shapes_)
      shape = {.x = unit(),
               .y = unit(),
               .dx = 0.1 * (unit() - 0.5),
               .dy = 0.1 * (unit() - 0.5),
               .size = 0.08 + 0.3 * unit(),
               .round = unit() < 0.5,
               .colour = colour()};
    if (unit() < 0.5) corners_ = {corners_[0], corners_[0], corners_[0], corners_[0]};
  }

  void draw(const TensorView& video) const {
    const int64_t frames = video[1], side = video[2];
    for (int64_t t = 0; t < frames; ++t)
      for (int64_t row = 0; row < side; ++row)
        for (int64_t column = 0; column < side; ++column) {
          const auto at = [&](int64_t i) { return (static_cast<double>(i) + 0.5) / side; };
          const auto value = pixel(at(column), at(row), static_cast<double>(t));
          for (int64_t c = 0; c < 3; ++c)
            video.as<float>()[((c * frames + t) * side + row) * side + column] =
                static_cast<float>(2 * value[static_cast<size_t>(c)] - 1);
        }
  }

 private:
  double unit() { return static_cast<double>(random_()) * 0x1p-32; }
  std::array<double, 3> colour() { return {unit(), unit(), unit()}; }

  std::array<double, 3> pixel(double x, double y, double t) const {
    std::array<double, 3> value{};
    for (size_t c = 0; c < 3; ++c)
      value[c] = (1 - y) * ((1 - x) * corners_[0][c] + x * corners_[1][c]) +
                 y * ((1 - x) * corners_[2][c] + x * corners_[3][c]);
    for (const Shape& shape : shapes_) {
      const double dx = std::abs(x - shape.x - shape.dx * t) / shape.size;
      const double dy = std::abs(y - shape.y - shape.dy * t) / shape.size;
      if (shape.round ? dx * dx + dy * dy < 1 : std::max(dx, dy) < 1) value = shape.colour;
    }
    return value;
  }

  std::mt19937 random_;
  std::array<std::array<double, 3>, 4> corners_{};
  std::vector<Shape> shapes_;
};

// Turns a VAE's means, [C, F, h, w], to the latents that a transformer sees: the inverse of
// Vae::denormalize, which is affine in every channel.
void normalize(const Vae& vae, const TensorView& means) {
  const int64_t channels = means[0], values = means.count() / channels;
  const auto denormalized = [&](float value) {
    Tensor out(DType::kF32, {channels, 1, 1, 1});
    std::fill_n(out.as<float>(), channels, value);
    vae.denormalize(out, out);
    return out;
  };
  const Tensor zero = denormalized(0), one = denormalized(1);
  for (int64_t c = 0; c < channels; ++c) {
    const float offset = zero.as<float>()[c], scale = one.as<float>()[c] - offset;
    float* mean = means.as<float>() + c * values;
    for (int64_t i = 0; i < values; ++i) mean[i] = (mean[i] - offset) / scale;
  }
}

// The clips of these seeds, encoded and decoded again.
class CodedClips {
 public:
  CodedClips(Stream& stream, const Vae& vae) : stream_(stream), vae_(vae) {}

  template <class See>
  void see(uint32_t first_seed, int count, See&& see) {
    const VaeTraits& traits = vae_.traits();
    const int64_t side = kLatentSide * traits.spatial_factor;
    const int64_t frames = traits.max_frames == 1 ? 1 : kLatentFrames;
    for (int i = 0; i < count; ++i) {
      Tensor video(DType::kF32, {3, traits.frames(frames), side, side});
      Tensor means(DType::kF32, {traits.channels, frames, kLatentSide, kLatentSide},
                   stream_.device());
      ClipDrawer(first_seed + static_cast<uint32_t>(i)).draw(video);
      Tensor input = on_device(stream_, std::move(video));
      Context context = placement_.vae_context(stream_, arena_, Pass{}, kLatentSide);
      vae_encode(context, vae_, input, means);
      vae_decode(context, vae_, means, input);
      Tensor latents = on_host(stream_, std::move(means));
      const Tensor decoded = on_host(stream_, std::move(input));
      normalize(vae_, latents);
      see(latents.view(), decoded.view());
    }
  }

 private:
  Stream& stream_;
  const Vae& vae_;
  Arena arena_{size_t{64} << 30, stream_.device()};
  RankPlacement placement_{};
};

// Adds the latent and the frames of a job to a fit.
class FittingTap final : public PipelineTap {
 public:
  explicit FittingTap(PreviewFitter& fitter) : fitter_(fitter) {}
  void tap(const char* name, const TensorView& value) override {
    if (std::string_view(name) == "latents_final") {
      latents_ = Tensor(DType::kF32, value.shape());
      std::copy_n(value.as<float>(), value.count(), latents_.as<float>());
    }
    if (std::string_view(name) != "video") return;
    const Tensor video(DType::kF32, value.shape());
    for (int64_t i = 0; i < value.count(); ++i) video.as<float>()[i] = 2 * value.as<float>()[i] - 1;
    fitter_.add(latents_, video);
  }

 private:
  PreviewFitter& fitter_;
  Tensor latents_;
};

// Draws clips with the model, of one coloured shape each: a small VAE may show only what it was
// trained on.
void add_drawn(const std::shared_ptr<const OpenModel>& model, const GeneratorOptions& options,
               int clips, PreviewFitter& fitter) {
  const std::vector<std::string> colours{"red",    "green", "blue", "yellow", "orange",
                                         "purple", "white", "cyan", "pink"};
  const std::vector<std::string> shapes{"ball", "square", "star", "ring", "triangle"};
  const std::vector<std::string> grounds{"navy",  "gray", "brown", "black",
                                         "white", "pink", "green"};
  Generator generator(model, options);
  FittingTap tap(fitter);
  RunOptions run;
  run.tap = &tap;
  for (int i = 0; i < clips; ++i) {
    const auto word = [i](const std::vector<std::string>& words) {
      return words[static_cast<size_t>(i) % words.size()];
    };
    Request request;
    request.prompt = "a big " + word(colours) + " " + word(shapes) + ", moving " +
                     (i % 2 ? "left" : "right") + " on a " + word(grounds) + " background";
    request.seed = static_cast<uint64_t>(i);
    generator.run(request, nullptr, run);
  }
}

}  // namespace

int bench_preview(const Flags& flags, DType dtype, int repeat) {
  const std::string folder = flags.given("model") ? model_folder(flags) : find_model("pocket");
  const auto model = std::make_shared<const OpenModel>(folder);
  const VaeModel& vae_model = *model->directory.vae_model;
  PreviewFitter fitter(vae_model.traits().channels);
  const bool drawn = flags.given("repeat");
  const int clips = drawn ? repeat : kClips;
  if (drawn) {
    GeneratorOptions options;
    options.device = device_of(flags);
    options.dtype = dtype;
    add_drawn(model, options, clips, fitter);
  } else {
    Stream stream = stream_of(flags);
    const std::unique_ptr<Vae> vae =
        vae_model.load(stream, *model->vae_file, DType::kF32, VaeParts::kBoth);
    CodedClips(stream, *vae).see(1, clips, [&](const TensorView& latents, const TensorView& video) {
      fitter.add(latents, video);
    });
  }
  const PreviewFit fit = fitter.fit();
  const std::string path = flags.given("output") ? flags.text("output") : "";
  if (!path.empty()) write_file(path, preview_fit_text(fit, fitter.errors()));
  const PreviewErrors& errors = fitter.errors();
  nlohmann::json object{{"bench", "preview"},
                        {"model", folder},
                        {"channels", fit.map.rgb.size()},
                        {"clips", clips},
                        {"relative_error", errors.all},
                        {"output", path}};
  std::array<char, 64> apart{};
  if (fit.first) {
    object["first_relative_error"] = errors.first;
    object["later_relative_error"] = errors.later;
    std::snprintf(apart.data(), apart.size(), " (first frames %.3f, later ones %.3f of their own)",
                  errors.first, errors.later);
  }
  if (flags.on("json"))
    std::printf("%s\n", object.dump().c_str());
  else
    std::printf("%zu channels to colours: error %.3f of the colours' spread%s, over %d clips%s%s\n",
                fit.map.rgb.size(), errors.all, apart.data(), clips, path.empty() ? "" : "; wrote ",
                path.c_str());
  return 0;
}

}  // namespace weft
