#include "models/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "kernels/copy.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

class WeightBinderTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "weft_binder_" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";
    write_safetensors(path_, {{"a", Tensor(DType::kF32, {2, 3})},
                              {"b", Tensor(DType::kBF16, {4})},
                              {"ids", Tensor(DType::kI32, {4})},
                              {"spare", Tensor(DType::kF32, {1})}});
  }
  void TearDown() override { std::remove(path_.c_str()); }

  std::string fault(WeightBinder& binder) {
    return error_of([&] { binder.finish(); }, ErrorKind::kModel);
  }

  std::string path_;
};

TEST_F(WeightBinderTest, TakesWhatFits) {
  const TensorFile file = TensorFile::open(path_);
  WeightBinder binder(file, "thing");
  EXPECT_TRUE(binder.take("a", {2, 3}));
  EXPECT_EQ(binder.take_any({"other", "b"}, {4}), "b");
  binder.ignore("ids");
  binder.ignore("spare");
  EXPECT_EQ(fault(binder), "");
}

TEST_F(WeightBinderTest, NamesEveryFaultAtOnce) {
  const TensorFile file = TensorFile::open(path_);
  WeightBinder binder(file, "thing");
  EXPECT_FALSE(binder.take("a", {3, 2}));
  EXPECT_FALSE(binder.take("ids", {4}));
  EXPECT_FALSE(binder.take("gone", {7}));
  EXPECT_EQ(binder.take_any({"left", "right"}, {8}), "");
  binder.take("b", {4});
  const std::string text = fault(binder);
  for (const char* part : {"thing", "a [2, 3] must be [3, 2]", "ids is i32", "gone [7]",
                           "left or right [8]", "1 extra: spare", "2 missing"})
    EXPECT_TRUE(contains(text, part)) << part << " in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(WeightBinderTest, RenamesToTheFilesSpelling) {
  const TensorFile file = TensorFile::open(path_);
  WeightBinder binder(file, "thing", [](const std::string& name) { return name.substr(5); });
  EXPECT_TRUE(binder.take("ours.a", {2, 3}));
  EXPECT_FALSE(binder.take("ours.z", {1}));
  const std::string text = fault(binder);
  EXPECT_TRUE(contains(text, "1 missing: z [1]"));
}

