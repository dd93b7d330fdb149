// Videos from pictures: the golden cases, the conditions against a slow reference, layouts and
// their bytes, memory, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/conditions/picture_conditions.h"
#include "engine/memory/estimate.h"
#include "engine/memory/memory_meter.h"
#include "io/json.h"
#include "io/media/image.h"
#include "io/picture/picture_pixels.h"
#include "kernels/copy.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/models/slices_testing.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

const std::string kPictureCases = "tests/golden/";
const char* const kCases[] = {"pipeline_i2v_a14b", "pipeline_i2v21", "pipeline_ti2v_5b"};

std::string picture_model(const std::string& name) { return kPictureCases + name + "/model"; }

// A picture of any colours.
std::shared_ptr<const Tensor> picture(int64_t width, int64_t height, float phase = 0) {
  Tensor out(DType::kF32, {3, height, width});
  for (int64_t i = 0; i < out.view().count(); ++i)
    out.as<float>()[i] = 0.5f + 0.5f * std::sin(0.37f * static_cast<float>(i) + phase);
  return std::make_shared<const Tensor>(std::move(out));
}

GivenPicture given(int64_t width, int64_t height, float phase = 0) {
  return {.path = "a.png", .pixels = picture(width, height, phase)};
}

std::shared_ptr<const Tensor> f32_input(const TensorFile& inputs, const std::string& name) {
  Stream stream = Stream::cpu(1);
  Tensor out(DType::kF32, inputs.view(name).shape());
  copy(stream, inputs.view(name), out);
  return std::make_shared<const Tensor>(std::move(out));
}

// A golden case: its request, and the rows in place of an image encoder.
struct PictureCase {
  explicit PictureCase(const std::string& name)
      : spec(read_json_file(kPictureCases + name + "/case.json")) {
    const TensorFile inputs = TensorFile::open(kPictureCases + name + "/inputs.safetensors");
    request.prompt = spec.at("prompt");
    request.negative_prompt = spec.at("negative_prompt");
    request.width = spec.at("width");
    request.height = spec.at("height");
    request.frames = spec.at("frames");
    request.steps = spec.at("steps");
    request.guidance_scale = spec.at("guidance_scale").get<double>();
    request.seed = spec.at("seed");
    request.rng = rng_from_name(spec.at("rng").get<std::string>());
    request.image = {.path = "a.png", .pixels = f32_input(inputs, "image")};
    if (inputs.contains("image_embeds")) rows = f32_input(inputs, "image_embeds");
  }
  RunOptions options(PipelineTap* tap = nullptr) const {
    RunOptions run;
    run.tap = tap;
    if (rows) run.image_rows = *rows;
    return run;
  }
  // The same job for another size of clip.
  void resize(int64_t width, int64_t height) {
    request.width = width;
    request.height = height;
    request.image = given(width, height);
  }

  nlohmann::json spec;
  Request request;
  std::shared_ptr<const Tensor> rows;
};

struct PictureTap final : PipelineTap {
  std::map<std::string, std::vector<float>> tensors;
  void tap(const char* name, const TensorView& value) override { tensors[name] = floats_of(value); }
};

