// Pictures that clients send inside a job.
#include "apps/serve/jobs/sent_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/serve/http/access.h"
#include "apps/serve/jobs/job_limits.h"
#include "apps/serve/server_text.h"
#include "io/media/image.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string base64(std::string_view bytes) {
  std::string text = base64url(bytes);
  std::ranges::replace(text, '-', '+');
  std::ranges::replace(text, '_', '/');
  text.resize((text.size() + 3) / 4 * 4, '=');
  return text;
}

TEST(Base64, OfTheStandard) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (size_t length : {0u, 1u, 2u, 3u, 255u, 256u})
    EXPECT_EQ(base64_bytes(base64(all.substr(0, length))), all.substr(0, length)) << length;
  for (const char* right : {"--__+w==", "++//+w", "++__-w="})
    EXPECT_EQ(base64_bytes(right), "\xfb\xef\xff\xfb") << right;
  for (const char* wrong : {"Z", "Zm9vY", "Z g=", "====", "Zg===", "Zg==Zg==", "Zm9\xff"})
    EXPECT_FALSE(base64_bytes(wrong)) << wrong;
}

class SentPicture : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string refused(const std::string& image, const std::string& audio = "") {
    JobSpec job;
    job.request.image.path = image;
    job.request.audio.path = audio;
    return test::error_of([&] { save_sent_files(job, folder_ + "job_1", "the job"); },
                          ErrorKind::kUsage);
  }
  const std::string folder_ = testing::TempDir() + "weft_sent_files/";
};

TEST_F(SentPicture, IsSavedBesideTheResultsAndRemovedWithThem) {
  Frame frame(32, 16);
  for (size_t i = 0; i < frame.rgb.size(); ++i) frame.rgb[i] = static_cast<uint8_t>(i);
  const std::string png = encode_png(frame, {});
  JobSpec job;
  job.request.image.path = "data:image/png;base64," + base64(png);
  job.request.last_image.path = job.request.image.path;
  save_sent_files(job, folder_ + "job_1", "the job");
  EXPECT_EQ(job.request.image.path, folder_ + "job_1.image.png");
  EXPECT_EQ(job.request.last_image.path, folder_ + "job_1.last_image.png");
  EXPECT_EQ(read_png(job.request.image.path).rgb, frame.rgb);
  // Clients see no folder.
  EXPECT_EQ(without_folders(job).request.image.path, "job_1.image.png");
  remove_sent_files(job);
  EXPECT_TRUE(fs::is_empty(folder_));
}

// The sum is known from headers: the pixels of these files are broken.
TEST_F(SentPicture, TooManyPixelsInAllAreRefusedBeforeTheyAreDecoded) {
  const auto saved = [&](const std::string& name, int width, int height) {
    std::string png = encode_png(Frame(width, height), {});
    const size_t data = png.find("IDAT");
    for (size_t i = data + 4; i < png.find("IEND") - 8; ++i) png[i] = '\x55';
    std::ofstream(folder_ + name, std::ios::binary) << png;
    return GivenPicture{.path = folder_ + name};
  };
  JobSpec job;
  job.request.image = saved("a.png", 100, 50);
  job.request.references = {saved("b.png", 100, 30), saved("c.png", 10, 20)};
  const auto refusal = [&](int64_t most) {
    return test::error_of([&] { check_pictures(job, {.picture_pixels = most}, "the job"); },
                          ErrorKind::kUsage);
  };
  check_pictures(job, {.picture_pixels = 8200}, "the job");
  EXPECT_EQ(refusal(8199),
            "the job: reference_2 is 10x20, with the pictures before it 8200 pixels, legal: at "
            "most 8199 pixels of all pictures of a request, which --max-picture-pixels of this "
            "server allows");
  EXPECT_TRUE(refusal(7999).starts_with("the job: reference_1 is 100x30, with")) << refusal(7999);
  EXPECT_TRUE(refusal(4999).starts_with("the job: image is 100x50, legal: at most 4999 pixels"));
  std::ofstream(folder_ + "d.png") << "no picture";
  job.request.last_image.path = folder_ + "d.png";
  test::error_of([&] { check_pictures(job, {}, "the job"); }, ErrorKind::kMedia);
}

TEST_F(SentPicture, EveryReferenceHasAFileOfItsOwn) {
  JobSpec job;
  for (int side : {16, 24})
    job.request.references.push_back(
        {.path = "data:image/png;base64," + base64(encode_png(Frame(side, 8), {}))});
  save_sent_files(job, folder_ + "job_1", "the job");
  EXPECT_EQ(job.request.references[0].path, folder_ + "job_1.reference_1.png");
  EXPECT_EQ(read_png(job.request.references[1].path).width, 24);
  EXPECT_EQ(without_folders(job).request.references[1].path, "job_1.reference_2.png");
  remove_sent_files(job);
  EXPECT_TRUE(fs::is_empty(folder_));
  job.request.references[1].path = "/etc/passwd";
  job.request.references[0].path = "data:image/png;base64,AAAA";
  EXPECT_NE(
      test::error_of([&] { save_sent_files(job, folder_ + "job_1", "the job"); }, ErrorKind::kUsage)
          .find("the job: reference_2 is '/etc/passwd', legal: the picture itself"),
      std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
}

// The reader of requests hands them on so: files before URLs, each kind in its order.
TEST_F(SentPicture, ReferencesOfFormsComeBeforeURLsAndInOrder) {
  const auto file = [&](const std::string& name) {
    std::ofstream(folder_ + name) << name;
    return std::pair{std::string("reference"), folder_ + name};
  };
  JobSpec job;
  job.request.references = {{.path = "data:image/png;base64,AAAA"}};
  save_sent_files(job, folder_ + "job_1", "the job", {file("a"), file("b")});
  const std::vector<std::string> names{"job_1.reference_1", "job_1.reference_2",
                                       "job_1.reference_3.png"};
  ASSERT_EQ(job.request.references.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(job.request.references[i].path, folder_ + names[i]);
  EXPECT_EQ(fs::file_size(folder_ + names[0]), 1u);
  {
    LinkedFiles links;
    const FormFiles linked = links.of("reference", {folder_ + names[0], folder_ + names[2]});
    ASSERT_EQ(linked.size(), 2u);
    EXPECT_TRUE(fs::equivalent(linked[1].second, folder_ + names[2]));
    for (const auto& [field, path] : linked)
      EXPECT_NE(job_of_sent_file(fs::path(path).filename()), "") << path;
    EXPECT_EQ(test::error_of([&] { links.of("image", folder_ + "none"); }, ErrorKind::kOutput)
                      .find("cannot be written: ") != std::string::npos,
              true);
  }
  remove_sent_files(job);
  EXPECT_TRUE(fs::is_empty(folder_)) << "links go with their owner";
}

TEST_F(SentPicture, NothingIsLeftWhereOneCannotBeSaved) {
  std::ofstream(folder_ + "b") << "picture";
  JobSpec job;
  job.request.image.path = "data:image/png;base64,AAAA";
  test::error_of(
      [&] {
        save_sent_files(job, folder_ + "job_1", "the job",
                        {{"last_image", folder_ + "b"}, {"audio", folder_ + "none"}});
      },
      ErrorKind::kOutput);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SentPicture, ReferencesAreCountedBeforeTheyAreSaved) {
  JobSpec job;
  job.request.references.resize(2);
  const FormFiles files{{"reference", "a"}, {"audio", "b"}};
  PictureConditioning model{.form = PictureForm::kReferences};
  model.most = 3;
  check_reference_count(job, files, model, "the job");
  model.most = 2;
  const auto refused = [&] {
    return test::error_of([&] { check_reference_count(job, files, model, "the job"); },
                          ErrorKind::kUsage);
  };
  EXPECT_EQ(refused(), "the job: reference is given 3 times, legal: 0 ... 2");
  model.form = PictureForm::kNone;
  EXPECT_EQ(refused(),
            "the job: reference is given 3 times, legal: none, as this model reads no reference "
            "pictures");
}

TEST(SentFileName, BelongsToAJobAndNothingElseDoes) {
  const std::string id = "image_0123456789abcdef01234567";
  for (const char* own : {".image", ".image.png", ".last_image.jpg", ".audio", ".audio.m4a",
                          ".reference_1", ".reference_12.webp", ".linked"})
    EXPECT_EQ(job_of_sent_file(id + own), id) << own;
  for (const std::string& other :
       {id, id + ".png", id + ".mp4", id + ".json", id + ".", id + ".reference_", id + ".imagery",
        id + ".reference_x", id + "0.image", std::string("holiday.image"), std::string(".image"),
        std::string(), "." + id + ".image", std::string("image_01.image.png")})
    EXPECT_EQ(job_of_sent_file(other), "") << other;
}

TEST_F(SentPicture, ASoundIsSavedToo) {
  const std::string silence = silent_wav();
  JobSpec job;
  job.request.audio.path = "data:audio/wav;base64," + base64(silence);
  save_sent_files(job, folder_ + "job_1", "the job");
  EXPECT_EQ(job.request.audio.path, folder_ + "job_1.audio.wav");
  take_facts(job.request.audio, "audio");
  EXPECT_EQ(job.request.audio.samples, 16000);
  EXPECT_EQ(std::filesystem::path(without_folders(job).request.audio.path), "job_1.audio.wav");
  remove_sent_files(job);
  EXPECT_TRUE(fs::is_empty(folder_));
}

// Clients name one kind of file in many ways, and encode it in many.
TEST_F(SentPicture, TheBytesDecideWhatATypeLeavesOpen) {
  const std::string silence = silent_wav(), text = base64(silence);
  std::string lines, codes, plain = text.substr(0, text.find('='));
  for (size_t at = 0; at < text.size(); at += 76) lines += text.substr(at, 76) + "\r\n";
  for (const char c : text)
    codes += c == '+' ? "%2B" : c == '/' ? "%2f" : c == '=' ? "%3D" : std::string(1, c);
  ASSERT_NE(plain, text);
  for (const std::string type :
       {"audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/x-pn-wav", "audio/mp3",
        "audio/x-m4a", "audio/aac", "audio/webm;codecs=opus", "audio/ogg; codecs=\"opus\"",
        "AUDIO/WAV", "Audio/X-Wav;Rate=16000;CHARSET=utf-8", "video/mp4",
        "video/webm;codecs=vp8,opus", "application/ogg", "application/octet-stream", ""})
    for (const std::string& sent :
         {"data:" + type + ";base64," + text, "Data:" + type + ";BASE64," + plain,
          "data:" + type + ";base64,\n" + lines + " ", "data:" + type + ";base64," + codes,
          "data:" + type + ";base64," + base64url(silence)}) {
      JobSpec job;
      job.request.audio.path = sent;
      ASSERT_NO_THROW(save_sent_files(job, folder_ + "job_1", "the job")) << sent.substr(0, 80);
      take_facts(job.request.audio, "audio");
      EXPECT_EQ(job.request.audio.samples, 16000) << sent.substr(0, 80);
      remove_sent_files(job);
    }
  const std::string png = encode_png(Frame(32, 16), {});
  for (const char* type :
       {"image/png", "IMAGE/PNG", "image/x-png", "image/jpeg", "image/jpg", "image/pjpeg",
        "image/webp", "image/png;name=a.png", "application/octet-stream", ""}) {
    JobSpec job;
    job.request.image.path = std::string("data:") + type + ";base64," + base64url(png);
    ASSERT_NO_THROW(save_sent_files(job, folder_ + "job_1", "the job")) << type;
    take_facts(job.request.image, "image");
    EXPECT_EQ(job.request.image.width, 32) << type;
    remove_sent_files(job);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

// A refused job leaves no file, neither of what is wrong nor of what came before it.
TEST_F(SentPicture, AnotherTypeIsNoSound) {
  const std::string png = "data:image/png;base64,AAAA";
  for (const std::string wrong :
       {"data:image/png;base64,AAAA", "data:text/plain;base64,AAAA",
        "data:application/pdf;base64,AAAA", "data:audio;base64,AAAA", "data:audio/wav,AAAA",
        "data:audio/wavbase64,AAAA", "audio/wav;base64,AAAA", "data:", "/etc/passwd"}) {
    const std::string told = refused(png, wrong);
    EXPECT_NE(told.find("the job: audio is '" + wrong + "', legal: the sound itself"),
              std::string::npos)
        << told;
  }
  for (const std::string wrong : {"AAAAA", "AA*A", "AA%4", "AA%zzAA", "AAAA,AAAA", "AA==AA=="})
    EXPECT_NE(refused(png, "data:;base64," + wrong).find("', whose base64 is broken, legal: "),
              std::string::npos)
        << wrong;
  for (const std::string wrong : {"data:audio/wav;base64,AAAA", "data:image/gif;base64,AAAA",
                                  "data:image/svg+xml;base64,AAAA", "data:image/;base64,AAAA"})
    EXPECT_NE(refused(wrong).find("the job: image is '" + wrong + "', legal: the picture itself"),
              std::string::npos)
        << wrong;
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SentPicture, APathIsNoPicture) {
  for (const std::string wrong :
       {"/etc/passwd", "x.png", "http://example.org/x.png", "data:image/gif;base64,AAAA",
        "data:image/png;base64,AAAAA", "data:image/png;base64,A*AA"})
    EXPECT_NE(refused(wrong).find("the job: image is '" + wrong.substr(0, 40)), std::string::npos)
        << refused(wrong);
  EXPECT_NE(refused("data:image/png;base64," + std::string(100, '*'))
                .find("...', whose base64 is broken, legal: the "),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
  JobSpec none;
  save_sent_files(none, folder_ + "job_1", "the job");
  remove_sent_files(none);
}

}  // namespace
}  // namespace weft
