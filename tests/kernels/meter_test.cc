// Metered ops have the results of the table below and report their work; in a dry run they do
// nothing.
#include "kernels/meter.h"

#include <gtest/gtest.h>

#include <cstring>

namespace weft {
namespace {

Tensor filled(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.count(); ++i)
    tensor.as<float>()[i] = static_cast<float>((i * 37) % 101) * 0.01f - 0.5f;
  return tensor;
}

struct DryRunMeter final : Meter {
  std::vector<Work> seen;
  bool runs() const override { return false; }
  void op(const Work& work, const std::function<void()>&) override { seen.push_back(work); }
};

TEST(Meter, RunsAndCountsFlop) {
  Stream metered = Stream::cpu(1, Determinism::kFast, &metered_ops()), plain = Stream::cpu(1);
  const Tensor x = filled(DType::kF32, {5, 24}), weight = filled(DType::kF32, {12, 24});
  const PackedLinear packed = pack_linear(metered, weight, {}, DType::kF32);
  Tensor a(DType::kF32, {5, 12}), b(DType::kF32, {5, 12});
  linear(plain, x, packed, LinearActivation::kNone, a);
  TimingMeter meter;
  {
    const MeterScope scope(meter);
    linear(metered, x, packed, LinearActivation::kNone, b);
    copy(metered, a, b);
  }
  linear(metered, x, packed, LinearActivation::kNone, b);  // outside the scope: not counted
  EXPECT_EQ(std::memcmp(a.view().data, b.view().data, a.view().bytes()), 0);
  const TimingMeter::Total& total = meter.total(OpFamily::kLinear);
  EXPECT_EQ(total.calls, 1);
  EXPECT_EQ(total.flop, 2 * 5 * 24 * 12);
  EXPECT_EQ(total.bytes, 4 * (5 * 24 + 5 * 12) + static_cast<double>(packed.bytes()));
  EXPECT_GT(total.seconds, 0);
  EXPECT_EQ(meter.total(OpFamily::kCopy).bytes, 2 * 4 * 5 * 12);
}

TEST(Meter, CausalAttentionCountsVisibleKeys) {
  Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
  const Tensor q = filled(DType::kF32, {4, 2, 8}), out(DType::kF32, {4, 2, 8});
  const KVSegment segment{.k = q, .v = q, .position = 2};
  DryRunMeter meter;
  const MeterScope scope(meter);
  // Queries 3 ... 6 see 2, 3, 4 and 4 of the keys 2 ... 5.
  attention(stream,
            {.q = q, .segments = {&segment, 1}, .causal = true, .query_position = 3, .out = out});
  ASSERT_EQ(meter.seen.size(), 1u);
  EXPECT_EQ(meter.seen[0].flop, 4 * (2 + 3 + 4 + 4) * 2 * 8);
}

TEST(Meter, DryRunSkipsOps) {
  Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
  const Tensor x = filled(DType::kF32, {3, 8});
  Tensor out(DType::kF32, {3, 8});
  EXPECT_FALSE(is_dry_run(stream));
  DryRunMeter meter;
  const MeterScope scope(meter);
  EXPECT_TRUE(is_dry_run(stream));
  EXPECT_FALSE(is_dry_run(Stream::cpu(1)));
  copy(stream, x, out);
  EXPECT_EQ(out.as<float>()[0], 0);
  const size_t before = tensor_bytes_live();
  const PackedLinear packed = pack_linear(stream, x, {}, DType::kBF16);
  EXPECT_EQ(tensor_bytes_live(), before) << "a dry run takes no memory for weights";
  EXPECT_EQ(packed.in(), 8);
  EXPECT_EQ(packed.out(), 3);
  Stream host = Stream::cpu(1);
  EXPECT_EQ(packed.bytes(), pack_linear(host, x, {}, DType::kBF16).bytes());
  packed.for_buffers([](Tensor& buffer) {
    if (buffer) {
      EXPECT_EQ(buffer.view().device.kind, Device::Kind::kMeasuredHost);
    }
  });
}

}  // namespace
}  // namespace weft
