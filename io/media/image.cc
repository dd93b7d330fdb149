// Reads and writes PNG with libpng. libpng reports errors by longjmp. The functions that call it
// therefore have no C++ object with a destructor between setjmp and the call; the results are in
// the caller's objects.
#include "io/media/image.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "io/atomic_file.h"
#include "io/input_file.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr uint64_t kMaxImagePixels = uint64_t{64} << 20;
constexpr int kMaxSide = 16384;
constexpr size_t kMaxTextBytes = size_t{8} << 20;

struct Failure {
  char text[160] = "";
};

void on_error(png_structp png, png_const_charp message) {
  auto* failure = static_cast<Failure*>(png_get_error_ptr(png));
  std::snprintf(failure->text, sizeof failure->text, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void append(png_structp png, png_bytep data, size_t size) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<const char*>(data), size);
}

void no_flush(png_structp) {}

// Encodes a picture. Returns false on failure, with the reason in `failure`.
bool write_image(const Frame& frame, const std::vector<png_text>& texts, std::string* out,
                 Failure* failure) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, failure, on_error, on_warning);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  if (!info || setjmp(png_jmpbuf(png))) {
    png_destroy_write_struct(&png, &info);
    return false;
  }
  png_set_write_fn(png, out, append, no_flush);
  png_set_IHDR(png, info, static_cast<png_uint_32>(frame.width),
               static_cast<png_uint_32>(frame.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!texts.empty()) png_set_text(png, info, texts.data(), static_cast<int>(texts.size()));
  png_write_info(png, info);
  for (int y = 0; y < frame.height; ++y) png_write_row(png, frame.at(0, y));
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return true;
}

class PngSink : public FrameSink {
 public:
  PngSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite)
      : settings_(settings), part_(path, overwrite) {}

  void push(const Frame& frame) override {
    if (written_)
      throw Error(ErrorKind::kUsage,
                  "'" + part_.final_path() +
                      "' holds one picture and the clip has several; use .mp4, or "
                      "a path ending in '/' for a folder of PNG frames");
    fill_file(part_.path(), encode_png(frame, settings_.metadata));
    written_ = true;
  }

  std::string finish() override {
    if (!written_)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + part_.final_path() + "'");
    part_.publish();
    return part_.final_path();
  }

 private:
  const VideoSettings settings_;
  PartFile part_;
  bool written_ = false;
};

class PngFolderSink : public FrameSink {
 public:
  PngFolderSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite)
      : settings_(settings),
        part_(path, overwrite, "part", settings.kept_frames ? Earlier::kKept : Earlier::kDropped) {
    for (; frames_ < settings.kept_frames; ++frames_)
      if (!std::filesystem::exists(next()))
        throw Error(ErrorKind::kOutput, "'" + next() +
                                            "' is missing, but an earlier run has kept " +
                                            std::to_string(settings.kept_frames) + " frames there");
    for (int64_t behind = frames_; std::filesystem::remove(path_of(behind)); ++behind) {
    }
  }

  void push(const Frame& frame) override {
    fill_file(next(), encode_png(frame, settings_.metadata));
    ++frames_;
  }

  void keep() override {
    if (frames_ > 0) part_.keep();
  }

  std::string finish() override {
    if (frames_ == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + part_.final_path() + "/'");
    part_.publish();
    return part_.final_path() + "/";
  }

 private:
  std::string path_of(int64_t frame) const {
    char name[32];
    std::snprintf(name, sizeof name, "/%05lld.png", static_cast<long long>(frame));
    return part_.path() + name;
  }
  std::string next() const { return path_of(frames_); }

  const VideoSettings settings_;
  PartFile part_;
  int64_t frames_ = 0;
};

// kShown: pixels as read_png gives them. kSeen: as decode_png gives them.
enum class Depth { kHeader, kShown, kSeen };

// A read, with everything that libpng's longjmp must not skip.
struct Reading {
  std::string bytes;
  Depth depth;
  size_t position = 0;
  PngInfo info{};
  StoredPicture picture{};           // filled unless only the header is read
  std::vector<std::string> texts{};  // keys and texts in turn
  std::vector<png_bytep> rows{};
  Failure failure{};
};

void read_input(png_structp png, png_bytep data, size_t size) {
  auto* reading = static_cast<Reading*>(png_get_io_ptr(png));
  if (size > reading->bytes.size() - reading->position) png_error(png, "the file ends early");
  std::memcpy(data, reading->bytes.data() + reading->position, size);
  reading->position += size;
}

// Reads the pixels of a picture whose header has been read into `header` and `reading->info`.
void read_pixels(png_structp png, png_infop header, png_infop tail, Reading* reading) {
  const bool seen = reading->depth == Depth::kSeen;
  const bool transparent = (png_get_color_type(png, header) & PNG_COLOR_MASK_ALPHA) ||
                           png_get_valid(png, header, PNG_INFO_tRNS);
  StoredPicture* picture = &reading->picture;
  picture->width = reading->info.width;
  picture->height = reading->info.height;
  picture->channels = seen && transparent ? 4 : 3;
  seen ? png_set_strip_16(png) : png_set_scale_16(png);
  png_set_expand(png);
  png_set_gray_to_rgb(png);
  if (!seen) png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, header);
  const size_t row_bytes = static_cast<size_t>(picture->channels) * picture->width;
  if (png_get_rowbytes(png, header) != row_bytes) png_error(png, "odd row size");
  picture->pixels.resize(row_bytes * picture->height);
  reading->rows.resize(static_cast<size_t>(picture->height));
  for (size_t y = 0; y < reading->rows.size(); ++y)
    reading->rows[y] = picture->pixels.data() + y * row_bytes;
  png_read_image(png, reading->rows.data());
  png_read_end(png, tail);
}

