// Streams of a model of speech to video: what a segment hears, and the picture that a stream shows,
// against slow references; every split; and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "apps/live/face/session_run.h"
#include "engine/conditions/stream_hearing.h"
#include "engine/parts/audio_features.h"
#include "io/media/image.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "tests/engine/small_job.h"
#include "tests/engine/stream_job.h"
#include "tests/engine/stream_pictures.h"
#include "tests/support/error_of.h"
#include "tests/support/speech_model.h"

namespace weft::test {
namespace {

constexpr int kFps = 25, kSoundRate = 16000, kOfPicture = kSoundRate / kFps,
              kOfBlock = 12 * kOfPicture;

// The tests share the model's folder.
class SpeechStream : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new SpeechModel(testing::TempDir() + "weft_speech_stream");
    model_ = std::make_shared<const OpenModel>(folder_->path);
  }
  static void TearDownTestSuite() {
    model_.reset();
    delete folder_;
  }

  static GivenPicture picture(float phase) {
    Tensor out(DType::kF32, {3, 64, 64});
    for (int64_t i = 0; i < out.view().count(); ++i)
      out.as<float>()[i] = 0.5f + 0.5f * std::sin(phase + 0.37f * static_cast<float>(i));
    return {.path = "a.png", .pixels = std::make_shared<const Tensor>(std::move(out))};
  }
  static StreamSettings settings() {
    const StreamDefaults& stream = *model_->directory.defaults.stream;
    return {.width = 64,
            .height = 64,
            .steps = 2,
            .solver = stream.solver,
            .segment_frames = stream.segment_frames,
            .window_frames = stream.window_frames,
            .seed = 5,
            .picture = picture(0),
            .threads = 1};
  }
  static std::vector<float> sound_of(int64_t segment) {
    static const std::vector<float> whole = tone(20, kSoundRate);
    return {whole.begin() + segment * kOfBlock, whole.begin() + (segment + 1) * kOfBlock};
  }
  static std::vector<StreamPictures> run(const StreamSettings& settings, int64_t segments,
                                         int64_t first_sound = 0) {
    std::vector<StreamPictures> out;
    StreamEngine(model_, settings)
        .run(
            "a face",
            [&](int64_t number) {
              return StreamSignal{.frames = 3,
                                  .sound = sound_of(first_sound + number),
                                  .last = number + 1 == segments};
            },
            [&](StreamPictures&& pictures) { out.push_back(std::move(pictures)); });
    return out;
  }
  static StreamHearing hearing() { return {model_, Device(), DType::kF32, 1, kFps}; }

  // Returns what the latent frames of a whole sound follow [frames, columns], by the encoder
  // itself.
  static Tensor heard(const std::vector<float>& samples) {
    Stream stream = Stream::cpu(1);
    Arena arena(size_t{1} << 30);
    RankPlacement one;
    Components parts(model_, {.dtype = DType::kF32}, DType::kF32, one);
    const AudioEncoderTraits& traits = parts.audio_model().traits();
    const int64_t count = std::ssize(samples), pictures = count / kOfPicture;
    const int64_t rows = feature_rows(traits, count);
    Tensor features(DType::kF32, {traits.states, traits.columns, pictures});
    EncoderSeams seams(one);
    Context context = seams.context(stream, arena, Pass{}, traits, traits.rows(count));
    parts.audio_encoder(stream)->encode(
        context, TensorView(const_cast<float*>(samples.data()), DType::kF32, {count}),
        [&](int64_t k, const TensorView& state) {
          Tensor resampled(DType::kF32, {rows, traits.columns});
          resample_rows(state, resampled);
          for (int64_t p = 0; p < pictures; ++p)
            for (int64_t c = 0; c < traits.columns; ++c) {
              const int64_t row = std::min<int64_t>(std::lround(p * 30.0 / kFps), rows - 1);
              features.as<float>()[(k * traits.columns + c) * pictures + p] =
                  resampled.as<float>()[row * traits.columns + c];
            }
        });
    const TransformerModel& transformer = parts.expert_model(0);
    Tensor signal(DType::kF32, {pictures / 4, transformer.traits().signal_columns});
    transformer.signal_rows(features, signal);
    return signal;
  }

  static inline SpeechModel* folder_ = nullptr;
  static inline std::shared_ptr<const OpenModel> model_;
};