// The encoded video of the pictures: all frames at once, grey between the pictures, normalised with
// the numbers of vae/config.json.
std::vector<float> reference_latent(const std::string& folder, const Request& request,
                                    int64_t frames) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 34);
  RankPlacement one;
  const std::shared_ptr<const VaeModel> model = open_vae(folder + "/vae/config.json");
  const auto vae =
      model->load(stream, TensorFile::open(folder + "/vae"), DType::kF32, VaeParts::kEncoder);
  const VaeTraits& traits = vae->traits();
  Tensor video(DType::kF32, {3, frames, request.height, request.width});
  std::fill_n(video.as<float>(), video.view().count(), 0.0f);
  const auto show = [&](const GivenPicture& picture, int64_t frame) {
    const int64_t plane = request.height * request.width;
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t i = 0; i < plane; ++i)
        video.as<float>()[(c * frames + frame) * plane + i] =
            2 * picture.pixels->as<float>()[c * plane + i] - 1;
  };
  show(request.image, 0);
  if (request.last_image.given()) show(request.last_image, frames - 1);
  const int64_t latents = traits.latent_frames(frames);
  Tensor mean(DType::kF32, {traits.channels, latents, request.height / traits.spatial_factor,
                            request.width / traits.spatial_factor});
  BandSeams seams(one, mean.view()[2]);
  Context context = seams.context(stream, arena, Pass{});
  vae_encode(context, *vae, video, mean);
  const nlohmann::json config = read_json_file(folder + "/vae/config.json");
  std::vector<float> out;
  for (int64_t c = 0; c < traits.channels; ++c) {
    const TensorView channel = mean.view().select(0, c);
    for (int64_t i = 0; i < channel.count(); ++i)
      out.push_back(static_cast<float>(
          (double{channel.as<float>()[i]} - config["latents_mean"][c].get<double>()) /
          config["latents_std"][c].get<double>()));
  }
  return out;
}

// Ranks but the root have no file of a picture.
std::vector<PictureConditions> conditions_on(int ranks, const std::string& folder,
                                             const Request& request,
                                             std::vector<CommCounters>* counters = nullptr,
                                             Layout layout = {}) {
  std::vector<PictureConditions> all(ranks);
  if (counters) counters->resize(ranks);
  const auto model = std::make_shared<const OpenModel>(folder);
  run_ranks(ranks, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    Arena arena(size_t{1} << 34);
    Layout own = layout;
    own[Axis::kRing] = ranks;
    RankPlacement placement = RankPlacement::of(world, own);
    Components parts(model, {.dtype = DType::kF32}, DType::kF32, placement);
    Request here = request;
    if (world.rank() > 0)
      for (GivenPicture* picture : {&here.image, &here.last_image})
        if (!picture->path.empty()) picture->path = "/not/there.png";
    const JobFacts facts{.request = here,
                         .sampler = {SamplerConfig(), 1},
                         .latent = latent_of(model->directory, request)};
    PictureEncoder encoder({stream, arena, parts}, facts);
    int pieces = 0;
    all[world.rank()] = encoder.encode([&](int done) { pieces = done; });
    if (world.rank() == 0 && layout.decode_rank < 0) {  // the root reports progress
      EXPECT_EQ(pieces, encoder.pieces());
    }
    if (counters) (*counters)[world.rank()] = world.counters();
  });
  return all;
}

TEST(Pictures, ConditionsAreThoseOfASlowReferenceOnEveryRank) {
  const std::string folder = picture_model("pipeline_i2v_a14b");
  Request request;
  request.width = 32;
  request.height = 40;
  request.frames = 13;
  request.image = given(32, 40);
  for (const bool both : {false, true}) {
    if (both) request.last_image = given(32, 40, 1);
    const std::vector<float> latent = reference_latent(folder, request, request.frames);
    for (const int ranks : {1, 2, 3, 6}) {
      std::vector<CommCounters> counters;
      const auto all = conditions_on(ranks, folder, request, &counters);
      int64_t sent = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TensorView channels = all[rank].channels;
        ASSERT_EQ(channels[0], 20);
        const int64_t mask = 4 * channels[1] * channels[2] * channels[3];
        std::vector<float> values = floats_of(channels);
        const std::vector<float> encoded(values.begin() + mask, values.end());
        EXPECT_LE(rel_l2(encoded, latent), 1e-5) << ranks << " " << rank;
        double ones = 0;
        for (int64_t i = 0; i < mask; ++i) ones += values[i];
        EXPECT_EQ(ones, (both ? 5 : 4) * channels[2] * channels[3]);
        EXPECT_EQ(values, floats_of(all[0].channels));
        EXPECT_FALSE(all[rank].rows);
        EXPECT_EQ(all[rank].given_frames, 0);
        sent += counters[rank].sent[static_cast<size_t>(Payload::kLatent)].bytes;
      }
      EXPECT_EQ(sent, (ranks - 1) * static_cast<int64_t>(latent.size() * sizeof(float)));
    }
  }
}

