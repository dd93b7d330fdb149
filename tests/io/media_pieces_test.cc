#include "io/sound/media_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "io/media/ffmpeg.h"
#include "io/media/frame_metrics.h"
#include "tests/io/h264_testing.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"
#include "tests/io/sound_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using ffmpeg::Owner;

constexpr int kRate = 16000, kHop = 640, kWidth = 96, kHeight = 64;
constexpr int kFragment = 2, kDistance = 12;  // pictures of a fragment; between key pictures

// A moving picture without edges in colour, which 4:2:0 would blur.
Frame smooth_picture(int t) {
  Frame frame(kWidth, kHeight);
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x)
      for (int c = 0; c < 3; ++c)
        frame.at(x, y)[c] =
            uint8_t(std::lround(128 + 100 * std::sin(0.07 * x + 0.05 * y * c + 0.2 * t + 2 * c)));
  return frame;
}

MovieSettings small_settings() {
  MovieSettings settings;
  settings.video.width = kWidth;
  settings.video.height = kHeight;
  settings.video.fps_num = 25;
  settings.video.threads = 1;
  settings.video.deterministic = true;
  settings.sample_rate = kRate;
  settings.fragment = kFragment;
  settings.key_every = kDistance / kFragment;
  return settings;
}

// All pieces of so many test pictures with sound of so many samples each; picture `key` is asked
// for as a key.
template <class Make>
std::vector<MediaPiece> pieces_of(Make&& make, int pictures, int key = -1,
                                  const MovieSettings& settings = small_settings()) {
  std::vector<MediaPiece> pieces;
  const auto sink = make([&](MediaPiece&& piece) { pieces.push_back(std::move(piece)); }, settings);
  const std::vector<float> sound = voice(kRate, size_t(pictures) * kHop, 3);
  for (int k = 0; k < pictures; ++k) {
    const size_t before = pieces.size();
    sink->push(smooth_picture(k), std::span(sound).subspan(size_t(k) * kHop, kHop), k == key);
    if (make != make_movie_pieces) {
      EXPECT_EQ(pieces.size(), before + (k == 0 ? 3 : 2)) << "no picture waits for another: " << k;
    }
  }
  EXPECT_EQ(sink->finish(), "");
  EXPECT_EQ(sink->counts().pictures, pictures);
  EXPECT_EQ(sink->counts().samples, int64_t(sound.size()));
  EXPECT_EQ(sink->counts().max_skew, 0);
  return pieces;
}

std::vector<MediaPiece> of_kind(const std::vector<MediaPiece>& pieces, PieceKind kind) {
  std::vector<MediaPiece> chosen;
  for (const MediaPiece& piece : pieces)
    if (piece.kind == kind) chosen.push_back(piece);
  return chosen;
}

// A decoder that is given one piece at a time.
class Decoder {
 public:
  explicit Decoder(AVCodecID codec)
      : context_(avcodec_alloc_context3(avcodec_find_decoder(codec))) {
    ffmpeg::silence_log();
    context_->thread_count = 1;
    context_->err_recognition = AV_EF_EXPLODE;
    CHECK(avcodec_open2(context_.get(), nullptr, nullptr) == 0);
  }
  // The picture that comes at once, if one does.
  std::optional<Frame> decode(const MediaPiece& piece) {
    CHECK(av_new_packet(packet_.get(), int(piece.bytes.size())) == 0);
    std::ranges::copy(piece.bytes, packet_->data);
    const int sent = avcodec_send_packet(context_.get(), packet_.get());
    av_packet_unref(packet_.get());
    if (sent < 0 || avcodec_receive_frame(context_.get(), frame_.get()) < 0) return std::nullopt;
    const bool is_full = frame_->color_range == AVCOL_RANGE_JPEG;
    CHECK(frame_->chroma_location == (is_full ? AVCHROMA_LOC_CENTER : AVCHROMA_LOC_LEFT) ||
          frame_->chroma_location == AVCHROMA_LOC_UNSPECIFIED);
    const auto converter =
        ffmpeg::make_converter(frame_->width, frame_->height, {AV_PIX_FMT_YUV420P, is_full},
                               {AV_PIX_FMT_RGB24, true}, is_full ? SWS_CS_ITU601 : SWS_CS_ITU709);
    Frame picture(frame_->width, frame_->height);
    uint8_t* target[] = {picture.rgb.data()};
    const int stride[] = {3 * picture.width};
    sws_scale(converter.get(), frame_->data, frame_->linesize, 0, frame_->height, target, stride);
    return picture;
  }

 private:
  Owner<AVCodecContext> context_;
  Owner<AVPacket> packet_{av_packet_alloc()};
  Owner<AVFrame> frame_{av_frame_alloc()};
};

// Decodes every piece, each to a picture at once, and returns the least PSNR.
double least_psnr(AVCodecID codec, std::span<const MediaPiece> pictures) {
  Decoder decoder(codec);
  double least = INFINITY;
  for (const MediaPiece& piece : pictures) {
    const std::optional<Frame> picture = decoder.decode(piece);
    EXPECT_TRUE(picture.has_value()) << piece.first;
    if (!picture) return 0;
    const double error = mean_squared_error(*picture, smooth_picture(int(piece.first)));
    least = std::min(least, psnr_db(error));
  }
  return least;
}

