#pragma once
// Shared by the writers of clips: files of FFmpeg's muxers, and an encoder with its pictures.
#include <functional>
#include <map>
#include <string>

#include "io/media/ffmpeg.h"
#include "io/media/video.h"

namespace weft::ffmpeg {

// Throws what an error of FFmpeg means for the output `path`.
[[noreturn]] void fail_write(const std::string& path, int error);

// Error(kUsage) if a side is odd.
void check_video_settings(const VideoSettings& settings);

void set_metadata(AVFormatContext* context, const std::map<std::string, std::string>& metadata);
Owner<AVFormatContext> open_muxer(const std::string& path, const char* format);
void open_file(AVFormatContext* context, const std::string& path);
// Flushes and closes the file, and reports errors of both.
void close_file(AVFormatContext* context, const std::string& path);

enum class EncoderUse : uint8_t {
  kFile,  // the smallest file: pictures may be reordered
  kLive,  // each picture gives a packet at once, and key pictures are those that are asked for
  kLiveBaseline,  // the same in H.264's constrained baseline profile, which every decoder has
};

// Opens settings.encoder, or `name` if that is empty. Its times are frame numbers. A
// `global_header` goes to the container and not into the packets. Errors: kOutput.
Owner<AVCodecContext> open_video_encoder(const VideoSettings& settings, const std::string& name,
                                         bool global_header, EncoderUse use = EncoderUse::kFile);

// Encodes a frame, or with null ends the encoding, and calls `take` with every packet that is
// ready. `name` is for errors, which are kOutput.
void encode(AVCodecContext* encoder, const AVFrame* frame, AVPacket* packet,
            const std::string& name, const std::function<void(AVPacket*)>& take);

enum class PictureColours : uint8_t {
  kVideo,  // BT.709, limited range
  kJpeg,   // BT.601, full range, as JFIF has it
};

// A frame as pictures of an encoder: 4:2:0.
class PictureBuffer {
 public:
  PictureBuffer(int width, int height, PictureColours colours = PictureColours::kVideo);
  // The picture is valid until the next call; the encoder may keep its data for longer.
  AVFrame* fill(const Frame& frame, int64_t pts);

 private:
  Owner<SwsContext> converter_;
  Owner<AVFrame> picture_{av_frame_alloc()};
};

}  // namespace weft::ffmpeg
