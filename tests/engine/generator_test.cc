// Generator: golden pipelines, determinism, residency, memory, and jobs that fail.
#include "engine/generation/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/sampling/guidance.h"
#include "io/json.h"
#include "io/weights/tensor_file.h"
#include "models/wan/transformer.h"
#include "tests/engine/delivered_job.h"
#include "tests/engine/poisoned_model.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = "tests/golden";
const std::string kT2vModel = kGolden / "pipeline_t2v/model";
const std::string kTwoExperts = kGolden / "pipeline_two_experts/model";

Request golden_request(const nlohmann::json& spec) {
  Request request;
  request.prompt = spec.at("prompt").get<std::string>();
  request.negative_prompt = spec.at("negative_prompt").get<std::string>();
  request.width = spec.at("width").get<int64_t>();
  request.height = spec.at("height").get<int64_t>();
  request.frames = spec.at("frames").get<int64_t>();
  request.steps = spec.at("steps").get<int>();
  request.guidance_scale = spec.at("guidance_scale").get<double>();
  if (spec.contains("guidance_scale_2")) {
    request.guidance_scale_2 = spec.at("guidance_scale_2").get<double>();
  }
  request.seed = spec.at("seed").get<uint64_t>();
  request.rng = rng_from_name(spec.at("rng").get<std::string>());
  return request;
}

Request small_request() {
  Request request = golden_request(read_json_file(kGolden / "pipeline_t2v/case.json"));
  request.steps = 2;
  request.rng = Rng::kPortable;
  return request;
}

GeneratorOptions options_with_threads(DType dtype, int threads = 1,
                                      Determinism determinism = Determinism::kFixed) {
  GeneratorOptions options;
  options.dtype = dtype;
  options.threads = threads;
  options.determinism = determinism;
  return options;
}

struct CollectingTap final : PipelineTap {
  std::map<std::string, std::vector<float>> tensors;
  void tap(const char* name, const TensorView& value) override {
    const float* data = value.as<float>();
    tensors[name].assign(data, data + value.count());
  }
};

struct CollectingSink final : FrameSink {
  std::vector<Frame> frames;
  size_t fail_at = SIZE_MAX;
  bool finished = false;
  void push(const Frame& frame) override {
    if (frames.size() == fail_at) throw Error(ErrorKind::kOutput, "the disk is full");
    frames.push_back(frame);
  }
  std::string finish() override {
    finished = true;
    return "nowhere";
  }
};

double offset_rel_l2(const std::vector<float>& actual, const TensorView& expected, double offset) {
  if (static_cast<int64_t>(actual.size()) != expected.count()) return INFINITY;
  std::vector<float> wanted(actual.size());
  std::memcpy(wanted.data(), expected.data, expected.bytes());
  double error = 0, norm = 0;
  for (size_t k = 0; k < actual.size(); ++k) {
    error += std::pow(double{actual[k]} - wanted[k], 2);
    norm += std::pow(wanted[k] - offset, 2);
  }
  return std::sqrt(error / norm);
}

// The model of a golden case, whose tokenizer may be another case's.
std::shared_ptr<const OpenModel> model_of(const std::string& name) {
  PartFiles files;
  files.tokenizer = golden_part(name, "tokenizer");
  return std::make_shared<const OpenModel>(kGolden / name / "model", std::vector<Lora>(), files);
}

// The thread sanitizer's run sets OMP_NUM_THREADS=1, because the sanitizer does not see the OpenMP
// runtime's barriers.
std::vector<int> thread_counts() {
  const char* limit = std::getenv("OMP_NUM_THREADS");
  if (limit && std::string(limit) == "1") return {1};
  return {1, 2, 3};
}

// The same seed gives the same frames in every run, in a new generator and for any thread count.
TEST(Determinism, FrameHashDependsOnTheRequestAlone) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Request request = small_request();
    std::vector<std::string> hashes, signatures;
    for (int threads : thread_counts()) {
      Generator generator(kT2vModel, options_with_threads(dtype, threads));
      for (int run = 0; run < (threads == 1 ? 2 : 1); ++run) {
        const RunResult result = generator.run(request, nullptr);
        hashes.push_back(result.framehash);
        signatures.push_back(result.signature);
      }
    }
    for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
    for (const std::string& signature : signatures) EXPECT_EQ(signature, signatures[0]);
  }
}

