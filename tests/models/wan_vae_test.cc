#include <gtest/gtest.h>

#include <optional>

#include "kernels/ops.h"
#include "models/footprint.h"
#include "models/wan/vae.h"
#include "tests/models/config_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

struct Run {
  bool reference;
  DType dtype;
};

constexpr Run kRuns[] = {
    {true, DType::kF32}, {true, DType::kBF16}, {false, DType::kF32}, {false, DType::kBF16}};

struct WanVaeBench {
  explicit WanVaeBench(bool reference = false)
      : stream(Stream::cpu(1, Determinism::kFast, reference ? &reference_ops() : &cpu_ops())),
        context(seams.context(stream, arena, {}, {})) {}
  Stream stream;
  Arena arena{size_t{4} << 30};
  SerialSeams seams;
  Context context;
};

WanVaeConfig vae_config_of(const std::string& name) {
  return WanVaeConfig::from_json_file(golden_part(name, "vae") + "/config.json");
}

Vae load(WanVaeBench& bench, const std::string& name, DType dtype, VaeParts parts) {
  const TensorFile file = TensorFile::open(golden_part(name, "vae"));
  return Vae(make_wan_vae_model(vae_config_of(name)), file, bench.stream, dtype, parts);
}

// Makes a smooth latent without symmetries.
Tensor make_latent(int64_t z, int64_t h, int64_t w, int64_t frame) {
  Tensor latent(DType::kF32, {z, h, w});
  for (int64_t i = 0; i < latent.count(); ++i)
    latent.as<float>()[i] = static_cast<float>(std::sin(0.37 * i + 0.9 * frame) + 0.2 * (i % 3));
  return latent;
}

Tensor decode_next(WanVaeBench& bench, VaeDecoder& decoder, const TensorView& latent) {
  Tensor frames(DType::kF32, {decoder.next_frames(), 3, decoder.height(), decoder.width()});
  decoder.decode_chunk(bench.context, latent, frames);
  return frames;
}

class VaeDecodeGolden : public testing::TestWithParam<std::tuple<const char*, Run>> {};

