// Pictures that clients send inside a job.
#include "apps/serve/jobs/sent_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "apps/serve/http/access.h"
#include "apps/serve/server_text.h"
#include "io/media/image.h"

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
  for (const char* wrong : {"Zg", "Zg=", "Z g=", "====", "Zg==Zg==", "Zm9\xff"})
    EXPECT_FALSE(base64_bytes(wrong)) << wrong;
}

class SentPicture : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string refused(const std::string& image) {
    JobSpec job;
    job.request.image.path = image;
    try {
      save_sent_files(job, folder_ + "job_1", "the job");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
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

TEST_F(SentPicture, APathIsNoPicture) {
  for (const std::string wrong :
       {"/etc/passwd", "x.png", "http://example.org/x.png", "data:image/gif;base64,AAAA",
        "data:image/png;base64,AAA", "data:image/png;base64,A*AA"})
    EXPECT_NE(refused(wrong).find("the job: image is '" + wrong.substr(0, 40)), std::string::npos)
        << refused(wrong);
  EXPECT_NE(refused("data:image/png;base64," + std::string(100, '*')).find("...', legal: the "),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
  JobSpec job;
  job.request.audio.path = "data:image/png;base64,AAAA";
  EXPECT_THROW(save_sent_files(job, folder_ + "job_1", "the job"), Error);
  JobSpec none;
  save_sent_files(none, folder_ + "job_1", "the job");
  remove_sent_files(none);
}

}  // namespace
}  // namespace weft
