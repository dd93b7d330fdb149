// Videos that follow a sound: the loop over chunks against a slow reference, layouts, memory, and
// what is refused.
#include "engine/job/speech_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/conditions/picture_conditions.h"
#include "engine/job/checkpoint.h"
#include "engine/memory/memory_meter.h"
#include "engine/parts/audio_features.h"
#include "engine/planning/forecast.h"
#include "engine/sampling/guidance.h"
#include "engine/sampling/noise.h"
#include "engine/schedules/denoiser.h"
#include "io/json.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "models/wan_s2v/family.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"
#include "tests/support/speech_model.h"

namespace weft::test {
namespace {

struct ClipTap final : PipelineTap {
  std::map<std::string, std::vector<std::vector<float>>> tensors;
  void tap(const char* name, const TensorView& value) override {
    tensors[name].push_back(floats_of(value));
  }
};

RunOptions tapped(PipelineTap& tap) {
  RunOptions options;
  options.tap = &tap;
  return options;
}

// The tests share the model's folder.
class SpeechClips : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = testing::TempDir() + "weft_speech_clips";
    model_ = new SpeechModel(folder_);
    write_wav(wav(), GivenSound::kRate, tone(kSeconds, GivenSound::kRate));
  }
  static void TearDownTestSuite() {
    delete model_;
    std::filesystem::remove(wav());
  }
  static std::string wav() { return folder_ + ".wav"; }

  // A picture of any colours.
  static GivenPicture picture(int64_t width, int64_t height) {
    Tensor out(DType::kF32, {3, height, width});
    for (int64_t i = 0; i < out.view().count(); ++i)
      out.as<float>()[i] = 0.5f + 0.5f * std::sin(0.37f * static_cast<float>(i));
    return {.path = "a.png", .pixels = std::make_shared<const Tensor>(std::move(out))};
  }
  static Request job() {
    Request request = test::job();
    request.width = request.height = 64;
    request.frames = 0;
    request.guidance_scale = request.guidance_scale_2 = 3;
    request.image = picture(64, 64);
    request.audio = {.path = wav()};
    take_facts(request.audio, "audio");
    return request;
  }
  std::string refused(const Request& request) {
    return error_of([&] { Generator(folder_, options_of(DType::kF32)).resolve(request); },
                    ErrorKind::kUsage);
  }

  static constexpr double kSeconds = 6;  // two chunks of 80 frames at 16 a second
  static inline std::string folder_;
  static inline SpeechModel* model_ = nullptr;
};

TEST_F(SpeechClips, ThePublishedFolderIsRead) {
  const Generator generator(folder_, options_of(DType::kF32));
  const SpeechChunks& chunks = generator.model()->directory.chunks;
  EXPECT_EQ(chunks.latent_frames, 20);
  EXPECT_EQ(chunks.dropped_frames, 3);
  EXPECT_EQ(chunks.motion_frames, 73);
  EXPECT_EQ(chunks.size_multiple, 64);
  EXPECT_EQ(generator.defaults().steps, 40);
  EXPECT_EQ(generator.defaults().fps, 16);
  const Request request = generator.resolve(job());
  EXPECT_EQ(request.frames, 6 * 16 - 3);
  const JobFacts facts = generator.facts(request);
  EXPECT_EQ(facts.chunks, 2);
  EXPECT_EQ(facts.sampler.config().kind, SolverKind::kUniPCOriginal);
  EXPECT_EQ(facts.sampler.config().shift, 3);
}

// The size has the largest scale up to 1 whose padded sides have at most the area.
TEST(SpeechSize, IsTheLargestThatFits) {
  constexpr int64_t kArea = 1024 * 704;
  using Size = std::array<int64_t, 2>;
  EXPECT_EQ(wan_speech_size(64, 64, kArea, 64), (Size{64, 64}));
  EXPECT_EQ(wan_speech_size(65, 64, kArea, 64), (Size{128, 64}));
  EXPECT_EQ(wan_speech_size(1024, 704, kArea, 64), (Size{1024, 704}));
  for (const auto& [width, height] :
       {std::pair{1920, 1080}, {1080, 1920}, {4000, 3000}, {513, 9000}, {832, 480}, {1025, 704}}) {
    Size best{};
    for (int step = 1000000; step > 0 && best[0] == 0; --step) {
      const double scale = step * 1e-6;
      const auto padded = [&](int side) {
        return std::max<int64_t>((static_cast<int64_t>(side * scale) + 63) / 64, 1) * 64;
      };
      if (padded(width) * padded(height) <= kArea) best = {padded(width), padded(height)};
    }
    EXPECT_EQ(wan_speech_size(width, height, kArea, 64), best) << width << "x" << height;
  }
}

