// The GIF writer. It spools frames to an unnamed file, chooses a palette for the whole clip by
// median cut, and passes dithered indices to libavcodec's GIF encoder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "io/media/ffmpeg.h"
#include "io/media/video.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::Owner;

namespace {

// One index is reserved for transparency, with which the encoder skips unchanged pixels.
constexpr int kColours = 255;
constexpr int kTransparent = 255;
// Ordered dithering changes a channel by less than this in either direction. This is enough to hide
// the steps of 255 colours, and unlike error diffusion the pattern does not change between frames.
constexpr int kDitherRange = 4;

using Rgb = std::array<int, 3>;

// Counts and sums of colours in cells. Each channel is divided into 32 levels.
struct Histogram {
  static constexpr int kCells = 32 * 32 * 32;
  std::vector<uint64_t> count = std::vector<uint64_t>(kCells);
  std::vector<std::array<uint64_t, 3>> sum = std::vector<std::array<uint64_t, 3>>(kCells);

  void add(const Frame& frame) {
    for (size_t i = 0; i < frame.rgb.size(); i += 3) {
      const uint8_t* p = &frame.rgb[i];
      const size_t cell = size_t(p[0] >> 3) << 10 | size_t(p[1] >> 3) << 5 | size_t(p[2] >> 3);
      ++count[cell];
      for (int c = 0; c < 3; ++c) sum[cell][c] += p[c];
    }
  }
};

struct Cell {
  Rgb mean;
  uint64_t count;
};

// A range of cells. `error` is the largest count times variance along any axis; the box with the
// largest error is split next.
struct Box {
  size_t begin, end;
  int axis = 0;
  double error = 0;
};

Box measure(const std::vector<Cell>& cells, size_t begin, size_t end) {
  Box box{begin, end};
  for (int c = 0; c < 3; ++c) {
    double n = 0, sum = 0, squares = 0;
    for (size_t i = begin; i < end; ++i) {
      n += static_cast<double>(cells[i].count);
      sum += static_cast<double>(cells[i].count) * cells[i].mean[c];
      squares += static_cast<double>(cells[i].count) * cells[i].mean[c] * cells[i].mean[c];
    }
    const double error = squares - sum * sum / n;
    if (error > box.error) {
      box.error = error;
      box.axis = c;
    }
  }
  return box;
}

// Chooses a palette by median cut (Heckbert 1982), using the variance.
std::vector<Rgb> choose_palette(const Histogram& histogram) {
  std::vector<Cell> cells;
  for (size_t i = 0; i < Histogram::kCells; ++i) {
    const uint64_t n = histogram.count[i];
    if (n == 0) continue;
    Rgb mean;
    for (int c = 0; c < 3; ++c) mean[c] = static_cast<int>((histogram.sum[i][c] + n / 2) / n);
    cells.push_back({mean, n});
  }
  std::vector<Box> boxes{measure(cells, 0, cells.size())};
  while (boxes.size() < kColours) {
    const auto widest = std::ranges::max_element(boxes, {}, &Box::error);
    if (widest->error <= 0) break;
    const Box box = *widest;
    const auto first = cells.begin() + static_cast<std::ptrdiff_t>(box.begin);
    const auto last = cells.begin() + static_cast<std::ptrdiff_t>(box.end);
    std::stable_sort(first, last, [&](const Cell& a, const Cell& b) {
      return a.mean[box.axis] < b.mean[box.axis];
    });
    double sum = 0, n = 0;
    for (auto cell = first; cell != last; ++cell) {
      sum += static_cast<double>(cell->count) * cell->mean[box.axis];
      n += static_cast<double>(cell->count);
    }
    // The box is split at the mean. Both sides keep at least one cell, because the variance is not
    // 0.
    auto middle =
        std::find_if(first, last, [&](const Cell& cell) { return cell.mean[box.axis] * n > sum; });
    const size_t at = static_cast<size_t>(middle - cells.begin());
    *widest = measure(cells, box.begin, at);
    boxes.push_back(measure(cells, at, box.end));
  }
  std::vector<Rgb> palette;
  for (const Box& box : boxes) {
    std::array<double, 3> sum{};
    double n = 0;
    for (size_t i = box.begin; i < box.end; ++i) {
      n += static_cast<double>(cells[i].count);
      for (int c = 0; c < 3; ++c) sum[c] += static_cast<double>(cells[i].count) * cells[i].mean[c];
    }
    palette.push_back({int(sum[0] / n + 0.5), int(sum[1] / n + 0.5), int(sum[2] / n + 0.5)});
  }
  return palette;
}

// Finds the nearest palette entry of a colour, and caches it per cell of 6 bits per channel.
class Quantiser {
 public:
  explicit Quantiser(std::vector<Rgb> palette) : palette_(std::move(palette)) {}
  const std::vector<Rgb>& palette() const { return palette_; }

