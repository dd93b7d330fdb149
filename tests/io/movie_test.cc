#include "io/sound/movie.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "io/media/input_media.h"
#include "io/media/media_probe.h"
#include "io/media_time.h"
#include "io/sound/audio.h"
#include "io/sound/media_pieces.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"
#include "tests/io/sound_testing.h"

namespace weft::test {
namespace {

constexpr int kMovieRate = 16000, kMovieHop = 640;

MovieSettings movie_settings(int side, int fps_num = 25, int fps_den = 1, int rate = kMovieRate) {
  MovieSettings settings;
  settings.video.width = settings.video.height = side;
  settings.video.fps_num = fps_num;
  settings.video.fps_den = fps_den;
  settings.video.threads = 1;
  settings.video.deterministic = true;
  settings.video.metadata = {{"weft", "{\"mood\":\"calm\"}"}};
  settings.sample_rate = rate;
  return settings;
}

// Pushes so many pictures, each with the samples between its index and the next one.
void push_movie(MovieSink& sink, const MovieSettings& settings, int pictures,
                const std::vector<float>& sound) {
  const MediaRate rate{settings.video.fps_num, settings.video.fps_den};
  for (int k = 0; k < pictures; ++k) {
    const auto first = size_t(ticks_at(k, rate, settings.sample_rate));
    const auto end = size_t(ticks_at(k + 1, rate, settings.sample_rate));
    sink.push(test_picture(settings.video.width, settings.video.height, k),
              std::span(sound).subspan(first, end - first));
  }
}

std::vector<float> sound_for(const MovieSettings& settings, int pictures) {
  const MediaRate rate{settings.video.fps_num, settings.video.fps_den};
  return voice(settings.sample_rate, size_t(ticks_at(pictures, rate, settings.sample_rate)), 3);
}

struct Packets {
  std::vector<double> times;  // seconds at which pictures are shown, in the order of the file
  std::vector<double> decoded;
  std::vector<int64_t> keys;  // indices of key pictures
  int reordered = 0;          // of the decoder: pictures that it holds back
};

Packets packets_of(const std::string& path) {
  ffmpeg::InputMedia media(path);
  Packets packets;
  const ffmpeg::Owner<AVPacket> packet(av_packet_alloc());
  const double base = av_q2d(media.stream()->time_base);
  for (; media.read(packet.get()); av_packet_unref(packet.get())) {
    if (packet->flags & AV_PKT_FLAG_KEY) packets.keys.push_back(int64_t(packets.times.size()));
    packets.times.push_back(double(packet->pts) * base);
    packets.decoded.push_back(double(packet->dts) * base);
  }
  packets.reordered = media.stream()->codecpar->video_delay;
  return packets;
}

// The shift of b against a, in samples, at which they are most alike.
int lag_of(const std::vector<float>& a, const std::vector<float>& b) {
  double best = -1;
  int lag = 0;
  for (int shift = -1500; shift <= 1500; ++shift) {
    double sum = 0;
    for (size_t i = 1500; i + 1500 < std::min(a.size(), b.size()); i += 7)
      sum += double(a[i]) * b[size_t(int64_t(i) + shift)];
    if (sum > best) best = sum, lag = shift;
  }
  return lag;
}

TEST(Movie, TimesComeFromIndicesAndSoundIsInStep) {
  for (const auto& [num, den, rate] :
       {std::tuple{25, 1, 16000}, {30, 1, 16000}, {25, 1, 44100}, {30000, 1001, 48000}}) {
    const TempFolder folder;
    const MovieSettings settings = movie_settings(64, num, den, rate);
    const int pictures = 4 * num / den + 7;
    const std::vector<float> sound = sound_for(settings, pictures);
    auto sink = make_movie(folder / "a.mp4", settings, Overwrite::kRefuse);
    push_movie(*sink, settings, pictures, sound);
    EXPECT_EQ(folder.entries(), std::vector<std::string>{".a.part.mp4"});
    EXPECT_EQ(sink->finish(), folder / "a.mp4");
    EXPECT_EQ(folder.entries(), std::vector<std::string>{"a.mp4"});
    EXPECT_EQ(sink->counts().pictures, pictures);
    EXPECT_EQ(sink->counts().samples, int64_t(sound.size()));
    EXPECT_LE(sink->counts().max_skew, 0.5 / rate + 1e-9);

    std::vector<double> times = packets_of(folder / "a.mp4").times;
    std::ranges::sort(times);
    ASSERT_EQ(times.size(), size_t(pictures));
    for (int k = 0; k < pictures; ++k)
      EXPECT_NEAR(times[size_t(k)], double(k) * den / num, 1e-4) << k;

    const Sound heard = read_all(*open_sound(folder / "a.mp4", rate));
    EXPECT_NEAR(double(heard.samples.size()), double(sound.size()), 1024.0);
    EXPECT_NEAR(lag_of(sound, heard.samples), 0, 1) << num << '/' << den << ' ' << rate;
    const MediaInfo info = probe_media(folder / "a.mp4");
    EXPECT_EQ(info.codec, "h264");
    EXPECT_EQ(info.metadata.at("weft"), "{\"mood\":\"calm\"}");
  }
}

TEST(Movie, SixtySecondsHaveEveryPictureAndSampleAndNoGrowingSkew) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(32);
  const std::vector<float> sound = sound_for(settings, 1500);
  auto sink = make_movie(folder / "a.mp4", settings, Overwrite::kRefuse);
  push_movie(*sink, settings, 1500, sound);
  sink->finish();
  EXPECT_EQ(sink->counts().max_skew, 0);
  std::vector<double> times = packets_of(folder / "a.mp4").times;
  std::ranges::sort(times);
  ASSERT_EQ(times.size(), 1500u);
  for (size_t k = 0; k < times.size(); ++k) EXPECT_NEAR(times[k], double(k) / 25, 1e-4);
  const std::vector<float> heard = read_all(*open_sound(folder / "a.mp4", kMovieRate)).samples;
  ASSERT_GE(heard.size(), sound.size() - 1024);
  const auto part = [](const std::vector<float>& all, size_t begin) {
    return std::vector<float>(all.begin() + int64_t(begin), all.begin() + int64_t(begin) + 32000);
  };
  for (const size_t begin : {size_t{0}, sound.size() / 2, sound.size() - 34000})
    EXPECT_NEAR(lag_of(part(sound, begin), part(heard, begin)), 0, 1) << begin;
}

TEST(Movie, PictureAndSoundMayLeadAWhile) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(32);
  const std::vector<float> sound = sound_for(settings, 50);
  auto sink = make_movie(folder / "a.mp4", settings, Overwrite::kRefuse);
  for (int k = 0; k < 50; ++k)
    sink->push(test_picture(32, 32, k), k == 20 ? std::span(sound) : std::span<const float>());
  sink->finish();
  EXPECT_NEAR(sink->counts().max_skew, 29 * 0.04, 1e-9);
  EXPECT_NEAR(lag_of(sound, read_all(*open_sound(folder / "a.mp4", kMovieRate)).samples), 0, 1);
}

