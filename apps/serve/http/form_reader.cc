#include "apps/serve/http/form_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "apps/serve/server_text.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

constexpr size_t kLongestHeader = 16 << 10;  // of a part
constexpr size_t kMostPadding = 256;         // spaces after a boundary

[[noreturn]] void refuse_size(const std::string& message) {
  throw FormRefused(413, "payload_too_large", message);
}

}  // namespace

struct FormReader::Stored {
  Form parts;
  ~Stored() {
    for (const FormPart& part : parts)
      if (!part.file.empty()) unlink(part.file.c_str());
  }
};

FormReader::FormReader(const std::string& boundary, const ServerLimits& limits, std::string folder)
    : limits_(limits),
      folder_(std::move(folder)),
      delimiter_("\r\n--" + boundary),
      waiting_("\r\n"),  // so that the first boundary is one like the others
      stored_(std::make_shared<Stored>()) {}

FormReader::~FormReader() {
  if (file_ >= 0) close(file_);
}

FormPart& FormReader::part() const { return stored_->parts.back(); }

void FormReader::put(std::string_view bytes) {
  const size_t taken = std::min(bytes.size(), limits_.form_bytes - bytes_);
  bytes_ += taken;
  if (state_ != State::kEnd) {
    waiting_.append(bytes.substr(0, taken));
    at_ = 0;
    while (step()) {
    }
    waiting_.erase(0, at_);
  }
  if (taken < bytes.size())
    refuse_size("The form is larger than allowed: " + std::to_string(limits_.form_bytes) +
                " bytes.");
}

std::shared_ptr<const Form> FormReader::finish() {
  if (state_ != State::kEnd)
    throw FormRefused(state_ == State::kPreamble
                          ? "The form does not begin with its boundary, or a line of it ends with "
                            "LF alone; legal: CR LF."
                          : "The form is not complete: the boundary at its end is missing.");
  return {stored_, &stored_->parts};
}

bool FormReader::step() {
  switch (state_) {
    case State::kPreamble:
    case State::kContent:
      return read_content();
    case State::kAfterBoundary:
      return skip_boundary();
    case State::kHeader:
      return read_header();
    default:
      at_ = waiting_.size();  // what follows the form belongs to nobody
      return false;
  }
}

// Takes bytes up to the next boundary. The last ones wait, as a boundary may begin there.
bool FormReader::read_content() {
  const size_t found = waiting_.find(delimiter_, at_);
  const bool is_found = found != std::string::npos;
  const size_t held = delimiter_.size() - 1;
  const size_t end =
      is_found ? found : std::max(at_, waiting_.size() - std::min(held, waiting_.size()));
  if (state_ == State::kContent) add(std::string_view(waiting_).substr(at_, end - at_));
  at_ = end;
  if (!is_found) return false;
  at_ += delimiter_.size();
  if (state_ == State::kContent) end_part();
  state_ = State::kAfterBoundary;
  return true;
}

// Takes what stands between a boundary and the end of its line.
bool FormReader::skip_boundary() {
  const std::string_view rest = std::string_view(waiting_).substr(at_);
  if (rest.size() < 2) return false;
  if (rest.starts_with("--")) {
    state_ = State::kEnd;
    return true;
  }
  const size_t padding = std::min(rest.find_first_not_of(" \t"), rest.size());
  if (padding > kMostPadding)
    throw FormRefused("A boundary of the form has more than 256 spaces after it.");
  if (rest.size() - padding < 2) return false;
  if (rest.substr(padding, 2) != "\r\n")
    throw FormRefused("A boundary of the form is not alone on its line, which ends with CR LF.");
  at_ += padding;
  state_ = State::kHeader;
  return true;
}

// Takes the header of a part, with the end of the line before it.
bool FormReader::read_header() {
  constexpr std::string_view kEnd = "\r\n\r\n";
  const size_t end = waiting_.find(kEnd, at_);
  const bool is_found = end != std::string::npos;
  const size_t most = kLongestHeader + 2 + (is_found ? 0 : kEnd.size() - 1);
  if ((is_found ? end : waiting_.size()) - at_ > most)
    throw FormRefused("A part of the form has a header of more than 16384 bytes.");
  if (!is_found) return false;
  if (waiting_.find(delimiter_, at_) < end)
    throw FormRefused("A part of the form has a boundary in its header.");
  const size_t begin = std::min(at_ + 2, end);
  begin_part(read_part_header(std::string_view(waiting_).substr(begin, end - begin)));
  // The end of the empty line is that of a boundary's line where the part has no content at all.
  at_ = end + 2;
  dropped_ = 2;
  state_ = State::kContent;
  return true;
}

void FormReader::begin_part(const PartHeader& header) {
  if (++count_ > limits_.form_parts)
    refuse_size("The form has more than " + std::to_string(limits_.form_parts) + " parts.");
  keep_in_memory(header.name.size() + header.file_name.size() + header.content_type.size());
  stored_->parts.push_back(
      {.name = header.name, .file_name = header.file_name, .content_type = header.content_type});
  if (!header.is_file) return;
  may_be_unchosen_ = header.has_file_name && header.file_name.empty();
  const std::string path = folder_ + "/" + random_hex(4) + ".bin";
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file_ < 0) refuse_file(errno);
  part().file = path;
  hash_ = std::make_unique<Sha256>();
}

void FormReader::add(std::string_view bytes) {
  const size_t dropped = std::min(dropped_, bytes.size());
  bytes.remove_prefix(dropped);
  dropped_ -= dropped;
  if (bytes.empty()) return;
  if (file_ >= 0) return write(bytes);
  keep_in_memory(bytes.size());
  part().text += bytes;
}

void FormReader::write(std::string_view bytes) {
  hash_->update(bytes);
  part().bytes += bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse_file(errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void FormReader::end_part() {
  if (file_ < 0) {
    if (!is_utf8(part().text))
      throw FormRefused("The text of '" + part().name + "' is not UTF-8.", part().name);
    return;
  }
  // Some file systems tell only here that the disk is full.
  if (close(std::exchange(file_, -1)) != 0) refuse_file(errno);
  part().sha256 = hash_->hex();
  // A page sends a part without a name and without bytes where its user chose no file.
  if (!may_be_unchosen_ || part().bytes > 0) return;
  unlink(part().file.c_str());
  stored_->parts.pop_back();
}

void FormReader::keep_in_memory(size_t bytes) {
  kept_ += bytes;
  if (kept_ > limits_.body_bytes)
    refuse_size("The texts of the form are larger than allowed: " +
                std::to_string(limits_.body_bytes) + " bytes in all.");
}

void FormReader::refuse_file(int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  if (is_full) throw FormRefused(507, "insufficient_storage", "The server's disk is full.");
  throw FormRefused(500, "internal", "The server cannot keep the files of the form.");
}

}  // namespace weft