  uint8_t index(int r, int g, int b) {
    int16_t& known = cache_[static_cast<size_t>(r >> 2) << 12 | static_cast<size_t>(g >> 2) << 6 |
                            static_cast<size_t>(b >> 2)];
    if (known < 0) {
      const Rgb colour{(r & ~3) + 2, (g & ~3) + 2, (b & ~3) + 2};
      const auto distance = [&](const Rgb& entry) {
        int sum = 0;
        for (int c = 0; c < 3; ++c) sum += (entry[c] - colour[c]) * (entry[c] - colour[c]);
        return sum;
      };
      known =
          static_cast<int16_t>(std::ranges::min_element(palette_, {}, distance) - palette_.begin());
    }
    return static_cast<uint8_t>(known);
  }

 private:
  std::vector<Rgb> palette_;
  std::vector<int16_t> cache_ = std::vector<int16_t>(size_t{1} << 18, -1);
};

// Returns Bayer's 8x8 threshold 0..63: the bits of x ^ y and y, interleaved from the lowest bit up.
int bayer(int x, int y) {
  int value = 0;
  for (int bit = 0; bit < 3; ++bit)
    value = value << 2 | (((x ^ y) >> bit) & 1) << 1 | ((y >> bit) & 1);
  return value;
}

class GifSink : public FrameSink {
 public:
  GifSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite)
      : settings_(settings),
        part_(path, overwrite),
        kept_(path, overwrite, "spool", settings.kept_frames ? Earlier::kKept : Earlier::kDropped) {
    CHECK(settings.width > 0 && settings.height > 0, settings.width, settings.height);
    ffmpeg::silence_log();
    if (!avcodec_find_encoder(AV_CODEC_ID_GIF))
      throw Error(ErrorKind::kOutput, "this FFmpeg has no GIF encoder; write an .mp4 instead");
    spool_ = open(kept_.path().c_str(), O_RDWR | O_CLOEXEC);
    if (spool_ < 0) throw Error(ErrorKind::kOutput, system_error_line("open", kept_.path(), errno));
    Frame frame(settings_.width, settings_.height);
    for (; frames_ < settings.kept_frames; ++frames_) {
      read_frame(frame);
      histogram_.add(frame);
    }
  }

  ~GifSink() override {
    if (muxer_ && muxer_->pb) avio_closep(&muxer_->pb);
    close(spool_);
  }

  void push(const Frame& frame) override {
    CHECK(frame.width == settings_.width && frame.height == settings_.height, frame.width,
          frame.height);
    histogram_.add(frame);
    for (size_t done = 0; done < frame.rgb.size();) {
      const ssize_t count = write(spool_, frame.rgb.data() + done, frame.rgb.size() - done);
      if (count < 0 && errno != EINTR) fail(AVERROR(errno));
      if (count > 0) done += static_cast<size_t>(count);
    }
    ++frames_;
  }

  void keep() override {
    if (frames_ > 0) kept_.keep();
  }

  std::string finish() override {
    if (frames_ == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + part_.final_path() + "'");
    open_output();
    Quantiser quantiser(choose_palette(histogram_));
    Frame frame(settings_.width, settings_.height);
    lseek(spool_, 0, SEEK_SET);
    for (int64_t i = 0; i < frames_; ++i) {
      read_frame(frame);
      encode(quantise(frame, quantiser, i).get());
    }
    encode(nullptr);
    check(av_write_trailer(muxer_.get()));
    avio_flush(muxer_->pb);
    check(muxer_->pb->error);
    check(avio_closep(&muxer_->pb));
    part_.publish();
    std::filesystem::remove(kept_.path());
    return part_.final_path();
  }

