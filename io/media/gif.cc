// The GIF writer. It spools frames to a hidden file. A graph of libavfilter reads this twice: it
// chooses a palette for the whole clip (palettegen) and then dithers frame by frame (paletteuse).
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "io/media/output_media.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::fail_write, ffmpeg::Owner;

namespace {

// Six bits a channel bound the histogram: noise, with a new colour in every pixel, took minutes.
constexpr const char* kPaletteGen =
    "lutrgb=r='bitand(val,252)+2':g='bitand(val,252)+2':b='bitand(val,252)+2',palettegen";
// Unlike error diffusion, the pattern of ordered dithering does not change between frames.
constexpr const char* kPaletteUse = "paletteuse=dither=bayer:bayer_scale=4";

std::string graph_escaped(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) (special.find(c) == special.npos ? out : out += '\\') += c;
  return out;
}

// A value in the text of a graph, which is read as a graph first and then as options.
std::string graph_value(const std::string& value) {
  return graph_escaped(graph_escaped(value, "\\':"), "\\'[],;");
}

class GifSink : public FrameSink {
 public:
  GifSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite)
      : settings_(settings),
        part_(path, overwrite),
        kept_(path, overwrite, "spool", settings.kept_frames ? Earlier::kKept : Earlier::kDropped),
        frames_(settings.kept_frames) {
    CHECK(settings.width > 0 && settings.height > 0, settings.width, settings.height);
    ffmpeg::silence_log();
    if (!avcodec_find_encoder(AV_CODEC_ID_GIF) || !avfilter_get_by_name("paletteuse"))
      throw Error(ErrorKind::kOutput, "this FFmpeg writes no GIF; write an .mp4 instead");
    const auto kept = static_cast<uintmax_t>(frames_) * 3 * settings.width * settings.height;
    if (std::filesystem::file_size(kept_.path()) < kept)
      throw Error(ErrorKind::kOutput, "'" + kept_.path() + "' holds fewer frames than were kept");
    std::filesystem::resize_file(kept_.path(), kept);
    spool_.open(kept_.path(), std::ios::binary | std::ios::app);
  }

  ~GifSink() override {
    if (muxer_ && muxer_->pb) avio_closep(&muxer_->pb);
  }

  void push(const Frame& frame) override {
    CHECK(frame.width == settings_.width && frame.height == settings_.height, frame.width,
          frame.height);
    const auto* bytes = reinterpret_cast<const char*>(frame.rgb.data());
    if (!spool_.write(bytes, std::ssize(frame.rgb)).flush())
      fail_write(part_.path(), AVERROR(errno));
    ++frames_;
  }

  void keep() override {
    if (frames_ > 0) kept_.keep();
  }

  std::string finish() override {
    if (frames_ == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + part_.final_path() + "'");
    open_output();
    const Owner<AVFilterGraph> graph(avfilter_graph_alloc());
    graph->nb_threads = 1;
    AVFilterInOut *inputs = nullptr, *outputs = nullptr;
    check(avfilter_graph_parse2(graph.get(), graph_text().c_str(), &inputs, &outputs));
    check(avfilter_graph_config(graph.get(), nullptr));
    AVFilterContext* sink = avfilter_graph_get_filter(graph.get(), "buffersink@out");
    const Owner<AVFrame> picture(av_frame_alloc());
    for (int64_t i = 0; i < frames_; ++i) {
      check(av_buffersink_get_frame(sink, picture.get()));
      picture->pts = i;
      encode(picture.get());
      av_frame_unref(picture.get());
    }
    encode(nullptr);
    check(av_write_trailer(muxer_.get()));
    ffmpeg::close_file(muxer_.get(), part_.path());
    part_.publish();
    std::filesystem::remove(kept_.path());
    return part_.final_path();
  }

 private:
  void check(int result) const {
    if (result < 0) fail_write(part_.path(), result);
  }

  // The spool is read frame by frame by each of its two readers.
  std::string graph_text() const {
    const std::string spool =
        "movie=filename=" + graph_value("file:" + kept_.path()) +
        ":format_name=rawvideo:format_opts=" +
        graph_value("pixel_format=rgb24:video_size=" + std::to_string(settings_.width) + "x" +
                    std::to_string(settings_.height));
    return spool + "," + kPaletteGen + "[palette];" + spool + "[frames];[frames][palette]" +
           kPaletteUse + ",buffersink@out";
  }

  void open_output() {
    muxer_ = ffmpeg::open_muxer(part_.path(), "gif");
    encoder_.reset(avcodec_alloc_context3(avcodec_find_encoder(AV_CODEC_ID_GIF)));
    encoder_->width = settings_.width;
    encoder_->height = settings_.height;
    encoder_->pix_fmt = AV_PIX_FMT_PAL8;
    encoder_->time_base = {settings_.fps_den, settings_.fps_num};
    check(avcodec_open2(encoder_.get(), nullptr, nullptr));
    AVStream* stream = avformat_new_stream(muxer_.get(), nullptr);
    avcodec_parameters_from_context(stream->codecpar, encoder_.get());
    ffmpeg::open_file(muxer_.get(), part_.path());
    check(avformat_write_header(muxer_.get(), nullptr));
  }

  void encode(const AVFrame* picture) {
    ffmpeg::encode(encoder_.get(), picture, packet_.get(), part_.path(), [&](AVPacket* packet) {
      packet->stream_index = 0;
      packet->duration = 1;
      av_packet_rescale_ts(packet, encoder_->time_base, muxer_->streams[0]->time_base);
      check(av_interleaved_write_frame(muxer_.get(), packet));
      check(muxer_->pb->error);
    });
  }

  const VideoSettings settings_;
  PartFile part_;
  PartFile kept_;  // the frames so far
  int64_t frames_ = 0;
  std::ofstream spool_;
  Owner<AVFormatContext> muxer_;
  Owner<AVCodecContext> encoder_;
  Owner<AVPacket> packet_{av_packet_alloc()};
};

}  // namespace

std::unique_ptr<FrameSink> make_gif_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite) {
  return std::make_unique<GifSink>(path, settings, overwrite);
}

}  // namespace weft