// The loop as it is described, on one rank with whole tensors: no plan, no bands, no queues.
class Reference {
 public:
  Reference(const std::string& folder, const Request& request)
      : request_(request),
        model_(std::make_shared<const OpenModel>(folder)),
        parts_(model_, {.dtype = DType::kF32}, DType::kF32, one_),
        chunks_(model_->directory.chunks) {}

  ClipTap run(const Sampler& sampler) {
    const auto vae =
        parts_.vae_model().load(stream_, *model_->vae_file, DType::kF32, VaeParts::kBoth);
    const VaeTraits& traits = vae->traits();
    const int64_t h = request_.height / 8, w = request_.width / 8, planes = traits.channels;
    const Tensor sound = read_sound(request_.audio.path, 16000);
    const Tensor features = encode_audio({stream_, arena_, parts_}, {sound, 16, 80});
    const Tensor texts[2] = {encoded(request_.prompt), encoded(*request_.negative_prompt)};
    Tensor shown(DType::kF32, {3, 1, request_.height, request_.width});
    for (int64_t i = 0; i < shown.view().count(); ++i)
      shown.as<float>()[i] = 2 * request_.image.pixels->as<float>()[i] - 1;
    const Tensor reference = latent_of(*vae, shown);
    Tensor motion, all;
    std::vector<Tensor> videos;
    for (int chunk = 0; chunk * 80 - 3 < request_.frames; ++chunk) {
      Tensor latent(DType::kF32, {planes, 20, h, w});
      NoiseField(request_.rng, request_.seed + chunk, {planes, 20, h, w}).fill(latent);
      tap_.tap("latents_initial", latent);
      denoise(sampler, texts, reference, motion, features.view().slice(2, 80 * chunk, 80), latent);
      tap_.tap("latents_final", latent);
      const TensorView before = motion ? motion.view() : reference.view();
      const int64_t frames = traits.frames(before[1] + 20);
      Tensor whole(DType::kF32, {planes, before[1] + 20, h, w});
      copy(stream_, before, whole.view().slice(1, 0, before[1]));
      copy(stream_, latent, whole.view().slice(1, before[1], 20));
      vae->denormalize(whole, whole);
      Tensor video(DType::kF32, {3, frames, request_.height, request_.width});
      Context context = bands_.context(stream_, arena_, Pass{});
      vae_decode(context, *vae, whole, video);
      for (int64_t i = 0; i < video.view().count(); ++i)
        video.as<float>()[i] = std::clamp(video.as<float>()[i], -1.0f, 1.0f);
      Tensor last(DType::kF32, {3, 73, request_.height, request_.width});
      copy(stream_, video.view().slice(1, frames - 73, 73), last);
      motion = latent_of(*vae, last);
      const int64_t fresh = chunk == 0 ? 77 : 80;
      Tensor kept(DType::kF32, {3, fresh, request_.height, request_.width});
      copy(stream_, video.view().slice(1, frames - fresh, fresh), kept);
      videos.push_back(std::move(kept));
    }
    tap_video(videos);
    return tap_;
  }

