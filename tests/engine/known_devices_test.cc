// GPUs by name: spellings, and rates against figures that are known of them.
#include "engine/planning/known_devices.h"

#include <gtest/gtest.h>

#include <sstream>

namespace weft {
namespace {

TEST(KnownDevices, HaveManySpellings) {
  for (const auto& [name, plain] : {std::pair{"RTX 4090", "RTX 4090"},
                                    {"rtx4090", "RTX 4090"},
                                    {"NVIDIA GeForce RTX 4090", "RTX 4090"},
                                    {"nvidia rtx-4090", "RTX 4090"},
                                    {"H100-SXM", "H100 SXM"},
                                    {"NVIDIA H100 80GB HBM3", "H100 SXM"},
                                    {"h100 pcie", "H100 PCIe"},
                                    {"NVIDIA A100-SXM4-80GB", "A100 80GB"},
                                    {"a100_40gb", "A100 40GB"},
                                    {"rtx pro 6000 blackwell", "RTX PRO 6000 Blackwell"},
                                    {"l4", "L4"}}) {
    const KnownDevice* found = find_known_device(name);
    ASSERT_TRUE(found) << name;
    EXPECT_STREQ(found->name, plain) << name;
  }
  for (const char* name : {"", "H100", "A100", "RTX 4091", "L40", "4090", "NVIDIA", "cuda"})
    EXPECT_FALSE(find_known_device(name)) << name;
}

// Each name is found again, and each device's numbers are in the range of real ones.
TEST(KnownDevices, AreAllListed) {
  std::istringstream names(known_device_names());
  int count = 0;
  for (std::string name; std::getline(names >> std::ws, name, ','); ++count) {
    const KnownDevice* device = find_known_device(name);
    ASSERT_TRUE(device) << name;
    EXPECT_EQ(find_known_device(device->driver_name), device);
    EXPECT_GE(device->major, 8) << name;
    EXPECT_GT(device->bf16_tflops, device->f32_tflops) << name;
    EXPECT_GE(device->traits().bytes, size_t{22} << 30) << name;
    EXPECT_GT(device->host_gbs, 20) << name;
    EXPECT_GE(device->link().bytes_per_s, 1e10) << name;
  }
  EXPECT_GE(count, 12);
}

// The rates of an H200 are those that were measured there, within 2 %.
TEST(KnownDevices, ReachWhatWasMeasured) {
  const DeviceModel h200 = assumed_device().model(DType::kBF16);
  const auto rate = [](const DeviceModel& model, OpFamily family) {
    return model.flop_per_s[static_cast<size_t>(family)];
  };
  EXPECT_NEAR(rate(h200, OpFamily::kLinear), 760e12, 15e12);
  EXPECT_NEAR(rate(h200, OpFamily::kAttention), 600e12, 12e12);
  EXPECT_NEAR(rate(h200, OpFamily::kConv), 455e12, 9e12);
  EXPECT_NEAR(h200.bytes_per_s[0], 4.05e12, 0.08e12);
  EXPECT_EQ(assumed_device().traits().bytes, size_t{143156} << 20);
  const DeviceModel rtx = find_known_device("RTX 4090")->model(DType::kBF16);
  EXPECT_NEAR(rate(rtx, OpFamily::kLinear), 0.77 * 165e12, 1e12);
  for (const OpFamily family : {OpFamily::kLinear, OpFamily::kAttention, OpFamily::kConv}) {
    EXPECT_LT(rate(assumed_device().model(DType::kF32), family), rate(h200, family) / 10);
    EXPECT_LT(rate(rtx, family), rate(h200, family));
  }
}

}  // namespace
}  // namespace weft
