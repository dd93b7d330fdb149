// A video that is decoded in pushes, on all ranks, some or one, has the frames of one decode.
#include "engine/decoding/video_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/job/stages.h"
#include "engine/memory/estimate.h"
#include "engine/parts/components.h"
#include "io/media/frame.h"
#include "kernels/copy.h"
#include "models/registry.h"
#include "models/wan/vae.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"

namespace weft::test {
namespace {

constexpr int64_t kRows = 4, kColumns = 6;  // of the latent

const VaeModel& vae_model() {
  static const std::shared_ptr<const VaeModel> model = open_vae(kModel + "/vae/config.json");
  return *model;
}

std::unique_ptr<Vae> load_vae(Stream& stream) {
  return vae_model().load(stream, TensorFile::open(kModel + "/vae"), DType::kF32,
                          VaeParts::kDecoder);
}

Tensor latents_of(int64_t frames) {
  Tensor latents(DType::kF32, {vae_model().traits.channels, frames, kRows, kColumns});
  NoiseField(Rng::kPortable, 5, {latents.view()[0], frames, kRows, kColumns}).fill(latents);
  return latents;
}

// One rank's decoder with all that it needs.
struct Decoding {
  explicit Decoding(RankPlacement& placement, bool floats = false, FrameSink* sink = nullptr,
                    std::array<int64_t, 2> size = {kRows, kColumns}, const FramesSoFar& before = {})
      : vae(placement.band(size[0]).size() > 0 ? load_vae(stream) : nullptr) {
    if (placement.root()) writer.emplace(sink, before);
    decoder.emplace(stream, arena, placement,
                    DecoderSettings{.traits = vae_model().traits,
                                    .vae = vae.get(),
                                    .latent = {vae_model().traits.channels, size[0], size[1]},
                                    .writer = writer ? &*writer : nullptr,
                                    .float_frames = floats});
  }
  // Pushes latents [C, F, h, w] in pieces of these sizes.
  void push(const TensorView& latents, const std::vector<int64_t>& cut) {
    int64_t at = 0;
    for (const int64_t frames : cut) {
      decoder->push(latents.slice(1, at, frames));
      at += frames;
    }
    EXPECT_EQ(at, latents[1]);
  }
  // The hash of all frames; "" on a rank that is not the root.
  std::string finish() {
    decoder->finish();
    if (!writer) return "";
    writer->finish();
    EXPECT_EQ(writer->frames(), decoder->pictures());
    return writer->hash();
  }

  Stream stream = Stream::cpu(1);
  Arena arena{size_t{1} << 30};
  std::unique_ptr<Vae> vae;
  std::optional<FrameWriter> writer;
  std::optional<VideoDecoder> decoder;
};

// The frames by vae_decode, which knows nothing of pushes, bands and writers.
std::string reference_hash(const TensorView& latents) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 30);
  const std::unique_ptr<Vae> vae = load_vae(stream);
  Tensor plain(DType::kF32, latents.shape());
  copy(stream, latents, plain);
  vae->denormalize(plain, plain);
  const int64_t scale = vae->traits().spatial_factor, frames = vae->traits().frames(latents[1]);
  const int64_t height = kRows * scale, width = kColumns * scale;
  Tensor video(DType::kF32, {3, frames, height, width});
  RankPlacement alone;
  BandSeams seams(alone, kRows);
  Context context = seams.context(stream, arena, {});
  vae_decode(context, *vae, plain, video);
  FrameHash hash;
  for (int64_t f = 0; f < frames; ++f) {
    Frame frame(static_cast<int>(width), static_cast<int>(height));
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        for (int64_t c = 0; c < 3; ++c) {
          const float value =
              video.as<float>()[((c * frames + f) * height + y) * width + x] * 0.5f + 0.5f;
          frame.at(static_cast<int>(x), static_cast<int>(y))[c] =
              static_cast<uint8_t>(std::nearbyint(std::clamp(value, 0.0f, 1.0f) * 255.0f));
        }
    hash.add(frame);
  }
  return hash.hex();
}

