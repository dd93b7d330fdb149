// Forms that clients send to the server, and how it refuses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/apps/serve_testing.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A server with a route that takes forms and answers with their parts.
struct FormServer {
  explicit FormServer(const ServerLimits& limits = {}, const std::string& key = "")
      : folder(fresh_folder()), running(settings(limits, key)) {}
  ~FormServer() { fs::remove_all(folder); }

  static std::string fresh_folder() {
    const std::string path = testing::TempDir() + "http_form/";
    fs::remove_all(path);
    fs::create_directories(path);
    return path;
  }
  ServerSettings settings(const ServerLimits& limits, const std::string& key) {
    ServerSettings out = echo_settings();
    out.limits = limits;
    out.api_key = key;
    out.upload_folder = folder;
    out.routes.push_back({.method = "POST",
                          .path = "/form",
                          .answer = [this](const HttpRequest& request) { return answer(request); },
                          .forms = true});
    return out;
  }
  HttpResponse answer(const HttpRequest& request) {
    if (!request.form) return {.body = "body " + request.body};
    std::string out;
    for (const FormPart& part : *request.form) {
      out += part.name + "=" + part.text;
      if (!part.file.empty())
        out += std::to_string(part.bytes) + " " + part.file_name + " " + part.content_type + " " +
               part.sha256.substr(0, 8);
      if (part.name == "keep") fs::rename(part.file, folder + "kept");
      out += ";";
    }
    hash = hash_of(request);
    return {.body = out};
  }
  // The files of forms that are there now.
  int64_t uploads() const {
    return std::ranges::count_if(
        fs::recursive_directory_iterator(folder), fs::recursive_directory_iterator(),
        [](const fs::directory_entry& entry) { return entry.path().extension() == ".bin"; });
  }

  std::string folder, hash;
  RunningServer running;
};

std::string sent_part(const std::string& name, const std::string& content,
                      const std::string& rest = "") {
  return "Content-Disposition: form-data; name=\"" + name + "\"" + rest + "\r\n\r\n" + content +
         "\r\n";
}
std::string form_body(const std::vector<std::string>& parts, const std::string& boundary = "B") {
  std::string body;
  for (const std::string& each : parts) body += "--" + boundary + "\r\n" + each;
  return body + "--" + boundary + "--\r\n";
}
std::string form_head(const std::string& target, const std::string& length,
                      const std::string& boundary = "B", const std::string& headers = "") {
  return "POST " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Type: multipart/form-data; boundary=" + boundary + "\r\n" + length + "\r\n\r\n";
}
std::string of_length(size_t bytes) { return "Content-Length: " + std::to_string(bytes); }
std::string post_form(const std::string& body, const std::string& boundary = "B") {
  return form_head("/form", of_length(body.size()), boundary) + body;
}

TEST(HttpForm, TextsAndFilesReachTheRoute) {
  FormServer server;
  RawClient client = server.running.connect();
  const std::string file = "; filename=\"a.png\"\r\nContent-Type: image/png";
  const std::string body =
      form_body({sent_part("prompt", "a ball"), sent_part("image", "hello", file)});
  const std::string expected = "prompt=a ball;image=5 a.png image/png 2cf24dba;";
  EXPECT_EQ(client.ask(post_form(body)).body, expected);
  // The same a byte at a time, and in chunks, on the same connection.
  client.send(form_head("/form", of_length(body.size())));
  for (const char byte : body) client.send({&byte, 1});
  EXPECT_EQ(client.answer().body, expected);
  client.send(form_head("/form", "Transfer-Encoding: chunked"));
  for (const char byte : body) client.send("1\r\n" + std::string(1, byte) + "\r\n");
  EXPECT_EQ(client.ask("0\r\n\r\n").body, expected);
  EXPECT_EQ(client.ask(post("/form", "{}")).body, "body {}");
  EXPECT_EQ(server.uploads(), 0);
}

// These are the bytes of client.videos.create and client.images.edit of openai 3.57.
TEST(HttpForm, TheFormsOfOpenAisClient) {
  FormServer server;
  const std::string boundary = "c37dbd7207395ea232c51d5b9eb1d3d3";
  const std::string video = form_body(
      {sent_part("prompt", "a red ball, \xe2\x82\xac \"x\""), sent_part("model", "pocket"),
       sent_part("input_reference", "\x89PNG\r\n\x1a\n--x",
                 "; filename=\"my %22pic\xc3\xa4%22 \\\\x.png\"\r\nContent-Type: image/png")},
      boundary);
  const std::string request =
      "POST /form HTTP/1.1\r\nHost: 127.0.0.1:42345\r\nAccept-Encoding: gzip, deflate\r\n"
      "Connection: keep-alive\r\nauthorization: Bearer 0123456789abcdef\r\n"
      "accept: application/json\r\nuser-agent: OpenAI/Python 3.57.0\r\n"
      "x-stainless-retry-count: 0\r\nContent-Length: " +
      std::to_string(video.size()) + "\r\nContent-Type: multipart/form-data; boundary=" + boundary +
      "\r\n\r\n";
  EXPECT_EQ(server.running.ask(request + video).body,
            "prompt=a red ball, \xe2\x82\xac \"x\";model=pocket;"
            "input_reference=11 my \"pic\xc3\xa4\" \\x.png image/png b4a87abb;");
  const std::string octets = "\r\nContent-Type: application/octet-stream";
  const std::string edit =
      form_body({sent_part("prompt", "a"), sent_part("lora[][name]", "x"),
                 sent_part("image[]", "one", "; filename=\"upload\"" + octets),
                 sent_part("image[]", "two", "; filename=\"b.png\"" + octets)});
  EXPECT_EQ(server.running.ask(post_form(edit)).body,
            "prompt=a;lora[][name]=x;image[]=3 upload application/octet-stream 7692c3ad;"
            "image[]=3 b.png application/octet-stream 3fc4ccfe;");
}