// Runs one job twenty times in one generator with other jobs in between, and then in a new one.
TEST(Determinism, OtherJobsLeaveNoTrace) {
  const Request request = small_request();
  Request longer = request, image = request, plain = request;
  longer.frames += 4;
  longer.prompt = "a blue square";
  image.frames = 1;
  image.width = image.height = 64;
  plain.guidance_scale = 1;
  plain.solver = "euler";
  auto generator = std::make_unique<Generator>(kT2vModel, options_with_threads(DType::kBF16));
  const std::string expected = generator->run(request, nullptr).framehash;
  for (int i = 0; i < 20; ++i) {
    if (i == 15)
      generator = std::make_unique<Generator>(kT2vModel, options_with_threads(DType::kBF16));
    const Request& other = i % 3 == 0 ? longer : i % 3 == 1 ? image : plain;
    if (i % 2) {
      EXPECT_NE(generator->run(other, nullptr).framehash, expected);
    }
    EXPECT_EQ(generator->run(request, nullptr).framehash, expected) << i;
  }
}

TEST(Determinism, WhatMattersChangesTheSignature) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  const Request base = small_request();
  const std::string signature = generator.run(base, nullptr).signature;
  const auto changed = [&](const std::function<void(Request&)>& change) {
    Request request = base;
    change(request);
    return generator.run(request, nullptr).signature != signature;
  };
  EXPECT_TRUE(changed([](Request& r) { r.seed += 1; }));
  EXPECT_TRUE(changed([](Request& r) { r.prompt = "a blue square"; }));
  EXPECT_TRUE(changed([](Request& r) { r.negative_prompt = "blurry"; }));
  EXPECT_TRUE(changed([](Request& r) { r.steps = 3; }));
  EXPECT_TRUE(changed([](Request& r) { r.flow_shift = 7; }));
  EXPECT_TRUE(changed([](Request& r) { r.solver = "euler"; }));
  EXPECT_TRUE(changed([](Request& r) { r.sigmas = {0.9, 0.5}; }));
  EXPECT_TRUE(changed([](Request& r) { r.guidance_scale = 2; }));
  EXPECT_TRUE(changed([](Request& r) { r.rng = Rng::kTorchCpu; }));
  EXPECT_FALSE(changed([](Request& r) { r.prompt = "  a red  ball on a gray floor "; }));
  EXPECT_FALSE(changed([](Request& r) { r.fps = 8; }));
}

TEST(Frames, ReachTheSinkInOrderAndAreTheTappedVideo) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  const Request request = small_request();
  CollectingSink sink;
  CollectingTap tap;
  RunOptions options;
  options.tap = &tap;
  const RunResult result = generator.run(request, &sink, options);
  EXPECT_TRUE(sink.finished);
  EXPECT_EQ(result.frames, request.frames);
  ASSERT_EQ(static_cast<int64_t>(sink.frames.size()), request.frames);
  FrameHash hash;
  for (const Frame& frame : sink.frames) hash.add(frame);
  EXPECT_EQ(hash.hex(), result.framehash);
  const std::vector<float>& video = tap.tensors["video"];
  const int64_t pixels = request.width * request.height;
  for (int64_t f = 0; f < request.frames; ++f) {
    for (int64_t k = 0; k < pixels * 3; ++k) {
      const float value = video[((k % 3) * request.frames + f) * pixels + k / 3];
      ASSERT_EQ(sink.frames[f].rgb[k], std::nearbyint(value * 255)) << f << " " << k;
    }
  }
}

// The most bytes of tensors that are live at the end of a denoising step.
struct DenoiseBytes final : ProgressListener {
  uint64_t most = 0;
  void progress(const Progress& p) override {
    if (p.stage == "denoise" && p.step > 0) most = std::max<uint64_t>(most, tensor_bytes_live());
  }
};

