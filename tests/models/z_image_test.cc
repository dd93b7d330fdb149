#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "kernels/ops.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::Recorder;
using test::relative_l2;
using test::to_f64;

const std::string kCase = "dit_zimage";

// A model with inputs of its own: token rows of a latent and a caption.
struct Model {
  Model(const TensorFile& file, const ZImageConfig& config, const TransformerLoad& load,
        const Ops& ops = reference_ops())
      : stream(Stream::cpu(2, Determinism::kFixed, &ops)),
        config(config),
        transformer(ZImageTransformer::load(stream, file, config, load)) {}

  void set_latent(const TensorView& latent_) {  // [C, 1, H, W]
    grid = {1, latent_[2] / config.patch[1], latent_[3] / config.patch[2]};
    tokens = grid[0] * grid[1] * grid[2];
    rows = Tensor(DType::kF32, {tokens, config.patch_dim()});
    patchify(stream, latent_, config.patch, TokenRanges::all(tokens), rows);
  }
  Context context(Observer* observer = nullptr) {
    return seams.context(stream, arena, {}, TokenRanges::all(tokens), observer);
  }
  std::unique_ptr<Conditioning> prepare(Context& c) const {
    return transformer.prepare(c, {.text = caption, .text_length = caption.view()[0]}, grid);
  }
  // Runs `blocks` on `in`, with the rows that they give.
  Tensor run(Context& c, BlockRange blocks, const TensorView& in, const Conditioning& conditioning,
             std::array<int64_t, 3> start = {}) {
    const TimeSegment segment{.tokens = {0, tokens}, .timestep = time};
    Tensor embedding(DType::kF32, {1, 256});
    transformer.timestep_embedding(stream, {&segment, 1}, embedding);
    const int64_t n = c.tokens.size();
    Tensor out(DType::kF32, {blocks.last() ? n : n + conditioning.joint_rows(),
                             blocks.last() ? config.patch_dim() : config.dim});
    const Rope rope = transformer.rope(grid, start, conditioning);
    transformer.forward(c, {.blocks = blocks,
                            .in = in,
                            .times = {&segment, 1},
                            .embedding = embedding,
                            .conditioning = conditioning,
                            .rope = rope,
                            .out = out});
    return out;
  }
  // The output as token rows.
  Tensor run(Observer* observer = nullptr) {
    Context c = context(observer);
    return run(c, BlockRange::all(config.layers), rows, *prepare(c));
  }

  Stream stream;
  Arena arena{size_t{1} << 30};
  SerialSeams seams;
  ZImageConfig config;
  ZImageTransformer transformer;
  Tensor rows, caption;
  float time = 500;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;
};

struct GoldenModel : test::GoldenCase, Model {
  explicit GoldenModel(DType dtype = DType::kF32, const Ops& ops = reference_ops(),
                       TransformerLoad load = {})
      : GoldenCase(kCase),
        Model(TensorFile::open(folder + "/model/transformer"),
              ZImageConfig::from_json_file(folder + "/model/transformer/config.json"),
              (load.dtype = dtype, load), ops),
        latent(input("hidden_states")) {
    const TensorView& view = latent;
    set_latent(view.reshape({view[0], 1, view[1], view[2]}));
    caption = input("encoder_hidden_states");
    time = input("timestep").as<float>()[0];
  }
  Tensor latent;
};

struct OpTable {
  const char* ops;
  DType dtype;
};

class ZImageGolden : public testing::TestWithParam<OpTable> {};