TEST_P(VaeDecodeGolden, MatchesReference) {
  const auto& [name, run] = GetParam();
  const GoldenCase golden(name);
  WanVaeBench bench(run.reference);
  const Vae vae = load(bench, name, run.dtype, VaeParts::kDecoder);
  const Tensor latents = golden.input("latents");
  const TensorView z = latents;
  const int64_t scale = vae.traits().spatial_factor;
  Tensor video(DType::kF32, {3, vae.traits().frames(z[1]), z[2] * scale, z[3] * scale});
  vae_decode(bench.context, vae, z, video);
  EXPECT_TRUE(golden.matches("video", video, run.dtype));
  EXPECT_GE(golden.psnr("video", video), 45);  // so bf16 is the default of GPUs
  EXPECT_EQ(bench.arena.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, VaeDecodeGolden,
    testing::Combine(testing::Values("vae21_tiny_decode1", "vae21_tiny_decode3",
                                     "vae21_tiny_decode5", "vae21_mult_decode2",
                                     "vae_patch2_decode3", "vae22_decode1", "vae22_decode3"),
                     testing::ValuesIn(kRuns)));

class VaeEncodeGolden : public testing::TestWithParam<std::tuple<const char*, Run>> {};

TEST_P(VaeEncodeGolden, MatchesReference) {
  const auto& [name, run] = GetParam();
  const GoldenCase golden(name);
  WanVaeBench bench(run.reference);
  const Vae vae = load(bench, name, run.dtype, VaeParts::kEncoder);
  const Tensor video = golden.input("video");
  const TensorView x = video;
  const int64_t scale = vae.traits().spatial_factor;
  Tensor mean(DType::kF32, {vae.traits().channels, vae.traits().latent_frames(x[1]), x[2] / scale,
                            x[3] / scale});
  vae_encode(bench.context, vae, x, mean);
  EXPECT_TRUE(golden.matches("mean", mean, run.dtype));
  EXPECT_EQ(bench.arena.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, VaeEncodeGolden,
    testing::Combine(testing::Values("vae21_tiny_encode1", "vae21_tiny_encode3",
                                     "vae21_tiny_encode5", "vae21_mult_encode2",
                                     "vae_patch2_encode3", "vae22_encode1", "vae22_encode3"),
                     testing::ValuesIn(kRuns)));

TEST(WanVae, CountsOfThe21Vae) {
  const std::vector<TensorSpec> tensors = wan_vae_tensors(WanVaeConfig());
  EXPECT_EQ(parameter_count(tensors), 126'892'531);
  EXPECT_EQ(tensors.size(), 194u);
}

// The VAE of TI2V-5B.
WanVaeConfig real_residual() {
  WanVaeConfig config;
  config.base_dim = 160;
  config.decoder_base_dim = 256;
  config.z_dim = 48;
  config.in_channels = config.out_channels = 12;
  config.patch_size = 2;
  config.residual = true;
  config.latents_mean.assign(48, 0);
  config.latents_std.assign(48, 1);
  return config;
}

TEST(WanVae, CountsOfThe22Vae) {
  const std::vector<TensorSpec> tensors = wan_vae_tensors(real_residual());
  EXPECT_EQ(parameter_count(tensors), 704'688'668);
  EXPECT_EQ(tensors.size(), 196u);
  EXPECT_EQ(real_residual().spatial_factor(), 16);
  EXPECT_EQ(real_residual().temporal_factor(), 4);
}

TEST(WanVae, FactorsFollowFromTheConfig) {
  const WanVaeConfig real, patched = vae_config_of("vae_patch2_decode3");
  EXPECT_EQ(real.spatial_factor(), 8);
  EXPECT_EQ(real.temporal_factor(), 4);
  EXPECT_EQ(patched.spatial_factor(), 8);
  EXPECT_EQ(patched.temporal_factor(), 4);
  EXPECT_EQ(real.traits().frames(21), 81);
  EXPECT_EQ(real.traits().latent_frames(81), 21);
}

// Decoded frames do not depend on later latents.
TEST(WanVae, DecodingIsCausal) {
  WanVaeBench bench;
  const Vae vae = load(bench, "vae21_tiny_decode3", DType::kF32, VaeParts::kDecoder);
  Tensor latents(DType::kF32, {16, 4, 2, 3}), video(DType::kF32, {3, 13, 16, 24}),
      prefix(DType::kF32, {3, 9, 16, 24});
  for (int64_t i = 0; i < 4; ++i)
    copy(bench.stream, make_latent(16, 2, 3, i), latents.view().slice(1, i, 1).select(1, 0));
  vae_decode(bench.context, vae, latents, video);
  vae_decode(bench.context, vae, latents.view().slice(1, 0, 3), prefix);
  EXPECT_TRUE(bitwise_equal(video.view().slice(1, 0, 9), prefix));
}

TEST(WanVae, DecodeMemoryDoesNotGrowWithFrames) {
  size_t high_water[2], live[2];
  const int64_t frames[] = {81, 257};
  for (int run = 0; run < 2; ++run) {
    WanVaeBench bench;
    const Vae vae = load(bench, "vae21_tiny_decode3", DType::kF32, VaeParts::kDecoder);
    VaeDecoder decoder(vae, 1, 1);
    live[run] = tensor_bytes_live();
    for (int64_t i = 0; i < vae.traits().latent_frames(frames[run]); ++i)
      decode_next(bench, decoder, make_latent(16, 1, 1, i));
    high_water[run] = bench.arena.high_water();
    EXPECT_EQ(tensor_bytes_live(), live[run]);
  }
  EXPECT_EQ(high_water[0], high_water[1]);
  EXPECT_GT(high_water[0], 0u);
}

class VaeMemory : public testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(VaeMemory, DryRunsTakeWhatRealOnesTake) {
  const auto& [name, dtype] = GetParam();
  const int64_t h = 8, w = 6;
  WanVaeBench bench;
  const Vae vae = load(bench, name, dtype, VaeParts::kBoth);
  const WanVaeConfig config = vae_config_of(name);
  const size_t before = tensor_bytes_live();
  VaeDecoder decoder(vae, h, w);
  const size_t state = tensor_bytes_live() - before;
  for (int64_t i = 0; i < 2; ++i) decode_next(bench, decoder, make_latent(config.z_dim, h, w, i));
  DryRun dry;
  const Vae same(make_wan_vae_model(config), without_values(wan_vae_tensors(config)), dry.stream(),
                 dtype);
  Context dry_context = bench.seams.context(dry.stream(), dry.arena(), {}, {});
  const Footprint decoded = dry_decode(dry, same, dry_context, h, w, 2);
  EXPECT_EQ(state, decoded.held);
  EXPECT_EQ(bench.arena.high_water(), decoded.arena);

  const size_t between = tensor_bytes_live();
  VaeEncoder encoder(vae, h, w);
  std::optional<VaeEncoder> dry_encoder;
  EXPECT_EQ(tensor_bytes_live() - between,
            dry.measure([&] { dry_encoder.emplace(same, h, w); }).held);
  bench.arena.reset_high_water();
  for (int64_t i = 0; i < 2; ++i) {
    const Tensor frames(DType::kF32, {encoder.next_frames(), 3, decoder.height(), decoder.width()});
    const Tensor mean(DType::kF32, {config.z_dim, h, w});
    encoder.encode_chunk(bench.context, frames, mean);
  }
  const Footprint encoded = dry.measure([&] {
    for (int64_t i = 0; i < 2; ++i)
      dry_encoder->encode_chunk(dry_context,
                                dry.tensor(DType::kF32, {dry_encoder->next_frames(), 3,
                                                         decoder.height(), decoder.width()}),
                                dry.tensor(DType::kF32, {config.z_dim, h, w}));
  });
  EXPECT_EQ(bench.arena.high_water(), encoded.arena);
}

INSTANTIATE_TEST_SUITE_P(Cases, VaeMemory,
                         testing::Combine(testing::Values("vae21_tiny_decode3",
                                                          "vae21_mult_decode2",
                                                          "vae_patch2_decode3", "vae22_decode3"),
                                          testing::Values(DType::kF32, DType::kBF16)));

// The memory of the real decoder at 832x480 in f32. The numbers are fixed, so that growth is
// noticed.
TEST(WanVae, MemoryOfTheRealDecoder) {
  const WanVaeConfig config;
  DryRun dry;
  const Vae vae(make_wan_vae_model(config), without_values(wan_vae_tensors(config)), dry.stream(),
                DType::kF32, VaeParts::kDecoder);
  SerialSeams seams;
  Context context = seams.context(dry.stream(), dry.arena(), {}, {});
  const Footprint decoded = dry_decode(dry, vae, context, 60, 104, 2);
  // The remembered frames take 3.8 GB.
  EXPECT_NEAR(static_cast<double>(decoded.held) / 1e9, 3.8, 0.05);
  // 14 pictures of 96 channels: the last level's x (4), y (4) and the norm's buffer (6).
  EXPECT_NEAR(static_cast<double>(decoded.arena), 14.0 * 480 * 832 * 96 * 4,
              0.02 * 14 * 480 * 832 * 96 * 4);
}

TEST(WanVae, FrameCountsWithoutLatentAreRefusedWithNeighbours) {
  WanVaeBench bench;
  const Vae vae = load(bench, "vae21_tiny_encode3", DType::kF32, VaeParts::kEncoder);
  const Tensor video(DType::kF32, {3, 6, 16, 16}), mean(DType::kF32, {16, 2, 2, 2});
  expect_error(ErrorKind::kUsage, "5 and 9", [&] { vae_encode(bench.context, vae, video, mean); });
  const Tensor odd(DType::kF32, {3, 5, 16, 20});
  expect_error(ErrorKind::kUsage, "16 and 24", [&] { vae_encode(bench.context, vae, odd, mean); });
}

// The same weights with the original names give the same video.
TEST(WanVae, OriginalNamesAreAccepted) {
  for (const std::string name : {"vae21_tiny_decode3", "vae21_mult_decode2", "vae22_decode3"}) {
    WanVaeBench bench;
    const WanVaeConfig config = vae_config_of(name);
    const TensorFile source = TensorFile::open("tests/golden/" + name + "/model/vae");
    std::vector<Tensor> owned;
    std::vector<std::pair<std::string, TensorView>> tensors;
    for (const std::string& ours : source.names()) {
      owned.push_back(load_tensor(source, ours));
      tensors.emplace_back(wan_vae_original_name(config, ours), owned.back().view());
    }
    const std::string path = testing::TempDir() + "weft_vae_original.safetensors";
    write_safetensors(path, tensors);
    const TensorFile file = TensorFile::open(path);
    const Vae original(make_wan_vae_model(config), file, bench.stream, DType::kF32);
    const Vae diffusers = load(bench, name, DType::kF32, VaeParts::kBoth);
    VaeDecoder a(original, 2, 2), b(diffusers, 2, 2);
    for (int64_t i = 0; i < 2; ++i) {
      const Tensor latent = make_latent(config.z_dim, 2, 2, i);
      EXPECT_TRUE(bitwise_equal(decode_next(bench, a, latent), decode_next(bench, b, latent)));
    }
  }
}

// The names of the real 2.1 VAE's tensors in the original repository.
TEST(WanVae, OriginalNamesOfTheRealVae) {
  const std::pair<const char*, const char*> kNames[] = {
      {"quant_conv.weight", "conv1.weight"},
      {"post_quant_conv.bias", "conv2.bias"},
      {"encoder.conv_in.weight", "encoder.conv1.weight"},
      {"encoder.down_blocks.3.conv_shortcut.bias", "encoder.downsamples.3.shortcut.bias"},
      {"encoder.down_blocks.5.time_conv.weight", "encoder.downsamples.5.time_conv.weight"},
      {"encoder.mid_block.attentions.0.to_qkv.weight", "encoder.middle.1.to_qkv.weight"},
      {"decoder.mid_block.resnets.1.norm2.gamma", "decoder.middle.2.residual.3.gamma"},
      {"decoder.up_blocks.0.upsamplers.0.resample.1.weight",
       "decoder.upsamples.3.resample.1.weight"},
      {"decoder.up_blocks.1.resnets.0.conv_shortcut.weight", "decoder.upsamples.4.shortcut.weight"},
      {"decoder.up_blocks.3.resnets.2.conv2.weight", "decoder.upsamples.14.residual.6.weight"},
      {"decoder.norm_out.gamma", "decoder.head.0.gamma"},
      {"decoder.conv_out.weight", "decoder.head.2.weight"}};
  for (const auto& [ours, theirs] : kNames)
    EXPECT_EQ(wan_vae_original_name(WanVaeConfig(), ours), theirs);
  const std::pair<const char*, const char*> kResidual[] = {
      {"encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
       "encoder.downsamples.1.downsamples.0.shortcut.weight"},
      {"encoder.down_blocks.2.downsampler.time_conv.bias",
       "encoder.downsamples.2.downsamples.2.time_conv.bias"},
      {"decoder.up_blocks.0.upsampler.resample.1.weight",
       "decoder.upsamples.0.upsamples.3.resample.1.weight"},
      {"decoder.up_blocks.3.resnets.2.norm2.gamma",
       "decoder.upsamples.3.upsamples.2.residual.3.gamma"}};
  for (const auto& [ours, theirs] : kResidual)
    EXPECT_EQ(wan_vae_original_name(real_residual(), ours), theirs);
}

TEST(WanVae, LatentStatistics) {
  WanVaeBench bench;
  const Vae vae = load(bench, "vae21_tiny_decode3", DType::kF32, VaeParts::kDecoder);
  const WanVaeConfig config = vae_config_of("vae21_tiny_decode3");
  const Tensor normal = make_latent(16, 3, 2, 0);
  Tensor latents(DType::kF32, {16, 3, 2});
  vae.denormalize(normal, latents);
  EXPECT_FLOAT_EQ(latents.as<float>()[6], normal.as<float>()[6] * 1.4541f - 0.7089f);
  for (int64_t i = 0; i < latents.count(); ++i)
    EXPECT_EQ(latents.as<float>()[i],
              normal.as<float>()[i] * config.latents_std[i / 6] + config.latents_mean[i / 6]);
}

const std::string kVaeConfig = "tests/golden/vae21_tiny_decode3/model/vae/config.json";

TEST(WanVaeConfig, StatisticsFallBackToThePublishedOnes) {
  const auto with = WanVaeConfig::from_json_file(kVaeConfig);
  const auto without =
      config_with<WanVaeConfig>(kVaeConfig, {{"latents_mean", nullptr}, {"latents_std", nullptr}});
  EXPECT_EQ(with.latents_mean, without.latents_mean);
  EXPECT_EQ(with.latents_std, without.latents_std);
  EXPECT_EQ(with.latents_std, WanVaeConfig().latents_std);
}

// The VAE of a model of pictures has the same layers and another word for its input.
TEST(WanVaeConfig, ThatOfAModelOfPicturesDrawsPicturesAlone) {
  const VaeTraits clips = WanVaeConfig::from_json_file(kVaeConfig).traits();
  const VaeTraits pictures =
      config_with<WanVaeConfig>(kVaeConfig, {{"_class_name", "AutoencoderKLQwenImage"},
                                             {"in_channels", nullptr},
                                             {"input_channels", 3}})
          .traits();
  EXPECT_GT(clips.max_frames, 1);
  EXPECT_EQ(pictures.max_frames, 1);
  EXPECT_EQ(pictures.spatial_factor, clips.spatial_factor);
}

}  // namespace
}  // namespace weft::test
