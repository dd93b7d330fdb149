// weft compare: measures how alike two clips, pictures, folders of frames or weights files are.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "apps/commands.h"
#include "apps/tensor_compare.h"
#include "io/json.h"
#include "io/media/frame_metrics.h"
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/video.h"
#include "io/weights/tensor_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A source of frames, and its facts that are known before any frame is decoded.
struct Pictures {
  std::string path;
  int width = 0, height = 0;
  int64_t frames = 0;
  std::function<bool(Frame&)> next;
};

bool ends_in(const std::string& path, const char* ending) { return file_ending(path) == ending; }

std::vector<std::string> entries_of(const std::string& folder, const char* extension) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (ends_in(entry.path(), extension)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool holds_tensors(const std::string& path) {
  if (!fs::exists(path)) throw Error(ErrorKind::kUsage, path + ": no such file or folder");
  if (fs::is_directory(path)) return !entries_of(path, ".safetensors").empty();
  return ends_in(path, ".safetensors") || path.ends_with(".safetensors.index.json");
}

Pictures open_pictures(const std::string& path) {
  Pictures out{.path = path, .next = {}};
  if (fs::is_directory(path)) {
    const std::vector<std::string> files = entries_of(path, ".png");
    if (files.empty()) throw Error(ErrorKind::kMedia, path + ": a folder without PNG frames");
    const MediaInfo info = probe_media(files.front());
    out.width = info.width;
    out.height = info.height;
    out.frames = static_cast<int64_t>(files.size());
    out.next = [files, at = size_t{0}](Frame& frame) mutable {
      if (at == files.size()) return false;
      frame = read_png(files[at++]);
      return true;
    };
    return out;
  }
  const MediaInfo info = probe_media(path);
  out.width = info.width;
  out.height = info.height;
  out.frames = info.frames;
  if (info.container == "png") {
    out.next = [path, done = false](Frame& frame) mutable {
      if (done) return false;
      frame = read_png(path);
      return done = true;
    };
  } else {
    out.next = [reader = std::make_shared<VideoReader>(path)](Frame& frame) {
      return reader->next(frame);
    };
  }
  return out;
}

void require_alike(const Pictures& a, const Pictures& b) {
  const auto size = [](const Pictures& p) {
    return p.path + " is " + std::to_string(p.width) + "x" + std::to_string(p.height);
  };
  if (a.width != b.width || a.height != b.height)
    throw Error(ErrorKind::kMedia, "the sizes differ: " + size(a) + ", " + size(b));
  if (a.frames != b.frames)
    throw Error(ErrorKind::kMedia, "the frame counts differ: " + a.path + " has " +
                                       std::to_string(a.frames) + ", " + b.path + " has " +
                                       std::to_string(b.frames));
}

// JSON has no infinity: equal pictures have psnr null and identical true.
Json picture_json(double mse, double similarity) {
  Json object{{"identical", mse == 0}, {"psnr", nullptr}, {"ssim", similarity}};
  if (mse > 0) object["psnr"] = psnr_db(mse);
  return object;
}

int compare_pictures(const Flags& flags, const std::string& path_a, const std::string& path_b) {
  if (flags.given("max-rel-l2"))
    throw Error(ErrorKind::kUsage, flags.label("max-rel-l2") +
                                       " is for weights files; legal here: --min-psnr, --min-ssim");
  Pictures a = open_pictures(path_a), b = open_pictures(path_b);
  require_alike(a, b);
  double mse_sum = 0, ssim_sum = 0;
  int64_t frames = 0;
  for (Frame x, y;; ++frames) {
    const bool more = a.next(x);
    if (more != b.next(y))
      throw Error(ErrorKind::kMedia, (more ? b : a).path + " has only " + std::to_string(frames) +
                                         " frames that decode; the other has more");
    if (!more) break;
    if (x.width != y.width || x.height != y.height)
      throw Error(ErrorKind::kMedia, "the sizes of frame " + std::to_string(frames) + " differ");
    const double mse = mean_squared_error(x, y), similarity = ssim(x, y);
    mse_sum += mse;
    ssim_sum += similarity;
    if (flags.on("json")) {
      Json object = picture_json(mse, similarity);
      object["frame"] = frames;
      std::printf("%s\n", object.dump().c_str());
    } else {
      std::printf("frame %-5lld psnr %6.2f dB  ssim %.6f\n", static_cast<long long>(frames),
                  psnr_db(mse), similarity);
    }
  }
  if (frames == 0) throw Error(ErrorKind::kMedia, a.path + " has no frame that decodes");
  const double mse = mse_sum / static_cast<double>(frames);
  const double similarity = ssim_sum / static_cast<double>(frames);
  const bool pass = psnr_db(mse) >= flags.real("min-psnr").value_or(-HUGE_VAL) &&
                    similarity >= flags.real("min-ssim").value_or(-HUGE_VAL);
  if (flags.on("json")) {
    Json object = picture_json(mse, similarity);
    object["frames"] = frames;
    object["pass"] = pass;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("total %-5lld psnr %6.2f dB  ssim %.6f  %s\n", static_cast<long long>(frames),
                psnr_db(mse), similarity, pass ? "PASS" : "FAIL");
  }
  return pass ? 0 : 1;
}

// A tensor that only one file has makes the files different; it has no numbers to compare.
void require_same_names(const TensorFile& a, const TensorFile& b, const std::string& path_a,
                        const std::string& path_b) {
  const auto missing = [](const TensorFile& from, const TensorFile& in) {
    std::vector<std::string> names;
    for (const std::string& name : from.names())
      if (!in.contains(name)) names.push_back(name);
    return names;
  };
  const auto refuse = [](const std::vector<std::string>& names, const std::string& path) {
    if (names.empty()) return;
    throw Error(ErrorKind::kModel, path + " lacks " + std::to_string(names.size()) +
                                       " tensors of the other, the first is " + names.front());
  };
  refuse(missing(a, b), path_b);
  refuse(missing(b, a), path_a);
}

void print_tensor(const std::string& name, const Comparison& c, bool pass, bool json) {
  if (json) {
    const Json object{{"tensor", name},       {"rel_l2", c.rel_l2}, {"cosine", c.cosine},
                      {"max_abs", c.max_abs}, {"worst", c.worst},   {"finite", c.finite},
                      {"pass", pass}};
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%s  rel_l2 %.3g  cosine %.9f  max_abs %.3g at %s%s%s\n", printable(name).c_str(),
                c.rel_l2, c.cosine, c.max_abs, c.worst.c_str(),
                c.finite ? "" : "  not finite there", pass ? "" : "  FAIL");
  }
}

