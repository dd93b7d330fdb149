#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "kernels/ops.h"
#include "models/autoencoder_kl/vae.h"
#include "models/footprint.h"
#include "parallel/methods/bands.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/transport/local.h"
#include "tests/models/config_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

const std::string kFolder = "tests/golden/vae_kl_decode/model/vae";

KlVaeConfig golden_config() { return KlVaeConfig::from_json_file(kFolder + "/config.json"); }

struct KlBench {
  explicit KlBench(const Ops& ops = reference_ops())
      : stream(Stream::cpu(1, Determinism::kFixed, &ops)) {}
  Stream stream;
  Arena arena{size_t{1} << 30};
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, {});
};

// The picture [3, H, W] of a band of latent [z, h, w].
Tensor decode(Context& context, const Vae& vae, const TensorView& latent) {
  VaeDecoder decoder(vae, latent[1], latent[2]);
  Tensor frames(DType::kF32, {1, 3, decoder.height(), decoder.width()});
  decoder.decode_chunk(context, latent, frames);
  return frames;
}

Tensor kl_waves(std::initializer_list<int64_t> shape) { return waves(shape, 0.7); }

TEST(KlVae, DecodesAsTheReference) {
  const GoldenCase golden("vae_kl_decode");
  const Tensor latents = golden.input("latents");
  for (const Ops* ops : {&reference_ops(), &cpu_ops()})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      KlBench bench(*ops);
      const Vae vae(make_kl_vae_model(golden_config()), TensorFile::open(kFolder), bench.stream,
                    dtype, VaeParts::kDecoder);
      const Tensor frames = decode(bench.context, vae, latents);
      EXPECT_TRUE(golden.matches("image", frames.view().select(0, 0), dtype)) << ops->name;
      EXPECT_GE(golden.psnr("image", frames.view().select(0, 0)), 45);
      EXPECT_EQ(bench.arena.used(), 0u);
    }
}

// Runs work(context, band) for every band of `rows` rows, each on its own rank.
template <class Work>
void run_kl_bands(int64_t rows, int bands, Work&& work) {
  run_ranks(bands, [&](Communicator& world) {
    std::vector<int> all;
    std::vector<int64_t> heights;
    for (int band = 0; band < bands; ++band) {
      all.push_back(band);
      heights.push_back(partition(rows, bands, band).size());
    }
    KlBench bench;
    BandMixer mixer(world.group(all, 1), heights);
    mixer.begin({});
    BandHalo halo(world.group(all, 1));
    TensorReducer reducer(world.group(all, 2));
    Context context{bench.stream, bench.arena, mixer, reducer, halo, {}, {}};
    work(context, partition(rows, bands, world.rank()));
  });
}

TEST(KlVae, BandsGiveThePictureOfOneRank) {
  constexpr int64_t kRows = 5, kColumns = 4;
  KlBench bench;
  const Vae vae(make_kl_vae_model(golden_config()), TensorFile::open(kFolder), bench.stream,
                DType::kF32);
  const int64_t scale = vae.traits().spatial_factor;
  const Tensor latent = kl_waves({16, kRows, kColumns});
  const Tensor whole = decode(bench.context, vae, latent);
  const Tensor picture = kl_waves({1, 3, kRows * scale, kColumns * scale});
  Tensor mean(DType::kF32, {16, kRows, kColumns});
  VaeEncoder(vae, kRows, kColumns).encode_chunk(bench.context, picture, mean);
  for (int bands = 2; bands <= kRows; ++bands) {
    Tensor joined(DType::kF32, whole.view().shape()), means(DType::kF32, mean.view().shape());
    run_kl_bands(kRows, bands, [&](Context& context, Range band) {
      const Tensor part = decode(context, vae, latent.view().slice(1, band.begin, band.size()));
      copy(context.stream, part, joined.view().slice(2, band.begin * scale, band.size() * scale));
      Tensor rows(DType::kF32, {1, 3, band.size() * scale, kColumns * scale}),
          part_mean(DType::kF32, {16, band.size(), kColumns});
      copy(context.stream, picture.view().slice(2, band.begin * scale, band.size() * scale), rows);
      VaeEncoder(vae, band.size(), kColumns).encode_chunk(context, rows, part_mean);
      copy(context.stream, part_mean, means.view().slice(1, band.begin, band.size()));
    });
    EXPECT_LT(relative_l2(to_f64(joined), to_f64(whole)), kParallelL2) << bands << " bands";
    EXPECT_LT(relative_l2(to_f64(means), to_f64(mean)), kParallelL2) << bands << " bands";
  }
}

