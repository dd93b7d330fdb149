#include "apps/serve/jobs/sent_files.h"

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "apps/serve/server_text.h"
#include "io/atomic_file.h"

namespace weft {
namespace {

using Kind = std::pair<std::string_view, const char*>;  // how a URL begins, a file's extension

constexpr Kind kPictures[] = {{"data:image/png;base64,", ".png"},
                              {"data:image/jpeg;base64,", ".jpg"},
                              {"data:image/webp;base64,", ".webp"}};
constexpr Kind kSounds[] = {
    {"data:audio/wav;base64,", ".wav"},   {"data:audio/x-wav;base64,", ".wav"},
    {"data:audio/flac;base64,", ".flac"}, {"data:audio/mpeg;base64,", ".mp3"},
    {"data:audio/ogg;base64,", ".ogg"},   {"data:audio/mp4;base64,", ".m4a"}};

struct Sent {
  const char* field;
  std::string* path;
  std::span<const Kind> kinds;
  const char* legal;
};

std::array<Sent, 3> sent_in(JobSpec& job) {
  constexpr const char* kPicture =
      "the picture itself, as data:image/png;base64,... (or jpeg, webp)";
  constexpr const char* kSound =
      "the sound itself, as data:audio/wav;base64,... (or flac, mpeg, ogg, mp4)";
  Request& request = job.request;
  return {{{"image", &request.image.path, kPictures, kPicture},
           {"last_image", &request.last_image.path, kPictures, kPicture},
           {"audio", &request.audio.path, kSounds, kSound}}};
}

std::string saved(const Sent& sent, const std::string& stem, const std::string& label) {
  const std::string& url = *sent.path;
  for (const auto& [begin, extension] : sent.kinds) {
    if (!url.starts_with(begin)) continue;
    const std::optional<std::string> bytes =
        base64_bytes(std::string_view(url).substr(begin.size()));
    if (!bytes) break;
    write_file(stem + extension, *bytes);
    return stem + extension;
  }
  constexpr size_t kShown = 40;
  throw Error(ErrorKind::kUsage, label + " is '" + url.substr(0, kShown) +
                                     (url.size() > kShown ? "...'" : "'") +
                                     ", legal: " + sent.legal);
}

}  // namespace

void save_sent_files(JobSpec& job, const std::string& stem, const std::string& where) {
  for (const Sent& sent : sent_in(job))
    if (!sent.path->empty())
      *sent.path = saved(sent, stem + "." + sent.field, where + ": " + sent.field);
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
    if (!sent.path->empty()) std::filesystem::remove(*sent.path);
}

JobSpec without_folders(JobSpec job) {
  for (const Sent& sent : sent_in(job))
    *sent.path = std::filesystem::path(*sent.path).filename().string();
  return job;
}

}  // namespace weft