TEST(Movie, IsWholeOrNotThere) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(32);
  {
    auto sink = make_movie(folder / "a.mp4", settings, Overwrite::kRefuse);
    push_movie(*sink, settings, 30, sound_for(settings, 30));
  }
  EXPECT_TRUE(folder.entries().empty());
  expect_output_error(
      [&] { make_movie(folder / "a.mp4", settings, Overwrite::kRefuse)->finish(); });
  expect_error(ErrorKind::kUsage, ".mp4 only",
               [&] { make_movie(folder / "a.webm", settings, Overwrite::kRefuse); });
  expect_error(ErrorKind::kUsage, "width 33",
               [&] { make_movie(folder / "a.mp4", movie_settings(33), Overwrite::kRefuse); });
  const FileSizeLimit limit(20000);
  expect_output_error([&] {
    auto sink = make_movie(folder / "b.mp4", movie_settings(128), Overwrite::kRefuse);
    push_movie(*sink, movie_settings(128), 200, sound_for(settings, 200));
    sink->finish();
  });
  EXPECT_TRUE(folder.entries().empty());
}

TEST(Movie, EqualPicturesAndSoundGiveEqualBytes) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(64);
  for (const char* name : {"a.mp4", "b.mp4"}) {
    auto sink = make_movie(folder / name, settings, Overwrite::kRefuse);
    push_movie(*sink, settings, 60, sound_for(settings, 60));
    sink->finish();
  }
  EXPECT_EQ(read_bytes(folder / "a.mp4"), read_bytes(folder / "b.mp4"));
}