TEST(Pictures, TheFirstFrameIsThePictureEncodedAlone) {
  const std::string folder = picture_model("pipeline_ti2v_5b");
  Request request;
  request.width = 64;
  request.height = 96;
  request.frames = 9;
  request.image = given(64, 96);
  const std::vector<float> latent = reference_latent(folder, request, 1);
  for (const int ranks : {1, 2}) {
    const auto all = conditions_on(ranks, folder, request);
    for (const PictureConditions& one : all) {
      EXPECT_LE(rel_l2(floats_of(one.frames), latent), 1e-5);
      EXPECT_FALSE(one.channels);
      EXPECT_EQ(one.given_frames, 1);
    }
  }
}

struct Result {
  std::vector<float> latents, video;
};

Result drawn_pictures(const PictureCase& c, const std::string& name, const Layout& layout,
                      DType dtype = DType::kF32) {
  Result result;
  run_ranks(layout.ranks(), [&](Communicator& world) {
    Generator generator(picture_model(name), options_of(dtype), RankPlacement::of(world, layout));
    PictureTap tap;
    generator.run(c.request, nullptr, c.options(&tap));
    if (world.rank() == 0) result = {tap.tensors["latents_final"], tap.tensors["video"]};
  });
  return result;
}

// The given frame keeps its bits through all steps, and the video begins with its decoding.
TEST(Pictures, TheGivenFrameIsLeftAsItIs) {
  const std::string name = "pipeline_ti2v_5b", folder = picture_model(name);
  PictureCase c(name);
  const std::vector<float> first = floats_of(conditions_on(1, folder, c.request)[0].frames);
  for (const char* split : {"ring=1", "ring=2", "layers=2", "cfg=2"}) {
    const int ranks = std::string(split) == "ring=1" ? 1 : 2;
    const Result result = drawn_pictures(c, name, parse_layout(split, ranks, {.guided = true}));
    const auto plane = static_cast<int64_t>(first.size()) / 48;
    for (int64_t channel = 0; channel < 48; ++channel)
      for (int64_t i = 0; i < plane; ++i)
        ASSERT_NEAR(result.latents[channel * plane * 3 + i], first[channel * plane + i], 1e-5)
            << split;
  }
  // A clip of one frame is the picture, encoded and decoded, whatever the noise.
  PictureCase still(name);
  still.request.frames = 1;
  const Result one = drawn_pictures(still, name, {});
  still.request.seed += 1;
  const Result other = drawn_pictures(still, name, {});
  EXPECT_EQ(one.video, other.video);
  std::vector<float> begin(one.video.size());
  const Result clip = drawn_pictures(c, name, {});
  for (size_t channel = 0, size = begin.size() / 3; channel < 3; ++channel)
    std::copy_n(clip.video.begin() + channel * size * 9, size, begin.begin() + channel * size);
  EXPECT_LE(rel_l2(begin, one.video), 1e-6);
}

// The same folder draws from text alone, where all tokens have the timestep of the step.
TEST(Pictures, AModelOfFirstFramesDrawsFromTextAsWell) {
  const std::string name = "pipeline_ti2v_5b";
  PictureCase c(name);
  const Result with = drawn_pictures(c, name, {});
  c.request.image = {};
  const Result without = drawn_pictures(c, name, {});
  EXPECT_GT(rel_l2(without.latents, with.latents), 1e-2);
}

TEST(Pictures, TheLastPictureChangesTheClip) {
  const std::string name = "pipeline_i2v_a14b";
  PictureCase c(name);
  const Result first = drawn_pictures(c, name, {});
  c.request.last_image = given(c.request.width, c.request.height, 2);
  const Result both = drawn_pictures(c, name, {});
  EXPECT_GT(rel_l2(both.latents, first.latents), 1e-3);
  c.request.last_image = given(c.request.width, c.request.height, 1);
  EXPECT_GT(rel_l2(drawn_pictures(c, name, {}).latents, both.latents), 1e-4);
}

