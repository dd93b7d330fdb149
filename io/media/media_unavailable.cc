// Replaces the media files in a build without media support.
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/video.h"
#include "io/picture/picture_reader.h"
#include "io/picture/picture_writer.h"
#include "io/sound/audio.h"
#include "io/sound/media_pieces.h"
#include "io/sound/movie.h"
#include "io/trace_file.h"
#include "kernels/check.h"

namespace weft {
namespace {

[[noreturn]] void unavailable(ErrorKind kind, const std::string& path) {
  throw Error(kind, "'" + path +
                        "': this build has no video, image and sound support; build with "
                        "-DWEFT_MEDIA=ON (needs FFmpeg, libpng, libjpeg and libwebp)");
}

}  // namespace

bool media_built() { return false; }

std::unique_ptr<FrameSink> make_sink(const std::string& path, const VideoSettings&, Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<FrameSink> make_mp4_sink(const std::string& path, const VideoSettings&, Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<FrameSink> make_webm_sink(const std::string& path, const VideoSettings&,
                                          Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<FrameSink> make_gif_sink(const std::string& path, const VideoSettings&, Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<FrameSink> make_png_sink(const std::string& path, const VideoSettings&, Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<FrameSink> make_png_folder_sink(const std::string& path, const VideoSettings&,
                                                Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
void write_png(const std::string& path, const Frame&, const std::map<std::string, std::string>&,
               Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::string encode_png(const Frame&, const std::map<std::string, std::string>&) {
  unavailable(ErrorKind::kOutput, "PNG");
}
std::string encode_picture(const Frame&, PictureFormat format, int) {
  unavailable(ErrorKind::kOutput, to_string(format));
}

std::string gzip(const std::string&) {
  throw Error(ErrorKind::kUsage,
              "this build cannot write .gz files; build with -DWEFT_MEDIA=ON (zlib comes with "
              "libpng), or leave .gz off the name");
}

struct VideoReader::Impl {};
VideoReader::VideoReader(const std::string& path) { unavailable(ErrorKind::kMedia, path); }
VideoReader::~VideoReader() = default;
int VideoReader::width() const { return 0; }
int VideoReader::height() const { return 0; }
double VideoReader::fps() const { return 0; }
bool VideoReader::next(Frame&) { return false; }

std::vector<Frame> read_video(const std::string& path) { unavailable(ErrorKind::kMedia, path); }
Frame read_png(const std::string& path, PngInfo*) { unavailable(ErrorKind::kMedia, path); }
StoredPicture decode_png(const std::string& name, std::string) {
  unavailable(ErrorKind::kMedia, name);
}
Frame read_picture(const std::string& path) { unavailable(ErrorKind::kMedia, path); }
Frame decode_picture(const std::string& name, std::string) { unavailable(ErrorKind::kMedia, name); }
PngInfo probe_png(const std::string& path) { unavailable(ErrorKind::kMedia, path); }
MediaInfo probe_media(const std::string& path) { unavailable(ErrorKind::kMedia, path); }

std::unique_ptr<SoundSource> open_sound(const std::string& path, int) {
  unavailable(ErrorKind::kMedia, path);
}
std::unique_ptr<SoundSource> resampled(std::unique_ptr<SoundSource> source, int rate) {
  if (source->rate() == rate) return source;
  unavailable(ErrorKind::kMedia, "the rate of the sound");
}
std::unique_ptr<MovieSink> make_movie(const std::string& path, const MovieSettings&, Overwrite) {
  unavailable(ErrorKind::kOutput, path);
}
std::unique_ptr<MovieSink> make_movie_pieces(TakePiece, const MovieSettings&) {
  unavailable(ErrorKind::kOutput, "a stream");
}
std::unique_ptr<MovieSink> make_annexb_pieces(TakePiece, const MovieSettings&) {
  unavailable(ErrorKind::kOutput, "a stream");
}
std::unique_ptr<MovieSink> make_jpeg_pieces(TakePiece, const MovieSettings&) {
  unavailable(ErrorKind::kOutput, "a stream");
}
std::unique_ptr<MovieSink> make_live_movie(int, const std::string& name, const MovieSettings&) {
  unavailable(ErrorKind::kOutput, name);
}
struct Resampler::Impl {};
Resampler::Resampler(int, int) { unavailable(ErrorKind::kMedia, "the rate of the sound"); }
Resampler::~Resampler() = default;
void Resampler::push(std::span<const float>, std::vector<float>&) {}
void Resampler::finish(std::vector<float>&) {}
int Resampler::look_ahead() const { return 0; }

}  // namespace weft