// curl -F sends a form with the first of these boundaries, and a page of Chrome with the second.
TEST(HttpForm, TheFormsOfCurlAndOfBrowsers) {
  FormServer server;
  const std::string file = "; filename=\"a.png\"\r\nContent-Type: image/png";
  for (const std::string boundary :
       {"------------------------d74496d66958873e", "----WebKitFormBoundary7MA4YWxkTrZu0gW"}) {
    const std::string body =
        form_body({sent_part("prompt", "hello"), sent_part("image", "x", file)}, boundary);
    EXPECT_EQ(server.running.ask(post_form(body, boundary)).body,
              "prompt=hello;image=1 a.png image/png 2d711642;");
  }
}

TEST(HttpForm, AClientMayWaitForTheHeaderToPass) {
  FormServer server;
  const std::string body = form_body({sent_part("a", "b")}), expect = "Expect: 100-continue\r\n";
  RawClient client = server.running.connect();
  client.send(form_head("/form", of_length(body.size()), "B", expect));
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(client.ask(body).body, "a=b;");
  EXPECT_EQ(client.ask(form_head("/echo", of_length(body.size()), "B", expect)).status, 415);
}

TEST(HttpForm, OtherMediaAreRefused) {
  FormServer server;
  const std::string body = form_body({sent_part("a", "b")});
  const auto answer = [&](const std::string& target, const std::string& type) {
    return server.running.ask("POST " + target + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: " +
                              type + "\r\n" + of_length(body.size()) + "\r\n\r\n" + body);
  };
  for (const auto& [target, type] : {std::pair{"/echo", "multipart/form-data; boundary=B"},
                                     {"/form", "multipart/mixed; boundary=B"}}) {
    const RawClient::Answer refused = answer(target, type);
    EXPECT_EQ(refused.status, 415) << target;
    EXPECT_NE(refused.body.find("\"unsupported_media\""), std::string::npos) << refused.body;
    EXPECT_TRUE(refused.has("x-should-retry: false"));
  }
  // curl -d says so of every text.
  EXPECT_EQ(answer("/echo", "application/x-www-form-urlencoded").status, 200);
  EXPECT_EQ(answer("/form", "application/x-www-form-urlencoded").body, "body " + body);
}

TEST(HttpForm, MalformedFormsAreRefused) {
  FormServer server;
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    const RawClient::Answer answer = server.running.ask(bytes);
    EXPECT_EQ(answer.status, 400) << why;
    EXPECT_NE(answer.body.find(why), std::string::npos) << answer.body;
    EXPECT_NE(answer.body.find("\"invalid_request\""), std::string::npos) << answer.body;
  };
  refused(post_form("hello"), "does not begin with its boundary");
  refused(post_form(""), "does not begin with its boundary");
  refused(post_form("--B\r\n" + sent_part("a", "b")), "boundary at its end is missing");
  refused(post_form(form_body({"\r\nb\r\n"})), "has no name");
  refused(
      "POST /form HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data\r\n"
      "Content-Length: 5\r\n\r\nhello",
      "names no boundary");
  const RawClient::Answer named =
      server.running.ask(post_form(form_body({sent_part("a", "\xff")})));
  EXPECT_NE(named.body.find("\"param\":\"a\""), std::string::npos) << named.body;
  EXPECT_EQ(server.uploads(), 0);
}