TEST(Pictures, EveryKindOfSplitGivesTheLatentsOfOneRank) {
  for (const char* name : kCases) {
    PictureCase c(name);
    const Result one = drawn_pictures(c, name, {});
    const Generator generator(picture_model(name), options_of(DType::kF32));
    LayoutLimits limits = generator.layout_limits(generator.resolve(c.request));
    for (const int ranks : {2, 4})
      for (const Layout& layout : legal_layouts(ranks, limits)) {
        if (layout[Axis::kData] > 1) continue;
        EXPECT_LE(rel_l2(drawn_pictures(c, name, layout).latents, one.latents), 1e-5)
            << name << " " << to_string(layout);
      }
  }
}

// Displaced patches are exact where the warm-up lasts for all steps.
TEST(Pictures, DisplacedPatchesThatAreNeverStaleAreExact) {
  for (const char* name : {"pipeline_i2v_a14b", "pipeline_ti2v_5b"}) {
    PictureCase c(name);
    c.request.steps = 9;
    const Result one = drawn_pictures(c, name, {});
    for (const char* method :
         {"distrifusion:patches=3,warmup=9,split=frames", "pcpp:patches=3,window=1,warmup=9",
          "pipefusion:patches=3,warmup=9"}) {
      c.request.method = parse_method(method, "method");
      Layout layout;
      layout[std::holds_alternative<Pipefusion>(c.request.method) ? Axis::kLayers : Axis::kPatch] =
          2;
      EXPECT_LE(rel_l2(drawn_pictures(c, name, layout).latents, one.latents), 1e-5)
          << name << " " << method;
    }
    // Stale ones differ, and a given frame does not.
    c.request.method = parse_method("pipefusion:patches=3,warmup=1", "method");
    EXPECT_GT(rel_l2(drawn_pictures(c, name, {}).latents, one.latents), 1e-5) << name;
    c.request.method = {};
  }
}

// The plan and the measured memory agree within 5 %, under every residency.
TEST(Pictures, MemoryIsAsPlanned) {
  for (const char* name : kCases)
    for (const Residency residency :
         {Residency::kAll, Residency::kStaged, Residency::kOneExpert, Residency::kSequential}) {
      PictureCase c(name);
      c.resize(160, 128);
      c.request.steps = 2;
      GeneratorOptions options = options_of(DType::kF32);
      Generator planner(picture_model(name), options);
      const Request request = planner.resolve(c.request);
      options.memory_limit = memory_under(residency, planner.plan(request).parts, 0).high_water;
      const size_t live = tensor_bytes_live();
      Generator generator(picture_model(name), options);
      const MemoryPlan plan = generator.plan(request);
      EXPECT_GT(plan.encode_image, 0u);
      EXPECT_TRUE(contains(plan.to_string(), "encode_image"));
      const RunResult result = generator.run(request, nullptr, c.options());
      const auto near = [&](uint64_t planned, uint64_t taken, const char* stage) {
        EXPECT_NEAR(static_cast<double>(planned) / static_cast<double>(taken - live), 1, 0.05)
            << name << " " << to_string(residency) << " " << stage << " " << plan.to_string();
      };
      // Frames that wait for the writer are no tensors.
      const auto waiting =
          static_cast<uint64_t>(request.frames * 3 * request.width * request.height);
      near(plan.high_water - waiting, result.memory_high_water, "all");
      near(plan.encode_image, result.stage_high_water[MemoryMeter::kEncodeImage], "encode_image");
    }
}

