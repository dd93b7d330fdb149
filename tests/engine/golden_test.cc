// Golden cases of the scheduler and noise stages, and faults in scheduler_config.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/sampling/noise.h"
#include "engine/sampling/sampler.h"
#include "io/json.h"
#include "io/weights/tensor_file.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

const std::filesystem::path kGoldenCases = "tests/golden";

std::vector<std::string> cases_starting(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldenCases)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> floats(const TensorFile& file, const std::string& name) {
  const TensorView view = file.view(name);
  EXPECT_EQ(view.dtype, DType::kF32) << name;
  std::vector<float> values(view.count());
  std::memcpy(values.data(), view.data, view.bytes());
  return values;
}

double golden_rel_l2(const std::vector<float>& actual, const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t k = 0; k < std::min(actual.size(), expected.size()); ++k) {
    error += std::pow(double{actual[k]} - expected[k], 2);
    norm += std::pow(double{expected[k]}, 2);
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

class GoldenScheduler : public testing::TestWithParam<std::string> {};

TEST_P(GoldenScheduler, Passes) {
  const std::filesystem::path folder = kGoldenCases / GetParam();
  const nlohmann::json spec = read_json_file(folder / "case.json");
  SamplerConfig config;
  if (spec.contains("scheduler")) {
    std::string name = spec.at("scheduler").get<std::string>();
    const size_t family = name.find("-wan");  // the cases' name of an original grid
    if (family != std::string::npos) name.replace(family, std::string::npos, "-original");
    config.kind = solver_from_name(name);
    config.shift = spec.at("shift").get<double>();
  } else {
    config = SamplerConfig::from_json_file(folder / "model/scheduler/scheduler_config.json");
  }
  const Sampler sampler(config, spec.at("steps").get<int>());
  const TensorFile expected = TensorFile::open(folder / "expected.safetensors");
  const TensorFile inputs = TensorFile::open(folder / "inputs.safetensors");

  // The grid must be equal bit for bit.
  EXPECT_EQ(sampler.sigmas(), floats(expected, "sigmas"));
  EXPECT_EQ(sampler.timesteps(), floats(expected, "timesteps"));

  const std::vector<float> start = floats(inputs, "x");
  const auto count = static_cast<int64_t>(start.size());
  Tensor x(DType::kF32, {count}), v(DType::kF32, {count});
  std::copy(start.begin(), start.end(), x.as<float>());
  SamplerState state(count);
  Stream stream = Stream::cpu(1);
  Arena arena;
  std::vector<float> points;
  for (int i = 0; i < sampler.steps(); ++i) {
    for (int64_t k = 0; k < count; ++k) {
      const float at = x.as<float>()[k];
      v.as<float>()[k] = 0.3f * at + sampler.sigmas()[i] + 0.1f * std::sin(3.0f * at);
    }
    sampler.step(stream, arena, i, v, x, state);
    points.insert(points.end(), x.as<float>(), x.as<float>() + count);
  }
  EXPECT_LE(golden_rel_l2(points, floats(expected, "x")), spec.at("tolerance").get<double>());
}

INSTANTIATE_TEST_SUITE_P(, GoldenScheduler, testing::ValuesIn(cases_starting("scheduler_")),
                         [](const auto& info) { return info.param; });

TEST(GoldenNoise, TorchCpu) {
  const std::filesystem::path folder = kGoldenCases / "noise_torch_cpu";
  const nlohmann::json spec = read_json_file(folder / "case.json");
  const TensorFile expected = TensorFile::open(folder / "expected.safetensors");
  ASSERT_FALSE(spec.at("draws").empty());
  for (const auto& draw : spec.at("draws")) {
    const auto seed = draw.at("seed").get<uint64_t>();
    const auto count = draw.at("count").get<int64_t>();
    const std::string name = std::to_string(seed) + "." + std::to_string(count);
    EXPECT_LE(golden_rel_l2(torch_cpu_randn(seed, count), floats(expected, name)),
              spec.at("tolerance").get<double>())
        << name;
  }
}

// A setting that would change numbers and is not supported is named with its value.
TEST(SchedulerConfig, RefusesWhatIsNotBuilt) {
  const auto path = std::filesystem::path(testing::TempDir()) / "scheduler_config.json";
  const auto message = [&](const char* name, const nlohmann::json& changes) {
    nlohmann::json object =
        read_json_file(kGoldenCases / name / "model/scheduler/scheduler_config.json");
    object.update(changes);
    std::string text = object.dump();
    std::ofstream(path) << text;
    return error_of([&] { SamplerConfig::from_json_file(path); }, ErrorKind::kModel);
  };
  const char* unipc = "scheduler_unipc_n4_s3_0";
  const char* euler = "scheduler_euler_n4_s3_0";
  EXPECT_EQ(message(unipc, nlohmann::json::object()), "");
  const std::vector<std::pair<const char*, nlohmann::json>> faults = {
      {"use_karras_sigmas", true},
      {"use_beta_sigmas", true},
      {"use_exponential_sigmas", true},
      {"solver_type", "bh1"},
      {"solver_order", 3},
      {"prediction_type", "epsilon"},
      {"use_flow_sigmas", false},
      {"predict_x0", false},
      {"final_sigmas_type", "sigma_min"},
      {"flow_shift", 0},
      {"use_dynamic_shifting", true},
      {"thresholding", true},
      {"_class_name", "DDIMScheduler"}};
  for (const auto& [field, value] : faults) {
    const std::string text = message(unipc, {{field, value}});
    EXPECT_TRUE(contains(text, field)) << field << ": " << text;
  }
  EXPECT_TRUE(contains(message(euler, {{"stochastic_sampling", true}}), "stochastic_sampling"));
  EXPECT_TRUE(contains(message(euler, {{"shift_terminal", 1.5}}), "1.5"));
  EXPECT_TRUE(contains(message(unipc, {{"shift_terminal", 0.1}}), "0.1"));
  const nlohmann::json dynamic{{"use_dynamic_shifting", true}};
  EXPECT_EQ(message(euler, dynamic), "");
  for (const auto& [field, value] : std::vector<std::pair<const char*, nlohmann::json>>{
           {"max_shift", -1}, {"max_image_seq_len", 256}, {"time_shift_type", "cubic"}}) {
    nlohmann::json changes = dynamic;
    changes[field] = value;
    EXPECT_TRUE(contains(message(euler, changes), field));
  }
}

}  // namespace
}  // namespace weft::test