// The picture does not depend on which parts stay resident. If memory is short, only one expert is
// held at a time; the allocation counter shows it.
TEST(Residency, OneExpertAtATimeWhereMemoryAsksForIt) {
  const Request open = golden_request(read_json_file(kGolden / "pipeline_two_experts/case.json"));
  struct Measured {
    std::string framehash;
    uint64_t denoise = 0, high_water = 0;
  };
  const auto measure = [&](Residency residency) {
    const size_t live = tensor_bytes_live();
    GeneratorOptions options = options_with_threads(DType::kF32);
    Generator planner(kTwoExperts, options);
    const Request request = planner.resolve(open);
    const ComponentBytes parts = planner.plan(request).parts;
    options.memory_limit = memory_under(residency, parts, 0).high_water;
    Generator generator(kTwoExperts, options);
    EXPECT_EQ(generator.plan(request).residency, residency);
    DenoiseBytes listener;
    RunOptions run_options;
    run_options.listener = &listener;
    const RunResult result = generator.run(request, nullptr, run_options);
    return Measured{result.framehash, listener.most - live, result.memory_high_water - live};
  };
  const Measured all = measure(Residency::kAll), staged = measure(Residency::kStaged),
                 one = measure(Residency::kOneExpert), single = measure(Residency::kSequential);
  EXPECT_EQ(staged.framehash, all.framehash);
  EXPECT_EQ(one.framehash, all.framehash);
  EXPECT_EQ(single.framehash, all.framehash);
  EXPECT_LT(staged.high_water, all.high_water);
  EXPECT_LT(one.high_water, staged.high_water);
  EXPECT_LT(single.high_water, one.high_water);
  // The counter differs by exactly one expert.
  const size_t before = tensor_bytes_live();
  const std::string folder = kTwoExperts + "/transformer";
  Stream stream = Stream::cpu(1);
  const WanTransformer expert = WanTransformer::load(
      stream, TensorFile::open(folder), WanConfig::from_json_file(folder + "/config.json"));
  EXPECT_EQ(staged.denoise - one.denoise, tensor_bytes_live() - before);
  EXPECT_EQ(single.denoise, one.denoise);
}

TEST(Residency, TheExpertsDivideTheStepsAtTheBoundary) {
  Generator generator(kTwoExperts, options_with_threads(DType::kF32));
  EXPECT_EQ(generator.limits().experts, 2);
  EXPECT_DOUBLE_EQ(generator.limits().boundary_ratio, 0.875);
  Request request = golden_request(read_json_file(kGolden / "pipeline_two_experts/case.json"));
  const std::string mixed = generator.run(request, nullptr).signature;
  request.guidance_scale_2 = request.guidance_scale;  // the low-noise expert has its own
  EXPECT_NE(generator.run(request, nullptr).signature, mixed);
}

// The arena of the decode stage does not grow with the number of frames.
TEST(Memory, DecodeIsFlatInFrames) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  Request request = small_request();
  request.steps = 1;
  request.frames = 9;
  const uint64_t few = generator.run(request, nullptr).decode_high_water;
  request.frames = 33;
  EXPECT_EQ(generator.run(request, nullptr).decode_high_water, few);
  EXPECT_GT(few, 0u);
}

// The memory plan and the measured memory agree within 5 %.
TEST(Memory, PlanAgreesWithTheMeasuredHighWater) {
  for (const char* name :
       {"pipeline_t2v", "pipeline_two_experts", "pipeline_t2i_no_guidance", "pipeline_zimage_cfg",
        "pipeline_qwen_image", "pipeline_flux_dev", "pipeline_krea2_raw"}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(name);
      Request request = golden_request(read_json_file(kGolden / name / "case.json"));
      request.width = 160;
      request.height = 128;
      request.steps = 2;
      expect_planned_memory(request, options_with_threads(dtype), model_of(name));
    }
  }
}

// The most bytes of tensors between the first step and the last.
struct DenoisePeak final : ProgressListener {
  uint64_t most = 0;
  void progress(const Progress& p) override {
    if (p.stage != "denoise") return;
    if (p.step == 0) reset_tensor_bytes_peak();
    most = tensor_bytes_peak();
  }
};

