#include "parallel/bootstrap/share.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "kernels/check.h"
#include "parallel/communicator.h"

namespace weft {

namespace {

struct Removed {
  std::string path;
  ~Removed() { unlink(path.c_str()); }
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kComm, "start-up file " + path + ": " + why);
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) refuse(path, std::strerror(errno));
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = close(file) == 0;
  if (!written || !closed || std::rename(part.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(part.c_str());
    refuse(path, why);
  }
}

}  // namespace

Share share_through_file(const std::string& path, int rank, double seconds) {
  if (rank == 0) {
    const auto removed = std::make_shared<Removed>();  // nothing to remove yet
    return [path, removed](const std::string& text) {
      if (std::filesystem::exists(path))
        refuse(path, "it is there already; every job needs a path of its own");
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
        refuse(path, std::string("rank 0 has not written it within ") + waited + " s");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
}

Share share_over(Communicator& communicator) {
  return [&communicator](const std::string& text) {
    Stream stream = Stream::cpu(1);
    const Tag tag{.kind = Payload::kControl, .hop = (1 << 20) - 1};
    int64_t size = static_cast<int64_t>(text.size());
    communicator.broadcast(stream, tag, {&size, DType::kI64, {1}}, 0);
    std::string shared = communicator.rank() == 0 ? text : std::string(size, '\0');
    communicator.broadcast(stream, tag, {shared.data(), DType::kU8, {size}}, 0);
    return shared;
  };
}

}  // namespace weft