// Fills `info` (size and depth from IHDR), `texts` and the picture. Nothing is constructed between
// setjmp and libpng's longjmp.
bool read_image(Reading* reading) {
  PngInfo* info = &reading->info;
  png_structp png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading->failure, on_error, on_warning);
  png_infop header = png ? png_create_info_struct(png) : nullptr;
  png_infop tail = png ? png_create_info_struct(png) : nullptr;
  if (!header || !tail || setjmp(png_jmpbuf(png))) {
    png_destroy_read_struct(&png, &header, &tail);
    return false;
  }
  png_set_read_fn(png, reading, read_input);
  png_set_user_limits(png, kMaxSide, kMaxSide);
  png_set_chunk_cache_max(png, 128);
  png_set_chunk_malloc_max(png, kMaxTextBytes);
  png_read_info(png, header);
  info->width = static_cast<int>(png_get_image_width(png, header));
  info->height = static_cast<int>(png_get_image_height(png, header));
  info->bit_depth = png_get_bit_depth(png, header);
  info->channels = png_get_channels(png, header);
  if (uint64_t(info->width) * uint64_t(info->height) > kMaxImagePixels)
    png_error(png, "more than 64 Mpixel");
  if (reading->depth != Depth::kHeader) read_pixels(png, header, tail, reading);
  for (png_infop part : {header, tail}) {
    png_textp text = nullptr;
    int count = 0;
    png_get_text(png, part, &text, &count);
    for (int i = 0; i < count; ++i) {
      reading->texts.emplace_back(text[i].key);
      reading->texts.emplace_back(text[i].text ? text[i].text : "");
    }
  }
  png_destroy_read_struct(&png, &header, &tail);
  return true;
}

// Messages begin with `name`, a path or the name of an input.
Reading read_bytes(const std::string& name, std::string bytes, Depth depth) {
  Reading reading{.bytes = std::move(bytes), .depth = depth};
  const auto* begin = reinterpret_cast<png_const_bytep>(reading.bytes.data());
  if (reading.bytes.size() < 8 || png_sig_cmp(begin, 0, 8) != 0)
    throw Error(ErrorKind::kMedia, "'" + name + "' is no PNG file");
  if (!read_image(&reading))
    throw Error(ErrorKind::kMedia, "cannot read '" + name + "': " + reading.failure.text);
  const std::vector<std::string>& texts = reading.texts;
  for (size_t i = 0; i + 1 < texts.size(); i += 2)
    reading.info.texts.emplace(texts[i], texts[i + 1]);
  return reading;
}

Reading read_file(const std::string& path, Depth depth) {
  return read_bytes(path, read_input_file(path, kMaxFileBytes, ErrorKind::kMedia), depth);
}

}  // namespace

std::string encode_png(const Frame& frame, const std::map<std::string, std::string>& texts) {
  CHECK(frame.width > 0 && frame.height > 0 &&
            frame.rgb.size() == size_t{3} * frame.width * frame.height,
        frame.width, frame.height, frame.rgb.size());
  std::vector<png_text> chunks;
  for (const auto& [key, value] : texts) {
    const bool ascii = std::ranges::all_of(value, [](char c) { return c > 0; });
    png_text chunk{};
    chunk.compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(key.c_str());
    chunk.text = const_cast<char*>(value.c_str());
    (ascii ? chunk.text_length : chunk.itxt_length) = value.size();
    chunks.push_back(chunk);
  }
  std::string out;
  Failure failure;
  if (!write_image(frame, chunks, &out, &failure))
    throw Error(ErrorKind::kOutput, std::string("cannot encode a PNG picture: ") + failure.text);
  return out;
}

void write_png(const std::string& path, const Frame& frame,
               const std::map<std::string, std::string>& texts, Overwrite overwrite) {
  write_file(path, encode_png(frame, texts), overwrite);
}

std::unique_ptr<FrameSink> make_png_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite) {
  return std::make_unique<PngSink>(path, settings, overwrite);
}

std::unique_ptr<FrameSink> make_png_folder_sink(const std::string& path,
                                                const VideoSettings& settings,
                                                Overwrite overwrite) {
  return std::make_unique<PngFolderSink>(path, settings, overwrite);
}

Frame read_png(const std::string& path, PngInfo* info) {
  Reading reading = read_file(path, Depth::kShown);
  if (info) *info = std::move(reading.info);
  Frame frame;
  frame.width = reading.picture.width;
  frame.height = reading.picture.height;
  frame.rgb = std::move(reading.picture.pixels);
  return frame;
}

StoredPicture decode_png(const std::string& name, std::string bytes) {
  return std::move(read_bytes(name, std::move(bytes), Depth::kSeen).picture);
}

PngInfo probe_png(const std::string& path) { return read_file(path, Depth::kHeader).info; }

}  // namespace weft