// Every segment hears itself after all that came before, as long as that is not too long ago.
TEST_F(SpeechStream, ABlockHearsWhatCameBeforeIt) {
  StreamHearing hearing = this->hearing();
  std::vector<float> before;
  for (int64_t segment = 0; std::ssize(before) <= StreamHearing::kPastSeconds * kSoundRate;
       ++segment) {
    const std::vector<float> samples = sound_of(segment);
    before.insert(before.end(), samples.begin(), samples.end());
    const std::vector<float> got = hearing.rows(samples);
    const Tensor wanted = heard(before);
    const int64_t columns = wanted.view()[1];
    ASSERT_EQ(std::ssize(got), 3 * columns);
    const float* from = wanted.as<float>() + (wanted.view()[0] - 3) * columns;
    for (int64_t i = 0; i < 3 * columns; ++i) ASSERT_EQ(got[i], from[i]) << segment << " " << i;
    if (segment > 0) {
      EXPECT_NE(got, this->hearing().rows(samples)) << "of block " << segment << " alone";
    }
  }
}

TEST_F(SpeechStream, WhatIsLongAgoIsForgotten) {
  StreamHearing longer = hearing(), shorter = hearing();
  constexpr int64_t kPast =
      StreamHearing::kPastSeconds * kSoundRate / (4 * kOfPicture) * 4 * kOfPicture;
  std::vector<float> all;
  for (int64_t segment = 0; segment < 14; ++segment) {
    longer.rows(sound_of(segment));
    const std::vector<float> samples = sound_of(segment);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  shorter.rows(std::span(all).last(kPast));
  const std::vector<float> next = sound_of(14);
  const std::vector<float> wanted = shorter.rows(next);
  EXPECT_EQ(longer.rows(next), wanted);
  const std::vector<float> silent = longer.rows(std::vector<float>(kOfBlock));
  EXPECT_TRUE(std::ranges::all_of(silent, [](float value) { return std::isfinite(value); }));
  longer.begin_stream();
  EXPECT_EQ(longer.rows(next), hearing().rows(next));
}

// The steps of Live Avatar (causal_s2v_pipeline_tpp.py): a shift of 3 that is applied twice to the
// last one.
TEST_F(SpeechStream, HasThePublishedSteps) {
  SamplerConfig config = model_->sampler();
  const StreamDefaults& stream = *model_->directory.defaults.stream;
  config.kind = solver_from_name(stream.solver);
  const Sampler sampler(config, stream.steps);
  const double wanted[] = {1000, 857.692, 602.151, 8.929};
  ASSERT_EQ(sampler.steps(), 4);
  for (int step = 0; step < 4; ++step)
    EXPECT_NEAR(sampler.timesteps()[step], wanted[step], 1e-2) << step;
}

// The stream with its wires laid by hand: the whole latent is decoded at once after the first
// latents of the standing picture.
TEST_F(SpeechStream, ShowsThePictureAsTheReferenceDoes) {
  constexpr int64_t kBlocks = 6;  // the sink is swapped before segment 4
  const StreamSettings how = settings();
  const std::vector<StreamPictures> got = run(how, kBlocks);

  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 30);
  RankPlacement one;
  Components parts(model_, {.dtype = DType::kF32}, DType::kF32, one);
  const auto vae = parts.vae_model().load(stream, *model_->vae_file, DType::kF32, VaeParts::kBoth);
  BandSeams bands(one, 8);
  const auto vae_context = [&] { return bands.context(stream, arena, Pass{}); };
  const auto encoded = [&](int64_t frames) {
    Tensor video(DType::kF32, {3, frames, 64, 64});
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t f = 0; f < frames; ++f)
        for (int64_t i = 0; i < 64 * 64; ++i)
          video.as<float>()[(c * frames + f) * 64 * 64 + i] =
              2 * how.picture.pixels->as<float>()[c * 64 * 64 + i] - 1;
    Tensor latent(DType::kF32, {16, vae->traits().latent_frames(frames), 8, 8});
    Context context = vae_context();
    vae_encode(context, *vae, video, latent);
    vae->normalize(latent, latent);
    return latent;
  };
  const Tensor reference = encoded(1), motion = encoded(73);
  ASSERT_EQ(motion.view()[1], 19);

  const std::vector<int32_t>& ids = model_->tokens("a face")->ids;
  Tensor prompt(DType::kF32, {std::ssize(ids), parts.text_model().traits().columns});
  EncoderSeams seams(one);
  Context text = seams.context(stream, arena, Pass{}, parts.text_model().traits(), std::ssize(ids));
  parts.text_encoder(stream).encode(text, ids, prompt);

  SamplerConfig solver = model_->sampler();
  solver.kind = SolverKind::kEuler;
  const JobFacts facts{.request = {}, .sampler = {solver, 2}, .window = {16, 3, 8, 8}};
  const NoiseField noise(Rng::kPortable, how.seed, {16, int64_t{1} << 32, 8, 8});
  StreamHearing hearing = this->hearing();
  Tensor all(DType::kF32, {16, 7 + 3 * kBlocks, 8, 8});
  copy(stream, motion.view().slice(1, 0, 7), all.view().slice(1, 0, 7));
  StreamSource source{.window_frames = 12,
                      .sink = reference,
                      .motion_rows = parts.expert_model(0).motion_rows({1, 4, 4}),
                      .sink_position = {.start = 30, .distance = {4, 31}, .seed = how.seed}};
  LambdaHost host;
  host.on_signal = [&](const Segment& segment, const TensorView& to) {
    std::ranges::copy(hearing.rows(sound_of(segment.number)), to.as<float>());
  };
  host.on_noise = [&](const Segment& segment, const TensorView& to) {
    noise.fill(to, segment.frames.begin);
  };
  host.on_take = [&](const Segment& segment, const TensorView& latent) {
    copy(stream, latent, all.view().slice(1, 7 + segment.frames.begin, 3));
  };
  Job job{
      .facts = facts, .host = host, .prompts = {prompt.view()}, .conditions = {.motion = motion}};
  StreamPlanConfig plan = stream_config(one, parts.traits(), DType::kF32, facts, source);
  plan.segments = kBlocks;
  plan.swap_segment = 4;
  StreamDenoiser({stream, arena, parts}, DType::kF32).run(plan, job, source);

  vae->denormalize(all, all);
  const int64_t frames = vae->traits().frames(7 + 3 * kBlocks);
  Tensor video(DType::kF32, {3, frames, 64, 64});
  Context context = vae_context();
  vae_decode(context, *vae, all, video);
  int64_t at = 25 + 3;  // 7 latents of the standing picture, and what shows it begin to move
  for (const StreamPictures& segment : got) {
    EXPECT_EQ(segment.first, at - 28);
    EXPECT_EQ(std::ssize(segment.pictures), segment.segment.number == 0 ? 9 : 12);
    for (const Frame& frame : segment.pictures) {
      ASSERT_LT(at, frames);
      for (int64_t i = 0; i < 64 * 64; ++i)
        for (int64_t c = 0; c < 3; ++c) {
          const float value = video.as<float>()[(c * frames + at) * 64 * 64 + i];
          const double wanted = std::clamp(value * 0.5 + 0.5, 0.0, 1.0) * 255;
          ASSERT_NEAR(frame.rgb[3 * i + c], wanted, 0.51) << at << " " << i << " " << c;
        }
      ++at;
    }
  }
  EXPECT_EQ(at, frames);
}