// Decodes `count` latent frames after those before `first`, of which it sees `seen`.
std::string hash_behind(const TensorView& latents, int64_t first, int64_t seen) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 30);
  const std::unique_ptr<Vae> vae = load_vae(stream);
  VaeDecoder decoder(*vae, kRows, kColumns);
  const RankPlacement alone;
  BandSeams seams(alone, kRows);
  Sha256 hash;
  for (int64_t f = first - seen; f < latents[1]; ++f) {
    const Arena::Scope scope(arena);
    Tensor latent(DType::kF32, {latents[0], kRows, kColumns});
    copy(stream, latents.select(1, f), latent);
    Context context = seams.context(stream, arena, {});
    const TensorView frames =
        arena.alloc(DType::kF32, {decoder.next_frames(), 3, decoder.height(), decoder.width()});
    decoder.decode_chunk(context, latent, frames);
    if (f >= first) hash.update(frames.data, frames.bytes());
  }
  return hash.hex();
}

// VaeTraits::history is as small as it can be.
TEST(VideoDecoder, NeedsSoManyLatentFramesToGoOn) {
  const int64_t history = vae_model().traits.history;
  EXPECT_EQ(history, 30);
  EXPECT_EQ(WanVaeConfig().history(), 38);  // the published one
  const Tensor latents = latents_of(history + 4);
  const std::string expected = hash_behind(latents, history + 2, history + 2);
  EXPECT_EQ(hash_behind(latents, history + 2, history), expected);
  EXPECT_NE(hash_behind(latents, history + 2, history - 1), expected);
}

struct CountingSink final : FrameSink {
  int frames = 0;
  void push(const Frame&) override { ++frames; }
  std::string finish() override { return ""; }
};

TEST(VideoDecoder, AnyCutOfAVideoGivesTheFramesOfOneDecode) {
  const Tensor latents = latents_of(6);
  const std::string expected = reference_hash(latents);
  RankPlacement alone;
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{
           {6}, {1, 5}, {3, 3}, {5, 1}, {2, 1, 3}, {1, 1, 1, 1, 1, 1}, {4, 0, 2}}) {
    CountingSink sink;
    Decoding decoding(alone, false, &sink);
    decoding.push(latents, cut);
    EXPECT_EQ(decoding.finish(), expected) << testing::PrintToString(cut);
    EXPECT_EQ(sink.frames, 4 * 6 - 3);
  }
}

// Law 21. Without the state that is kept between pushes every block after the first would lose 3
// frames.
TEST(VideoDecoder, AFreshDecoderForEveryBlockLosesFrames) {
  const Tensor latents = latents_of(6);
  RankPlacement alone;
  int64_t pictures = 0;
  for (int64_t block = 0; block < 3; ++block) {
    Decoding decoding(alone);
    decoding.push(latents.view().slice(1, 2 * block, 2), {2});
    decoding.finish();
    pictures += decoding.decoder->pictures();
  }
  EXPECT_EQ(pictures, 4 * 6 - 3 - 2 * 3);
}

struct HashingSink final : FrameSink {
  std::vector<std::string> frames;
  void push(const Frame& frame) override {
    FrameHash hash;
    hash.add(frame);
    frames.push_back(hash.hex());
  }
  std::string finish() override { return ""; }
};

// Bug 2 of Video-Infinity pads convolutions along time with zeros at the ends of the video, in
// front of a norm over time. This engine's transformers have neither such convolutions nor such
// norms; the decoder's convolutions are the ones that reach over a cut between clips. The bug is
// planted there: zeros take the place of the frames before a clip, and of nothing before the video.
TEST(VideoDecoder, ZerosBeforeAClipAreNotItsPast) {
  const Tensor latents = latents_of(6);
  RankPlacement alone;
  const auto decoded = [&](bool zeros, int64_t first) {
    HashingSink sink;
    Decoding decoding(alone, false, &sink);
    Tensor zero(DType::kF32, {latents.view()[0], 1, kRows, kColumns});
    std::fill_n(zero.as<float>(), zero.count(), 0.0f);
    if (zeros) decoding.push(zero, {1});
    decoding.push(latents.view().slice(1, first, 6 - first), {6 - first});
    decoding.finish();
    return std::move(sink.frames);
  };
  const std::vector<std::string> right = decoded(false, 0);
  ASSERT_EQ(right.size(), 21u);
  for (const int64_t first : {0, 3}) {
    const std::vector<std::string> padded =
        decoded(true, first);  // the first picture is the zeros'
    ASSERT_EQ(padded.size(), 1u + 4 * (6 - static_cast<size_t>(first)));
    for (size_t back = 1; back <= 4; ++back)
      EXPECT_NE(padded[5 + 4 - back], right[1 + 4 * static_cast<size_t>(first) + 4 - back])
          << "clip from " << first << ", " << back;
  }
}

