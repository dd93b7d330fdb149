// A forward executes the number of FLOP that the formula gives. Otherwise the rates in benchmarks
// would be wrong.
#include <gtest/gtest.h>

#include "kernels/dry_run.h"
#include "kernels/meter.h"
#include "models/random_weights/random_weights.h"
#include "parallel/context.h"
#include "tests/models/transformer_testing.h"

namespace weft::test {
namespace {

struct Counting final : Meter {
  double flop = 0, elementwise = 0;  // bytes of norms, rotations and pointwise ops
  std::optional<DeviceTraits> device;
  bool runs() const override { return false; }
  const DeviceTraits* measures() const override { return device ? &*device : nullptr; }
  void op(const Work& work, const std::function<void()>&) override {
    flop += work.flop;
    if (work.family == OpFamily::kNorm || work.family == OpFamily::kRope ||
        work.family == OpFamily::kPointwise)
      elementwise += work.bytes;
  }
};

// A block has n tokens of width d, f hidden columns and m rows of text, whose keys and values are
// already computed. Its FLOP are: self-attention 8 n d^2 for projections and 4 n^2 d;
// cross-attention 4 n d^2 and 4 n m d; feed-forward 4 n d f. Outside of the blocks there are the
// patches in and out and the time embedding.
TEST(WanFlop, AForwardExecutesTheFormula) {
  const WanConfig config = wan_1_3b(2);
  const TensorFile weights = random_wan(config);
  Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
  Counting counting;
  const MeterScope scope(counting);
  const WanTransformer model =
      WanTransformer::load(stream, weights, config, {.dtype = DType::kBF16, .blocks = {}});
  for (const auto& [rows, columns, text_rows] :
       {std::array<int64_t, 3>{30, 52, 512}, {1, 7, 512}, {16, 16, 60}}) {
    Arena arena;
    SerialSeams seams;
    const int64_t tokens = rows * columns;
    const Tensor latent(DType::kF32, {16, 1, 2 * rows, 2 * columns});
    const Tensor velocity(DType::kF32, {16, 1, 2 * rows, 2 * columns});
    const Tensor embeds(DType::kF32, {text_rows, config.text_dim});
    Context context = seams.context(stream, arena, {}, TokenRanges::all(tokens));
    const WanText text = prepare_text(model, context, embeds, 512);
    counting.flop = 0;
    const TimeSegment time{{0, tokens}, 500};
    forward(model, context, BlockRange::all(2), latent, {&time, 1}, text,
            rope_of(model, {1, rows, columns}), velocity);
    const double n = static_cast<double>(tokens), m = static_cast<double>(text.rows()), d = 1536,
                 f = 8960;
    const double block =
        8 * n * d * d + 4 * n * n * d + 4 * n * d * d + 4 * n * m * d + 4 * n * d * f;
    const double around = 2 * n * 16 * 4 * d + 2 * n * d * 4 * 16 + 14 * d * d + 512 * d;
    EXPECT_EQ(counting.flop, 2 * block + around) << tokens;
    EXPECT_EQ(text.rows(), text_rows < 512 ? text_rows + 1 : text_rows);  // padding is one row
  }
}

// A block in bf16 reads and writes so many bytes per value of the hidden rows beside its matrices
// and its attention: three norms of 6, three RMS norms of 4, two rotations of 4 and three residuals
// of 12. On a device the library adds the residual without a gate, rope comes with the RMS norm,
// and the norm of the cross-attention with the gated residual before it: 14.
TEST(WanFlop, ABlockMovesTheBytesOfItsElementwiseOps) {
  constexpr int64_t kTokens = 16 * 16;
  const auto bytes = [](int layers, const std::optional<DeviceTraits>& device) {
    const WanConfig config = wan_1_3b(layers);
    DryRun dry(device);
    Stream& stream = dry.stream();
    Counting counting;
    counting.device = device;
    const MeterScope scope(counting);
    const WanTransformer model = WanTransformer::load(stream, random_wan(config), config,
                                                      {.dtype = DType::kBF16, .blocks = {}});
    SerialSeams seams;
    const Tensor latent = dry.tensor(DType::kF32, {16, 1, 32, 32}),
                 velocity = dry.tensor(DType::kF32, {16, 1, 32, 32}),
                 embeds = dry.tensor(DType::kF32, {60, config.text_dim});
    Context context = seams.context(stream, dry.arena(), {}, TokenRanges::all(kTokens));
    const WanText text = prepare_text(model, context, embeds, 512);
    counting.elementwise = 0;
    const TimeSegment time{{0, kTokens}, 500};
    forward(model, context, BlockRange::all(layers), latent, {&time, 1}, text,
            on_device(stream, rope_of(model, {1, 16, 16})), velocity);
    return counting.elementwise;
  };
  const double tables = 3 * 6 * 4;  // of the modulation, per column
  const auto of_block = [&](const std::optional<DeviceTraits>& device) {
    return (bytes(2, device) - bytes(1, device)) / 1536 - tables;
  };
  EXPECT_EQ(of_block({}), kTokens * (3 * 6 + 3 * 4 + 2 * 4 + 3 * 12));
  EXPECT_EQ(of_block(DeviceTraits{.name = "H200", .multiprocessors = 132, .major = 9, .bytes = 1}),
            kTokens * (2 * 6 + 3 * 4 + 14 + 12));
}

}  // namespace
}  // namespace weft::test
