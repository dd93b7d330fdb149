#pragma once
// Frames: cuts the bytes that come from a socket into messages of one type. Both ends run the same
// program on the same kind of machine, so a message travels as it lies in memory.
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace weft {

template <class Frame>
class Frames {
 public:
  // Gives every whole frame to `take` until there is none; false where the connection has ended, or
  // `take` returns false. `flags` are recv's.
  template <class Take>
  bool read(int socket, int flags, Take&& take) {
    for (;;) {
      const ssize_t got = recv(socket, buffer_ + filled_, sizeof buffer_ - filled_, flags);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (got <= 0) return false;
      filled_ += static_cast<size_t>(got);
      if (filled_ < sizeof buffer_) continue;
      filled_ = 0;
      Frame frame;
      std::memcpy(static_cast<void*>(&frame), buffer_, sizeof frame);
      frame.text[sizeof frame.text - 1] = 0;
      if (!take(frame)) return false;
    }
  }

 private:
  char buffer_[sizeof(Frame)];
  size_t filled_ = 0;
};

// Writes a frame's text, cut to its size.
template <class Frame>
void set_text(Frame& frame, const std::string& text) {
  frame.text[text.copy(frame.text, sizeof frame.text - 1)] = 0;
}

}  // namespace weft