TEST(VideoDecoder, MemoryDoesNotDependOnTheNumberOfFrames) {
  const Tensor latents = latents_of(2);
  RankPlacement alone;
  const auto peak = [&](int blocks) {
    Decoding decoding(alone);
    reset_tensor_bytes_peak();
    for (int block = 0; block < blocks; ++block) decoding.decoder->push(latents);
    const std::pair<size_t, size_t> most{tensor_bytes_peak(), decoding.arena.high_water()};
    decoding.finish();
    return most;
  };
  const auto few = peak(2);
  EXPECT_EQ(peak(40), few);
  EXPECT_GT(few.second, 0u);
}

// Runs `body` on the ranks of a layout; returns the root's hash and each rank's counters.
struct RanDecoder {
  std::string hash;
  std::vector<CommCounters> counters;
};
RanDecoder on_layout(const std::string& text, int ranks, const LocalOptions& options,
                     const std::function<std::string(Communicator&, RankPlacement&)>& body) {
  const Layout layout = parse_layout(text, ranks, {});
  RanDecoder ran;
  ran.counters.resize(static_cast<size_t>(ranks));
  run_ranks(
      ranks,
      [&](Communicator& world) {
        RankPlacement placement = RankPlacement::of(world, layout);
        const JobScope job(placement);
        std::string hash = body(world, placement);
        if (placement.root()) ran.hash = std::move(hash);
        ran.counters[static_cast<size_t>(world.rank())] = world.counters();
      },
      options);
  return ran;
}

// Bands and frames travel as bytes, or as f32 where a tap wants the video, and the frames are the
// same. A rank that decodes alone gives the bits of one rank.
TEST(VideoDecoder, RanksSendBytesAndTheFramesStayTheSame) {
  const Tensor latents = latents_of(4);
  const std::string expected = reference_hash(latents);
  const int64_t scale = vae_model().traits.spatial_factor, frames = 4 * 4 - 3;
  for (const auto& [ranks, text] :
       {std::pair{2, "ring=2"}, std::pair{3, "ring=3"}, std::pair{3, "ring=3,vae_ranks=2"},
        std::pair{2, "ring=2,vae_ranks=1"}, std::pair{2, "ring=2,decode_rank=0"},
        std::pair{2, "ring=2,decode_rank=1"}, std::pair{3, "ring=3,decode_rank=2"}})
    for (const bool rendezvous : {false, true}) {
      std::string hashes[2];
      for (const bool floats : {false, true}) {
        const RanDecoder ran =
            on_layout(text, ranks, {.rendezvous = rendezvous, .delay_seed = 3, .max_delay_us = 50},
                      [&](Communicator&, RankPlacement& placement) {
                        Decoding decoding(placement, floats);
                        decoding.push(latents, {1, 3});
                        return decoding.finish();
                      });
        hashes[floats] = ran.hash;
        const Layout layout = parse_layout(text, ranks, {});
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t rows = RankPlacement(layout, rank).band(kRows).size();
          const int64_t bytes = rank == 0 ? 0 : frames * 3 * rows * scale * kColumns * scale;
          EXPECT_EQ(ran.counters[static_cast<size_t>(rank)]
                        .sent[static_cast<size_t>(Payload::kFrames)]
                        .bytes,
                    bytes * (floats ? 4 : 1))
              << text << ", rank " << rank;
        }
        const bool one_rank_decodes = layout.decode_rank >= 0 || layout.vae_ranks == 1;
        if (one_rank_decodes) {
          EXPECT_EQ(ran.hash, expected) << text;
        }
      }
      EXPECT_EQ(hashes[0], hashes[1]) << text;
    }
}

