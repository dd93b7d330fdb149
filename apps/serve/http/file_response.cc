#include "apps/serve/http/file_response.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "io/sha256.h"

namespace weft {
namespace {

struct ByteRange {
  uint64_t first = 0, last = 0;
};
enum class RangeKind { kNone, kOne, kOutside };

std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads "bytes=0-99", "bytes=100-" or "bytes=-100". Everything else, several ranges among it, asks
// for the whole file.
RangeKind read_range(std::string_view text, uint64_t size, ByteRange& range) {
  constexpr std::string_view kUnit = "bytes=";
  if (!text.starts_with(kUnit)) return RangeKind::kNone;
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return RangeKind::kNone;
  const auto first = whole_number(text.substr(0, dash)), last = whole_number(text.substr(dash + 1));
  if (dash == 0) {
    if (!last) return RangeKind::kNone;
    if (*last == 0 || size == 0) return RangeKind::kOutside;
    range = {size - std::min(*last, size), size - 1};
    return RangeKind::kOne;
  }
  const bool to_the_end = dash + 1 == text.size();
  if (!first || (!last && !to_the_end) || (last && *last < *first)) return RangeKind::kNone;
  if (*first >= size) return RangeKind::kOutside;
  range = {*first, to_the_end ? size - 1 : std::min(*last, size - 1)};
  return RangeKind::kOne;
}

HttpResponse not_modified(const std::string& tag) {
  HttpResponse response{.status = 304};
  response.headers = {{"ETag", tag}, {"Cache-Control", "private, no-cache"}};
  return response;
}

}  // namespace

std::shared_ptr<const ServedFile> ServedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (descriptor < 0) return nullptr;
  struct stat about {};
  if (fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
    close(descriptor);
    return nullptr;
  }
  return std::shared_ptr<const ServedFile>(
      new ServedFile(descriptor, static_cast<uint64_t>(about.st_size)));
}

ServedFile::~ServedFile() { close(descriptor_); }

bool ServedFile::read(uint64_t offset, std::span<char> to) const {
  while (!to.empty()) {
    const ssize_t count = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (count <= 0) return false;
    offset += static_cast<uint64_t>(count);
    to = to.subspan(static_cast<size_t>(count));
  }
  return true;
}

FilePieces::FilePieces(const HttpResponse& response)
    : file_(response.file),
      at_(response.file_offset),
      end_(response.file_offset + response.file_bytes) {}

bool FilePieces::read() {
  piece_.resize(static_cast<size_t>(std::min<uint64_t>(left(), kFilePiece)));
  at_ += piece_.size();
  return file_->read(at_ - piece_.size(), piece_);
}

HttpResponse file_response(const HttpRequest& request, const FileToSend& file) {
  const std::string tag = '"' + file.tag + '"';
  const auto open = ServedFile::open(file.path);
  if (!open) return error_response(404, "not_found", "The file is no longer there.");
  if (has_tag(request, tag)) return not_modified(tag);
  const uint64_t size = open->bytes();
  ByteRange range{0, size - 1};
  RangeKind kind = RangeKind::kNone;
  const std::string& only_if = request.header("if-range");
  if (only_if.empty() || only_if == tag) kind = read_range(request.header("range"), size, range);
  const std::string of = "/" + std::to_string(size);
  if (kind == RangeKind::kOutside) {
    HttpResponse refusal =
        error_response(416, "range_not_satisfiable",
                       "The file has " + std::to_string(size) + " bytes, counted from 0.");
    refusal.headers.emplace_back("Content-Range", "bytes *" + of);
    return refusal;
  }
  HttpResponse response{.status = kind == RangeKind::kOne ? 206 : 200,
                        .content_type = file.content_type};
  response.headers = {{"ETag", tag},
                      {"Accept-Ranges", "bytes"},
                      {"Cache-Control", "private, no-cache"},
                      {"Content-Disposition", "attachment; filename=\"" + file.name + "\""}};
  if (kind == RangeKind::kOne)
    response.headers.emplace_back("Content-Range", "bytes " + std::to_string(range.first) + "-" +
                                                       std::to_string(range.last) + of);
  response.file = open;
  response.file_offset = range.first;
  response.file_bytes = size == 0 ? 0 : range.last - range.first + 1;
  return response;
}

HttpResponse tagged_response(const HttpRequest& request, HttpResponse response) {
  constexpr size_t kDigits = 32;
  const std::string tag = '"' + sha256_hex(response.body).substr(0, kDigits) + '"';
  if (has_tag(request, tag)) return not_modified(tag);
  response.headers.emplace_back("ETag", tag);
  response.headers.emplace_back("Cache-Control", "private, no-cache");
  return response;
}

}  // namespace weft
