// Matrices that stay as a file stores them: SIMD expansion equals the reference, and a linear layer
// gives the bits of the same matrix in the compute dtype. Low-rank terms are added exactly.
#include <cmath>

#include "kernels/dry_run.h"
#include "kernels/linear.h"
#include "tests/kernels/row_ops.h"
#include "tests/support/stored_matrices.h"

namespace weft::test {
namespace {

// The tables that can hold stored matrices, each SIMD target by itself.
std::vector<Table> host_tables() {
  std::vector<Table> tables = all_tables();
  std::erase_if(tables, [](const Table& table) { return table.name == "cuda"; });
  return tables;
}

std::shared_ptr<SharedScratch> new_scratch() { return std::make_shared<SharedScratch>(); }

TEST(StoredBlocks, EveryTargetExpandsLikeTheReference) {
  for (const Table& table : host_tables()) {
    const UseTarget use(table);
    for (const BlockType type : all_block_types()) {
      SCOPED_TRACE(table.name + " " + shape_of(type).name);
      for (const int64_t blocks : {0, 1, 2, 3, 15, 16, 17, 40, 255}) {
        // The bytes begin at an odd address, as in a mapped file.
        std::vector<uint8_t> bytes(static_cast<size_t>(blocks * shape_of(type).bytes) + 1);
        fill_blocks(type, blocks, static_cast<uint32_t>(blocks) + 3, bytes.data() + 1);
        const int64_t count = blocks * shape_of(type).values;
        std::vector<float> is(static_cast<size_t>(count) + 1, 7), wants = is;
        expand_blocks(type, bytes.data() + 1, blocks, is.data());
        expand_blocks_reference(type, bytes.data() + 1, blocks, wants.data());
        ASSERT_EQ(is, wants) << blocks;
        EXPECT_EQ(is.back(), 7);
      }
    }
  }
}

// Every byte of an 8-bit float, NaN and Inf included.
TEST(StoredBlocks, EveryByteOfEightBitFloats) {
  std::array<uint8_t, 256> bytes;
  for (int i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  for (const Table& table : host_tables()) {
    const UseTarget use(table);
    for (const BlockType type : {BlockType::kF8E4M3, BlockType::kF8E5M2, BlockType::kI8}) {
      std::array<float, 256> is, wants;
      expand_blocks(type, bytes.data(), 256, is.data());
      expand_blocks_reference(type, bytes.data(), 256, wants.data());
      for (size_t i = 0; i < 256; ++i)
        EXPECT_TRUE(std::isnan(wants[i])
                        ? std::isnan(is[i])
                        : std::bit_cast<uint32_t>(is[i]) == std::bit_cast<uint32_t>(wants[i]))
            << table.name << " " << shape_of(type).name << " byte " << i;
    }
  }
}

struct StoredCase {
  BlockType type;
  int64_t out, in, scales;
};

std::vector<StoredCase> stored_cases() {
  std::vector<StoredCase> all;
  for (const BlockType type : all_block_types()) {
    const int64_t block = shape_of(type).values;
    for (const auto& [out, in] :
         std::vector<std::array<int64_t, 2>>{{1, 1}, {5, 3}, {66, 2}, {130, 5}, {192, 9}})
      all.push_back({type, out, in * block, 0});
    if (block == 1) {
      all.push_back({type, 70, 259, 1});
      all.push_back({type, 70, 1300, 70});
    }
  }
  return all;
}

TEST(LinearStored, HasTheBitsOfTheComputeDtype) {
  for (const Table& table : host_tables()) {
    const UseTarget use(table);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int threads : {1, 3}) {
        if (threads > 1 && table.target) continue;  // once is enough for the SIMD table
        Stream stream = Stream::cpu(threads, Determinism::kFixed, table.ops);
        const auto scratch = new_scratch();
        for (const StoredCase& c : stored_cases()) {
          SCOPED_TRACE(table.name + " " + std::string(to_string(dtype)) + " " +
                       shape_of(c.type).name + " " + std::to_string(c.out) + "x" +
                       std::to_string(c.in));
          const Tensor values = values_of(random_stored(c.type, c.out, c.in, c.scales));
          const Tensor bias = make_normal(DType::kF32, {c.out}, 5);
          const PackedLinear plain = pack_linear(stream, values, bias, dtype),
                             stored =
                                 pack_stored(stream, random_stored(c.type, c.out, c.in, c.scales),
                                             bias, dtype, scratch);
          ASSERT_EQ(stored.in(), c.in);
          ASSERT_EQ(stored.out(), c.out);
          for (const int64_t rows : {1, 17, 70}) {
            const Tensor x = make_normal(dtype, {rows, c.in}, 6);
            for (const DType out_dtype : {dtype, DType::kF32}) {
              const Tensor is(out_dtype, {rows, c.out}), wants(out_dtype, {rows, c.out});
              linear(stream, x, plain, LinearActivation::kSilu, wants);
              linear(stream, x, stored, LinearActivation::kSilu, is);
              ASSERT_TRUE(bitwise_equal(is, wants)) << rows;
            }
          }
        }
      }
  }
}

TEST(LinearStored, MatricesShareTheirScratch) {
  for (const Table& table : host_tables()) {
    const UseTarget use(table);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Stream stream = Stream::cpu(2, Determinism::kFixed, table.ops);
      const auto scratch = new_scratch();
      const size_t before = tensor_bytes_live();
      const auto pack = [&](int64_t out, int64_t in, uint32_t seed) {
        return pack_stored(stream, random_stored(BlockType::kQ8_0, out, in, 0, seed), {}, dtype,
                           scratch);
      };
      std::vector<PackedLinear> all;
      for (const auto& [out, in] : std::vector<std::array<int64_t, 2>>{
               {128, 64}, {64, 128}, {128, 64}, {70, 96}, {192, 256}})
        all.push_back(pack(out, in, static_cast<uint32_t>(all.size()) + 10));
      size_t packed = 0;
      for (const PackedLinear& one : all) packed += one.bytes();
      const size_t held = tensor_bytes_live() - before, largest = 192 * 256 * size_of(dtype);
      // Every tensor takes whole cache lines and one more.
      EXPECT_GE(held, packed + largest) << table.name;
      EXPECT_LE(held, packed + largest + 6 * 127) << table.name;
      for (int turn = 0; turn < 2; ++turn)
        for (size_t i = 0; i < all.size(); ++i) {
          const int64_t in = all[i].in(), out = all[i].out();
          const Tensor x = make_normal(dtype, {9, in}, 8);
          const Tensor is(dtype, {9, out}), wants(dtype, {9, out});
          const Tensor values =
              values_of(random_stored(BlockType::kQ8_0, out, in, 0, static_cast<uint32_t>(i) + 10));
          linear(stream, x, pack_linear(stream, values, {}, dtype), LinearActivation::kNone, wants);
          linear(stream, x, all[i], LinearActivation::kNone, is);
          EXPECT_TRUE(bitwise_equal(is, wants)) << table.name << " " << i;
        }
    }
  }
}

TEST(LinearStored, TakesTheBuffersOfAnother) {
  for (const Table& table : host_tables()) {
    const UseTarget use(table);
    Stream stream = Stream::cpu(1, Determinism::kFixed, table.ops);
    const auto scratch = new_scratch();
    const auto pack = [&](uint32_t seed) {
      return pack_stored(stream, random_stored(BlockType::kI8, 40, 70, 40, seed), {}, DType::kF32,
                         scratch);
    };
    const PackedLinear one = pack(1), other = pack(2);
    const Tensor x = make_normal(DType::kF32, {17, 70}, 3);
    const Tensor expected(DType::kF32, {17, 40}), before(DType::kF32, {17, 40}),
        after(DType::kF32, {17, 40});
    linear(stream, x, one, LinearActivation::kNone, expected);
    linear(stream, x, other, LinearActivation::kNone, before);
    std::vector<TensorView> source;
    one.for_buffers([&](Tensor& buffer) { source.push_back(buffer); });
    size_t at = 0;
    other.for_buffers([&](Tensor& buffer) {
      std::memcpy(buffer.view().data, source[at++].data, buffer.view().bytes());
    });
    linear(stream, x, other, LinearActivation::kNone, after);
    EXPECT_FALSE(bitwise_equal(before, expected)) << table.name;
    EXPECT_TRUE(bitwise_equal(after, expected)) << table.name;
  }
}

// Also where the machine multiplies bf16 and oneDNN chooses the layout of the expanded values.
TEST(LinearStored, ADryRunTakesTheSameBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const StoredCase& c : stored_cases()) {
      Stream host = Stream::cpu(1);
      const auto real = new_scratch(), dry_scratch = new_scratch();
      const size_t before = tensor_bytes_live();
      const PackedLinear packed =
          pack_stored(host, random_stored(c.type, c.out, c.in, c.scales), {}, dtype, real);
      const size_t taken = tensor_bytes_live() - before;
      DryRun dry;
      PackedLinear measured;
      const Footprint planned = dry.measure([&] {
        StoredMatrix matrix{.type = c.type, .out = c.out, .in = c.in};
        matrix.blocks = Tensor(DType::kU8, {c.out, matrix.row_bytes()}, dry.stream().device());
        if (c.scales > 0) matrix.scales = Tensor(DType::kF32, {c.scales}, dry.stream().device());
        measured = pack_stored(dry.stream(), std::move(matrix), {}, dtype, dry_scratch);
      });
      EXPECT_EQ(measured.bytes(), packed.bytes());
      EXPECT_EQ(planned.held, taken) << shape_of(c.type).name << " " << c.out << "x" << c.in;
    }
}