 private:
  Tensor encoded(const std::string& prompt) {
    const std::vector<int32_t>& ids = model_->tokens(prompt)->ids;
    Tensor rows(DType::kF32, {std::ssize(ids), parts_.text_model().traits().columns});
    Context context =
        text_.context(stream_, arena_, Pass{}, parts_.text_model().traits(), std::ssize(ids));
    parts_.text_encoder(stream_).encode(context, ids, rows);
    return rows;
  }
  Tensor latent_of(const Vae& vae, const TensorView& video) {
    Tensor mean(DType::kF32, {vae.traits().channels, vae.traits().latent_frames(video[1]),
                              video[2] / 8, video[3] / 8});
    Context context = bands_.context(stream_, arena_, Pass{});
    vae_encode(context, vae, video, mean);
    vae.normalize(mean, mean);
    return mean;
  }
  void denoise(const Sampler& sampler, const Tensor (&texts)[2], const TensorView& reference,
               const TensorView& motion, const TensorView& features, const TensorView& latent) {
    const TransformerModel& model = parts_.expert_model(0);
    const TransformerTraits& traits = model.traits();
    const auto grid = traits.grid(latent[1], latent[2], latent[3]);
    const int64_t tokens = grid[0] * grid[1] * grid[2], columns = traits.signal_columns;
    const Transformer& transformer = parts_.expert(stream_, 0);
    const TokenRanges all = TokenRanges::all(tokens);
    Tensor rows(DType::kF32, {tokens, traits.row()}), velocity(DType::kF32, rows.view().shape());
    patchify(stream_, latent, traits.patch, all, rows);
    std::unique_ptr<Conditioning> prepared[2];
    Tensor signal[2];
    for (int branch = 0; branch < 2; ++branch) {
      Context context = forward_.context(stream_, arena_, {.branch = branch}, {tokens, grid[0]});
      const Conditions given{.text = texts[branch],
                             .text_length = parts_.text_length(texts[branch].view()[0]),
                             .reference = reference,
                             .motion = motion};
      prepared[branch] = transformer.prepare(context, given, grid);
      signal[branch] = Tensor(DType::kF32, {grid[0], columns});
      std::fill_n(signal[branch].as<float>(), grid[0] * columns, 0.0f);
    }
    model.signal_rows(features, signal[0]);
    SamplerState state(rows.view().count(), stream_.device());
    for (int step = 0; step < sampler.steps(); ++step) {
      Tensor of[2];
      for (int branch = 0; branch < 2; ++branch) {
        of[branch] = Tensor(DType::kF32, rows.view().shape());
        Context context =
            forward_.context(stream_, arena_, {.branch = branch, .step = step}, {tokens, grid[0]});
        std::vector<TimeSegment> times;
        for (int64_t frame = 0; frame < grid[0]; ++frame)
          times.push_back({{frame * tokens / grid[0], (frame + 1) * tokens / grid[0]},
                           sampler.timesteps()[step]});
        Tensor embedding(DType::kF32, {std::ssize(times), traits.time_columns});
        transformer.timestep_embedding(stream_, times, embedding);
        transformer.forward(context, {.blocks = {0, traits.blocks, traits.blocks},
                                      .in = rows,
                                      .times = times,
                                      .embedding = embedding,
                                      .conditioning = *prepared[branch],
                                      .rope = transformer.rope(grid, {}, *prepared[branch]),
                                      .out = of[branch],
                                      .signal = signal[branch]});
      }
      for (int64_t i = 0; i < velocity.view().count(); ++i) {
        const float negative = of[1].as<float>()[i], positive = of[0].as<float>()[i];
        velocity.as<float>()[i] =
            negative + static_cast<float>(*request_.guidance_scale) * (positive - negative);
      }
      sampler.step(stream_, arena_, step, velocity, rows, state);
    }
    unpatchify(stream_, rows, traits.patch, all, latent);
  }
  // The first frames of the request, in [0, 1].
  void tap_video(const std::vector<Tensor>& videos) {
    Tensor video(DType::kF32, {3, request_.frames, request_.height, request_.width});
    int64_t at = 0;
    for (const Tensor& part : videos) {
      const int64_t count = std::min(part.view()[1], request_.frames - at);
      copy(stream_, part.view().slice(1, 0, count), video.view().slice(1, at, count));
      at += count;
    }
    for (int64_t i = 0; i < video.view().count(); ++i)
      video.as<float>()[i] = video.as<float>()[i] * 0.5f + 0.5f;
    tap_.tap("video", video);
  }

  const Request request_;
  Stream stream_ = Stream::cpu(1);
  Arena arena_{size_t{1} << 34};
  RankPlacement one_;
  BandSeams bands_{one_, 1};
  EncoderSeams text_{one_};
  ForwardSeams forward_{one_, {}};
  std::shared_ptr<const OpenModel> model_;
  Components parts_;
  const SpeechChunks chunks_;
  ClipTap tap_;
};