// A decoder on a rank of its own works while the others exchange messages. The root's push returns
// before the pictures are there: the decoding rank waits for a message that the root sends later.
TEST(VideoDecoder, ARankOfItsOwnDecodesWhileTheOthersGoOn) {
  const Tensor latents = latents_of(6);
  const std::string expected = reference_hash(latents);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const LocalOptions options{
        .rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 200};
    const RanDecoder ran =
        on_layout("ring=3,decode_rank=2", 3, options, [&](Communicator&, RankPlacement& placement) {
          Decoding decoding(placement);
          Communicator& all = placement.communicator();
          Tensor word(DType::kF32, {1});
          for (int block = 0; block < 3; ++block) {
            const Tag tag{.kind = Payload::kHidden, .pass = {.step = block}};
            if (placement.rank() == 2) all.receive(decoding.stream, 0, tag, word);
            decoding.decoder->push(latents.view().slice(1, 2 * block, 2));
            if (placement.rank() == 0) all.send(decoding.stream, 2, tag, word);
            if (placement.rank() == 0) all.send(decoding.stream, 1, tag, word);
            if (placement.rank() == 1) all.receive(decoding.stream, 0, tag, word);
            if (placement.rank() == 0 && block == 1) {
              decoding.decoder->collect();
              EXPECT_EQ(decoding.decoder->pictures(), 4 * 4 - 3);
            }
          }
          return decoding.finish();
        });
    EXPECT_EQ(ran.hash, expected) << seed;
  }
}

// Nothing but the placement of the decoder changes: the frames are those of one rank, and the VAE
// is loaded on that rank alone.
TEST(VideoDecoder, AJobMayNameTheRankThatDecodes) {
  const std::string alone =
      Generator(kModel, options_of(DType::kF32)).run(job(), nullptr).framehash;
  for (const int decoder : {0, 1}) {
    std::string hash;
    uint64_t vae_bytes[2];
    const std::string layout = "cfg=2,text_ranks=1,decode_rank=" + std::to_string(decoder);
    run_ranks(2, [&](Communicator& world) {
      Generator generator(kModel, options_of(DType::kF32),
                          RankPlacement::of(world, parse_layout(layout, 2, {})));
      const RunResult result = generator.run(job(), nullptr);
      vae_bytes[world.rank()] = generator.plan(generator.resolve(job())).parts.vae;
      if (world.rank() != 0) return;
      hash = result.framehash;
      EXPECT_GT(result.first_frame_seconds, 0);
      EXPECT_LE(result.first_frame_seconds, result.seconds);
    });
    EXPECT_EQ(hash, alone) << layout;
    EXPECT_GT(vae_bytes[decoder], 0u);
    EXPECT_EQ(vae_bytes[1 - decoder], 0u);
  }
}

// Pushes frames after every denoise step, and measures the tensors of the steps.
struct DecodingListener final : ProgressListener {
  VideoDecoder* decoder = nullptr;
  Tensor latents;
  size_t peak = 0;
  void progress(const Progress& progress) override {
    if (progress.stage != "denoise") return;
    if (progress.step == 0) reset_tensor_bytes_peak();
    decoder->push(latents);
    peak = tensor_bytes_peak();
  }
};

TEST(VideoDecoder, ItsMemoryBesideTheTransformersIsPlanned) {
  const size_t before = tensor_bytes_live();
  RankPlacement alone;
  Generator generator(kModel, options_of(DType::kF32));
  Request request = job();
  request.width = 160;
  request.height = 128;
  request = generator.resolve(request);
  const Components parts(generator.model(), {.dtype = DType::kF32}, DType::kF32, alone);
  const JobFacts facts = generator.facts(request);
  const auto& shape = facts.latent;
  const auto planned = [&](Residency residency) {
    const ComponentBytes bytes =
        predict_bytes(parts, alone, {.facts = facts, .decodes_meanwhile = true});
    return memory_under(residency, bytes, UINT64_MAX);
  };
  const MemoryPlan plan = planned(Residency::kAll);

  Decoding decoding(alone, false, nullptr, {shape[2], shape[3]});
  DecodingListener listener;
  listener.decoder = &*decoding.decoder;
  listener.latents = Tensor(DType::kF32, shape);
  RunOptions options;
  options.listener = &listener;
  const RunResult result = generator.run(request, nullptr, options);
  decoding.finish();
  // The job has a VAE of its own. Its decoder has the same arena as the one here.
  const double measured =
      static_cast<double>(listener.peak - before - plan.parts.vae + result.arena_high_water);
  EXPECT_NEAR(static_cast<double>(plan.denoise) / measured, 1.0, 0.05) << plan.to_string();
  EXPECT_EQ(planned(Residency::kStaged).denoise + plan.parts.text_encoder, plan.denoise);
  EXPECT_EQ(planned(Residency::kSequential).high_water, planned(Residency::kOneExpert).high_water);
}

