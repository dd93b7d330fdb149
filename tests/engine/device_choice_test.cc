// Tests which GPU each rank takes and how many ranks share it, for the ways launchers place ranks.
#include "engine/parts/device_choice.h"

#include <gtest/gtest.h>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::vector<int> device_indices(const std::vector<DeviceChoice>& choices) {
  std::vector<int> all;
  for (const DeviceChoice& choice : choices) all.push_back(choice.index);
  return all;
}
std::vector<int> users(const std::vector<DeviceChoice>& choices) {
  std::vector<int> all;
  for (const DeviceChoice& choice : choices) all.push_back(choice.ranks);
  return all;
}
std::string choice_refusal(const std::vector<VisibleDevices>& ranks, int index) {
  return test::error_of([&] { choose_devices(ranks, index); }, ErrorKind::kUsage);
}

TEST(DeviceChoice, OneVisibleDevicePerRankIsNotShared) {
  std::vector<VisibleDevices> ranks;  // as srun --gpus-per-task=1
  for (int rank = 0; rank < 8; ++rank)
    ranks.push_back({.rank_here = rank, .identities = {"gpu " + std::to_string(rank)}});
  EXPECT_EQ(device_indices(choose_devices(ranks, -1)), std::vector<int>(8, 0));
  EXPECT_EQ(users(choose_devices(ranks, -1)), std::vector<int>(8, 1));
  EXPECT_EQ(users(choose_devices(ranks, 0)), std::vector<int>(8, 1));
  EXPECT_EQ(most_ranks_per_device(choose_devices(ranks, -1)), 1);
}

TEST(DeviceChoice, OneDeviceForAllIsSharedByAll) {
  std::vector<VisibleDevices> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back({.rank_here = rank, .identities = {"gpu"}});
  EXPECT_EQ(users(choose_devices(ranks, -1)), std::vector<int>(4, 4));
}

// Ranks dealt out over the hosts in turn (srun -m cyclic, mpirun --map-by node): world ranks 0 and
// 2 are on the first host, 1 and 3 on the second.
TEST(DeviceChoice, CyclicRanksTakeADeviceEach) {
  const std::vector<std::string> first{"a0", "a1"}, second{"b0", "b1"};
  const std::vector<VisibleDevices> ranks{{0, first}, {0, second}, {1, first}, {1, second}};
  EXPECT_EQ(device_indices(choose_devices(ranks, -1)), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(users(choose_devices(ranks, -1)), std::vector<int>(4, 1));
  EXPECT_EQ(users(choose_devices(ranks, 1)), std::vector<int>(4, 2));
}

TEST(DeviceChoice, MoreRanksThanDevicesTakeTurns) {
  std::vector<VisibleDevices> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back({.rank_here = rank, .identities = {"a", "b"}});
  EXPECT_EQ(device_indices(choose_devices(ranks, -1)), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(users(choose_devices(ranks, -1)), (std::vector<int>{2, 1, 2}));
  EXPECT_EQ(most_ranks_per_device(choose_devices(ranks, -1)), 2);
}

// The same GPU under different indices: CUDA_VISIBLE_DEVICES=0,1 and 1,0.
TEST(DeviceChoice, SharingIsDecidedByIdentityNotByIndex) {
  const std::vector<VisibleDevices> ranks{{0, {"a", "b"}}, {1, {"b", "a"}}};
  EXPECT_EQ(device_indices(choose_devices(ranks, -1)), (std::vector<int>{0, 1}));
  EXPECT_EQ(users(choose_devices(ranks, -1)), std::vector<int>(2, 2));
}

TEST(DeviceChoice, AMissingDeviceIsNamed) {
  EXPECT_EQ(choice_refusal({{0, {}}}, -1),
            "--device is 'cuda', the machine has 0 CUDA devices, legal: cpu");
  EXPECT_EQ(
      choice_refusal({{0, {"a", "b"}}}, 2),
      "--device is 'cuda:2', the machine has 2 CUDA devices, legal: cpu, cuda, cuda:0 to cuda:1");
  EXPECT_EQ(choice_refusal({{0, {"a"}}, {0, {}}}, -1),
            "--device is 'cuda', rank 1 sees 0 CUDA devices, legal: cpu");
  const std::string what = test::error_of([] {
    choose_devices(std::vector<VisibleDevices>{{0, {}}}, -1, "no driver is installed");
  });
  EXPECT_EQ(what,
            "--device is 'cuda', the machine has 0 CUDA devices: no driver is installed; "
            "legal: cpu");
}

TEST(DeviceChoice, IdentitiesAreOfThePhysicalDevice) {
  DeviceNames nothing;
  nothing.host = "h";
  nothing.index = 1;
  DeviceNames listed = nothing, pci = nothing, uuid = nothing;
  listed.visible_list = "4,GPU-7";
  pci.pci = "0000:3b:00.0";
  uuid.uuid[15] = 10;
  EXPECT_EQ(device_identity(nothing), "h device 1");
  EXPECT_EQ(device_identity(listed), "h device GPU-7");
  EXPECT_EQ(device_identity(pci), "h pci 0000:3b:00.0");
  EXPECT_EQ(device_identity(uuid), "uuid 0000000000000000000000000000000a");
  // A UUID is the same in every container; a PCI address means something on its host only.
  uuid.pci = "0000:3b:00.0", uuid.host = "other", uuid.index = 0;
  EXPECT_EQ(device_identity(uuid), "uuid 0000000000000000000000000000000a");
  listed.pci = "0000:3b:00.0", listed.index = 0;
  EXPECT_EQ(device_identity(listed), device_identity(pci));
}

}  // namespace
}  // namespace weft::test
