// Tests that the limits of control groups are read from trees like those of machines and
// containers.
#include "parallel/host/control_groups.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/parallel/fake_root.h"

namespace weft {
namespace {

using test::FakeRoot;

constexpr uint64_t kGiB = uint64_t{1} << 30, kNone = UINT64_MAX;

std::vector<double> cpus(const FakeRoot& root) {
  std::vector<double> numbers;
  for (const CpuQuota& quota : cpu_quotas(root.path())) numbers.push_back(quota.cpus);
  return numbers;
}

// A group of 1.5 CPUs and 2 GiB.
TEST(ControlGroups, VersionTwo) {
  FakeRoot root("v2");
  root.write("proc/self/cgroup", "0::/kubepods/pod7\n");
  root.write("sys/fs/cgroup/cgroup.procs", "");
  EXPECT_TRUE(cpus(root).empty());
  EXPECT_EQ(control_groups_leave(root.path()), kNone);

  root.write("sys/fs/cgroup/kubepods/pod7/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/kubepods/pod7/memory.max", std::to_string(2 * kGiB));
  root.write("sys/fs/cgroup/kubepods/pod7/memory.current", std::to_string(kGiB));
  root.write("sys/fs/cgroup/kubepods/pod7/memory.stat", "anon 5\ninactive_file 1048576\nfile 9\n");
  EXPECT_EQ(cpus(root), (std::vector<double>{1.5}));
  EXPECT_EQ(control_groups_leave(root.path()), kGiB + (1 << 20));

  // The groups around it have limits of their own.
  root.write("sys/fs/cgroup/kubepods/cpu.max", "50000 100000\n");
  root.write("sys/fs/cgroup/kubepods/memory.max", std::to_string(4 * kGiB));
  root.write("sys/fs/cgroup/kubepods/memory.current", std::to_string(4 * kGiB - 4096));
  EXPECT_EQ(cpus(root), (std::vector<double>{1.5, 0.5}));
  EXPECT_EQ(control_groups_leave(root.path()), 4096u);
  root.write("sys/fs/cgroup/kubepods/memory.current", std::to_string(5 * kGiB));
  EXPECT_EQ(control_groups_leave(root.path()), 0u);

  root.write("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/kubepods/memory.max", "max\n");
  EXPECT_EQ(cpus(root), (std::vector<double>{1.5}));
  EXPECT_EQ(control_groups_leave(root.path()), kGiB + (1 << 20));
}

TEST(ControlGroups, VersionOne) {
  FakeRoot root("v1");
  // The controllers of CPU sets and of accounting have similar names.
  root.write("proc/self/cgroup",
             "9:cpuset:/set\n4:memory:/job/step\n3:cpuacct,cpu:/job\n1:name=systemd:/init.scope\n");
  for (const char* mount : {"cpuset", "memory", "cpuacct,cpu"})
    root.write(std::string("sys/fs/cgroup/") + mount + "/cgroup.procs", "");
  root.write("sys/fs/cgroup/cpuacct,cpu/job/cpu.cfs_quota_us", "150000\n");
  root.write("sys/fs/cgroup/cpuacct,cpu/job/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpuacct,cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpuset/set/cpu.cfs_quota_us", "1\n");
  root.write("sys/fs/cgroup/cpuset/set/cpu.cfs_period_us", "1\n");
  root.write("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712");
  root.write("sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "4096");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(2 * kGiB));
  root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(kGiB));
  // The usage is that of all groups inside, and so must be the page cache in it.
  root.write("sys/fs/cgroup/memory/job/memory.stat",
             "inactive_file 4096\ntotal_inactive_file 1048576\n");
  EXPECT_EQ(cpus(root), (std::vector<double>{1.5}));
  EXPECT_EQ(control_groups_leave(root.path()), kGiB + (1 << 20));
}

// Version 1 has the controllers; version 2 is mounted beside it and has none, or the CPUs.
TEST(ControlGroups, Hybrid) {
  FakeRoot root("hybrid");
  root.write("proc/self/cgroup", "2:memory:/user\n0::/user/session\n");
  root.write("sys/fs/cgroup/memory/cgroup.procs", "");
  root.write("sys/fs/cgroup/unified/cgroup.procs", "");
  root.write("sys/fs/cgroup/memory/user/memory.limit_in_bytes", std::to_string(2 * kGiB));
  root.write("sys/fs/cgroup/memory/user/memory.usage_in_bytes", "0");
  EXPECT_TRUE(cpus(root).empty());
  root.write("sys/fs/cgroup/unified/user/cpu.max", "300000 200000");
  EXPECT_EQ(cpus(root), (std::vector<double>{1.5}));
  EXPECT_EQ(control_groups_leave(root.path()), 2 * kGiB);
}

// In a container the path may be that of the host, while the mount is the group itself.
TEST(ControlGroups, Containers) {
  FakeRoot root("container");
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/docker/4f1c\n");
  root.write("sys/fs/cgroup/cpu/cgroup.procs", "");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpus(root), (std::vector<double>{0.5}));
  // The path of a group outside of the part that the container sees.
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/../docker/4f1c\n");
  EXPECT_TRUE(cpus(root).empty());
}

// Two groups are told apart by the kernel's number and not by their path.
TEST(ControlGroups, IdentityIsTheFolder) {
  FakeRoot root("identity");
  root.write("sys/fs/cgroup/cgroup.procs", "");
  root.write("sys/fs/cgroup/a/cpu.max", "100000 100000");
  root.write("sys/fs/cgroup/b/cpu.max", "100000 100000");
  const auto group = [&](const std::string& line) {
    root.write("proc/self/cgroup", line);
    return cpu_quotas(root.path()).at(0).group;
  };
  EXPECT_EQ(group("0::/a\n"), group("0::/a/inner\n"));
  EXPECT_NE(group("0::/a\n"), group("0::/b\n"));
}

TEST(ControlGroups, WhatIsMalformedIsNoLimit) {
  FakeRoot root("malformed");
  EXPECT_TRUE(cpus(root).empty());  // no file at all
  EXPECT_EQ(control_groups_leave(root.path()), kNone);
  root.write("sys/fs/cgroup/cgroup.procs", "");
  for (const char* lines :
       {"", "\n", "0", "0:", "0::", "0::a", "::", "0::/..", "x:y:z", "7:cpu:/a"}) {
    root.write("proc/self/cgroup", lines);
    root.write("sys/fs/cgroup/cpu.max", "100000 100000");
    EXPECT_TRUE(cpus(root).empty()) << lines;
  }
  root.write("proc/self/cgroup", "nonsense\n0::/\n");
  EXPECT_EQ(cpus(root), (std::vector<double>{1}));
  for (const char* quota : {"", "max", "100000", "a b", "0 100000", "-1 100000", "100000 0",
                            "100000 -5", "nan 1", "100000 max"}) {
    root.write("sys/fs/cgroup/cpu.max", quota);
    EXPECT_TRUE(cpus(root).empty()) << quota;
  }
  root.write("sys/fs/cgroup/memory.max", "much");
  root.write("sys/fs/cgroup/memory.current", "0");
  EXPECT_EQ(control_groups_leave(root.path()), kNone);
  root.write("sys/fs/cgroup/memory.max", "4096");
  EXPECT_EQ(control_groups_leave(root.path()), 4096u);
  root.write("sys/fs/cgroup/memory.current", "");
  EXPECT_EQ(control_groups_leave(root.path()), kNone);
}

}  // namespace
}  // namespace weft