TEST_F(SpeechClips, TheLoopIsThatOfTheReference) {
  Generator generator(folder_, options_of(DType::kF32));
  const Request request = generator.resolve(job());
  ClipTap got;
  const RunResult result = generator.run(request, nullptr, tapped(got));
  EXPECT_EQ(result.frames, request.frames);
  ClipTap wanted = Reference(folder_, request).run(generator.facts(request).sampler);
  for (const char* name : {"latents_initial", "latents_final", "video"}) {
    ASSERT_EQ(got.tensors[name].size(), wanted.tensors[name].size()) << name;
    for (size_t i = 0; i < wanted.tensors[name].size(); ++i) {
      const double error = rel_l2(got.tensors[name][i], wanted.tensors[name][i]);
      EXPECT_LE(error, 1e-5) << name << " " << i;
      std::printf("%s %zu: %.2e\n", name, i, error);
    }
  }
  // A sound changes the chunk, and every chunk has noise of its own.
  EXPECT_GT(rel_l2(got.tensors["latents_initial"][0], got.tensors["latents_initial"][1]), 0.5);
}

struct DrawnClips {
  std::vector<float> video;
  std::string framehash;
};
// Ranks but the root have no file of the sound.
DrawnClips drawn_clips(const std::string& folder, const Request& request, const Layout& layout) {
  DrawnClips out;
  run_ranks(static_cast<int>(layout.ranks()), [&](Communicator& world) {
    Generator generator(folder, options_of(DType::kF32), RankPlacement::of(world, layout));
    ClipTap tap;
    Request own = request;
    if (world.rank() > 0) own.audio.path = "/not/there.wav";
    const RunResult result = generator.run(own, nullptr, tapped(tap));
    if (world.rank() != 0) return;
    out = {tap.tensors["video"].front(), result.framehash};
  });
  return out;
}

TEST_F(SpeechClips, EveryLayoutDrawsTheSameVideo) {
  const Request request = job();
  const DrawnClips one = drawn_clips(folder_, request, {});
  const Generator generator(folder_, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  int count = 0;
  for (const int ranks : {2, 3})
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;
      EXPECT_LE(rel_l2(drawn_clips(folder_, request, layout).video, one.video), 1e-5)
          << to_string(layout);
      ++count;
    }
  EXPECT_GE(count, 5);
}

// Without a tap every rank sends 8-bit pictures; the frames are those of the tap.
TEST_F(SpeechClips, ASinkHasTheFramesOfTheVideo) {
  struct Sink final : FrameSink {
    std::vector<Frame> frames;
    void push(const Frame& frame) override { frames.push_back(frame); }
    std::string finish() override { return ""; }
  };
  Request request = job();
  request.steps = 1;
  for (const int64_t frames : {1, 78}) {
    request.frames = frames;
    ClipTap tap;
    const RunResult whole =
        Generator(folder_, options_of(DType::kF32)).run(request, nullptr, tapped(tap));
    const std::vector<float>& video = tap.tensors["video"].front();
    for (const int ranks : {1, 2}) {
      Sink sink;
      run_ranks(ranks, [&](Communicator& world) {
        Layout layout;
        layout[Axis::kCfg] = ranks;
        Generator generator(folder_, options_of(DType::kF32), RankPlacement::of(world, layout));
        const bool root = world.rank() == 0;
        const RunResult result = generator.run(request, root ? &sink : nullptr, {});
        EXPECT_TRUE(ranks > 1 || result.framehash == whole.framehash) << frames;
      });
      ASSERT_EQ(std::ssize(sink.frames), frames);
      int64_t at = 0;
      for (const Frame& frame : sink.frames) {
        const auto plane = static_cast<int64_t>(frame.width) * frame.height;
        for (int64_t i = 0; i < plane * 3; ++i)
          ASSERT_NEAR(frame.rgb[i], 255 * video[(i % 3 * frames + at) * plane + i / 3],
                      ranks == 1 ? 0.51 : 1.01);
        ++at;
      }
    }
  }
}