TEST(KlVae, MemoryIsPredicted) {
  const std::string path = testing::TempDir() + "weft_kl_vae.safetensors";
  KlVaeConfig config = golden_config();
  for (const bool quantised : {false, true}) {
    config.quant_conv = config.post_quant_conv = config.mid_attention = quantised;
    write_file(path, random_weights(kl_vae_tensors(config), 3));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      KlBench bench;
      const Vae vae(make_kl_vae_model(config), TensorFile::open(path), bench.stream, dtype);
      const int64_t h = 8, w = 4, scale = config.spatial_factor();
      decode(bench.context, vae, kl_waves({16, h, w}));
      DryRun dry;
      const Vae same(make_kl_vae_model(config), without_values(kl_vae_tensors(config)),
                     dry.stream(), dtype);
      Stream packs = Stream::cpu(1);
      EXPECT_EQ(Vae(make_kl_vae_model(config), TensorFile::open(path), packs, dtype).bytes(),
                same.bytes());
      Context dry_context = bench.seams.context(dry.stream(), dry.arena(), {}, {});
      EXPECT_EQ(bench.arena.high_water(), dry_decode(dry, same, dry_context, h, w, 1).arena);
      bench.arena.reset_high_water();
      Tensor mean(DType::kF32, {16, h, w});
      VaeEncoder(vae, h, w).encode_chunk(bench.context, kl_waves({1, 3, h * scale, w * scale}),
                                         mean);
      const Footprint encoded = dry.measure([&] {
        VaeEncoder(same, h, w)
            .encode_chunk(dry_context, dry.tensor(DType::kF32, {1, 3, h * scale, w * scale}),
                          dry.tensor(DType::kF32, {16, h, w}));
      });
      EXPECT_EQ(bench.arena.high_water(), encoded.arena);
    }
  }
  std::remove(path.c_str());
}

TEST(KlVae, LatentsOfTheTransformer) {
  KlBench bench;
  const Vae vae(make_kl_vae_model(golden_config()), TensorFile::open(kFolder), bench.stream,
                DType::kF32);
  const Tensor latents = kl_waves({16, 2, 3});
  Tensor out(DType::kF32, {16, 2, 3});
  vae.denormalize(latents, out);
  EXPECT_FLOAT_EQ(out.as<float>()[1], latents.as<float>()[1] / 0.3611f + 0.1159f);
}

// The counts are those of the published VAE of FLUX.1, which Z-Image uses.
TEST(KlVaeConfig, CountsOfThePublishedModel) {
  KlVaeConfig config;
  config.quant_conv = config.post_quant_conv = false;
  EXPECT_EQ(parameter_count(kl_vae_tensors(config)), 83'819'683);
  EXPECT_EQ(kl_vae_tensors(config).size(), 244u);
}

TEST(KlVaeConfig, EveryFieldIsRead) {
  const KlVaeConfig config = golden_config();
  EXPECT_EQ(config.channels, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(config.resnets, 1);
  EXPECT_EQ(config.groups, 32);
  EXPECT_FALSE(config.quant_conv || config.post_quant_conv);
  EXPECT_FLOAT_EQ(config.shift_factor, 0.1159f);
  const auto published = config_with<KlVaeConfig>(
      kFolder + "/config.json",
      {{"use_quant_conv", nullptr}, {"use_post_quant_conv", nullptr}, {"shift_factor", nullptr}});
  EXPECT_TRUE(published.quant_conv && published.post_quant_conv);
  EXPECT_EQ(published.shift_factor, 0);
}

}  // namespace
}  // namespace weft::test
