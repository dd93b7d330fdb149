// One forward of two random blocks of every published transformer, with its true widths: the
// velocity is finite, and two ranks give that of one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "models/flux/transformer.h"
#include "models/flux2/transformer.h"
#include "models/random_weights/random_weights.h"
#include "parallel/methods/ulysses.h"
#include "parallel/transport/local.h"
#include "tests/models/slices_testing.h"
#include "tests/support/compare.h"

namespace weft::test {
namespace {

constexpr int kRanks = 2;
constexpr std::array<int64_t, 3> kGrid{1, 3, 3};
constexpr int64_t kTokens = kGrid[0] * kGrid[1] * kGrid[2];  // one rank has one more
constexpr int64_t kTextRows = 5, kTextLength = 8;

std::vector<std::string> published() {
  std::vector<std::string> names;
  std::istringstream all(published_transformers());
  for (std::string name; std::getline(all, name, '|');) names.push_back(name);
  return names;
}

// The 14B models of pictures have the blocks of the one of text, beside keys of pictures: one block
// of each is enough. Two of the widest, FLUX.2 dev and Krea-2, take 6.9 and 4.5 GB.
int blocks_of(const std::string& name) {
  const TransformerTraits traits = published_transformer(name)->traits();
  return traits.width == 5120 && traits.given_channels() > 0 ? 1 : 2;
}

std::shared_ptr<const TransformerModel> few_blocks(const std::string& name) {
  if (!name.starts_with("flux")) return published_transformer(name)->with_blocks(blocks_of(name));
  // The first two blocks would be of one kind.
  const TransformerTraits traits = published_transformer(name)->traits();
  if (name.starts_with("flux.2")) {
    Flux2Config config;
    config.heads = traits.heads;
    config.ffn = traits.ffn_columns;
    config.text_dim = traits.text_columns;
    config.guidance_embeds = traits.reads_guidance;
    config.double_blocks = config.single_blocks = 1;
    return make_flux2_model(config);
  }
  FluxConfig config;
  config.double_blocks = config.single_blocks = 1;
  config.guidance_embeds = traits.reads_guidance;
  return make_flux_model(config);
}

// A transformer's weights and the inputs of a forward over all tokens.
struct TwoBlocks {
  TwoBlocks(const TransformerModel& model, const TensorFile& file, DType dtype,
            const WidthSlice& width = {}) {
    Stream stream = Stream::cpu(kRanks, Determinism::kFixed);
    transformer = model.load(stream, file, {.dtype = dtype, .width = width});
    const TransformerTraits& traits = model.traits();
    latent = waves({kTokens, traits.row()}, 0.37);
    text = waves({kTextRows, traits.text_columns}, 0.73);
    if (traits.image_columns) image = waves({traits.image_rows, traits.image_columns}, 0.59);
    if (traits.pooled_columns) pooled = waves({traits.pooled_columns}, 0.41);
    if (traits.given_channels())
      channels = waves({traits.given_channels(), kGrid[0] * traits.patch[0],
                        kGrid[1] * traits.patch[1], kGrid[2] * traits.patch[2]},
                       0.83);
  }