// The plan and the measured memory agree within 5 %, under every residency.
TEST_F(SpeechClips, MemoryIsAsPlanned) {
  const std::string path = folder_ + ".checkpoint.safetensors";
  for (const auto& [frames, keeping, residency] :
       {std::tuple{40, Keeping::kNothing, Residency::kStaged},
        {40, Keeping::kCheckpoints, Residency::kSequential},
        {93, Keeping::kNothing, Residency::kSequential},
        {93, Keeping::kCheckpoints, Residency::kStaged},
        {93, Keeping::kCheckpoints, Residency::kSequential}}) {
    Request request = job();
    request.steps = 3;  // checkpoints lie between them
    request.width = 128;
    request.image = picture(128, 64);
    request.frames = frames;
    GeneratorOptions options = options_of(DType::kF32);
    Generator planner(folder_, options);
    request = planner.resolve(request);
    options.keeping = keeping;
    options.memory_limit =
        memory_under(residency, Generator(folder_, options).plan(request).parts, 0).high_water;
    const size_t live = tensor_bytes_live();
    Generator generator(folder_, options);
    const MemoryPlan plan = generator.plan(request);
    const std::atomic<bool> never = false;
    RunOptions kept;
    kept.stop = &never;
    if (keeping == Keeping::kCheckpoints) kept.checkpoint_path = path;
    kept.checkpoint_seconds = 0;
    const RunResult result = generator.run(request, nullptr, kept);
    remove_checkpoints(path);
    const auto near = [&](uint64_t planned, uint64_t taken, const char* stage) {
      EXPECT_NEAR(static_cast<double>(planned) / static_cast<double>(taken - live), 1, 0.05)
          << frames << " frames, " << to_string(residency) << " " << stage << " "
          << plan.to_string();
    };
    // Frames that wait for the writer are no tensors.
    const auto waiting = static_cast<uint64_t>(10 * 3 * request.width * request.height);
    near(plan.decode - waiting, result.stage_high_water[MemoryMeter::kDecode], "decode");
    near(plan.denoise, result.stage_high_water[MemoryMeter::kDenoise], "denoise");
    near(plan.encode_audio, result.stage_high_water[MemoryMeter::kEncodeAudio], "encode_audio");
    near(plan.encode_image, result.stage_high_water[MemoryMeter::kEncodeImage], "encode_image");
  }
}

// The forecast of a layout simulates every chunk, or two of them where it is quick.
TEST_F(SpeechClips, TheQuickForecastIsThatOfTheWholeRun) {
  GeneratorOptions options = options_of(DType::kF32);
  options.ops = &metered_ops();
  const auto model = std::make_shared<const OpenModel>(folder_);
  const Generator generator(model, options);
  Request request = job();
  request.steps = 6;
  const PlannedJob planned{
      .model = model,
      .options = options,
      .request = generator.resolve(request),
      .machine = {.device = {.flop_per_s = {}, .bytes_per_s = {}}, .link = {}}};
  for (const char* text : {"one rank", "cfg=2", "ring=2"}) {
    Layout layout;
    if (std::string(text) == "cfg=2") layout[Axis::kCfg] = 2;
    if (std::string(text) == "ring=2") layout[Axis::kRing] = 2;
    PlannedJob job = planned;
    job.machine.device.flop_per_s.fill(1e9);
    job.machine.device.bytes_per_s.fill(1e9);
    const Forecast whole = forecast_whole(job, layout), quick = QuickForecast(job)(layout);
    for (const char* stage : {"encode_image", "denoise", "decode"}) {
      EXPECT_GT(whole.stage(stage), 0) << text << " " << stage;
      EXPECT_NEAR(quick.stage(stage) / whole.stage(stage), 1, 0.1) << text << " " << stage;
    }
  }
}

TEST_F(SpeechClips, RefusesWhatDoesNotGoTogether) {
  const auto says = [&](const Request& request, const std::string& part) {
    const std::string message = refused(request);
    EXPECT_TRUE(contains(message, part)) << message << " lacks " << part;
  };
  Request request = job();
  request.audio = {};
  says(request, "legal: audio");
  request = job();
  request.image = {};
  says(request, "legal: image");
  request = job();
  request.last_image = picture(64, 64);
  says(request, "last_image");
  request = job();
  request.frames = 6 * 16 - 2;
  says(request, "legal: 1 ... 93");
  request = job();
  request.width = 80;
  says(request, "width is 80");
  request = job();
  request.method = parse_method("clips:global=3", "method");
  says(request, "legal with pictures: full");
  request = job();
  request.cache = parse_step_cache("first-block:0.1", "cache");
  says(request, "legal: none");
  // A model that follows no sound.
  request = test::job();
  request.audio = job().audio;
  expect_error(ErrorKind::kUsage, "legal: no sound",
               [&] { Generator(kModel, options_of(DType::kF32)).resolve(request); });
}

// Stops a job when so many steps of all chunks are done. Where the root is the first of several
// stages it does not report the last step of a chunk, but it decodes after it.
struct ClipStopper final : ProgressListener {
  ClipStopper(int steps, int after) : steps(steps), after(after) {}
  void progress(const Progress& progress) override {
    const bool decodes = progress.stage == "decode";
    if (!decodes && (progress.stage != "denoise" || progress.step == 0)) return;
    if (progress.chunk * steps + (decodes ? steps : progress.step) == after) stop = true;
  }
  void warning(const std::string& line) override { said += line; }
  const int steps, after;
  std::atomic<bool> stop = false;
  std::string said;
};

