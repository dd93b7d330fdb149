// The VAE in bands of rows gives the picture of one rank bit for bit, and each convolution
// exchanges the predicted halo bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/copy.h"
#include "kernels/ops.h"
#include "models/wan/vae.h"
#include "parallel/methods/bands.h"
#include "parallel/transport/local.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// Counts the bytes that a band must send to its neighbours: for every convolution its top rows to
// the band above and its bottom rows to the band below, for every frame that the convolution reads.
class CountingHalo final : public Halo {
 public:
  CountingHalo(Halo& inner, bool first, bool last) : inner_(inner), first_(first), last_(last) {}
  HaloView exchange(Context& context, const TensorView& band, int dim, int64_t before,
                    int64_t after) override {
    const int64_t row = static_cast<int64_t>(band.bytes()) / band[dim];
    bytes += row * ((first_ ? 0 : after) + (last_ ? 0 : before));
    return inner_.exchange(context, band, dim, before, after);
  }
  int64_t bytes = 0;

 private:
  Halo& inner_;
  bool first_, last_;
};

// Runs work(context, band) for every band of the latent rows, each on its own rank.
template <class Work>
void run_bands(int64_t rows, int bands, const LocalOptions& options, Work&& work) {
  run_ranks(
      bands,
      [&](Communicator& world) {
        std::vector<int> all;
        std::vector<int64_t> heights;
        for (int band = 0; band < bands; ++band) {
          all.push_back(band);
          heights.push_back(partition(rows, bands, band).size());
        }
        Stream stream = Stream::cpu(1, Determinism::kFast, &reference_ops());
        Arena arena(size_t{1} << 30);
        BandMixer mixer(world.group(all, 1), heights);
        mixer.begin({});
        BandHalo inner(world.group(all, 1));
        CountingHalo halo(inner, world.rank() == 0, world.rank() == bands - 1);
        IdentityReducer reducer;
        Context context{stream, arena, mixer, reducer, halo, {}, {}};
        work(context, partition(rows, bands, world.rank()));
        EXPECT_EQ(world.counters().sent[static_cast<size_t>(Payload::kHalo)].bytes, halo.bytes);
        EXPECT_GT(halo.bytes, 0);
      },
      options);
}

class VaeBands : public testing::TestWithParam<const char*> {
 protected:
  VaeBands()
      : folder_(std::string("tests/golden/") + GetParam() + "/model/vae"),
        config_(WanVaeConfig::from_json_file(folder_ + "/config.json")),
        vae_(make_wan_vae_model(config_), TensorFile::open(folder_), stream_, DType::kF32) {}
  Context context() { return seams_.context(stream_, arena_, {}, {}); }

  std::string folder_;
  Stream stream_ = Stream::cpu(1, Determinism::kFast, &reference_ops());
  Arena arena_{size_t{1} << 30};
  SerialSeams seams_;
  WanVaeConfig config_;
  Vae vae_;
};

constexpr int64_t kRows = 5, kColumns = 2, kLatentFrames = 2;

TEST_P(VaeBands, DecodingEqualsOneRank) {
  const int64_t scale = config_.spatial_factor();
  const std::array<int64_t, 4> shape{3, config_.traits().frames(kLatentFrames), kRows * scale,
                                     kColumns * scale};
  Tensor latents(DType::kF32, {config_.z_dim, kLatentFrames, kRows, kColumns}),
      whole(DType::kF32, shape), joined(DType::kF32, shape);
  for (int64_t i = 0; i < latents.count(); ++i)
    latents.as<float>()[i] = static_cast<float>(std::sin(0.7 * i));
  Context serial = context();
  vae_decode(serial, vae_, latents, whole);
  for (int bands = 2; bands <= kRows; ++bands) {
    fill_zero(stream_, joined);
    run_bands(kRows, bands, {.rendezvous = bands % 2 == 0}, [&](Context& context, Range band) {
      vae_decode(context, vae_, latents.view().slice(2, band.begin, band.size()),
                 joined.view().slice(2, band.begin * scale, band.size() * scale));
    });
    EXPECT_TRUE(bitwise_equal(joined, whole)) << bands << " bands";
  }
}

TEST_P(VaeBands, EncodingEqualsOneRank) {
  const int64_t scale = config_.spatial_factor();
  Tensor video(DType::kF32,
               {3, config_.traits().frames(kLatentFrames), kRows * scale, kColumns * scale});
  Tensor whole(DType::kF32, {config_.z_dim, kLatentFrames, kRows, kColumns}),
      joined(DType::kF32, {config_.z_dim, kLatentFrames, kRows, kColumns});
  for (int64_t i = 0; i < video.count(); ++i)
    video.as<float>()[i] = static_cast<float>(std::sin(0.07 * i));
  Context serial = context();
  vae_encode(serial, vae_, video, whole);
  for (int bands = 2; bands <= kRows; ++bands) {
    fill_zero(stream_, joined);
    run_bands(
        kRows, bands, {.delay_seed = 11, .max_delay_us = 30}, [&](Context& context, Range band) {
          vae_encode(context, vae_, video.view().slice(2, band.begin * scale, band.size() * scale),
                     joined.view().slice(2, band.begin, band.size()));
        });
    EXPECT_TRUE(bitwise_equal(joined, whole)) << bands << " bands";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, VaeBands,
                         testing::Values("vae21_tiny_decode3", "vae_patch2_decode3",
                                         "vae22_decode3"));

}  // namespace
}  // namespace weft::test