int compare_tensors(const Flags& flags, const std::string& path_a, const std::string& path_b) {
  if (flags.given("min-psnr") || flags.given("min-ssim"))
    throw Error(ErrorKind::kUsage, flags.label(flags.given("min-psnr") ? "min-psnr" : "min-ssim") +
                                       " is for pictures; legal here: --max-rel-l2");
  const TensorFile a = TensorFile::open(path_a), b = TensorFile::open(path_b);
  require_same_names(a, b, path_a, path_b);
  const double bound = flags.real("max-rel-l2").value_or(HUGE_VAL);
  double worst = 0;
  std::string worst_name;
  bool all_pass = true;
  for (const std::string& name : a.names()) {
    const TensorView x = a.view(name), y = b.view(name);
    if (!std::ranges::equal(x.shape(), y.shape()))
      throw Error(ErrorKind::kModel, "tensor " + name + ": the shapes differ: " +
                                         x.to_string_shape() + ", " + y.to_string_shape());
    const Comparison c = compare(x, y);
    const bool pass = !flags.given("max-rel-l2") || (c.finite && c.rel_l2 <= bound);
    all_pass &= pass;
    if (worst_name.empty() || !(c.rel_l2 <= worst)) {
      worst = c.rel_l2;
      worst_name = name;
    }
    print_tensor(name, c, pass, flags.on("json"));
    a.drop_pages(x);
    b.drop_pages(y);
  }
  if (flags.on("json")) {
    const Json object{{"tensors", a.names().size()},
                      {"worst_rel_l2", worst},
                      {"worst_tensor", worst_name},
                      {"pass", all_pass}};
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("total %zu tensors, worst rel_l2 %.3g of %s  %s\n", a.names().size(), worst,
                printable(worst_name).c_str(), all_pass ? "PASS" : "FAIL");
  }
  return all_pass ? 0 : 1;
}

}  // namespace

int run_compare(const Flags& flags) {
  const std::vector<std::string>& operands = flags.operands();
  if (operands.size() != 2)
    throw Error(ErrorKind::kUsage, "weft compare takes two operands, got " +
                                       std::to_string(operands.size()) +
                                       "; legal: two clips, pictures or folders of frames, or two "
                                       "weights files");
  const bool tensors = holds_tensors(operands[0]);
  if (tensors != holds_tensors(operands[1]))
    throw Error(ErrorKind::kUsage, operands[tensors ? 0 : 1] + " holds tensors and " +
                                       operands[tensors ? 1 : 0] + " does not; legal: two alike");
  return tensors ? compare_tensors(flags, operands[0], operands[1])
                 : compare_pictures(flags, operands[0], operands[1]);
}

}  // namespace weft
