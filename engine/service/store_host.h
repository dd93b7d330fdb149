#pragma once
// StoreHost: the clocks and disks of the host of a JobStore. A test has its own.
#include <cstdint>
#include <functional>
#include <string>

namespace weft {

struct StoreHost {
  std::function<int64_t()> unix_ms{};  // null: the system's clock, which may be set at any time
  std::function<int64_t()>
      boot_ms{};          // null: CLOCK_BOOTTIME, which only a start of the host resets
  std::string boot_id{};  // of this start of the host; "": the kernel's
  // The name of a network file system on which the folder lies, else "". Null: asks statfs().
  std::function<std::string(const std::string& folder)> network_file_system{};
};

}  // namespace weft
