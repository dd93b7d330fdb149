// The devices that UCX is given: the interfaces by which the ranks have met, and InfiniBand.
#include "parallel/transport/processes/ucx_devices.h"

#include <gtest/gtest.h>

#include "tests/parallel/fake_root.h"

namespace weft::test {
namespace {

HostAddress at_interface(const std::string& interface, const std::string& text) {
  return {.interface = interface,
          .address = parse_address(text).value(),
          .loopback = interface == "lo"};
}

TEST(UcxDevices, MetInterfacesAreThoseOfTheConnections) {
  const std::vector<HostAddress> here{
      at_interface("lo", "127.0.0.1"), at_interface("eth0", "10.0.0.5"),
      at_interface("eth0", "fd00::5"), at_interface("docker0", "172.17.0.1"),
      at_interface("ib0", "192.168.5.9")};
  const auto met = [&](const std::vector<std::string>& texts) {
    std::vector<IpAddress> addresses;
    for (const std::string& text : texts) addresses.push_back(parse_address(text).value());
    return met_interfaces(addresses, here);
  };
  EXPECT_EQ(met({"10.0.0.5"}), "eth0");
  EXPECT_EQ(met({"fd00::5", "10.0.0.5", "10.0.0.5"}), "eth0");
  EXPECT_EQ(met({"127.0.0.1", "192.168.5.9", "10.0.0.5"}), "eth0,ib0");
  EXPECT_EQ(met({"127.0.0.1"}), "");
  EXPECT_EQ(met({"10.0.0.6"}), "");
}

TEST(UcxDevices, ARankThatMetByTheLoopbackHasThoseOfItsHost) {
  const std::vector<MetRank> ranks{{"one", "eth0"}, {"one", ""}, {"two", "eth7"}, {"three", ""}};
  EXPECT_EQ(ucx_devices(ranks, 0), "eth0");
  EXPECT_EQ(ucx_devices(ranks, 1), "eth0");
  EXPECT_EQ(ucx_devices(ranks, 2), "eth7");
  EXPECT_EQ(ucx_devices(ranks, 3), "");
}

TEST(UcxDevices, PortsOfInfiniBandStandBesideTheInterfaces) {
  FakeRoot root("infiniband");
  root.write("sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
  root.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  root.write("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
  const std::vector<MetRank> ranks{{"one", "eth0"}, {"two", ""}};
  EXPECT_EQ(ucx_devices(ranks, 0, root.path()), "eth0,mlx5_0:2,mlx5_1:1");
  EXPECT_EQ(ucx_devices(ranks, 1, root.path()), "");
}

}  // namespace
}  // namespace weft::test
