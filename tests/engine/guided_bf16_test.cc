// The error of bf16 under strong guidance, in the median of many seeds and under every layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/generation/generator.h"
#include "io/json.h"
#include "parallel/transport/local.h"
#include "tests/support/compare.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

constexpr const char kGuidedCase[] = "tests/golden/pipeline_krea2_raw";
constexpr int kSeeds = 45;
constexpr double kLatentBound = 0.021;  // measured: 0.0167 to 0.0171

Request guided_request(const nlohmann::json& spec) {
  Request request;
  request.prompt = spec.at("prompt").get<std::string>();
  request.negative_prompt = spec.at("negative_prompt").get<std::string>();
  request.width = spec.at("width").get<int64_t>();
  request.height = spec.at("height").get<int64_t>();
  request.frames = spec.at("frames").get<int64_t>();
  request.steps = spec.at("steps").get<int>();
  request.guidance_scale = spec.at("guidance_scale").get<double>();
  request.seed = spec.at("seed").get<uint64_t>();
  request.rng = rng_from_name(spec.at("rng").get<std::string>());
  return request;
}

GeneratorOptions guided_options(DType dtype) {
  GeneratorOptions options;
  options.dtype = dtype;
  options.threads = 1;
  options.determinism = Determinism::kFixed;
  return options;
}

// The latents and pictures of a seed.
struct Drawn final : PipelineTap {
  std::map<std::string, std::vector<double>> tensors;
  void tap(const char* name, const TensorView& value) override {
    const float* data = value.as<float>();
    tensors[name].assign(data, data + value.count());
  }
};

std::vector<Drawn> drawn(Generator& generator, Request request) {
  std::vector<Drawn> out(kSeeds);
  for (Drawn& seed : out) {
    RunOptions options;
    options.tap = &seed;
    generator.run(request, nullptr, options);
    ++request.seed;
  }
  return out;
}

// The middle of the seeds' errors. `offset` is what the values are counted from.
double median_error(const std::vector<Drawn>& actual, const std::vector<Drawn>& exact,
                    const std::string& name, double offset) {
  std::vector<double> errors;
  for (int i = 0; i < kSeeds; ++i) {
    std::vector<double> ours = actual[i].tensors.at(name), theirs = exact[i].tensors.at(name);
    for (std::vector<double>* values : {&ours, &theirs})
      for (double& value : *values) value -= offset;
    errors.push_back(relative_l2(ours, theirs));
  }
  std::ranges::sort(errors);
  return errors[kSeeds / 2];
}

// Guidance multiplies every rounding of this case, so one seed's error is a matter of luck. The
// median latent errs by less than PyTorch's (0.043 with both models cast to bf16, 0.032 under
// autocast), and the median picture by less than the case's bound; not where stages send each other
// hidden rows, which are bf16 then (0.074 to 0.083).
TEST(GuidedKrea2, Bf16ErrsLessThanTheReferenceInTheMedian) {
  const nlohmann::json spec = read_json_file(std::string(kGuidedCase) + "/case.json");
  const double picture_bound = spec.at("tolerance_bf16").get<double>();
  const Request request = guided_request(spec);
  PartFiles files;
  files.tokenizer = golden_part("pipeline_krea2_raw", "tokenizer");
  const auto model = std::make_shared<const OpenModel>(std::string(kGuidedCase) + "/model",
                                                       std::vector<Lora>(), files);
  Generator generator(model, guided_options(DType::kF32));
  const std::vector<Drawn> exact = drawn(generator, request);
  const auto expect_small = [&](const std::vector<Drawn>& rounded, const Layout& layout) {
    const double latent = median_error(rounded, exact, "latents_final", 0),
                 picture = median_error(rounded, exact, "video", 0.5);
    EXPECT_LE(latent, kLatentBound) << to_string(layout);
    if (layout[Axis::kLayers] == 1) {
      EXPECT_LE(picture, picture_bound) << to_string(layout);
    }
    std::printf("%s: latents %.4f, pictures %.4f\n", to_string(layout).c_str(), latent, picture);
  };
  Generator alone(model, guided_options(DType::kBF16));
  expect_small(drawn(alone, request), {});
  LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  limits.requests = 0;
  for (const int ranks : {2, 3})
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;  // the same in every replica
      run_ranks(ranks, [&](Communicator& world) {
        Generator part(model, guided_options(DType::kBF16), RankPlacement::of(world, layout));
        const std::vector<Drawn> rounded = drawn(part, request);
        if (world.rank() == 0) expect_small(rounded, layout);
      });
    }
}

}  // namespace
}  // namespace weft::test
