#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cstring>

namespace weft::test {
namespace {

// Every family is a struct of function pointers: no entry may be null in any table, but for what
// only devices fuse.
template <class Family>
int null_entries(const Family& family) {
  static_assert(sizeof(Family) % sizeof(void*) == 0);
  void* entries[sizeof(Family) / sizeof(void*)];
  std::memcpy(entries, &family, sizeof family);
  int nulls = 0;
  for (void* entry : entries) nulls += entry == nullptr;
  return nulls;
}

TEST(Ops, EveryEntryOfEveryTableIsFilled) {
  ASSERT_GE(all_ops().size(), 1u);
  EXPECT_EQ(all_ops()[0], &reference_ops());
  for (const Ops* ops : all_ops()) {
    SCOPED_TRACE(ops->name);
    EXPECT_EQ(null_entries(ops->norm), 0);
    EXPECT_EQ(null_entries(ops->linear), 0);
    EXPECT_EQ(null_entries(ops->attention), 0);
    EXPECT_EQ(null_entries(ops->rope), 0);
    EXPECT_EQ(null_entries(ops->pointwise), 0);
    EXPECT_EQ(null_entries(ops->conv), 0);
    EXPECT_EQ(null_entries(ops->copy), 0);
    EXPECT_EQ(null_entries(ops->fused), 3) << "the CPU's parts run one after the other";
  }
}

TEST(Ops, NamesAreThoseOfTheHeader) {
  EXPECT_EQ(reference_ops().name, "reference");
  EXPECT_EQ(simd_ops().name, "simd");
  EXPECT_FALSE(cpu_isa().empty());
}

TEST(Stream, CarriesItsTableAndThreads) {
  const Stream fixed = Stream::cpu(3, Determinism::kFixed, &reference_ops());
  EXPECT_EQ(fixed.threads(), 3);
  EXPECT_TRUE(fixed.deterministic());
  EXPECT_EQ(&fixed.ops(), &reference_ops());
  const Stream all = Stream::cpu();
  EXPECT_GE(all.threads(), 1);
  EXPECT_FALSE(all.deterministic());
  EXPECT_EQ(&all.ops(), &cpu_ops());
}

TEST(OpsDeathTest, BadArgumentsAreBugsThatNameTheOperands) {
  Stream stream = Stream::cpu(1);
  Tensor x(DType::kF32, {2, 4}), narrow(DType::kF32, {2, 3}), half(DType::kBF16, {2, 4});
  Tensor vector(DType::kF32, {4});
  EXPECT_DEATH(add(stream, x, narrow, x), "\\[2, 3\\] f32");
  EXPECT_DEATH(silu(stream, x, half), "bf16");
  EXPECT_DEATH(layer_norm(stream, x, narrow, {}, 1e-6f, x), "weight");
  EXPECT_DEATH(layer_norm(stream, x.view().permute({1, 0}), {}, {}, 1e-6f, x), "x");
  const PackedLinear packed = pack_linear(stream, x, {}, DType::kF32);
  EXPECT_DEATH(linear(stream, narrow, packed, LinearActivation::kNone, x), "packed");
}

}  // namespace
}  // namespace weft::test