// A rank has the tokens of a part of a latent frame, and the product of few rows with a matrix
// adds up in another order.
void expect_near_pictures(const std::vector<StreamPictures>& got,
                          const std::vector<StreamPictures>& wanted, const std::string& split) {
  ASSERT_EQ(got.size(), wanted.size()) << split;
  for (size_t segment = 0; segment < got.size(); ++segment) {
    ASSERT_EQ(got[segment].pictures.size(), wanted[segment].pictures.size()) << split;
    for (size_t i = 0; i < got[segment].pictures.size(); ++i)
      for (size_t k = 0; k < got[segment].pictures[i].rgb.size(); ++k)
        ASSERT_NEAR(got[segment].pictures[i].rgb[k], wanted[segment].pictures[i].rgb[k], 1)
            << split << ", block " << segment << ", picture " << i;
  }
}

TEST_F(SpeechStream, PicturesAreTheSameUnderEverySplit) {
  const std::vector<StreamPictures> wanted = run(settings(), 6);
  for (const auto& [steps, layers, ulysses, apart] : {std::tuple{1, 1, 1, true},
                                                      {2, 1, 1, true},
                                                      {1, 2, 1, false},
                                                      {1, 2, 1, true},
                                                      {1, 1, 2, false},
                                                      {2, 1, 2, true}}) {
    StreamSettings split = settings();
    split.layout = StreamRun::split(steps, layers, ulysses);
    split.decodes_apart = apart;
    const std::string name = to_string(split.layout) + (apart ? " and a decoder" : "");
    if (ulysses == 1)
      expect_same_pictures(run(split, 6), wanted, name);
    else
      expect_near_pictures(run(split, 6), wanted, name);
  }
  StreamSettings other = settings();
  other.picture = picture(1);
  EXPECT_NE(run(other, 1)[0].pictures[8].rgb, wanted[0].pictures[8].rgb);
  EXPECT_NE(run(settings(), 1, 7)[0].pictures[8].rgb, wanted[0].pictures[8].rgb);
}