// Types of the units of an access unit, without information that decoders may skip (SEI, 6).
std::vector<int> types_of(const MediaPiece& piece) {
  std::vector<int> types;
  for (const auto& unit : units_of(piece.bytes))
    if ((unit.at(0) & 31) != 6) types.push_back(unit.at(0) & 31);
  return types;
}

void expect_sound(const std::vector<MediaPiece>& pieces, int pictures) {
  const std::vector<float> sound = voice(kRate, size_t(pictures) * kHop, 3);
  int64_t next = 0;
  for (const MediaPiece& piece : of_kind(pieces, PieceKind::kSound)) {
    EXPECT_EQ(piece.first, next);
    EXPECT_EQ(piece.count, kHop);
    ASSERT_EQ(piece.bytes.size(), size_t(2 * kHop));
    for (int i = 0; i < kHop; ++i) {
      const auto value = int16_t(piece.bytes[size_t(2 * i)] | piece.bytes[size_t(2 * i + 1)] << 8);
      ASSERT_EQ(value, std::lround(sound[size_t(next + i)] * 32768)) << next + i;
    }
    next += piece.count;
  }
  EXPECT_EQ(next, int64_t(sound.size()));
}

TEST(MediaPieces, AnnexBGivesOneAccessUnitForEachPicture) {
  constexpr int kPictures = 80;
  const std::vector<MediaPiece> pieces = pieces_of(make_annexb_pieces, kPictures, 30);
  EXPECT_EQ(pieces.at(0).kind, PieceKind::kHeader);
  EXPECT_EQ(pieces[0].bytes.size(), 0u);
  ASSERT_EQ(pieces[0].mime.size(), 11u) << pieces[0].mime;
  EXPECT_EQ(pieces[0].mime.substr(0, 9), "avc1.42C0");
  const std::vector<MediaPiece> pictures = of_kind(pieces, PieceKind::kPictures);
  ASSERT_EQ(pictures.size(), size_t(kPictures));
  std::vector<int64_t> keys;
  for (int k = 0; k < kPictures; ++k) {
    const MediaPiece& piece = pictures[size_t(k)];
    EXPECT_EQ(piece.first, k);
    EXPECT_EQ(piece.count, 1);
    if (piece.key) keys.push_back(k);
    // Parameter sets and an IDR picture, or a picture that
    // depends on others.
    EXPECT_EQ(types_of(piece), piece.key ? (std::vector{7, 8, 5}) : std::vector{1}) << k;
  }
  EXPECT_EQ(keys, (std::vector<int64_t>{0, 12, 24, 30, 42, 54, 66, 78}));
  expect_sound(pieces, kPictures);
  EXPECT_EQ(of_kind(pieces, PieceKind::kHeader).size(), 1u);
  EXPECT_GE(least_psnr(AV_CODEC_ID_H264, pictures), 42) << "measured: 43.05";
}

TEST(MediaPieces, AnnexBCanBeJoinedAtEveryKeyPicture) {
  constexpr int kPictures = 40;
  const std::vector<MediaPiece> pictures =
      of_kind(pieces_of(make_annexb_pieces, kPictures, 17), PieceKind::kPictures);
  std::vector<Frame> whole;
  Decoder decoder(AV_CODEC_ID_H264);
  for (const MediaPiece& piece : pictures) whole.push_back(decoder.decode(piece).value());
  int joined = 0;
  for (size_t first = 0; first < pictures.size(); ++first) {
    Decoder late(AV_CODEC_ID_H264);
    if (!pictures[first].key) {
      EXPECT_FALSE(late.decode(pictures[first]).has_value()) << first;
      continue;
    }
    ++joined;
    for (size_t k = first; k < pictures.size(); ++k) {
      const std::optional<Frame> picture = late.decode(pictures[k]);
      ASSERT_TRUE(picture.has_value()) << first << ' ' << k;
      EXPECT_EQ(picture->rgb, whole[k].rgb) << first << ' ' << k;
    }
  }
  EXPECT_EQ(joined, 4) << "0, 12, 17 and 29";
}

TEST(MediaPieces, KeysComeOnlyWhereTheyAreAskedFor) {
  MovieSettings settings = small_settings();
  settings.key_every = 1000;
  for (const MediaPiece& piece :
       of_kind(pieces_of(make_annexb_pieces, 300, 299, settings), PieceKind::kPictures))
    EXPECT_EQ(piece.key, piece.first == 0 || piece.first == 299) << piece.first;
}

