#include "apps/serve/jobs/sent_picture.h"

#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "apps/serve/server_text.h"
#include "io/atomic_file.h"

namespace weft {
namespace {

constexpr std::pair<std::string_view, const char*> kKinds[] = {
    {"data:image/png;base64,", ".png"},
    {"data:image/jpeg;base64,", ".jpg"},
    {"data:image/webp;base64,", ".webp"}};

std::array<std::pair<const char*, GivenPicture*>, 2> pictures_of(JobSpec& job) {
  return {{{"image", &job.request.image}, {"last_image", &job.request.last_image}}};
}

std::string saved(const std::string& url, const std::string& stem, const std::string& label) {
  for (const auto& [begin, extension] : kKinds) {
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
                                     ", legal: the picture itself, as "
                                     "data:image/png;base64,... (or jpeg, webp)");
}

}  // namespace

void save_sent_pictures(JobSpec& job, const std::string& stem, const std::string& where) {
  for (const auto& [field, picture] : pictures_of(job))
    if (!picture->path.empty())
      picture->path = saved(picture->path, stem + "." + field, where + ": " + field);
}

void remove_sent_pictures(const JobSpec& job) {
  JobSpec sent = job;
  for (const auto& [field, picture] : pictures_of(sent))
    if (!picture->path.empty()) std::filesystem::remove(picture->path);
}

JobSpec without_picture_folders(JobSpec job) {
  for (const auto& [field, picture] : pictures_of(job))
    picture->path = std::filesystem::path(picture->path).filename().string();
  return job;
}

}  // namespace weft
