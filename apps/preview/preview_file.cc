#include "apps/preview/preview_file.h"

#include <cmath>
#include <filesystem>

#include "io/atomic_file.h"
#include "io/media/video.h"

namespace weft {

namespace fs = std::filesystem;

int preview_every(const Flags& flags) {
  if (!find_flag(flags.command(), "preview") || flags.text("preview") == "none") return 0;
  return static_cast<int>(flags.integer("preview-every").value_or(1));
}

std::string preview_path(const Flags& flags, const std::string& output, bool several,
                         int64_t frames) {
  const bool given = find_flag(flags.command(), "preview-path") && flags.given("preview-path");
  if (preview_every(flags) == 0) {
    if (given)
      throw Error(ErrorKind::kUsage, flags.label("preview-path") + " is '" +
                                         flags.text("preview-path") +
                                         "', but --preview is none; legal: with --preview proj");
    return "";
  }
  if (!given) {
    const fs::path out(output.ends_with('/') ? output.substr(0, output.size() - 1) : output);
    return (out.parent_path() / out.stem()).string() +
           (frames == 1 ? ".preview.png" : ".preview.gif");
  }
  const std::string path = flags.text("preview-path");
  const std::string extension = file_ending(path);
  if (several)
    throw Error(ErrorKind::kUsage,
                flags.label("preview-path") + " is '" + path +
                    "', but there are several drawings; legal: with one drawing");
  if (extension != ".png" && extension != ".gif")
    throw Error(ErrorKind::kUsage, flags.label("preview-path") + " is '" + path +
                                       "', legal: a name that ends in .png or .gif");
  if (fs::path(path).lexically_normal() == fs::path(output).lexically_normal())
    throw Error(ErrorKind::kUsage, flags.label("preview-path") + " is '" + path +
                                       "', legal: another file than the output");
  return path;
}

void write_preview(const std::string& path, const Preview& preview) {
  constexpr int kFpsUnit = 1000;
  if (file_ending(path) != ".gif") return write_file(path, preview_png(preview));
  VideoSettings settings;
  settings.width = preview.frames.front().width;
  settings.height = preview.frames.front().height;
  settings.fps_num = std::max(1, static_cast<int>(std::lround(preview.fps * kFpsUnit)));
  settings.fps_den = kFpsUnit;
  const std::unique_ptr<FrameSink> sink = make_gif_sink(path, settings, Overwrite::kReplace);
  for (const Frame& frame : preview.frames) sink->push(frame);
  sink->finish();
}

}  // namespace weft
