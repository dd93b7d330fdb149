#pragma once
// Shared by the files that use FFmpeg, and included only by them: owners of FFmpeg objects, and its
// errors as text.
#include <memory>
#include <string>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavfilter/avfilter.h>
#include <libavfilter/buffersink.h>
#include <libavformat/avformat.h>
#include <libavutil/error.h>
#include <libavutil/opt.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

namespace weft::ffmpeg {

struct Delete {
  void operator()(AVFormatContext* context) const {
    if (context->oformat)
      avformat_free_context(context);
    else
      avformat_close_input(&context);
  }
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
  void operator()(AVFilterGraph* graph) const { avfilter_graph_free(&graph); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(SwsContext* context) const { sws_freeContext(context); }
  void operator()(SwrContext* context) const { swr_free(&context); }
};
template <class T>
using Owner = std::unique_ptr<T, Delete>;

// An AVDictionary that frees itself. FFmpeg calls take its address and remove the entries they
// used.
class Options {
 public:
  Options() = default;
  ~Options() { av_dict_free(&dict_); }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  void set(const std::string& key, const std::string& value) {
    av_dict_set(&dict_, key.c_str(), value.c_str(), 0);
  }
  AVDictionary** address() { return &dict_; }

 private:
  AVDictionary* dict_ = nullptr;
};

inline std::string reason(int error) {
  char text[AV_ERROR_MAX_STRING_SIZE];
  av_strerror(error, text, sizeof text);
  return text;
}

// Turns off FFmpeg's own log to stderr, because only apps may print.
inline void silence_log() {
  static const bool once = [] {
    av_log_set_callback([](void*, int, const char*, va_list) {});
    return true;
  }();
  (void)once;
}

struct PixelFormat {
  AVPixelFormat format;
  bool full_range;  // matters for RGB and Y'CbCr alone
};

// Makes a converter between pixel formats that rounds accurately. `colorspace` is the matrix of a
// Y'CbCr side.
Owner<SwsContext> make_converter(int width, int height, PixelFormat from, PixelFormat to,
                                 int colorspace);

}  // namespace weft::ffmpeg
