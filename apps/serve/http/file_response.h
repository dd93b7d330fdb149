#pragma once
// Answers with a file, or with the part of it that a client asks for. The server sends it in
// pieces.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apps/serve/http/http_message.h"

namespace weft {

constexpr size_t kFilePiece = 256 << 10;  // bytes of a file that are in memory at once

// A regular file that stays open, so that it can be read even if it is removed meanwhile.
class ServedFile {
 public:
  // Null where there is no such file, also where the name is that of a symbolic link.
  static std::shared_ptr<const ServedFile> open(const std::string& path);
  ~ServedFile();
  ServedFile(const ServedFile&) = delete;
  ServedFile& operator=(const ServedFile&) = delete;

  uint64_t bytes() const { return bytes_; }
  // False where the file has fewer bytes.
  bool read(uint64_t offset, std::span<char> to) const;

 private:
  ServedFile(int descriptor, uint64_t bytes) : descriptor_(descriptor), bytes_(bytes) {}
  const int descriptor_;
  const uint64_t bytes_;
};

// The bytes that a response sends of its file, piece by piece.
class FilePieces {
 public:
  FilePieces() = default;
  explicit FilePieces(const HttpResponse& response);

  uint64_t left() const { return end_ - at_; }
  bool read();  // the next piece; false where the file has fewer bytes
  const std::string& piece() const { return piece_; }

 private:
  std::shared_ptr<const ServedFile> file_{};
  uint64_t at_ = 0, end_ = 0;
  std::string piece_{};
};

struct FileToSend {
  std::string path, content_type;
  std::string name;  // to save it under
  std::string tag;   // of its content: other content has another tag
};

// 200, 206 or 416 by Range and If-Range, 304 by If-None-Match, 404 where the file is gone.
HttpResponse file_response(const HttpRequest& request, const FileToSend& file);

// A response with an ETag of its body, or 304 where the client has that one already.
HttpResponse tagged_response(const HttpRequest& request, HttpResponse response);

}  // namespace weft
