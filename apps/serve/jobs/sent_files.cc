#include "apps/serve/jobs/sent_files.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/serve/jobs/job_submission.h"
#include "apps/serve/server_text.h"
#include "io/atomic_file.h"
#include "io/text/utf8.h"
#include "models/files/part_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLinked = "linked";  // in place of a field, in the names of LinkedFiles

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
  fs::rename(from, to, error);
  if (error) throw Error(ErrorKind::kOutput, to + " cannot be written: " + error.message());
}

void remove_all(const std::vector<std::string>& paths) {
  std::error_code ignored;
  for (const std::string& path : paths) fs::remove(path, ignored);
}

int64_t references_in(const FormFiles& files) {
  return std::ranges::count(files, "reference", &std::pair<std::string, std::string>::first);
}

}  // namespace

void save_sent_files(JobSpec& job, const std::string& stem, const std::string& where,
                     const FormFiles& given) {
  std::vector<GivenPicture>& references = job.request.references;
  references.insert(references.begin(), static_cast<size_t>(references_in(given)), GivenPicture{});
  std::vector<SavedFile> files;
  for (const Sent& sent : sent_in(job))
    if (!sent.path->empty())
      files.push_back(read_sent(sent, stem + "." + sent.field, where + ": " + sent.field));
  std::vector<std::string> saved;
  try {
    for (const SavedFile& file : files) {
      write_file(file.saved_as, file.bytes);
      *file.path = file.saved_as;
      saved.push_back(file.saved_as);
    }
    int number = 0;
    for (const auto& [field, path] : given) {
      const std::string name =
          field == "reference" ? field + "_" + std::to_string(++number) : field;
      for (const Sent& sent : sent_in(job))
        if (name == sent.field) {
          *sent.path = stem + "." + name;
          move_sent(path, *sent.path);
          saved.push_back(*sent.path);
        }
    }
  } catch (...) {
    remove_all(saved);
    throw;
  }
}

void check_reference_count(const JobSpec& job, const FormFiles& files,
                           const PictureConditioning& model, const std::string& where) {
  const int64_t given = std::ssize(job.request.references) + references_in(files);
  const int most = model.form == PictureForm::kReferences ? model.most : 0;
  if (given > most)
    throw Error(ErrorKind::kUsage,
                where + ": reference is given " + std::to_string(given) + " times, legal: " +
                    (most > 0 ? "0 ... " + std::to_string(most)
                              : "none, as this model reads no reference pictures"));
}

std::string job_of_sent_file(const std::string& name) {
  const size_t mark = std::min(name.find('.'), name.size());
  const std::string id = name.substr(0, mark);
  if (!is_job_id(id)) return "";
  std::string field = name.substr(std::min(mark + 1, name.size()));
  field.resize(std::min(field.find('.'), field.size()));
  if (field == kLinked) return id;
  if (field.starts_with("reference_")) {
    const bool is_number = field.find_first_not_of("0123456789", 10) == std::string::npos;
    return is_number && field.size() > 10 ? id : "";
  }
  JobSpec any;
  return std::ranges::count(sent_in(any), field, &Sent::field) > 0 ? id : "";
}

LinkedFiles::~LinkedFiles() { remove_all(paths_); }

FormFiles LinkedFiles::of(const std::string& field, const nlohmann::json& paths) {
  FormFiles files;
  for (const nlohmann::json& text : paths.is_array() ? paths : nlohmann::json::array({paths})) {
    const fs::path path = path_of_text(text.get<std::string>());
    // The name is that of a job which no store knows, so that a killed server's links are found.
    paths_.push_back(path.parent_path() / (new_job_id("link") + "." + kLinked));
    std::error_code error;
    fs::create_hard_link(path, paths_.back(), error);
    if (error) fs::copy_file(path, paths_.back(), error);
    if (error)
      throw Error(ErrorKind::kOutput, paths_.back() + " cannot be written: " + error.message());
    files.emplace_back(field, paths_.back());
  }
  return files;
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
  std::vector<std::string> paths;
  for (const Sent& sent : sent_in(copy))
    if (!sent.path->empty()) paths.push_back(*sent.path);
  remove_all(paths);
}

JobSpec without_folders(JobSpec job) {
  for (const Sent& sent : sent_in(job)) *sent.path = fs::path(*sent.path).filename().string();
  return job;
}

}  // namespace weft