TEST(MediaPieces, ParameterSetsSayThatNothingIsReordered) {
  const std::vector<MediaPiece> annexb = pieces_of(make_annexb_pieces, 13);
  int sets = 0;
  for (const MediaPiece& piece : annexb)
    for (const auto& unit : units_of(piece.bytes)) {
      if (piece.kind != PieceKind::kPictures || (unit.at(0) & 31) != 7) continue;
      ++sets;
      const ParameterSet set = read_parameter_set(unit);
      EXPECT_EQ(set.profile, 66u);
      EXPECT_EQ(set.constraints, 0xC0u);
      EXPECT_EQ(set.max_reordered, 0);
      EXPECT_GE(set.max_buffered, 1);
      char level[3];
      std::snprintf(level, sizeof level, "%02X", set.level);
      EXPECT_EQ(annexb[0].mime.substr(9), level);
    }
  EXPECT_EQ(sets, 2);

  // The header of the MP4 has it in the box avcC, after eight bytes of its own.
  const std::vector<MediaPiece> movie = pieces_of(make_movie_pieces, 13);
  const std::vector<uint8_t>& header = movie.at(0).bytes;
  const std::string_view name = "avcC";
  const auto box = size_t(std::ranges::search(header, name).begin() - header.begin());
  ASSERT_LT(box + 12, header.size());
  EXPECT_EQ(header[box + 9] & 31, 1) << "one set";
  const size_t bytes = size_t(header[box + 10]) << 8 | header[box + 11];
  const ParameterSet set = read_parameter_set(std::span(header).subspan(box + 12, bytes));
  EXPECT_EQ(set.profile, 100u);
  EXPECT_EQ(set.max_reordered, 0);
}

TEST(MediaPieces, EveryJpegIsAPictureOfItsOwn) {
  constexpr int kPictures = 30;
  const std::vector<MediaPiece> pieces = pieces_of(make_jpeg_pieces, kPictures);
  EXPECT_EQ(pieces.at(0).kind, PieceKind::kHeader);
  EXPECT_EQ(pieces[0].mime, "image/jpeg");
  EXPECT_EQ(pieces[0].bytes.size(), 0u);
  const std::vector<MediaPiece> pictures = of_kind(pieces, PieceKind::kPictures);
  ASSERT_EQ(pictures.size(), size_t(kPictures));
  for (const MediaPiece& piece : pictures) {
    EXPECT_TRUE(piece.key) << piece.first;
    const std::string bytes(piece.bytes.begin(), piece.bytes.end());
    EXPECT_EQ(bytes.substr(0, 3), "\xFF\xD8\xFF");
    EXPECT_TRUE(contains(bytes, "\xFF\xC0")) << "baseline";
    EXPECT_TRUE(contains(bytes, "JFIF"));
    EXPECT_EQ(bytes.substr(bytes.size() - 2), "\xFF\xD9");
    EXPECT_GE(least_psnr(AV_CODEC_ID_MJPEG, {&piece, 1}), 41) << "measured: 42.11";
  }
  expect_sound(pieces, kPictures);
}

TEST(MediaPieces, SamplesOutsideTheRangeAreClipped) {
  for (const auto make : {make_annexb_pieces, make_jpeg_pieces}) {
    std::vector<uint8_t> heard;
    const auto sink = make(
        [&](MediaPiece&& piece) {
          if (piece.kind == PieceKind::kSound) heard = piece.bytes;
        },
        small_settings());
    sink->push(smooth_picture(0), std::vector{1.0f, -1.0f, 3.0f, -3.0f, 0.5f});
    EXPECT_EQ(heard, (std::vector<uint8_t>{0xFF, 0x7F, 0, 0x80, 0xFF, 0x7F, 0, 0x80, 0, 0x40}));
  }
}

TEST(MediaPieces, PicturesWithoutSoundAndSoundAtOtherLengthsAreCounted) {
  std::vector<MediaPiece> pieces;
  const auto sink = make_jpeg_pieces(
      [&](MediaPiece&& piece) { pieces.push_back(std::move(piece)); }, small_settings());
  sink->push(smooth_picture(0), {});
  EXPECT_EQ(pieces.size(), 2u);
  sink->push(smooth_picture(1), std::vector<float>(100));
  sink->push(smooth_picture(2), std::vector<float>(7));
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[5].first, 100);
  EXPECT_EQ(pieces[5].count, 7);
  EXPECT_NEAR(sink->counts().max_skew, 0.12 - 107.0 / kRate, 1e-9);
}

TEST(MediaPieces, OddSizesAndEmptyStreamsAreRefused) {
  for (const auto make : {make_movie_pieces, make_annexb_pieces, make_jpeg_pieces}) {
    const auto ignore = [](MediaPiece&&) {};
    MovieSettings settings = small_settings();
    expect_error(ErrorKind::kOutput, "no frame", [&] { make(ignore, settings)->finish(); });
    settings.video.width = 33;
    expect_error(ErrorKind::kUsage, "width 33", [&] { make(ignore, settings); });
    settings.video.width = 32;
    settings.video.height = 31;
    expect_error(ErrorKind::kUsage, "height 31", [&] { make(ignore, settings); });
  }
}

TEST(MediaPieces, EqualPicturesGiveEqualBytes) {
  for (const auto make : {make_annexb_pieces, make_jpeg_pieces}) {
    const std::vector<MediaPiece> a = pieces_of(make, 20), b = pieces_of(make, 20);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].bytes, b[i].bytes) << i;
  }
}

}  // namespace
}  // namespace weft::test