TEST_P(ZImageGolden, MatchesReference) {
  const OpTable run = GetParam();
  GoldenModel model(run.dtype, std::string(run.ops) == "reference" ? reference_ops() : cpu_ops());
  Recorder recorder;
  const Tensor out = model.run(&recorder);
  Tensor picture(DType::kF32, model.latent.view().shape());
  const TensorView view = picture;
  unpatchify(model.stream, out, model.config.patch, TokenRanges::all(model.tokens),
             view.reshape({view[0], 1, view[1], view[2]}));
  recorder.seen["output"] = std::move(picture);
  for (const std::string& name : model.expected.names()) {
    ASSERT_TRUE(recorder.seen.count(name)) << name;
    EXPECT_TRUE(model.matches(name, recorder.seen[name], run.dtype));
  }
  EXPECT_EQ(model.arena.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tables, ZImageGolden,
                         testing::Values(OpTable{"reference", DType::kF32},
                                         OpTable{"reference", DType::kBF16},
                                         OpTable{"cpu", DType::kF32}, OpTable{"cpu", DType::kBF16}),
                         [](const auto& info) {
                           return std::string(info.param.ops) + "_" +
                                  std::string(to_string(info.param.dtype));
                         });

// A pipeline that splits the layers only moves data. Its later stages refine nothing.
TEST(ZImageForward, BlockRangesComposeBitwise) {
  GoldenModel whole;
  const Tensor expected = whole.run();
  GoldenModel a(DType::kF32, reference_ops(), {.blocks = {0, 1, 2}});
  GoldenModel b(DType::kF32, reference_ops(), {.blocks = {1, 2, 2}});
  EXPECT_LT(a.transformer.weights_bytes() + b.transformer.weights_bytes(),
            2 * whole.transformer.weights_bytes());
  Context ca = a.context(), cb = b.context();
  const auto first = a.prepare(ca), second = b.prepare(cb);
  EXPECT_FALSE(dynamic_cast<const ZImageConditioning&>(*second).caption);
  const Tensor hidden = a.run(ca, {0, 1, 2}, a.rows, *first);
  EXPECT_EQ(hidden.view()[0], 24 + 8 + 32);
  EXPECT_TRUE(bitwise_equal(b.run(cb, {1, 2, 2}, hidden, *second), expected));
}

TEST(ZImageForward, SameBitsForAnyThreadCount) {
  GoldenModel model(DType::kF32, cpu_ops());
  const Tensor expected = model.run();
  for (const int threads : {1, 3}) {
    model.stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
    EXPECT_TRUE(bitwise_equal(model.run(), expected)) << threads;
  }
}

// Attention depends only on differences of positions, and the caption's count from the image's.
TEST(ZImageForward, PositionsOfTheImageMatter) {
  GoldenModel model;
  Context c = model.context();
  const Tensor expected = model.run();
  const Tensor out = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c), {5, 0, 0});
  EXPECT_GT(relative_l2(to_f64(out), to_f64(expected)), 1e-4);
}

// Parts of the width give the result of the whole, and each reads nothing but its part.
TEST(ZImageSlices, PartsSumToTheWhole) {
  GoldenModel whole;
  const Tensor expected = whole.run();
  const std::vector<TensorSpec> specs = z_image_tensors(whole.config);
  test::NamedTensors tensors;
  const TensorFile source = TensorFile::open(whole.folder + "/model/transformer");
  for (const TensorSpec& spec : specs) tensors[spec.name] = test::load_tensor(source, spec.name);
  test::run_parts(2, [&](int rank, Reducer& reducer) {
    const WidthSlice width = test::width_part(whole.config.heads, whole.config.ffn_dim(), 2, rank);
    const std::string path =
        testing::TempDir() + "weft_z_image_part_" + std::to_string(rank) + ".safetensors";
    test::write_poisoned(path, specs, tensors, [&](const TensorSpec& tensor, TensorPart* part) {
      *part = z_image_part(whole.config, tensor, width);
      return true;
    });
    Model model(TensorFile::open(path), whole.config, {.width = width});
    std::remove(path.c_str());
    model.set_latent(whole.latent.view().reshape({16, 1, 8, 12}));
    model.time = whole.time;
    Context c{model.stream,
              model.arena,
              model.seams.mixer,
              reducer,
              model.seams.halo,
              {},
              TokenRanges::all(model.tokens)};
    model.caption = f32_copy(model.stream, whole.caption, {7, 20});
    const Tensor out = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c));
    EXPECT_LT(relative_l2(to_f64(out), to_f64(expected)), test::kParallelL2) << rank;
    EXPECT_EQ(model.arena.high_water(),
              test::dry_forward(*make_z_image_model(whole.config), {.width = width}, model.grid,
                                {7, 7}, *test::silent_reducer(2, rank))
                  .arena);
  });
}

