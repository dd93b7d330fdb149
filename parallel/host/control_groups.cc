#include "parallel/host/control_groups.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace weft {
namespace {

// A group's folder of control files.
struct ControlGroup {
  std::string folder;
  bool v2;
};

bool has_word(std::string_view names, std::string_view name) {
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    if (names.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

// The folder where the groups of a line of /proc/self/cgroup are mounted; empty: none. A line of
// version 2 names no controllers. Where version 1 is mounted beside it, it lies one level deeper.
std::string mount_of(const std::string& root, std::string_view controller,
                     const std::string& controllers) {
  const std::string top = root + "/sys/fs/cgroup";
  const std::vector<std::string> places =
      controllers.empty()
          ? std::vector<std::string>{top, top + "/unified"}
          : std::vector<std::string>{top + "/" + std::string(controller), top + "/" + controllers};
  std::error_code none;
  for (const std::string& place : places)
    if (std::filesystem::exists(place + "/cgroup.procs", none)) return place;
  return {};
}

// The groups that limit a resource of this process, the innermost first.
std::vector<ControlGroup> groups_of(const std::string& root, std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_word(controllers, controller)) continue;
    std::string path = line.substr(second + 1);
    // Groups outside of a container's part of the tree cannot be seen.
    if (!path.starts_with("/") || path.starts_with("/..")) continue;
    const std::string mount = mount_of(root, controller, controllers);
    if (mount.empty()) continue;
    // In a container the path may be the host's, but what is mounted is the group itself. So the
    // walk goes up to the mount.
    for (; !path.empty(); path.resize(path.rfind('/')))
      if (path != "/") groups.push_back({mount + path, controllers.empty()});
    groups.push_back({mount, controllers.empty()});
  }
  return groups;
}

// False where the file is missing or does not begin with a number.
template <class T>
bool read_number(const std::string& path, T& value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> value);
}

std::optional<double> quota_of(const ControlGroup& group) {
  double quota = 0, period = 0;  // microseconds
  if (group.v2) {
    std::ifstream file(group.folder + "/cpu.max");
    if (!(file >> quota >> period)) return {};
  } else if (!read_number(group.folder + "/cpu.cfs_quota_us", quota) ||
             !read_number(group.folder + "/cpu.cfs_period_us", period)) {
    return {};
  }
  if (!(quota > 0 && period > 0)) return {};  // -1 is no limit
  return quota / period;
}

// The page cache of a group and those inside it, which counts as used but is freed when memory is
// needed.
uint64_t reclaimable(const ControlGroup& group) {
  std::ifstream file(group.folder + "/memory.stat");
  std::string name;
  for (uint64_t value; file >> name >> value;) {
    if (name == (group.v2 ? "inactive_file" : "total_inactive_file")) return value;
  }
  return 0;
}

// The kernel's number of a group, which all containers see.
std::string identity_of(const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return folder;
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

}  // namespace

std::vector<CpuQuota> cpu_quotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const ControlGroup& group : groups_of(root, "cpu"))
    if (const auto cpus = quota_of(group)) quotas.push_back({identity_of(group.folder), *cpus});
  return quotas;
}

uint64_t control_groups_leave(const std::string& root) {
  uint64_t left = std::numeric_limits<uint64_t>::max();
  for (const ControlGroup& group : groups_of(root, "memory")) {
    const std::string memory = group.folder + "/memory.";
    uint64_t limit = 0, use = 0;
    if (!read_number(memory + (group.v2 ? "max" : "limit_in_bytes"), limit) ||
        !read_number(memory + (group.v2 ? "current" : "usage_in_bytes"), use))
      continue;
    use -= std::min(use, reclaimable(group));
    left = std::min(left, limit > use ? limit - use : 0);
  }
  return left;
}

}  // namespace weft