// x W^T + x down^T up^T against the merged matrix.
TEST(LowRankTerm, EqualsTheMergedMatrix) {
  constexpr int64_t kIn = 96, kOut = 70, kRank = 5;
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const LinearActivation activation :
           {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu})
        for (const int64_t rows : {1, 17, 600}) {
          Stream stream = Stream::cpu(2, Determinism::kFixed, table.ops);
          const Tensor weight = make_normal(dtype, {kOut, kIn}, 1, 0.1),
                       bias = make_normal(DType::kF32, {kOut}, 2),
                       down = make_normal(dtype, {kRank, kIn}, 3, 0.1),
                       up = make_normal(dtype, {kOut, kRank}, 4, 0.5),
                       x = make_normal(dtype, {rows, kIn}, 5);
          PackedLinear packed = pack_linear(stream, weight, bias, dtype);
          const size_t alone = packed.bytes();
          packed.add_term(stream.device(), pack_linear(stream, down, {}, dtype),
                          pack_linear(stream, up, {}, dtype), new_scratch());
          EXPECT_GT(packed.bytes(), alone);
          const std::vector<double> w = to_f64(weight), a = to_f64(down), b = to_f64(up);
          Tensor merged(DType::kF32, {kOut, kIn});
          for (int64_t o = 0; o < kOut; ++o)
            for (int64_t i = 0; i < kIn; ++i) {
              double sum = w[o * kIn + i];
              for (int64_t k = 0; k < kRank; ++k) sum += b[o * kRank + k] * a[k * kIn + i];
              merged.as<float>()[o * kIn + i] = static_cast<float>(sum);
            }
          Stream exact = Stream::cpu(1, Determinism::kFixed, &reference_ops());
          const Tensor wide(DType::kF32, x.view().shape()), wants(DType::kF32, {rows, kOut});
          copy(exact, x, wide);
          const Tensor rounded = rounded_bias(exact, bias, dtype);
          linear(exact, wide, pack_linear(exact, merged, rounded, DType::kF32), activation, wants);
          for (const DType out_dtype : {dtype, DType::kF32}) {
            const Tensor is(out_dtype, {rows, kOut});
            linear(stream, x, packed, activation, is);
            // In bf16 the inner product rounds once, and so may the result.
            const double bound = dtype == DType::kF32 ? 1e-6 : 4e-3;
            EXPECT_LT(relative_l2(to_f64(is), to_f64(wants)), bound)
                << table.name << " " << to_string(dtype) << " rows " << rows;
          }
        }
  }
}

}  // namespace
}  // namespace weft::test