  // The velocity of a rank's tokens, which are one range.
  void forward(TokenMixer& mixer, Reducer& reducer, int threads, const Range& own,
               const TensorView& out) const {
    Stream stream = Stream::cpu(threads, Determinism::kFixed);
    Arena arena(size_t{1} << 30);
    SerialSeams seams;
    Context context{
        stream, arena, mixer, reducer, seams.halo, {}, {.ranges = {own}, .total = kTokens}};
    const auto conditioning = transformer->prepare(context,
                                                   {.text = text,
                                                    .text_length = kTextLength,
                                                    .image = image,
                                                    .channels = channels,
                                                    .pooled = pooled,
                                                    .guidance = 3.5},
                                                   kGrid);
    const Rope rope = transformer->rope(kGrid, {}, *conditioning);
    const TimeSegment time{{0, kTokens}, 500};
    const Tensor embedding(DType::kF32, {1, transformer->traits().time_columns});
    transformer->timestep_embedding(stream, {&time, 1}, embedding);
    mixer.begin({});
    transformer->forward(context, {.blocks = BlockRange::all(transformer->traits().blocks),
                                   .in = latent.view().slice(0, own.begin, own.size()),
                                   .times = {&time, 1},
                                   .embedding = embedding,
                                   .conditioning = *conditioning,
                                   .rope = rope,
                                   .out = out.slice(0, own.begin, own.size())});
  }
  std::vector<double> whole() const {
    FullMixer mixer;
    IdentityReducer reducer;
    const Tensor velocity(DType::kF32, latent.view().shape());
    forward(mixer, reducer, kRanks, {0, kTokens}, velocity);
    return to_f64(velocity);
  }
  // The ranks share the attention, or each sees its own tokens alone.
  std::vector<double> split(bool together) const {
    const Tensor velocity(DType::kF32, latent.view().shape());
    run_ranks(kRanks, [&](Communicator& world) {
      const SequenceMap map = SequenceMap::contiguous(kTokens, kRanks);
      FullMixer alone;
      UlyssesMixer ulysses(world.group({0, 1}, 1), map, std::make_unique<FullMixer>());
      TokenMixer& mixer = together ? static_cast<TokenMixer&>(ulysses) : alone;
      IdentityReducer reducer;
      forward(mixer, reducer, 1, partition(kTokens, kRanks, world.rank()), velocity);
    });
    return to_f64(velocity);
  }

  std::unique_ptr<Transformer> transformer;
  Tensor latent, text, image, channels, pooled;
};

bool all_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

class PublishedBlocks : public testing::TestWithParam<std::string> {};

// A checkpoint is bf16, and so is the computation. Two ranks differ from one by less than a
// rounding to bf16, which is about what bf16 differs from f32 (3e-3 with these blocks).
TEST_P(PublishedBlocks, TwoRanksGiveTheVelocityOfOne) {
  const std::shared_ptr<const TransformerModel> model = few_blocks(GetParam());
  ASSERT_EQ(model->traits().blocks, blocks_of(GetParam()));
  const TwoBlocks blocks(*model, random_tensors(model->tensors()), DType::kBF16);
  const std::vector<double> one = blocks.whole();
  EXPECT_TRUE(all_finite(one));
  const double error = relative_l2(blocks.split(true), one),
               apart = relative_l2(blocks.split(false), one);
  std::printf("[ parallel ] %s, %d blocks: relative L2 %.3g, without an exchange %.3g\n",
              GetParam().c_str(), model->traits().blocks, error, apart);
  EXPECT_LE(error, kUnitBf16);
  // Tokens that do not see the others' keys err as a failing exchange would, which must be told
  // from rounding.
  EXPECT_GT(apart, 2 * error);
  EXPECT_GT(apart, 1e-4);
}

// The smallest model's widths are few enough to hold the law of f32, and the one of bf16, too.
TEST(PublishedWidths, HoldTheLawsOfBothPrecisions) {
  const std::shared_ptr<const TransformerModel> model = few_blocks("wan2.1-1.3b");
  const TensorFile file = random_tensors(model->tensors());
  const TwoBlocks f32(*model, file, DType::kF32), bf16(*model, file, DType::kBF16);
  const std::vector<double> exact = f32.whole(), one = bf16.whole();
  EXPECT_LE(relative_l2(f32.split(true), exact), kParallelL2);
  const double rounding = relative_l2(one, exact);
  EXPECT_GT(rounding, 0);
  EXPECT_LE(relative_l2(bf16.split(true), one), rounding);
  // Ranks that share the width.
  const TransformerTraits& traits = model->traits();
  std::array<std::vector<double>, kRanks> parts;
  run_parts(kRanks, [&](int rank, Reducer& reducer) {
    const TwoBlocks own(*model, file, DType::kF32,
                        width_part(traits.heads, traits.ffn_columns, kRanks, rank));
    const Tensor velocity(DType::kF32, own.latent.view().shape());
    FullMixer mixer;
    own.forward(mixer, reducer, 1, {0, kTokens}, velocity);
    parts[static_cast<size_t>(rank)] = to_f64(velocity);
  });
  EXPECT_LE(relative_l2(parts[0], exact), kParallelL2);
  EXPECT_EQ(parts[0], parts[1]);
}

INSTANTIATE_TEST_SUITE_P(All, PublishedBlocks, testing::ValuesIn(published()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace weft::test