// The folder of Wan 2.1 with an image encoder of random weights, whose rows have the columns that
// the transformer reads.
struct EncoderFolder {
  EncoderFolder() {
    namespace fs = std::filesystem;
    fs::remove_all(path);
    fs::copy(picture_model("pipeline_i2v21"), path, fs::copy_options::recursive);
    nlohmann::json index = read_json_file(path + "/model_index.json"),
                   config = read_json_file(kPictureCases +
                                           "clip_vision/model/image_encoder/config.json");
    index["image_encoder"] = {"transformers", "CLIPVisionModel"};
    std::ofstream(path + "/model_index.json") << index.dump();
    fs::create_directories(path + "/image_encoder");
    config["hidden_size"] = 4;
    config["num_attention_heads"] = 2;
    config["intermediate_size"] = 8;
    std::ofstream(path + "/image_encoder/config.json") << config.dump();
    const auto model = open_image_encoder(path + "/image_encoder/config.json");
    write_file(path + "/image_encoder/model.safetensors", random_weights(model->tensors(), 5));
  }
  ~EncoderFolder() { std::filesystem::remove_all(path); }
  const std::string path = testing::TempDir() + "weft_image_encoder";
};

TEST(Pictures, AnImageEncoderReadsTheWholePicture) {
  const EncoderFolder folder;
  PictureCase c("pipeline_i2v21");
  const auto model = open_image_encoder(folder.path + "/image_encoder/config.json");
  const ImageEncoderTraits& traits = model->traits();
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 34);
  RankPlacement one;
  const auto encoder = model->load(stream, TensorFile::open(folder.path + "/image_encoder"), {});
  const TensorView from = *c.request.image.pixels;
  Frame frame(static_cast<int>(from[2]), static_cast<int>(from[1]));
  for (int64_t y = 0; y < from[1]; ++y)
    for (int64_t x = 0; x < from[2]; ++x)
      for (int64_t k = 0; k < 3; ++k)
        frame.at(static_cast<int>(x), static_cast<int>(y))[k] = static_cast<uint8_t>(
            std::lround(from.as<float>()[(k * from[1] + y) * from[2] + x] * 255));
  Tensor pixels(DType::kF32, {3, traits.size, traits.size}),
      rows(DType::kF32, {traits.rows, traits.columns});
  clip_pixels(frame, default_clip_preprocessing(static_cast<int>(traits.size)), pixels);
  EncoderSeams seams(one);
  Context context = seams.context(stream, arena, {}, traits, traits.rows);
  encoder->encode(context, pixels, rows);
  for (const int ranks : {1, 2, 3})
    for (const PictureConditions& on_rank : conditions_on(ranks, folder.path, c.request))
      EXPECT_LE(rel_l2(floats_of(on_rank.rows), floats_of(rows)), 1e-5) << ranks;

  // The clip is the one that is drawn with these rows.
  RunOptions given = c.options();
  given.image_rows = rows;
  Generator generator(folder.path, options_of(DType::kF32));
  const RunResult own = generator.run(c.request, nullptr);
  EXPECT_EQ(own.signature, generator.run(c.request, nullptr, given).signature);
  EXPECT_NE(own.signature, generator.run(c.request, nullptr, c.options()).signature);
  EXPECT_GT(generator.plan(generator.resolve(c.request)).parts.picture_encoder, 0u);
}