// A checkpoint copies the latent and the solver's history. The plan counts these copies.
TEST(Memory, ACheckpointsCopyIsPlanned) {
  for (const char* solver : {"unipc-diffusers", "euler"}) {
    const std::string path = testing::TempDir() + "/planned.checkpoint.safetensors";
    uint64_t planned[2] = {}, measured[2] = {};
    for (const Keeping keeping : {Keeping::kNothing, Keeping::kCheckpoints}) {
      GeneratorOptions options = options_with_threads(DType::kF32);
      options.keeping = keeping;
      Generator generator(kT2vModel, options);
      Request request = small_request();
      request.width = request.height = 128;
      request.steps = 2;
      request.solver = solver;
      request = generator.resolve(request);
      DenoisePeak listener;
      std::atomic<bool> never{false};
      RunOptions run_options;
      run_options.listener = &listener;
      run_options.stop = &never;
      if (keeping == Keeping::kCheckpoints) run_options.checkpoint_path = path;
      run_options.checkpoint_seconds = 0;
      generator.run(request, nullptr, run_options);
      planned[static_cast<int>(keeping)] = generator.plan(request).denoise;
      measured[static_cast<int>(keeping)] = listener.most;
    }
    remove_checkpoints(path);
    EXPECT_GT(planned[1], planned[0]);
    const auto copied = static_cast<double>(measured[1] - measured[0]);
    EXPECT_NEAR(static_cast<double>(planned[1] - planned[0]) / copied, 1, 0.05) << solver;
  }
}

TEST(Memory, AJobThatCannotFitIsRefusedWithNumbersAndAdvice) {
  GeneratorOptions options = options_with_threads(DType::kF32);
  options.memory_limit = 8 << 20;
  Generator generator(kT2vModel, options);
  Request request = small_request();
  request.width = 832;
  request.height = 480;
  request.frames = 81;
  const std::string text =
      thrown_error([&] { generator.run(request, nullptr); }, ErrorKind::kMemory);
  EXPECT_TRUE(contains(text, "needs"));
  EXPECT_TRUE(contains(text, "8.00 MiB are available"));
  EXPECT_TRUE(contains(text, "--size"));
  EXPECT_TRUE(contains(text, " or "));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// An 8-bit matrix product has an error of about 1 % (LinearInt8.ErrsByEightBits). The errors of the
// 14 products in two blocks add in squares to 4 % in a forward. Integer sums are exact, so the
// number of threads changes no bit.
TEST(Int8, ErrsByEightBitsAndTheSameForEveryThreadCount) {
  const auto latents = [&](WeightFormat weights, int threads) {
    GeneratorOptions options = options_with_threads(DType::kF32, threads);
    options.weights = weights;
    Generator generator(kT2vModel, options);
    Request request = small_request();
    request.steps = 1;
    CollectingTap tap;
    RunOptions run;
    run.tap = &tap;
    generator.run(request, nullptr, run);
    return tap.tensors["latents_final"];
  };
  const std::vector<float> exact = latents(WeightFormat::kCompute, 1);
  const std::vector<float> one = latents(WeightFormat::kInt8, 1);
  const double error = offset_rel_l2(one,
                                     TensorView(const_cast<float*>(exact.data()), DType::kF32,
                                                {static_cast<int64_t>(exact.size())}),
                                     0);
  EXPECT_LT(error, 0.04);
  EXPECT_GT(error, 1e-4);
  for (int threads : thread_counts()) EXPECT_EQ(latents(WeightFormat::kInt8, threads), one);
}

TEST(NonFinite, StopsNamingStageStepAndBlock) {
  for (const auto& [tensor, where] : {std::pair{"patch_embedding.bias", "first in patch_embedding"},
                                      {"blocks.0.attn1.to_q.bias", "first in block 0"},
                                      {"blocks.0.attn2.norm_k.weight", "first in block 0"},
                                      {"blocks.1.ffn.net.2.bias", "first in block 1"},
                                      {"proj_out.bias", "first in output"}}) {
    Generator generator(poisoned(kT2vModel, "transformer", tensor, testing::TempDir()),
                        options_with_threads(DType::kF32));
    CollectingSink sink;
    const std::string text =
        thrown_error([&] { generator.run(small_request(), &sink); }, ErrorKind::kNonFinite);
    EXPECT_TRUE(contains(text, "denoise, step 1 of 2"));
    EXPECT_TRUE(contains(text, where));
    EXPECT_TRUE(sink.frames.empty());
  }
}

TEST(NonFinite, IsFoundInTheTextEncoderAndBehindTheSolver) {
  Generator sick(
      poisoned(kT2vModel, "text_encoder", "encoder.final_layer_norm.weight", testing::TempDir()),
      options_with_threads(DType::kF32));
  expect_error(ErrorKind::kNonFinite, "encode_text", [&] { sick.run(small_request(), nullptr); });
  // The velocities are finite but their guided sum is not.
  Generator large(poisoned(kT2vModel, "transformer", "proj_out.bias", testing::TempDir(), 3e38f),
                  options_with_threads(DType::kF32));
  const std::string text =
      thrown_error([&] { large.run(small_request(), nullptr); }, ErrorKind::kNonFinite);
  EXPECT_TRUE(contains(text, "denoise, step "));
  EXPECT_TRUE(contains(text, "after guidance and solver"));
}

TEST(NonFinite, IsFoundInTheDecoderToo) {
  Generator generator(poisoned(kT2vModel, "vae", "decoder.conv_in.bias", testing::TempDir()),
                      options_with_threads(DType::kF32));
  const std::string text =
      thrown_error([&] { generator.run(small_request(), nullptr); }, ErrorKind::kNonFinite);
  EXPECT_TRUE(contains(text, "decode, chunk 1 of 3"));
}

std::vector<float> latents_in(const std::string& path) {
  const TensorFile file = TensorFile::open(path);
  const TensorView view = file.view("latents");
  std::vector<float> values(view.count());
  std::memcpy(values.data(), view.data, view.bytes());
  return values;
}

TEST(Latents, AreKeptBeforeDecodingWhichMayFail) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  const std::string kept = fs::path(testing::TempDir()) / "kept.latents.safetensors";
  fs::remove(kept);
  CollectingTap tap;
  RunOptions options;
  options.tap = &tap;
  options.latents_path = kept;
  const RunResult result = generator.run(small_request(), nullptr, options);
  EXPECT_EQ(result.latents_path, kept);
  EXPECT_EQ(latents_in(kept), tap.tensors["latents_final"]);

  fs::remove(kept);
  CollectingSink sink;
  sink.fail_at = 3;
  const std::string text =
      thrown_error([&] { generator.run(small_request(), &sink, options); }, ErrorKind::kOutput);
  EXPECT_EQ(text, "the disk is full");
  EXPECT_FALSE(sink.finished);
  EXPECT_EQ(latents_in(kept), tap.tensors["latents_final"]);
  // The generator serves the next request.
  EXPECT_EQ(generator.run(small_request(), nullptr).framehash, result.framehash);
}