// Decoding beside a stage is counted apart from it, and events stay those of the stage.
TEST(StageClock, AStageBesideAnotherKeepsItsOwnTime) {
  struct Listener final : ProgressListener {
    std::vector<Progress> events;
    void progress(const Progress& progress) override { events.push_back(progress); }
  } listener;
  StageClock clock(&listener, [] { return uint64_t{0}; });
  const auto started = std::chrono::steady_clock::now();
  clock.enter(Zone::kDenoise, 3);
  clock.step(1);
  clock.beside(Zone::kDecode, [&] {
    clock.decoded(1, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    clock.decoded(2, 5);
  });
  clock.step(2);
  clock.enter(Zone::kDecode, 3);
  clock.beside(Zone::kDecode, [&] { clock.decoded(3, 9); });
  clock.leave();
  const double passed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

  std::vector<std::string> seen;
  for (const Progress& event : listener.events)
    seen.push_back(event.stage + " " + std::to_string(event.step) + " " +
                   std::to_string(event.pictures));
  EXPECT_EQ(seen, (std::vector<std::string>{"denoise 0 0", "denoise 1 0", "denoise 2 5",
                                            "decode 0 5", "decode 3 9"}));
  const std::vector<StageSeconds> stages = clock.seconds();
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[1].stage, "decode");
  EXPECT_GE(stages[1].seconds, 0.03);
  EXPECT_LE(stages[0].seconds + stages[1].seconds, passed);
}

// A decoder that goes on after frames of an earlier one gives the frames of one decode, and so
// does the hash.
TEST(VideoDecoder, GoesOnBehindAnEarlierOne) {
  const int64_t history = vae_model().traits.history;
  for (const int64_t first : {int64_t{1}, int64_t{5}, history, history + 3}) {
    const Tensor latents = latents_of(first + 3);
    const std::string expected = reference_hash(latents);
    for (const int decoder : {-1, 0, 1}) {
      Layout layout;
      layout[Axis::kLayers] = decoder < 0 ? 1 : 2;
      layout.decode_rank = decoder;
      FramesSoFar before;
      const auto rank = [&](Communicator* world, bool again) {
        RankPlacement placement = world ? RankPlacement::of(*world, layout) : RankPlacement();
        Decoding decoding(placement, false, nullptr, {kRows, kColumns},
                          again ? before : FramesSoFar{});
        if (again) {
          const int64_t last = std::min(first, history);
          Tensor tail(DType::kF32, {latents.view()[0], last, kRows, kColumns});
          copy(decoding.stream, latents.view().slice(1, first - last, last), tail);
          decoding.decoder->resume(tail, first);
          decoding.push(latents.view().slice(1, first, 3), {2, 1});
          const std::string hash = decoding.finish();
          if (placement.root()) {
            EXPECT_EQ(hash, expected) << first << " on " << decoder;
          }
          return;
        }
        decoding.push(latents.view().slice(1, 0, first), {first});
        decoding.decoder->finish();
        if (placement.root()) before = decoding.writer->keep();
      };
      for (const bool again : {false, true})
        if (decoder < 0)
          rank(nullptr, again);
        else
          run_ranks(2, [&](Communicator& world) { rank(&world, again); });
      EXPECT_EQ(before.frames, vae_model().traits.frames(first));
    }
  }
}

}  // namespace
}  // namespace weft::test