TEST(Pictures, TheRootAloneReadsTheFiles) {
  const EncoderFolder folder;
  PictureCase c("pipeline_i2v21");
  Request request = c.request;
  const int width = static_cast<int>(request.width), height = static_cast<int>(request.height);
  Frame frame(width + 16, height + 24);  // it is scaled and cut
  for (size_t i = 0; i < frame.rgb.size(); ++i) frame.rgb[i] = static_cast<uint8_t>(i * 37 % 251);
  request.image = {.path = testing::TempDir() + "weft_shared.png"};
  write_png(request.image.path, frame, {}, Overwrite::kReplace);
  take_facts(request.image, "image");
  const auto one = conditions_on(1, folder.path, request);
  const ImageEncoderTraits traits =
      open_image_encoder(folder.path + "/image_encoder/config.json")->traits();
  const int64_t fitted = int64_t{3} * width * height, seen = 3 * traits.size * traits.size * 4;
  Layout few, last;
  few.vae_ranks = 2;
  last.decode_rank = 3;
  for (const auto& [layout, bands] : {std::pair{Layout(), 4}, {few, 2}, {last, 2}}) {
    std::vector<CommCounters> counters;
    const auto all = conditions_on(4, folder.path, request, &counters, layout);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_LE(rel_l2(floats_of(all[rank].channels), floats_of(one[0].channels)), 1e-5);
      EXPECT_LE(rel_l2(floats_of(all[rank].rows), floats_of(one[0].rows)), 1e-5);
    }
    const int encoders = static_cast<int>(std::min<int64_t>(4, traits.heads));
    EXPECT_EQ(
        counters[0].sent[static_cast<size_t>(Payload::kFrames)].bytes,
        broadcast_sent(fitted, bands, 0, 0).bytes + broadcast_sent(seen, encoders, 0, 0).bytes)
        << to_string(layout);
  }
  std::filesystem::remove(request.image.path);
  EXPECT_THROW(conditions_on(2, folder.path, request), Error);
}

// A second job of the same generator without a picture, and one with another, see nothing of it.
TEST(Pictures, JobsLeaveNoTrace) {
  const std::string name = "pipeline_ti2v_5b";
  const PictureCase c(name);
  Request text = c.request, other = c.request;
  text.image = {};
  other.image = given(c.request.width, c.request.height);
  const auto signature = [&](const Request& request) {
    return Generator(picture_model(name), options_of(DType::kF32)).run(request, nullptr).signature;
  };
  Generator generator(picture_model(name), options_of(DType::kF32));
  for (const Request* request :
       std::initializer_list<const Request*>{&c.request, &text, &other, &c.request})
    EXPECT_EQ(generator.run(*request, nullptr).signature, signature(*request));
}

TEST(Pictures, JobsThatCannotBeDrawnAreRefused) {
  const auto fault = [](const std::string& folder, const Request& request) {
    const Generator generator(folder, options_of(DType::kF32));
    return error_of([&] { generator.resolve(request); }, ErrorKind::kUsage);
  };
  Request request = PictureCase("pipeline_i2v_a14b").request;
  const std::string text = picture_model("pipeline_t2v"), both = picture_model("pipeline_i2v_a14b"),
                    one = picture_model("pipeline_i2v21"),
                    frame = picture_model("pipeline_ti2v_5b");
  EXPECT_EQ(fault(both, request), "");
  EXPECT_TRUE(contains(fault(text, request), "makes its videos from text alone"));
  request.last_image = request.image;
  EXPECT_EQ(fault(both, request), "");
  EXPECT_TRUE(contains(fault(one, request), "does not end with one; legal: image alone"));
  request.width = 32;
  request.height = 32;
  EXPECT_TRUE(contains(fault(frame, request), "does not end with one"));
  request.frames = 1;
  EXPECT_TRUE(contains(fault(both, request), "a clip of one frame has no last one"));
  request.frames = 9;
  request.image = {};
  EXPECT_TRUE(contains(fault(both, request), "there is no first picture; legal with it: image"));
  request.last_image = {};
  EXPECT_TRUE(contains(fault(both, request), "makes a video from a picture; legal: image"));
  EXPECT_EQ(fault(frame, request), "");
  request.image = given(32, 32);
  request.steps = 20;
  request.frames = 81;
  request.method = parse_method("queue:block=2,context=1", "method");
  EXPECT_TRUE(contains(fault(frame, request), "legal with pictures: full"));
  // Rows of a picture need an encoder.
  const PictureCase c("pipeline_i2v21");
  Generator generator(one, options_of(DType::kF32));
  expect_error(ErrorKind::kModel, "has no image_encoder",
               [&] { generator.run(c.request, nullptr); });
}

}  // namespace
}  // namespace weft::test