// The sound and the pictures stay together: the pictures that the first segment lacks are silent.
TEST_F(SpeechStream, ASessionSpeaksASound) {
  StreamEngine engine(model_, settings());
  ASSERT_TRUE(engine.takes_sound());
  SessionConfig config;
  config.first_pictures = 1;
  config.in_engine = engine.plan().under_way();
  Session session(config);
  const std::vector<float> whole = tone(2, kSoundRate);
  const auto sound = sound_in_memory({kSoundRate, whole});
  std::vector<float> spoken;
  int64_t pictures = 0;
  play_sound(engine, "a face", session, *sound, [&](SessionSlot&& slot) {
    EXPECT_EQ(slot.index, pictures++);
    spoken.insert(spoken.end(), slot.sound.begin(), slot.sound.end());
  });
  EXPECT_EQ(pictures, 9 + 4 * 12);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), spoken.begin()));
  EXPECT_EQ(session.counts().segments, 5);
}

// The prediction and the measured memory of a stream agree within 5 %.
TEST_F(SpeechStream, MemoryIsAsPlanned) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const KeptRows kept : {KeptRows::kCompute, KeptRows::kInt8}) {
      StreamSettings how = settings();
      how.width = 128;
      how.picture = {.path = "a.png",
                     .pixels = std::make_shared<const Tensor>(Tensor(DType::kF32, {3, 64, 128}))};
      std::fill_n(how.picture.pixels->as<float>(), 3 * 64 * 128, 0.5f);
      how.dtype = dtype;
      how.kept = kept;
      const size_t before = tensor_bytes_live();
      StreamEngine engine(model_, how);
      const MemoryPlan planned = engine.memory("a face").front();
      EXPECT_EQ(tensor_bytes_live(), before);
      reset_tensor_bytes_peak();
      engine.run(
          "a face",
          [&](int64_t number) {
            StreamSignal next{.frames = 3, .sound = sound_of(number)};
            next.last = number == 10;
            return next;
          },
          [](StreamPictures&&) {});
      const uint64_t taken = tensor_bytes_peak() - before + engine.arena_high_water();
      EXPECT_NEAR(static_cast<double>(planned.high_water) / static_cast<double>(taken), 1, 0.05)
          << to_string(dtype) << " " << static_cast<int>(kept) << ": " << planned.to_string()
          << ", taken " << taken;
    }
}

// Ranks of layers have the weights of one, but for the parts that all have.
TEST_F(SpeechStream, MemoryIsSplitByLayers) {
  StreamSettings whole = settings(), halves = settings();
  halves.layout = StreamRun::split(1, 2);
  halves.decodes_apart = true;
  StreamEngine one(model_, whole), split(model_, halves);
  const std::vector<MemoryPlan> plans = split.memory("a face");
  ASSERT_EQ(plans.size(), 1u);  // they share the host
  const uint64_t weights = plans[0].parts.experts[0] + plans[0].parts.vae;
  const ComponentBytes alone = one.memory("a face").front().parts;
  EXPECT_GE(weights, alone.experts[0] + alone.vae);
  EXPECT_LT(static_cast<double>(weights), 1.3 * static_cast<double>(alone.experts[0] + alone.vae));
  EXPECT_EQ(plans[0].parts.text_encoder, alone.text_encoder);  // the first rank's alone
}

TEST_F(SpeechStream, WrongSettingsAreNamed) {
  const auto error_of = [](const std::function<void(StreamSettings&)>& change) -> std::string {
    StreamSettings changed = settings();
    change(changed);
    return test::error_of([&] { StreamEngine(model_, changed); });
  };
  EXPECT_EQ(error_of([](StreamSettings&) {}), "");
  EXPECT_NE(error_of([](StreamSettings& s) { s.picture = {}; }).find("--image FILE"),
            std::string::npos);
  EXPECT_NE(error_of([](StreamSettings& s) { s.height = 80; }).find("multiples of 64"),
            std::string::npos);
}

}  // namespace
}  // namespace weft::test