// Top-level boxes of an MP4: type and bytes.
std::vector<std::pair<std::string, std::string>> boxes_of(const std::string& bytes) {
  std::vector<std::pair<std::string, std::string>> boxes;
  for (size_t at = 0; at + 8 <= bytes.size();) {
    uint32_t size = 0;
    for (int i = 0; i < 4; ++i) size = size << 8 | uint8_t(bytes[at + size_t(i)]);
    CHECK(size >= 8 && at + size <= bytes.size(), size, at);
    boxes.emplace_back(bytes.substr(at + 4, 4), bytes.substr(at, size));
    at += size;
  }
  return boxes;
}

// The bytes of a live movie, read from the other end of a pipe.
std::string live_bytes(const MovieSettings& settings, int pictures, int key = -1) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  std::string bytes;
  std::thread reader([&] {
    char piece[4096];
    for (ssize_t got; (got = ::read(ends[0], piece, sizeof piece)) > 0;) bytes.append(piece, got);
  });
  auto sink = make_live_movie(ends[1], "standard output", settings);
  const std::vector<float> sound = sound_for(settings, pictures);
  for (int k = 0; k < pictures; ++k)
    sink->push(test_picture(settings.video.width, settings.video.height, k),
               std::span(sound).subspan(size_t(k) * kMovieHop, kMovieHop), k == key);
  EXPECT_EQ(sink->finish(), "");
  close(ends[1]);
  reader.join();
  close(ends[0]);
  return bytes;
}

TEST(Movie, LiveFragmentsBeginWithAKeyPictureAtTheirTime) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(64);
  const std::string bytes = live_bytes(settings, 100, 30);
  const std::string path = folder / "live.mp4";
  std::ofstream(path, std::ios::binary) << bytes;
  const Packets packets = packets_of(path);
  ASSERT_EQ(packets.times.size(), 100u);
  EXPECT_EQ(packets.reordered, 0);
  for (int k = 0; k < 100; ++k) {
    EXPECT_NEAR(packets.times[size_t(k)], k * 0.04, 1e-4) << k;
    EXPECT_EQ(packets.times[size_t(k)], packets.decoded[size_t(k)]) << "no picture is reordered";
  }
  EXPECT_EQ(packets.keys, (std::vector<int64_t>{0, 12, 24, 30, 42, 54, 66, 78, 90}));
  EXPECT_EQ(read_video(path).size(), 100u);
  const std::vector<float> sound = sound_for(settings, 100);
  EXPECT_NEAR(lag_of(sound, read_all(*open_sound(path, kMovieRate)).samples), 0, 1);
}

TEST(Movie, APlayerCanJoinAtAnyFragment) {
  const TempFolder folder;
  const MovieSettings settings = movie_settings(64);
  const std::string bytes = live_bytes(settings, 60);
  const std::vector<Frame> whole = [&] {
    std::ofstream(folder / "all.mp4", std::ios::binary) << bytes;
    return read_video(folder / "all.mp4");
  }();
  ASSERT_EQ(whole.size(), 60u);
  // The header, then the fragments: moof and mdat.
  std::string header;
  std::vector<std::string> fragments;
  for (const auto& [type, box] : boxes_of(bytes)) {
    if (type == "ftyp" || type == "moov") header += box;
    if (type == "moof") fragments.emplace_back();
    if (type == "moof" || type == "mdat") fragments.back() += box;
  }
  ASSERT_EQ(fragments.size(), 6u);  // the last one has the rest of the sound alone
  for (size_t first = 0; first < 5; ++first) {
    std::string joined = header;
    for (size_t f = first; f < fragments.size(); ++f) joined += fragments[f];
    const std::string path = folder / "join.mp4";
    std::ofstream(path, std::ios::binary) << joined;
    const Packets packets = packets_of(path);
    EXPECT_EQ(packets.keys.at(0), 0);
    const std::vector<Frame> frames = read_video(path);
    ASSERT_EQ(frames.size(), 60 - 12 * first);
    for (size_t k = 0; k < frames.size(); ++k)
      EXPECT_EQ(frames[k].rgb, whole[12 * first + k].rgb) << first << ' ' << k;
  }
}

