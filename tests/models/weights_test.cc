#include "models/weights.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace weft {
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
    try {
      binder.finish();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
  }

  std::string path_;
};

TEST_F(WeightBinderTest, TakesWhatFits) {
  const TensorFile file = TensorFile::open(path_);
  WeightBinder binder(file, "thing");
  EXPECT_EQ(binder.take("a", {2, 3}).to_string_shape(), "[2, 3] f32");
  EXPECT_EQ(binder.take_any({"other", "b"}, {4}).dtype, DType::kBF16);
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
  EXPECT_FALSE(binder.take_any({"left", "right"}, {8}));
  binder.take("b", {4});
  const std::string text = fault(binder);
  for (const char* part : {"thing", "a [2, 3] must be [3, 2]", "ids is i32", "gone [7]",
                           "left or right [8]", "1 extra: spare", "2 missing"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(WeightBinderTest, RenamesToTheFilesSpelling) {
  const TensorFile file = TensorFile::open(path_);
  WeightBinder binder(file, "thing", [](const std::string& name) { return name.substr(5); });
  EXPECT_TRUE(binder.take("ours.a", {2, 3}));
  EXPECT_FALSE(binder.take("ours.z", {1}));
  const std::string text = fault(binder);
  EXPECT_NE(text.find("1 missing: z [1]"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft
