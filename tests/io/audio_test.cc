#include "io/sound/audio.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <thread>

#include "io/media/image.h"
#include "tests/io/io_testing.h"
#include "tests/io/sound_testing.h"

namespace weft::test {
namespace {

// A pipe whose ends close themselves.
struct Pipe {
  Pipe() { CHECK(pipe(ends) == 0); }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  void write(const void* bytes, size_t size) {
    CHECK(::write(ends[1], bytes, size) == ssize_t(size));
  }
  void end() {
    close(ends[1]);
    ends[1] = -1;
  }
  int ends[2];
};

std::vector<float> resample(const std::vector<float>& sound, int from, int to, int seed) {
  Resampler resampler(from, to);
  std::vector<float> out;
  if (seed < 0)
    resampler.push(sound, out);
  else
    for_pieces(sound, seed, [&](std::span<const float> piece) { resampler.push(piece, out); });
  resampler.finish(out);
  return out;
}

TEST(Resampler, PiecesOfAnySizeGiveTheBitsOfTheWhole) {
  for (const auto& [from, to] : {std::pair{48000, 16000},
                                 {44100, 16000},
                                 {8000, 16000},
                                 {16000, 48000},
                                 {22050, 16000},
                                 {11025, 44100}}) {
    const std::vector<float> sound = voice(from, size_t(from) * 2 + 321, 7);
    const std::vector<float> whole = resample(sound, from, to, -1);
    EXPECT_NEAR(double(whole.size()), double(sound.size()) * to / from, 1.0) << from << ' ' << to;
    for (int seed = 0; seed < 6; ++seed)
      EXPECT_EQ(resample(sound, from, to, seed), whole) << from << ' ' << to << ' ' << seed;
  }
}

TEST(Resampler, MissesAtMostItsLookAheadHoweverLongTheSoundIs) {
  for (const auto& [from, to] :
       {std::pair{48000, 16000}, {44100, 16000}, {16000, 48000}, {16000, 16000}}) {
    Resampler resampler(from, to);
    std::vector<float> out;
    int64_t in = 0, made = 0;
    for_pieces(voice(from, size_t(from) * 20, 8), 1, [&](std::span<const float> piece) {
      out.clear();
      resampler.push(piece, out);
      in += int64_t(piece.size());
      made += int64_t(out.size());
      const double due = double(in) * to / from;
      EXPECT_LE(due - double(made), resampler.look_ahead() + 1) << in;
      EXPECT_GE(due - double(made), -1) << in;
    });
  }
}

TEST(Resampler, KeepsATone) {
  std::vector<float> sound(44100);
  for (size_t i = 0; i < sound.size(); ++i)
    sound[i] = float(0.5 * std::sin(2 * std::numbers::pi * 440 * double(i) / 44100));
  const std::vector<float> out = resample(sound, 44100, 16000, -1);
  for (size_t i = 100; i + 100 < out.size(); ++i)
    EXPECT_NEAR(out[i], 0.5 * std::sin(2 * std::numbers::pi * 440 * double(i) / 16000), 2e-3) << i;
}

TEST(OpenSound, WavAtItsRateIsExact) {
  const TempDir folder;
  const std::vector<int16_t> samples = s16_of(voice(16000, 16000 + 13, 1));
  const auto source = open_sound(folder.write("a.wav", wav_bytes(samples, 16000)), 16000);
  const Sound sound = read_all(*source);
  EXPECT_EQ(sound.rate, 16000);
  ASSERT_EQ(sound.samples.size(), samples.size());
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(sound.samples[i], samples[i] / 32768.0f);
  EXPECT_DOUBLE_EQ(sound.seconds(), 16013 / 16000.0);
}

TEST(OpenSound, StereoIsItsMeanAndOtherRatesAreResampled) {
  const TempDir folder;
  const std::vector<float> left = voice(48000, 48000, 1), right = voice(48000, 48000, 2);
  std::vector<float> both, mean;
  for (size_t i = 0; i < left.size(); ++i) {
    both.push_back(left[i]);
    both.push_back(right[i]);
  }
  const std::vector<int16_t> samples = s16_of(both);
  for (size_t i = 0; i < left.size(); ++i)
    mean.push_back((samples[2 * i] / 32768.0f + samples[2 * i + 1] / 32768.0f) / 2);
  const std::string path = folder.write("a.wav", wav_bytes(samples, 48000, 2));
  const Sound same = read_all(*open_sound(path, 48000));
  ASSERT_EQ(same.samples.size(), mean.size());
  for (size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(same.samples[i], mean[i], 1e-6) << i;
  const Sound low = read_all(*open_sound(path, 16000));
  const std::vector<float> expected = resample(mean, 48000, 16000, -1);
  ASSERT_EQ(low.samples.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(low.samples[i], expected[i], 1e-5) << i;
}

// Relative error of a sound at its best shift, which undoes the delay of an encoder.
double shifted_error(const std::vector<float>& heard, const std::vector<float>& wanted) {
  double best = 1;
  for (size_t shift = 0; shift < 3000 && shift + 4000 < heard.size(); ++shift) {
    double difference = 0, whole = 0;
    const size_t count = std::min(heard.size() - shift, wanted.size());
    for (size_t i = 0; i < count; ++i) {
      const double d = heard[i + shift] - wanted[i];
      difference += d * d;
      whole += double(wanted[i]) * wanted[i];
    }
    best = std::min(best, std::sqrt(difference / whole));
  }
  return best;
}

// The kinds of sound that FFmpeg decodes are read, whichever program writes them.
TEST(OpenSound, ReadsTheKindsThatPeopleHave) {
  if (std::system("ffmpeg -version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no ffmpeg";
  const TempDir folder;
  const std::vector<float> wanted = voice(16000, 16000, 3);
  const std::string wav = folder.write("a.wav", wav_bytes(s16_of(wanted), 16000));
  const auto made = [&](const std::string& words) {
    const std::string path = folder / ("b." + words.substr(0, words.find(' ')));
    const std::string arguments = words.substr(words.find(' '));
    const std::string line = "ffmpeg -v error -y -i " + wav + arguments + " " + path;
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    return path;
  };
  for (const auto& [words, bound] : {std::pair{"wav -c:a pcm_mulaw", 0.03},
                                     {"wav -c:a pcm_alaw", 0.03},
                                     {"wav -c:a adpcm_ms", 0.1},
                                     {"wav -c:a adpcm_ima_wav", 0.1},
                                     {"wav -c:a pcm_f32le", 1e-4},
                                     {"aiff ", 1e-4},
                                     {"aiff -c:a pcm_s24be", 1e-4},
                                     {"caf ", 1e-4},
                                     {"caf -c:a alac", 1e-4},
                                     {"au -c:a pcm_mulaw", 0.03},
                                     {"w64 ", 1e-4},
                                     {"wv ", 1e-4},
                                     {"tta ", 1e-4},
                                     {"wma -c:a wmav2 -b:a 128k", 0.2},
                                     {"ac3 -ar 48000", 0.2},
                                     {"mp2 -ar 48000 -b:a 192k", 0.2},
                                     {"mka -c:a flac", 1e-4},
                                     {"avi -c:a pcm_s16le", 1e-4},
                                     {"flac ", 1e-4}}) {
    const std::string path = made(words);
    const Sound heard = read_all(*open_sound(path, 16000));
    EXPECT_NEAR(heard.seconds(), 1, 0.15) << words;
    EXPECT_LT(shifted_error(heard.samples, wanted), bound) << words;
  }
}

TEST(OpenSound, RefusesWhatIsNoSound) {
  const TempDir folder;
  expect_error(ErrorKind::kMedia, "not a WAV, AIFF",
               [&] { open_sound(folder.write("a.wav", std::string(5000, 'x')), 16000); });
  expect_error(ErrorKind::kMedia, "none.wav", [&] { open_sound(folder / "none.wav", 16000); });
  // A playlist would make FFmpeg open other files.
  const std::pair<const char*, std::string> playlists[] = {
      {"a.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"},
      {"a.ffconcat", "ffconcat version 1.0\nfile /etc/passwd\n"},
      {"a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n"}};
  for (const auto& [name, text] : playlists)
    expect_error(ErrorKind::kMedia, "a WAV, AIFF",
                 [&, &text = text, &name = name] { open_sound(folder.write(name, text), 16000); });
  const Frame grey(16, 16);
  write_png(folder / "a.wav", grey, {}, Overwrite::kReplace);
  expect_error(ErrorKind::kMedia, "it is a picture (piped png sequence)",
               [&] { open_sound(folder / "a.wav", 16000); });
  expect_error(ErrorKind::kMedia, "no audio stream",
               [&] { open_sound(folder.write("none.flac", ""), 16000); });
  expect_error(ErrorKind::kMedia, "it holds no samples",
               [&] { open_sound(folder.write("zero.wav", wav_bytes({}, 16000)), 16000); });
  expect_error(ErrorKind::kMedia, "no audio stream",
               [&] { open_sound("tests/fuzz/corpus/media/a.mp4", 16000); });
  expect_error(ErrorKind::kMedia, "1 samples per second, but 4000 to 384000", [&] {
    const auto source =
        open_sound(folder.write("slow.wav", wav_bytes(std::vector<int16_t>(5000), 1)), 16000);
    read_all(*source);
  });
  // Every cut of a file gives an Error or a shorter sound.
  const std::string whole = wav_bytes(s16_of(voice(16000, 300, 1)), 16000);
  for (size_t size = 0; size < whole.size(); size += 7) {
    const std::string path = folder.write("cut.wav", whole.substr(0, size));
    try {
      EXPECT_LE(read_all(*open_sound(path, 16000)).samples.size(), 300u);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMedia) << error.what();
    }
  }
}

TEST(OpenSound, RefusesSamplesThatAreNotFinite) {
  const TempDir folder;
  std::string bytes = wav_bytes({}, 16000);
  bytes[20] = 3;  // f32
  bytes[28] = char(0x00), bytes[29] = char(0xfa), bytes[32] = 4, bytes[34] = 32;
  std::vector<float> samples(100, 0.25f);
  samples[60] = std::numeric_limits<float>::quiet_NaN();
  bytes.append(reinterpret_cast<const char*>(samples.data()), 400);
  bytes[40] = char(400 & 255), bytes[41] = 1;
  expect_error(ErrorKind::kMedia, "sample 60 is not a finite number",
               [&] { read_all(*open_sound(folder.write("nan.wav", bytes), 16000)); });
}

TEST(PcmFrom, GivesWhatIsThereInAnyPieces) {
  const std::vector<int16_t> samples = s16_of(voice(16000, 40000, 5));
  for (const bool wide : {false, true}) {
    Pipe pipe;
    std::vector<float> floats(samples.begin(), samples.end());
    for (float& value : floats) value /= 32768;
    const std::string bytes =
        wide ? std::string(reinterpret_cast<const char*>(floats.data()), 4 * floats.size())
             : std::string(reinterpret_cast<const char*>(samples.data()), 2 * samples.size());
    std::thread writer([&] {
      std::mt19937 random(2);
      for (size_t at = 0; at < bytes.size();) {
        const size_t count = std::min<size_t>(bytes.size() - at, 1 + random() % 999);
        pipe.write(bytes.data() + at, count);
        at += count;
      }
      pipe.end();
    });
    const auto source = pcm_from(pipe.ends[0], wide ? PcmFormat::kF32 : PcmFormat::kS16, 16000);
    EXPECT_EQ(read_all(*source).samples, floats);
    writer.join();
  }
}

TEST(PcmFrom, DoesNotWaitForMoreThanOneSample) {
  Pipe pipe;
  const int16_t three[] = {1, -2, 3};
  pipe.write(three, 6);
  std::vector<float> samples(1000);
  EXPECT_EQ(pcm_from(pipe.ends[0], PcmFormat::kS16, 16000)->read(samples), 3u);
  EXPECT_EQ(samples[1], -2 / 32768.0f);
}

TEST(PcmFrom, NamesAPartialSampleAndClipsLoudOnes) {
  Pipe pipe;
  const float values[] = {2.0f, -7.0f, 0.5f};
  pipe.write(values, 11);
  pipe.end();
  const auto source = pcm_from(pipe.ends[0], PcmFormat::kF32, 16000);
  std::vector<float> samples(2);
  ASSERT_EQ(source->read(samples), 2u);
  EXPECT_EQ(samples, (std::vector<float>{1.0f, -1.0f}));
  expect_error(ErrorKind::kMedia, "within sample 2: it has 3 of its 4 bytes",
               [&] { source->read(samples); });
}

TEST(Resampled, IsTheResamplerOverASource) {
  const std::vector<float> sound = voice(44100, 30000, 6);
  const auto source = resampled(sound_in_memory({44100, sound}, 333), 16000);
  EXPECT_EQ(source->rate(), 16000);
  EXPECT_EQ(read_all(*source).samples, resample(sound, 44100, 16000, -1));
}

}  // namespace
}  // namespace weft::test