// A part equals the same range of the mapped file, rounded as a copy rounds, in however many pieces
// it is read. A whole tensor stays in the mapped file.
TEST(HeldWeight, IsThePartOfTheTensor) {
  Stream stream = Stream::cpu(1);
  Tensor matrix(DType::kF32, {500, 300}), narrow(DType::kBF16, {500, 300});
  for (int64_t i = 0; i < matrix.count(); ++i)
    matrix.as<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
  copy(stream, matrix, narrow);
  const std::string path = testing::TempDir() + "weft_held_weight.safetensors";
  write_safetensors(path, {{"f32", matrix}, {"bf16", narrow}});
  const TensorFile file = TensorFile::open(path);
  std::remove(path.c_str());
  uint64_t read = 0;
  for (const char* name : {"f32", "bf16"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TensorView whole = file.view(name);
      for (const TensorPart& part :
           {TensorPart{0, {3, 499}}, {0, {499, 500}}, {1, {7, 290}}, {1, {0, 1}}}) {
        const HeldWeight held(stream, file, name, part, whole.shape(), dtype);
        const TensorView slice = whole.slice(part.dim, part.range.begin, part.range.size());
        Tensor expected(dtype, slice.shape());
        copy(stream, slice, expected);
        EXPECT_FALSE(held.whole());
        EXPECT_TRUE(bitwise_equal(held.view(), expected)) << name << " " << part.dim;
        EXPECT_EQ(file.bytes_read(), read += slice.bytes());
      }
      const HeldWeight all(stream, file, name, {1, {0, 300}}, whole.shape(), dtype);
      EXPECT_TRUE(all.whole());
      EXPECT_EQ(all.view().data, whole.data);
      // The same values under extents that the file merged or dropped.
      for (const auto& [part, shape] : std::vector<std::pair<TensorPart, std::vector<int64_t>>>{
               {{0, {3, 19}}, {20, 25, 1, 300}},
               {{1, {2, 9}}, {50, 10, 300}},
               {{3, {5, 300}}, {1, 500, 1, 300}}}) {
        const HeldWeight held(stream, file, name, part, shape, dtype);
        const TensorView slice =
            whole.reshape({shape[0], shape[1], shape[2], shape.size() > 3 ? shape[3] : 1})
                .slice(part.dim, part.range.begin, part.range.size());
        Tensor expected(dtype, slice.shape());
        copy(stream, slice, expected);
        EXPECT_TRUE(bitwise_equal(held.view().reshape({held.view().count()}),
                                  expected.view().reshape({expected.count()})));
        read += slice.bytes();
      }
    }
  EXPECT_EQ(file.bytes_read(), read);
}

TEST(WeightBinder, SameValuesOfFewerDimensions) {
  using Shape = std::vector<int64_t>;
  const Shape kernel{24, 16, 1, 2, 2}, table{1, 6, 24};
  for (const auto& [is, wants] :
       std::vector<std::pair<Shape, Shape>>{{kernel, kernel},
                                            {{24, 16, 2, 2}, kernel},
                                            {{384, 1, 2, 2}, kernel},
                                            {{384, 2, 2}, kernel},
                                            {{384, 1, 1, 1}, {24, 16, 1, 1, 1}},
                                            {{384}, {24, 16, 1, 1}},
                                            {{24, 16}, {24, 16, 1, 1}},
                                            {{768, 2}, kernel},
                                            {{6, 24}, table},
                                            {{24}, {1, 24}},
                                            {{1, 1, 24}, {24}},
                                            {{}, {1}},
                                            {{1}, {}}})
    EXPECT_TRUE(same_values(is, wants));
  for (const auto& [is, wants] :
       std::vector<std::pair<Shape, Shape>>{{{16, 24, 1, 2, 2}, kernel},
                                            {{24, 64}, kernel},  // the last extents merged
                                            {{24, 32, 2}, kernel},
                                            {{383, 2, 2}, kernel},
                                            {{144}, table},  // no kernel
                                            {{6, 2}, {2, 6}},
                                            {{12}, {2, 6}},
                                            {{24, 6}, table},
                                            {{}, {2}},
                                            {{0}, {1}}})
    EXPECT_FALSE(same_values(is, wants));
}

// Tensors of a derived file are computed, by several threads, into memory of the wanted dtype.
TEST(HeldWeight, ADerivedTensorIsComputed) {
  Tensor values(DType::kF32, {500, 300});
  for (int64_t i = 0; i < values.count(); ++i)
    values.as<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
  const TensorFile file = TensorFile::derived(
      {{.name = "w", .dtype = DType::kF32, .shape = {500, 300}, .stored = "Q4_K"}},
      [&](const std::string&, int64_t first, const TensorView& out) {
        std::copy_n(values.as<float>() + first, out.count(), out.as<float>());
      },
      {});
  EXPECT_EQ(file.stored_type("w"), "Q4_K");
  for (const int threads : {1, 3})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const TensorPart& part : {TensorPart{0, {0, 500}}, {0, {3, 499}}, {1, {7, 290}}}) {
        Stream stream = Stream::cpu(threads);
        const HeldWeight held(stream, file, "w", part, values.view().shape(), dtype);
        const TensorView slice = values.view().slice(part.dim, part.range.begin, part.range.size());
        Tensor expected(dtype, slice.shape());
        copy(stream, slice, expected);
        EXPECT_EQ(held.whole(), part.range.size() == 500);
        EXPECT_TRUE(bitwise_equal(held.view(), expected)) << part.dim << " " << threads;
      }
}

}  // namespace
}  // namespace weft::test