struct RecordingListener final : ProgressListener {
  std::vector<std::string> stages;
  int denoised = 0;
  std::atomic<bool>* stop = nullptr;
  int stop_at = -1;
  void progress(const Progress& p) override {
    if (stages.empty() || stages.back() != p.stage) stages.push_back(p.stage);
    EXPECT_LE(p.step, p.total);
    if (p.stage != "denoise" || p.step == 0) return;
    EXPECT_GT(p.memory_bytes, 0u);
    EXPECT_EQ(p.step, ++denoised);
    EXPECT_GT(p.sigma, 0);
    EXPECT_GT(p.seconds_per_step, 0);
    if (stop && p.step == stop_at) *stop = true;
  }
};

TEST(Progress, NamesTheStagesInOrder) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  RecordingListener listener;
  RunOptions options;
  options.listener = &listener;
  CollectingSink sink;
  const RunResult result = generator.run(small_request(), &sink, options);
  EXPECT_EQ(listener.stages, (std::vector<std::string>{"load", "encode_text", "denoise", "decode",
                                                       "encode_video", "write"}));
  EXPECT_EQ(listener.denoised, 2);
  double sum = 0;
  for (const StageSeconds& stage : result.stages) sum += stage.seconds;
  EXPECT_LE(sum, result.seconds);
  EXPECT_GT(sum, 0.5 * result.seconds);
}