// Runs on the ranks of a layout until the root's ClipStopper ends it, or to the end. `from` is the
// checkpoint that the root goes on from.
std::optional<RunResult> run_clips_until(const std::string& folder, const Request& request,
                                         const Layout& layout, ClipStopper& stopper,
                                         const std::string& path, const Checkpoint* from) {
  std::optional<RunResult> out;
  run_ranks(static_cast<int>(layout.ranks()), [&](Communicator& world) {
    const bool root = world.rank() == 0;
    Generator generator(folder, options_of(DType::kF32), RankPlacement::of(world, layout));
    const std::atomic<bool> never = false;
    RunOptions options;
    options.stop = root ? &stopper.stop : &never;
    if (root) options.listener = &stopper;
    if (root) options.checkpoint_path = path;
    options.checkpoint_seconds = 1e9;
    if (root && from) options.resume = std::make_shared<Checkpoint>(read_checkpoint(from->path));
    try {
      RunResult result = generator.run(request, nullptr, options);
      if (root) out = std::move(result);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kStopped) << error.what();
    }
  });
  EXPECT_EQ(stopper.said, "");
  return out;
}

// The checkpoint holds the latents of the chunks so far; a chunk of which there are no steps is
// none.
TEST_F(SpeechClips, AStoppedJobGoesOnToTheSameFrames) {
  const std::string path = folder_ + ".checkpoint.safetensors";
  Request request = job();
  request.steps = 3;
  Layout ring, layers;
  ring[Axis::kRing] = 2;
  layers[Axis::kLayers] = 2;
  for (const Layout& layout : {Layout(), ring, layers}) {
    ClipStopper never(3, -1);
    const auto whole = run_clips_until(folder_, request, layout, never, path, nullptr);
    ASSERT_TRUE(whole);
    for (int after = 1; after <= 6; ++after) {
      const std::string about = to_string(layout) + ", after " + std::to_string(after);
      ClipStopper stopper(3, after), goes_on(3, -1);
      EXPECT_FALSE(run_clips_until(folder_, request, layout, stopper, path, nullptr)) << about;
      const Checkpoint kept = read_checkpoint(path);
      EXPECT_EQ(kept.step, after) << about;
      EXPECT_EQ(kept.total, 6) << about;
      EXPECT_EQ(kept.latent.view()[1], after > 3 ? 40 : 20) << about;
      const auto result = run_clips_until(folder_, request, layout, goes_on, path, &kept);
      ASSERT_TRUE(result) << about;
      EXPECT_EQ(result->resumed_at, after) << about;
      EXPECT_EQ(result->framehash, whole->framehash) << about;
      EXPECT_EQ(result->signature, whole->signature) << about;
      remove_checkpoints(path);
    }
  }
}

// A job that goes on may be stopped again, and its checkpoint has the chunks of both runs.
TEST_F(SpeechClips, AJobMayBeStoppedTwice) {
  const std::string path = folder_ + ".checkpoint.safetensors";
  Request request = job();
  request.steps = 2;
  ClipStopper never(2, -1), first(2, 2), second(2, 3), last(2, -1);
  const auto whole = run_clips_until(folder_, request, {}, never, path, nullptr);
  EXPECT_FALSE(run_clips_until(folder_, request, {}, first, path, nullptr));
  const Checkpoint one = read_checkpoint(path);
  EXPECT_FALSE(run_clips_until(folder_, request, {}, second, path, &one));
  const Checkpoint two = read_checkpoint(path);
  EXPECT_EQ(two.step, 3);
  const auto result = run_clips_until(folder_, request, {}, last, path, &two);
  ASSERT_TRUE(whole && result);
  EXPECT_EQ(result->framehash, whole->framehash);
  // Other settings are another job.
  request.steps = 4;
  Generator generator(folder_, options_of(DType::kF32));
  RunOptions options;
  options.resume = std::make_shared<Checkpoint>(read_checkpoint(path));
  expect_error(ErrorKind::kUsage, "cannot be resumed",
               [&] { generator.run(request, nullptr, options); });
  remove_checkpoints(path);
}

}  // namespace
}  // namespace weft::test