TEST(ZImageMemory, IsThatOfTheDryRun) {
  const BlockRange ranges[] = {{0, 2, 2}, {0, 1, 2}, {1, 2, 2}};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges)
      for (const int64_t length : {3, 32, 70}) {
        const TransformerLoad load{.dtype = dtype, .blocks = blocks};
        GoldenModel model(dtype, reference_ops(), load);
        model.caption = Tensor(DType::kF32, {length, model.config.caption_dim});
        Context c = model.context();
        const size_t before = tensor_bytes_live();
        const auto conditioning = model.prepare(c);
        const Rope rope = model.transformer.rope(model.grid, {}, *conditioning);
        const size_t held = tensor_bytes_live() - before;
        const std::unique_ptr<TransformerModel> described = make_z_image_model(model.config);
        const Footprint dry = test::dry_forward(*described, load, model.grid, {length, length},
                                                *test::silent_reducer(1, 0));
        EXPECT_EQ(held, dry.held);
        EXPECT_EQ(conditioning->joint_rows(), described->joint_rows(model.tokens, length));
        const Tensor hidden(DType::kF32,
                            {model.tokens + conditioning->joint_rows(), model.config.dim});
        model.run(c, blocks, blocks.first() ? model.rows.view() : hidden.view(), *conditioning);
        EXPECT_EQ(model.arena.high_water(), dry.arena)
            << to_string(dtype) << " blocks " << blocks.begin << " " << blocks.end << " caption "
            << length;
      }
}

// A single file, whose q, k and v are one matrix, gives the same model.
TEST(ZImageNames, SingleFilesGiveTheSameModel) {
  ZImageConfig config;
  config.dim = 256;
  config.heads = 2;
  config.layers = 1;
  config.refiner_layers = 1;
  config.caption_dim = 20;
  const test::NamedTensors ours = test::random_weights(z_image_tensors(config), 5);
  const std::string path = testing::TempDir() + "weft_z_image_names.safetensors";
  Stream stream = Stream::cpu(1);
  const Tensor latent =
      f32_copy(stream, ours.at("all_x_embedder.2-1.weight").view().slice(0, 0, 24), {16, 1, 8, 12});
  const auto run = [&] {
    const TensorFile file = TensorFile::open(path);
    const ZImageConfig found = ZImageConfig::from_tensors(file);
    EXPECT_EQ(to_string(found), to_string(config));
    Model model(file, found, {});
    model.set_latent(latent);
    model.caption =
        f32_copy(stream, ours.at("cap_embedder.1.weight").view().slice(0, 0, 5), {5, 20});
    return model.run();
  };
  test::write_file(path, ours);
  const Tensor expected = run();
  for (const char* prefix : {"", "model.diffusion_model."}) {
    const ZImageNames names{.prefix = prefix, .single_file = true};
    test::NamedTensors theirs;
    for (const auto& [name, tensor] : ours) {
      const ZImagePlace place = names(name);
      std::vector<int64_t> shape(tensor.view().shape().begin(), tensor.view().shape().end());
      shape[0] *= place.parts;
      Tensor& whole = theirs[place.name];
      if (!whole) whole = Tensor(DType::kF32, shape);
      copy(stream, tensor, whole.view().slice(0, place.part * tensor.view()[0], tensor.view()[0]));
    }
    EXPECT_TRUE(theirs.count(std::string(prefix) + "layers.0.attention.qkv.weight"));
    EXPECT_TRUE(theirs.count(std::string(prefix) + "final_layer.adaLN_modulation.1.bias"));
    theirs[std::string(prefix) + "norm_final.weight"] = Tensor(DType::kF32, {256});
    if (*prefix) theirs["vae.something"] = Tensor(DType::kF32, {3});
    test::write_file(path, theirs);
    EXPECT_TRUE(bitwise_equal(run(), expected)) << prefix;
  }
  std::remove(path.c_str());
}