// Pieces of four pictures, a key picture in every third and at picture 30.
TEST(Movie, PiecesAreTheLiveMovieInFragmentsWithTheirPictures) {
  const TempFolder folder;
  MovieSettings settings = movie_settings(64);
  settings.fragment = 4;
  settings.key_every = 3;
  std::vector<MediaPiece> pieces;
  auto sink = make_movie_pieces([&](MediaPiece&& piece) { pieces.push_back(piece); }, settings);
  const std::vector<float> sound = sound_for(settings, 62);
  for (int k = 0; k < 62; ++k) {
    const size_t before = pieces.size();
    sink->push(test_picture(64, 64, k), std::span(sound).subspan(size_t(k) * kMovieHop, kMovieHop),
               k == 30);
    if (k == 3) {
      EXPECT_EQ(pieces.size(), 2u) << "the header and the first four pictures";
    }
    if (k == 30) {
      EXPECT_EQ(pieces.size(), before + 1) << "28 and 29 are a fragment of their own";
    }
  }
  EXPECT_EQ(sink->finish(), "");
  ASSERT_EQ(pieces.size(), 1u + 7 + 1 + 8 + 1);
  EXPECT_EQ(pieces[0].kind, PieceKind::kHeader);
  EXPECT_EQ(pieces[0].mime.substr(0, 28), "video/mp4; codecs=\"avc1.6400");
  EXPECT_EQ(pieces[0].mime.substr(30), ", mp4a.40.2\"");
  EXPECT_EQ(pieces[0].count, 0);
  std::string all(pieces[0].bytes.begin(), pieces[0].bytes.end());
  std::vector<int64_t> keys;
  int64_t first = 0;
  for (size_t i = 1; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].kind, PieceKind::kPictures);
    EXPECT_EQ(pieces[i].mime, "");
    EXPECT_EQ(pieces[i].first, first);
    EXPECT_EQ(pieces[i].count, first == 28 ? 2 : first == 62 ? 0 : 4) << first;
    if (pieces[i].key) keys.push_back(first);
    first += pieces[i].count;
    all.append(pieces[i].bytes.begin(), pieces[i].bytes.end());
  }
  EXPECT_EQ(first, 62);
  EXPECT_EQ(keys, (std::vector<int64_t>{0, 12, 24, 30, 42, 54}));
  const std::string path = folder / "pieces.mp4";
  std::ofstream(path, std::ios::binary) << all;
  const Packets packets = packets_of(path);
  EXPECT_EQ(packets.keys, keys);
  ASSERT_EQ(packets.times.size(), 62u);
  for (int k = 0; k < 62; ++k) EXPECT_NEAR(packets.times[size_t(k)], k * 0.04, 1e-4) << k;
  EXPECT_EQ(read_video(path).size(), 62u);
  EXPECT_NEAR(lag_of(sound, read_all(*open_sound(path, kMovieRate)).samples), 0, 1);
}

TEST(Movie, AReaderThatLeavesIsAnErrorOfOneLine) {
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  CHECK(pipe(ends) == 0);
  close(ends[0]);
  const MovieSettings settings = movie_settings(64);
  expect_error(ErrorKind::kOutput, "standard output", [&] {
    auto sink = make_live_movie(ends[1], "standard output", settings);
    push_movie(*sink, settings, 100, sound_for(settings, 100));
    sink->finish();
  });
  close(ends[1]);
  std::signal(SIGPIPE, handler);
}

}  // namespace
}  // namespace weft::test
