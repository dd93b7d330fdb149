#include "apps/generate/output_name.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>

#include "apps/generate/request_flags.h"
#include "apps/generate/resume.h"
#include "engine/runner/result_files.h"
#include "io/media/segments.h"
#include "io/text/utf8.h"
#include "io/writable.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kPromptLength = 40, kIdLength = 64, kLongest = 999;  // in characters
// The most bytes of a name. The hidden file of its checkpoint has a longer name, which must be
// legal too.
constexpr size_t kMaxName = 255 - std::string_view("..part.checkpoint.safetensors").size();

// Windows reserves these names for devices, with any extension.
bool is_device_name(const std::string& text) {
  std::string stem = text.substr(0, text.find('.'));
  std::transform(stem.begin(), stem.end(), stem.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  if (stem == "CON" || stem == "PRN" || stem == "AUX" || stem == "NUL") return true;
  return stem.size() == 4 && (stem.starts_with("COM") || stem.starts_with("LPT")) &&
         stem[3] >= '0' && stem[3] <= '9';
}

std::string sanitised(const std::string& text, size_t length) {
  std::u32string kept;
  for (const char32_t c : decode_utf8(text)) {
    const bool joins = c == '.' || c == '-';
    if (is_word(c) || (joins && !kept.empty()))
      kept += c;
    else if (!kept.empty() && kept.back() != '_')
      kept += '_';
  }
  kept.resize(std::min(kept.size(), length));
  while (!kept.empty() && (kept.back() == '_' || kept.back() == '.')) kept.pop_back();
  std::string out = encode_utf8(kept);
  if (is_device_name(out)) out.insert(0, "_");
  return out.empty() ? "untitled" : out;
}

std::string padded(uint64_t value, size_t width) {
  std::string text = std::to_string(value);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

// The expanded pattern, with no text longer than this many characters.
std::string expanded(const std::string& pattern, const NameFields& fields, size_t longest);

// Returns where the name of the file or folder at `path` begins.
size_t name_begin(const std::string& path) {
  return path.size() < 2 ? 0 : path.find_last_of('/', path.size() - 2) + 1;
}

// True where file systems take the name, its sidecar and its part files, and the folders around it.
bool fits(const std::string& path) {
  const std::vector<std::string> folders = split(path.substr(0, name_begin(path)), '/');
  return path.size() - name_begin(path) - (path.ends_with('/') ? 1 : 0) <= kMaxName &&
         std::ranges::all_of(folders, [](const std::string& name) { return name.size() < 256; });
}

}  // namespace

std::string output_pattern(const OutputChoice& choice) {
  const std::string& output = choice.output;
  const std::string what = choice.label + " is '" + output + "'";
  const std::string extension = file_ending(output);
  const bool is_folder = output.ends_with('/');
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), extension) != names.end();
  };
  const bool is_media = is_one_of({".mp4", ".webm", ".gif", ".png"});
  if (!is_folder && choice.frames_as_pictures && is_media)
    throw Error(ErrorKind::kUsage, what +
                                       ", but --frames png writes a folder of pictures; legal: the "
                                       "name of a folder, or a folder ending in /, which receives "
                                       "one folder per prompt");
  std::error_code ignored;  // a name that is too long is no folder
  if (!is_folder && !choice.frames_as_pictures && std::filesystem::is_directory(output, ignored))
    throw Error(ErrorKind::kUsage, what + ", an existing folder; legal: " + output +
                                       "/, which puts the result into it, or the name of a file");
  if (!is_folder && !choice.frames_as_pictures && !is_media)
    throw Error(ErrorKind::kUsage,
                what +
                    ", legal: a name ending in .mp4, .webm or .gif (a clip) or .png (a picture), "
                    "or a folder ending in /, which receives one file per prompt");
  if (extension == ".png" && choice.frames > 1)
    throw Error(ErrorKind::kUsage,
                what + ", one picture, but the job has " + std::to_string(choice.frames) +
                    " frames; legal: a clip (.mp4, .webm, .gif), --frames png for a folder of "
                    "pictures, or --num-frames 1");
  if (!is_folder && choice.several && output.find("{idx") == std::string::npos &&
      output.find("{id") == std::string::npos)
    throw Error(ErrorKind::kUsage,
                what +
                    ", one name for several prompts; legal: a name with {idx}, or a folder ending "
                    "in /");
  const bool is_clip = is_folder ? choice.frames != 1 : is_one_of({".mp4", ".webm"});
  if (choice.in_segments && (choice.frames_as_pictures || !is_clip))
    throw Error(ErrorKind::kUsage, what +
                                       ", but --segment writes a clip in several files; legal with "
                                       "it: a name ending in .mp4 or .webm, or a folder ending in "
                                       "/ that receives clips");
  std::string pattern = output;
  if (is_folder) pattern += choice.several ? "{idx:05}" : "{date}-{time}_{model}_{seed}";
  if (choice.frames_as_pictures) return pattern + "/";
  return is_folder ? pattern + (choice.frames == 1 ? ".png" : ".mp4") : pattern;
}

