// Tests that the code which cuDNN compiles is kept in a folder, and read again. Needs a GPU.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/conv.h"
#include "kernels/cuda/device.h"
#include "tests/cuda/first_device.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// A convolution on a stream that is new, and so are its plans.
Tensor convolved() {
  Stream stream = cuda_stream(0);
  const Tensor x = make_normal(DType::kBF16, {3, 30, 52, 64}, 1),
               weight = make_normal(DType::kBF16, {64, 64, 3, 3, 3}, 2, 0.02),
               bias = make_normal(DType::kF32, {64}, 3);
  const PackedConv packed = weft::pack_conv(stream, weight.view(), bias.view(), DType::kBF16);
  const Tensor in(DType::kBF16, x.view().shape(), stream.device()),
      out(DType::kBF16, {1, 30, 52, 64}, stream.device());
  copy(stream, x, in);
  conv3d(stream, in, packed, {.pad_h = {1, 1}, .pad_w = {1, 1}}, out);
  Tensor host(DType::kBF16, out.view().shape());
  copy(stream, out, host);
  stream.sync();
  return host;
}

TEST(KeptPlans, AreReadAgainAndMadeAnewWhereTheyAreDamaged) {
  const fs::path folder = fs::path(testing::TempDir()) / "kept_plans";
  fs::remove_all(folder);
  const Tensor expected = convolved();
  keep_cuda_plans(folder);
  EXPECT_TRUE(bitwise_equal(convolved(), expected));
  ASSERT_TRUE(fs::exists(folder));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  const auto written = fs::last_write_time(files[0]);
  EXPECT_TRUE(bitwise_equal(convolved(), expected));
  EXPECT_EQ(fs::last_write_time(files[0]), written);  // read, not made

  std::string key;
  std::getline(std::ifstream(files[0]), key);
  EXPECT_NE(key.find("conv "), std::string::npos) << key;
  for (const std::string& damage :
       {std::string(), key + "\n", key + "\n{\"plan\": 1}", std::string("another key\n{}")}) {
    std::ofstream(files[0], std::ios::trunc) << damage;
    EXPECT_TRUE(bitwise_equal(convolved(), expected)) << damage;
    EXPECT_GT(fs::file_size(files[0]), damage.size());
  }
  keep_cuda_plans("");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weft::test