TEST(Stop, IsReadBetweenSteps) {
  Generator generator(kT2vModel, options_with_threads(DType::kF32));
  Request request = small_request();
  request.steps = 5;
  std::atomic<bool> stop = false;
  RecordingListener listener;
  listener.stop = &stop;
  listener.stop_at = 2;
  RunOptions options;
  options.listener = &listener;
  options.stop = &stop;
  const std::string text =
      thrown_error([&] { generator.run(request, nullptr, options); }, ErrorKind::kStopped);
  EXPECT_TRUE(contains(text, "after step 2 of 5"));
  EXPECT_EQ(listener.denoised, 2);
}

// v_n + g (v_p - v_n), v_p + g (v_p - v_n), and the sign of the velocity.
TEST(Guidance, BothFormsAndTheSign) {
  Stream stream = Stream::cpu();
  Arena arena;
  const auto guided = [&](GuidanceForm form, float sign, double scale) {
    Tensor negative(DType::kF32, {2, 1}), positive(DType::kF32, {2, 1});
    for (int i = 0; i < 2; ++i) {
      negative.as<float>()[i] = static_cast<float>(1 + i);
      positive.as<float>()[i] = static_cast<float>(3 - 4 * i);
    }
    const ModelFamily family{.class_name = "", .guidance = form, .velocity_sign = sign};
    guide(stream, arena, family, scale, scale > 1 ? negative.view() : TensorView(), positive);
    return std::vector<float>(positive.as<float>(), positive.as<float>() + 2);
  };
  using Values = std::vector<float>;
  EXPECT_EQ(guided(GuidanceForm::kFromNegative, 1, 4), (Values{1 + 4 * 2, 2 + 4 * -3}));
  EXPECT_EQ(guided(GuidanceForm::kFromPositive, 1, 4), (Values{3 + 4 * 2, -1 + 4 * -3}));
  EXPECT_EQ(guided(GuidanceForm::kFromPositive, -1, 4), (Values{-(3 + 4 * 2), -(-1 + 4 * -3)}));
  EXPECT_EQ(guided(GuidanceForm::kFromNegative, 1, 1), (Values{3, -1}));
  EXPECT_EQ(guided(GuidanceForm::kFromPositive, -1, 0), (Values{-3, 1}));
  EXPECT_EQ(guided(GuidanceForm::kRescaled, 1, 1), (Values{3, -1}));
  // A scale of 3 of this form arrives as 4.
  EXPECT_EQ(guided(GuidanceForm::kBeyondPositive, 1, 4), (Values{3 + 3 * 2, -1 + 3 * -3}));
}

// A token keeps the direction of v_n + g (v_p - v_n) and has the norm of v_p, or is zero.
TEST(Guidance, TokensAreScaledToTheNormOfThePositiveOne) {
  constexpr int kTokens = 3, kColumns = 2;
  const float positive[] = {3, 4, -1e-3f, 0, 0, 0}, negative[] = {1, 4, 2e-3f, 1e-3f, 0, 0};
  Stream stream = Stream::cpu();
  Arena arena;
  for (const float sign : {1.0f, -1.0f}) {
    Tensor p(DType::kF32, {kTokens, kColumns}), n(DType::kF32, {kTokens, kColumns});
    std::copy_n(positive, p.count(), p.as<float>());
    std::copy_n(negative, n.count(), n.as<float>());
    const ModelFamily family{
        .class_name = "", .guidance = GuidanceForm::kRescaled, .velocity_sign = sign};
    guide(stream, arena, family, 4, n, p);
    for (int token = 0; token < kTokens; ++token) {
      double both[kColumns], norm = 0, want = 0;
      for (int i = 0; i < kColumns; ++i) {
        const double a = positive[token * kColumns + i], b = negative[token * kColumns + i];
        both[i] = b + 4 * (a - b);
        norm += both[i] * both[i];
        want += a * a;
      }
      for (int i = 0; i < kColumns; ++i) {
        const double expected = norm > 0 ? sign * both[i] * std::sqrt(want / norm) : 0;
        EXPECT_NEAR(p.as<float>()[token * kColumns + i], expected, 1e-6 * std::sqrt(want))
            << token << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
