#pragma once
// Shares one text through a file that all ranks of a test see.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "kernels/check.h"
#include "parallel/bootstrap/share.h"

namespace weft::test {

struct RemovedFile {
  std::string path;
  ~RemovedFile() { unlink(path.c_str()); }
};

[[noreturn]] inline void refuse_share(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kComm, "start-up file " + path + ": " + why);
}

inline void write_whole(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) refuse_share(path, std::strerror(errno));
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = close(file) == 0;
  if (!written || !closed || std::rename(part.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(part.c_str());
    refuse_share(path, why);
  }
}

// No other job may use the path. The first rank writes the file atomically and refuses one that
// exists; the others wait for it. It is removed with the first rank's last copy of the function.
// Error(kComm) that names the file.
inline Share share_through_file(const std::string& path, int rank, double seconds = 60) {
  if (rank == 0) {
    const auto removed = std::make_shared<RemovedFile>();  // nothing to remove yet
    return [path, removed](const std::string& text) {
      if (std::filesystem::exists(path))
        refuse_share(path, "it is there already; every job needs a path of its own");
      write_whole(path, text);
      removed->path = path;
      return text;
    };
  }
  return [path, seconds](const std::string&) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
      std::ifstream file(path, std::ios::binary);
      if (file) return std::string(std::istreambuf_iterator<char>(file), {});
      if (std::chrono::steady_clock::now() > limit) {
        char waited[32];
        std::snprintf(waited, sizeof waited, "%g", seconds);
        refuse_share(path, std::string("rank 0 has not written it within ") + waited + " s");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
}

}  // namespace weft::test
