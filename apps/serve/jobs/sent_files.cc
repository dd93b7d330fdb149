#include "apps/serve/jobs/sent_files.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/serve/server_text.h"
#include "io/atomic_file.h"
#include "models/files/part_files.h"

namespace weft {
namespace {

// A media type, or all those that begin so up to a slash, and the extension of a file's name.
using Kind = std::pair<std::string_view, const char*>;

constexpr Kind kPictures[] = {{"image/png", ".png"},   {"image/x-png", ".png"},
                              {"image/jpeg", ".jpg"},  {"image/jpg", ".jpg"},
                              {"image/pjpeg", ".jpg"}, {"image/webp", ".webp"}};
// Readers look at the bytes alone, so a type need not be known for the sound to be read.
constexpr Kind kSounds[] = {
    {"audio/wav", ".wav"},  {"audio/x-wav", ".wav"}, {"audio/flac", ".flac"},
    {"audio/mpeg", ".mp3"}, {"audio/ogg", ".ogg"},   {"audio/mp4", ".m4a"},
    {"audio/", ""},         {"video/", ""},          {"application/ogg", ""}};
constexpr Kind kUntold[] = {{"", ""}, {"application/octet-stream", ""}};

struct Sent {
  std::string field;
  std::string* path;
  std::span<const Kind> kinds;
  const char* legal;
};

std::vector<Sent> sent_in(JobSpec& job) {
  constexpr const char* kPicture =
      "the picture itself, as data:image/png;base64,... (or jpeg, webp, application/octet-stream)";
  constexpr const char* kSound =
      "the sound itself, as data:audio/wav;base64,... (or another type of audio or video, "
      "application/octet-stream)";
  Request& request = job.request;
  std::vector<Sent> sent{{"image", &request.image.path, kPictures, kPicture},
                         {"last_image", &request.last_image.path, kPictures, kPicture},
                         {"audio", &request.audio.path, kSounds, kSound}};
  for (size_t i = 0; i < request.references.size(); ++i)
    sent.push_back(
        {"reference_" + std::to_string(i + 1), &request.references[i].path, kPictures, kPicture});
  return sent;
}

// Returns the extension of a type's file, or null where it is of none of the kinds.
const char* extension_of(std::string_view type, std::span<const Kind> kinds) {
  for (const auto& [known, extension] : kinds)
    if (type == known || (known.ends_with('/') && type.starts_with(known))) return extension;
  return nullptr;
}

// A URL without white space and with characters in place of their codes, such as %2B for +.
std::string plain_url(std::string_view url) {
  std::string out;
  out.reserve(url.size());
  for (size_t i = 0; i < url.size(); ++i) {
    char c = url[i];
    uint8_t code = 0;
    const char* digits = url.data() + i + 1;
    if (c == '%' && url.size() - i > 2 &&
        std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      c = static_cast<char>(code);
      i += 2;
    }
    if (std::string_view(" \t\r\n\f").find(c) == std::string_view::npos) out += c;
  }
  return out;
}

// A file that is written when all of a job are read.
struct SavedFile {
  std::string* path;
  std::string saved_as, bytes;
};

SavedFile read_sent(const Sent& sent, const std::string& stem, const std::string& label) {
  constexpr std::string_view kScheme = "data:", kMark = ";base64,";
  const std::string url = plain_url(*sent.path);
  std::string head = url.substr(0, 256);  // longer than any media type with its parameters
  std::ranges::transform(head, head.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t mark = head.find(kMark);
  std::string fault;
  if (head.starts_with(kScheme) && mark != std::string::npos) {
    const std::string type = head.substr(kScheme.size(), head.find(';') - kScheme.size());
    const char* extension = extension_of(type, sent.kinds);
    if (!extension) extension = extension_of(type, kUntold);
    std::optional<std::string> bytes =
        base64_bytes(std::string_view(url).substr(mark + kMark.size()));
    if (extension && bytes) return {sent.path, stem + extension, std::move(*bytes)};
    if (extension) fault = ", whose base64 is broken";
  }
  constexpr size_t kShown = 40;
  throw Error(ErrorKind::kUsage, label + " is '" + sent.path->substr(0, kShown) +
                                     (sent.path->size() > kShown ? "...'" : "'") + fault +
                                     ", legal: " + sent.legal);
}

void move_sent(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) throw Error(ErrorKind::kOutput, to + " cannot be written: " + error.message());
}

}  // namespace

void save_sent_files(JobSpec& job, const std::string& stem, const std::string& where,
                     const FormFiles& given) {
  std::vector<SavedFile> files;
  for (const Sent& sent : sent_in(job))
    if (!sent.path->empty())
      files.push_back(read_sent(sent, stem + "." + sent.field, where + ": " + sent.field));
  for (const SavedFile& file : files) {
    write_file(file.saved_as, file.bytes);
    *file.path = file.saved_as;
  }
  for (const Sent& sent : sent_in(job))
    for (const auto& [field, path] : given)
      if (field == sent.field) {
        *sent.path = stem + "." + field;
        move_sent(path, *sent.path);
      }
}

std::string silent_wav() {
  constexpr uint32_t kRate = GivenSound::kRate, kBytes = 2 * kRate;
  std::string out;
  const auto number = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
  };
  out += "RIFF";
  number(36 + kBytes, 4);
  out += "WAVEfmt ";
  for (const auto& [value, bytes] :
       {std::pair{16u, 4}, {1u, 2}, {1u, 2}, {kRate, 4}, {2 * kRate, 4}, {2u, 2}, {16u, 2}})
    number(value, bytes);
  out += "data";
  number(kBytes, 4);
  return out + std::string(kBytes, '\0');
}

void remove_sent_files(const JobSpec& job) {
  JobSpec copy = job;
  for (const Sent& sent : sent_in(copy))
    if (std::error_code ignored; !sent.path->empty()) std::filesystem::remove(*sent.path, ignored);
}

std::vector<std::string> files_of_model() {
  std::vector<std::string> fields;
  for (const auto& [name, part] : kParts) fields.emplace_back(name);
  return fields;
}

JobSpec without_folders(JobSpec job) {
  for (const Sent& sent : sent_in(job))
    *sent.path = std::filesystem::path(*sent.path).filename().string();
  return job;
}

}  // namespace weft