ZImageConfig published() { return {}; }

// Packed matrices may be padded to the tiles of the GEMM, so the widths must not be tiny.
TEST(ZImageMemory, WeightsAreThePredictedBytes) {
  ZImageConfig config = published();
  config.dim = 256;
  config.heads = 2;
  config.layers = 3;
  config.caption_dim = 64;
  const std::string path = testing::TempDir() + "weft_z_image_weights.safetensors";
  test::write_file(path, test::random_weights(z_image_tensors(config), 5));
  const BlockRange ranges[] = {{0, 3, 3}, {0, 1, 3}, {1, 2, 3}, {2, 3, 3}};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges) {
      const TransformerLoad load{.dtype = dtype, .blocks = blocks};
      const Model model(TensorFile::open(path), config, load);
      const auto predicted =
          static_cast<double>(test::dry_weights(*make_z_image_model(config), load));
      EXPECT_NEAR(static_cast<double>(model.transformer.weights_bytes()), predicted,
                  0.05 * predicted);
    }
  std::remove(path.c_str());
}

TEST(ZImageConfig, CountsOfThePublishedModel) {
  EXPECT_EQ(parameter_count(z_image_tensors(published())), 6'154'908'736);
  EXPECT_EQ(published().ffn_dim(), 10240);
}

class ZImageConfigFile : public test::ConfigFile<ZImageConfig> {
 protected:
  ZImageConfigFile() : ConfigFile("tests/golden/" + kCase + "/model/transformer/config.json") {}
};

TEST_F(ZImageConfigFile, EveryFieldIsRead) {
  json_["in_channels"] = 8;
  json_["norm_eps"] = 0.5;
  json_["t_scale"] = 10;
  const ZImageConfig config = read();
  EXPECT_EQ(to_string(config),
            "Z-Image transformer: width 48 = 2 heads x 24, 2 layers and 2 x 1 refiner layers, ffn "
            "128, channels 8, text 20, patch 1x2x2");
  EXPECT_EQ(config.eps, 0.5f);
  EXPECT_EQ(config.t_scale, 10);
  EXPECT_EQ(config.rope_theta, 256);
  EXPECT_EQ(config.axes_lens, (std::array<int64_t, 3>{256, 32, 32}));
}

TEST_F(ZImageConfigFile, EveryFaultAtOnce) {
  json_["surprise"] = 1;
  json_["_fine"] = 1;
  json_["n_kv_heads"] = 1;
  json_["qk_norm"] = false;
  json_["siglip_feat_dim"] = 1152;
  json_.erase("dim");
  const std::string text = fault();
  for (const char* part : {"unknown: surprise (known: ", "missing: dim", "n_kv_heads = 1",
                           "qk_norm = false", "siglip_feat_dim = 1152", "axes_lens"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(ZImageConfigFile, ImpossibleSizes) {
  EXPECT_NE(fault("dim", 49).find("dim 49 is not a multiple of n_heads 2"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {8, 8, 6}).find("axes_dims add up to 22"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {9, 7, 8}).find("axes_dims holds 9"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {8, 16}).find("axes_dims must have 3 values"), std::string::npos);
  EXPECT_NE(fault("all_patch_size", {2, 4}).find("all_patch_size = [2,4]"), std::string::npos);
}

TEST(ZImageLimits, PositionsBeyondTheTables) {
  GoldenModel model;
  Context c = model.context();
  const auto message = [](auto&& run) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto prepare = [&](int64_t tokens) {
    model.caption = Tensor(DType::kF32, {tokens, 20});
    model.prepare(c);
  };
  EXPECT_EQ(message([&] { prepare(224); }), "");
  EXPECT_NE(message([&] { prepare(225); }).find("225 tokens"), std::string::npos);
  const ZImageConditioning none;
  EXPECT_EQ(message([&] { model.transformer.rope({1, 32, 32}, {}, none); }), "");
  EXPECT_NE(message([&] {
              model.transformer.rope({1, 33, 32}, {}, none);
            }).find("66 rows"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
