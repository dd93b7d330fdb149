// Routes with a parameter, and responses that send a file or a part of it.
#include "apps/serve/http/file_response.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/weft_served_" + std::to_string(getpid());
    // It has more bytes than two pieces, and every byte is another than that of the next piece.
    for (size_t i = 0; i < 2 * kFilePiece + 1000; ++i)
      bytes_ += static_cast<char>(i * 7 + i / kFilePiece);
    std::ofstream(path_, std::ios::binary) << bytes_;
    ServerSettings settings;
    const auto parameter = [](const HttpRequest& request) {
      return HttpResponse{.body = request.parameter};
    };
    settings.routes = {
        {"GET", "/things/{id}", parameter},
        {"DELETE", "/things/{id}", parameter},
        {"POST", "/things/{id}/stop", parameter},
        {"GET", "/file",
         [this](const HttpRequest& request) {
           return file_response(request, {path_, "video/mp4", "a.mp4", "tag-1"});
         }},
        {"GET", "/text",
         [](const HttpRequest& request) { return tagged_response(request, {.body = "text"}); }},
    };
    running_ = std::make_unique<RunningServer>(std::move(settings));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  RawClient::Answer ask(const std::string& target, const std::string& headers = "") {
    return running_->ask(get(target, headers));
  }
  RawClient::Answer range(const std::string& value, const std::string& more = "") {
    return ask("/file", "Range: " + value + "\r\n" + more);
  }

  std::string path_, bytes_;
  std::unique_ptr<RunningServer> running_;
};

TEST_F(Files, APathHasOneParameter) {
  EXPECT_EQ(ask("/things/job_1-A.b").body, "job_1-A.b");
  EXPECT_EQ(running_->ask(post("/things/a/stop", "")).body, "a");
  for (const char* target : {"/things/", "/things", "/things/a/b", "/things/a%2Fb", "/things/..",
                             "/things/.a", "/things/a/stop/", "/things/%2e%2e", "/things//stop"})
    EXPECT_EQ(ask(target).status, 404) << target;
  const RawClient::Answer wrong = running_->ask(post("/things/a", ""));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.has("Allow: GET, HEAD, DELETE, OPTIONS")) << wrong.header;
  EXPECT_TRUE(ask("/things/a/stop").has("Allow: POST, OPTIONS"));
}

TEST_F(Files, HeadTellsTheLengthOfAFile) {
  RawClient client = running_->connect();
  client.send("HEAD /file HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string header = client.read_until("\r\n\r\n");
  EXPECT_NE(header.find("Content-Length: " + std::to_string(bytes_.size()) + "\r\n"),
            std::string::npos)
      << header;
  EXPECT_TRUE(client.ask(get("/file")).body == bytes_);
}

TEST_F(Files, AWholeFileComesInPieces) {
  RawClient client = running_->connect();
  for (int i = 0; i < 2; ++i) {  // the connection goes on
    const RawClient::Answer answer = client.ask(get("/file"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.body == bytes_);
    for (const char* line : {"ETag: \"tag-1\"", "Accept-Ranges: bytes", "Content-Type: video/mp4",
                             "Content-Disposition: attachment; filename=\"a.mp4\""})
      EXPECT_TRUE(answer.has(line)) << line << "\n" << answer.header;
  }
}

TEST_F(Files, APartOfAFile) {
  const std::string size = std::to_string(bytes_.size());
  const RawClient::Answer first = range("bytes=0-9");
  EXPECT_EQ(first.status, 206);
  EXPECT_EQ(first.body, bytes_.substr(0, 10));
  EXPECT_TRUE(first.has("Content-Range: bytes 0-9/" + size)) << first.header;
  EXPECT_TRUE(range("bytes=1000-").body == bytes_.substr(1000));
  EXPECT_EQ(range("bytes=-5").body, bytes_.substr(bytes_.size() - 5));
  EXPECT_TRUE(range("bytes=-999999999").body == bytes_);
  const size_t border = kFilePiece - 3;
  EXPECT_EQ(range("bytes=" + std::to_string(border) + "-" + std::to_string(border + 5)).body,
            bytes_.substr(border, 6));
  const size_t last = bytes_.size() - 2;
  EXPECT_EQ(range("bytes=" + std::to_string(last) + "-" + size + "0").body, bytes_.substr(last));
}

TEST_F(Files, RangesThatNoFileHas) {
  const std::string size = std::to_string(bytes_.size());
  for (const std::string& value : {"bytes=" + size + "-", std::string("bytes=-0")}) {
    const RawClient::Answer outside = range(value);
    EXPECT_EQ(outside.status, 416) << value;
    EXPECT_TRUE(outside.has("Content-Range: bytes */" + size)) << outside.header;
  }
  for (const char* value : {"bytes=9-0", "bytes=a-b", "bytes=-", "bytes=0-1,5-6", "lines=0-1",
                            "bytes=", "bytes=99999999999999999999-"})
    EXPECT_EQ(range(value).status, 200) << value;
}

TEST_F(Files, TagsDecideWhetherAnythingIsSent) {
  for (const char* tag : {"\"tag-1\"", "W/\"tag-1\"", "\"other\", \"tag-1\"", "*"}) {
    const RawClient::Answer same = ask("/file", std::string("If-None-Match: ") + tag + "\r\n");
    EXPECT_EQ(same.status, 304) << tag;
    EXPECT_TRUE(same.body.empty());
    EXPECT_TRUE(same.has("ETag: \"tag-1\""));
  }
  EXPECT_EQ(ask("/file", "If-None-Match: \"other\"\r\n").status, 200);
  EXPECT_EQ(range("bytes=0-9", "If-Range: \"tag-1\"\r\n").status, 206);
  EXPECT_EQ(range("bytes=0-9", "If-Range: \"other\"\r\n").status, 200);
  const RawClient::Answer text = ask("/text");
  const size_t at = text.header.find("ETag: ") + 6;
  const std::string tag = text.header.substr(at, text.header.find("\r\n", at) - at);
  EXPECT_EQ(ask("/text", "If-None-Match: " + tag + "\r\n").status, 304);
  EXPECT_EQ(text.body, "text");
}

TEST_F(Files, AFileThatIsGoneOrBecomesShorter) {
  std::filesystem::resize_file(path_, 0);
  const RawClient::Answer empty = ask("/file");
  EXPECT_EQ(empty.status, 200);
  EXPECT_TRUE(empty.has("Content-Length: 0"));
  EXPECT_EQ(range("bytes=0-").status, 416);
  std::filesystem::remove(path_);
  EXPECT_EQ(ask("/file").status, 404);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(ask("/file").status, 404);
}

}  // namespace
}  // namespace weft