std::string expand_name(const std::string& pattern, const NameFields& fields) {
  std::string path;
  for (size_t longest = kLongest; longest > 0; --longest) {
    path = expanded(pattern, fields, longest);
    if (fits(path)) return path;
  }
  const size_t begin = name_begin(path);
  if (path.size() - begin <= kMaxName) return path;  // a folder is to blame
  std::string ending = path.ends_with('/') ? "/" : std::filesystem::path(path).extension().string();
  if (ending.size() > kMaxName) ending.clear();
  const std::string name = path.substr(begin, path.size() - begin - ending.size());
  return path.substr(0, begin) + std::string(utf8_beginning(name, kMaxName - ending.size())) +
         ending;
}

namespace {

std::string expanded(const std::string& pattern, const NameFields& fields, size_t longest) {
  std::string out;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '{') {
      out += pattern[at];
      continue;
    }
    const size_t close = pattern.find('}', at);
    if (close == std::string::npos)
      throw Error(ErrorKind::kUsage, "--output is '" + pattern + "': a { has no }");
    const std::string field = pattern.substr(at + 1, close - at - 1);
    const std::string name = field.substr(0, field.find(':'));
    size_t width = 0;
    if (name.size() < field.size()) {
      const std::string digits = field.substr(name.size() + 1);
      if (digits.empty() || digits.size() > 3 ||
          !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
        throw Error(ErrorKind::kUsage, "--output field {" + field + "}: after : comes a number");
      width = std::stoul(digits);
    }
    if (name == "seed")
      out += padded(fields.seed, width);
    else if (name == "id" && !fields.id.empty())
      out += sanitised(fields.id, std::min(longest, kIdLength));
    else if (name == "idx" || name == "id")
      out += padded(static_cast<uint64_t>(fields.index), width);
    else if (name == "width")
      out += padded(static_cast<uint64_t>(fields.width), width);
    else if (name == "height")
      out += padded(static_cast<uint64_t>(fields.height), width);
    else if (name == "frames")
      out += padded(static_cast<uint64_t>(fields.frames), width);
    else if (name == "model")
      out += sanitised(fields.model, std::min(longest, kPromptLength));
    else if (name == "prompt")
      out += sanitised(fields.prompt, std::min(longest, width ? width : kPromptLength));
    else if (name == "date")
      out += fields.date;
    else if (name == "time")
      out += fields.time;
    else
      throw Error(ErrorKind::kUsage,
                  "--output field {" + field +
                      "} is not known, legal: {seed} {model} {width} {height} {frames} {prompt:40} "
                      "{idx:05} {id} {date} {time}");
    at = close;
  }
  return out;
}

}  // namespace

std::string output_path(const std::string& pattern, const NameFields& fields) {
  namespace fs = std::filesystem;
  const std::string path = expand_name(pattern, fields);
  const size_t brace = pattern.find('{');
  const size_t slash = path.find_last_of('/', path.size() - 2);  // not a folder's own last /
  const size_t root_end = pattern.find_last_of('/', brace);
  if (brace == std::string::npos || slash == std::string::npos || root_end == slash) return path;
  const fs::path root =
      fs::weakly_canonical(root_end == std::string::npos ? "." : pattern.substr(0, root_end + 1));
  const fs::path folder = fs::weakly_canonical(path.substr(0, slash));
  const auto [stop, unused] = std::mismatch(root.begin(), root.end(), folder.begin(), folder.end());
  if (stop != root.end() && !stop->empty())
    throw Error(ErrorKind::kOutput, "'" + path + "' leads out of '" + root.string() + "', to '" +
                                        folder.string() +
                                        "'; choose another --output or remove the link");
  return path;
}

void check_output(const Flags& flags, const std::string& path, bool several,
                  const std::function<bool()>& is_drawn) {
  const OutputNames names = output_names(path);
  const std::string sidecar = sidecar_path(path);
  adopt_older(path);
  const bool replaces = flags.on("overwrite"), goes_on = !files_left(names).empty();
  std::error_code ignored;  // check_writable() tells of names that are too long
  if (!replaces && std::filesystem::exists(sidecar, ignored)) {
    const bool keeps = several && flags.text("resume") != "never";
    if (!is_drawn && (keeps || goes_on)) return;
    const bool drawn = is_drawn && is_drawn();
    if (drawn && keeps) return;
    if (!flags.on("no-metadata")) {
      if (drawn) drop_leftovers(names, kept_latents(flags));
      throw Error(ErrorKind::kOutput, sidecar + " exists; --overwrite replaces it");
    }
  }
  // Whose segments there are is told by their metadata, which their sink compares.
  const bool in_segments = segment_seconds(flags).has_value();
  check_writable(in_segments ? segment_path(path, 0) : path,
                 replaces || goes_on || in_segments ? Overwrite::kReplace : Overwrite::kRefuse);
}

void stamp_now(NameFields& fields) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[16];
  std::strftime(text, sizeof text, "%Y%m%d", &local);
  fields.date = text;
  std::strftime(text, sizeof text, "%H%M%S", &local);
  fields.time = text;
}

}  // namespace weft