 private:
  void read_frame(Frame& frame) {
    for (size_t done = 0; done < frame.rgb.size();) {
      const ssize_t count = read(spool_, frame.rgb.data() + done, frame.rgb.size() - done);
      if (count == 0)
        throw Error(ErrorKind::kOutput, "'" + kept_.path() + "' holds fewer frames than were kept");
      if (count < 0 && errno != EINTR) fail(AVERROR(errno));
      if (count > 0) done += static_cast<size_t>(count);
    }
  }

  [[noreturn]] void fail(int error) const {
    throw Error(ErrorKind::kOutput, system_error_line("write", part_.path(), AVUNERROR(error)));
  }
  void check(int result) const {
    if (result < 0) fail(result);
  }

  void open_output() {
    AVFormatContext* context = nullptr;
    check(avformat_alloc_output_context2(&context, nullptr, "gif", part_.path().c_str()));
    muxer_.reset(context);
    encoder_.reset(avcodec_alloc_context3(avcodec_find_encoder(AV_CODEC_ID_GIF)));
    encoder_->width = settings_.width;
    encoder_->height = settings_.height;
    encoder_->pix_fmt = AV_PIX_FMT_PAL8;
    encoder_->time_base = {settings_.fps_den, settings_.fps_num};
    check(avcodec_open2(encoder_.get(), nullptr, nullptr));
    AVStream* stream = avformat_new_stream(muxer_.get(), nullptr);
    avcodec_parameters_from_context(stream->codecpar, encoder_.get());
    check(avio_open(&muxer_->pb, ("file:" + part_.path()).c_str(), AVIO_FLAG_WRITE));
    check(avformat_write_header(muxer_.get(), nullptr));
    packet_.reset(av_packet_alloc());
  }

  Owner<AVFrame> quantise(const Frame& frame, Quantiser& quantiser, int64_t index) const {
    Owner<AVFrame> picture(av_frame_alloc());
    picture->format = AV_PIX_FMT_PAL8;
    picture->width = frame.width;
    picture->height = frame.height;
    picture->pts = index;
    if (av_frame_get_buffer(picture.get(), 0) < 0)
      throw Error(ErrorKind::kMemory, "out of memory for a video frame");
    auto* palette = reinterpret_cast<uint32_t*>(picture->data[1]);
    std::fill_n(palette, 256, 0xff000000u);
    for (size_t i = 0; i < quantiser.palette().size(); ++i) {
      const Rgb& c = quantiser.palette()[i];
      palette[i] = 0xff000000u | uint32_t(c[0]) << 16 | uint32_t(c[1]) << 8 | uint32_t(c[2]);
    }
    palette[kTransparent] = 0;
    for (int y = 0; y < frame.height; ++y) {
      uint8_t* row = picture->data[0] + int64_t(y) * picture->linesize[0];
      for (int x = 0; x < frame.width; ++x) {
        const uint8_t* p = frame.at(x, y);
        const int shift = (2 * bayer(x & 7, y & 7) - 63) * kDitherRange / 64;
        row[x] = quantiser.index(std::clamp(p[0] + shift, 0, 255), std::clamp(p[1] + shift, 0, 255),
                                 std::clamp(p[2] + shift, 0, 255));
      }
    }
    return picture;
  }

  void encode(const AVFrame* picture) {
    check(avcodec_send_frame(encoder_.get(), picture));
    for (;;) {
      const int result = avcodec_receive_packet(encoder_.get(), packet_.get());
      if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
      check(result);
      packet_->stream_index = 0;
      packet_->duration = 1;
      av_packet_rescale_ts(packet_.get(), encoder_->time_base, muxer_->streams[0]->time_base);
      check(av_interleaved_write_frame(muxer_.get(), packet_.get()));
      check(muxer_->pb->error);
    }
  }

  const VideoSettings settings_;
  PartFile part_;
  PartFile kept_;  // the frames so far
  Histogram histogram_;
  int64_t frames_ = 0;
  int spool_ = -1;
  Owner<AVFormatContext> muxer_;
  Owner<AVCodecContext> encoder_;
  Owner<AVPacket> packet_;
};

}  // namespace

std::unique_ptr<FrameSink> make_gif_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite) {
  return std::make_unique<GifSink>(path, settings, overwrite);
}

}  // namespace weft