TEST(HttpForm, LimitsAreThoseOfForms) {
  ServerLimits limits;
  limits.body_bytes = 100;
  limits.form_bytes = 2000;
  limits.form_parts = 3;
  limits.body_chunks = 50;
  FormServer server(limits);
  const std::string file = "; filename=a";
  const std::string large = form_body({sent_part("a", std::string(1500, 'x'), file)});
  EXPECT_TRUE(server.running.ask(post_form(large)).body.starts_with("a=1500 a  "));
  const auto too_large = [&](const std::string& bytes) {
    const RawClient::Answer answer = server.running.ask(bytes);
    EXPECT_EQ(answer.status, 413) << bytes.substr(0, 100);
    EXPECT_NE(answer.body.find("\"payload_too_large\""), std::string::npos) << answer.body;
    EXPECT_EQ(server.uploads(), 0);
  };
  too_large(form_head("/form", of_length(2001)));
  too_large(post_form(form_body({sent_part("a", std::string(101, 'x'))})));
  too_large(post_form(
      form_body({sent_part("a", ""), sent_part("b", ""), sent_part("c", ""), sent_part("d", "")})));
  const std::string chunked = form_head("/form", "Transfer-Encoding: chunked");
  too_large(chunked + "7d1\r\n");
  std::string chunks;
  for (int i = 0; i < 51; ++i) chunks += "1\r\na\r\n";
  too_large(chunked + chunks);
  // The limit of other bodies stays, whatever their header says.
  too_large(post("/form", std::string(101, 'x')));
  too_large(form_head("/echo", of_length(101)));
}

TEST(HttpForm, NothingIsKeptOfARequestWithoutTheKey) {
  FormServer server({}, kKey);
  RawClient client = server.running.connect();
  client.send(form_head("/form", of_length(1'000'000)) + "--B\r\n" +
              sent_part("a", "x", "; filename=a"));
  EXPECT_EQ(client.answer().status, 401);
  EXPECT_EQ(server.uploads(), 0);
}

TEST(HttpForm, FilesAreRemovedUnlessMoved) {
  FormServer server;
  const std::string file = "; filename=\"../../a\"";
  EXPECT_EQ(server.running
                .ask(post_form(
                    form_body({sent_part("keep", "kept", file), sent_part("b", "gone", file)})))
                .status,
            200);
  EXPECT_EQ(server.uploads(), 0);
  std::ifstream kept(server.folder + "kept");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), "kept");
  // A client that leaves in the middle.
  {
    RawClient client = server.running.connect();
    client.send(form_head("/form", of_length(1'000'000)) + "--B\r\n" + sent_part("a", "x", file));
    for (int i = 0; i < 500 && server.uploads() == 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(server.uploads(), 1);
  }
  for (int i = 0; i < 500 && server.uploads() > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(server.uploads(), 0);
}

TEST(HttpForm, ASlowFormTimesOutUnlessItComesOn) {
  ServerLimits limits;
  limits.body_timeout = 400ms;
  FormServer server(limits);
  const std::string body = form_body({sent_part("a", "b", "; filename=a")});
  RawClient client = server.running.connect();
  client.send(form_head("/form", of_length(body.size())));
  for (size_t at = 0; at < body.size(); at += body.size() / 8) {
    client.send(body.substr(at, body.size() / 8));
    std::this_thread::sleep_for(100ms);  // in all for longer than the limit
  }
  EXPECT_EQ(client.answer().status, 200);
  client.send(form_head("/form", of_length(body.size())) + body.substr(0, body.size() - 10));
  EXPECT_EQ(client.answer().status, 408);
  EXPECT_EQ(server.uploads(), 0);
}

TEST(HttpForm, TheHashOfARequestKnowsNoBoundary) {
  FormServer server;
  const auto hash = [&](const std::vector<std::string>& parts, const std::string& boundary) {
    EXPECT_EQ(server.running.ask(post_form(form_body(parts, boundary), boundary)).status, 200);
    return server.hash;
  };
  const std::string file = "; filename=a";
  const std::vector<std::string> parts = {sent_part("a", "b"), sent_part("c", "d", file)};
  const std::string first = hash(parts, "B");
  EXPECT_EQ(hash(parts, "another"), first);
  EXPECT_NE(hash({sent_part("a", "b"), sent_part("c", "e", file)}, "B"), first);
  EXPECT_NE(hash({sent_part("a", "e"), sent_part("c", "d", file)}, "B"), first);
  EXPECT_NE(hash({sent_part("c", "d", file), sent_part("a", "b")}, "B"), first);
}

TEST(HttpForm, AServerNeedsAFolderForTheFiles) {
  ServerSettings settings = echo_settings();
  settings.upload_folder = testing::TempDir() + "no_such_folder/";
  settings.routes.push_back({.method = "POST", .path = "/form", .answer = nullptr, .forms = true});
  HttpServer server(settings);
  EXPECT_NE(test::thrown_error([&] { server.start(); }, ErrorKind::kOutput), "");
}

// A client that sends all of a body before it reads gets the refusal all the same.
TEST(HttpForm, ARefusalReachesAClientThatSendsOn) {
  ServerLimits limits;
  limits.form_bytes = 1000;
  FormServer server(limits);
  RawClient client = server.running.connect();
  client.send(form_head("/form", of_length(4 << 20)));
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(client.send(std::string(1 << 19, 'x'))) << i;
    std::this_thread::sleep_for(200ms);
  }
  EXPECT_EQ(client.answer().status, 413);
}

}  // namespace
}  // namespace weft
