// The pages of the server: their headers, the browser's cache, and the key.
#include "apps/serve/page_routes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>

#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

ServerSettings page_settings() {
  ServerSettings settings;
  settings.routes = live_page_routes();
  return settings;
}

TEST(PageRoutes, AnswerTheFilesOfTheRepository) {
  RunningServer running(page_settings());
  const RawClient::Answer page = running.ask(get("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.has("Content-Type: text/html; charset=utf-8"));
  std::ifstream file("apps/serve/pages/live.html", std::ios::binary);
  EXPECT_EQ(page.body, std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_TRUE(running.ask(get("/pages/live.css")).has("Content-Type: text/css; charset=utf-8"));
  EXPECT_TRUE(
      running.ask(get("/pages/live.js")).has("Content-Type: text/javascript; charset=utf-8"));
  for (const char* none : {"/pages/", "/pages/live.html", "/pages/../live.js", "/pages/jobs.js"})
    EXPECT_EQ(running.ask(get(none)).status, 404) << none;
  EXPECT_EQ(running.ask(post("/", "")).status, 405);
}

TEST(PageRoutes, EveryFileThatAPageNamesIsServed) {
  RunningServer running(page_settings());
  for (const Route& route : live_page_routes()) {
    const std::string text = running.ask(get(route.path)).body;
    EXPECT_FALSE(text.empty()) << route.path;
    const std::regex names(R"re(["'](/pages/[^"']*|\./live[^"']*)["'])re");
    for (std::sregex_iterator name(text.begin(), text.end(), names), end; name != end; ++name) {
      const std::string path =
          std::regex_replace((*name)[1].str(), std::regex(R"(^\./)"), "/pages/");
      EXPECT_EQ(running.ask(get(path)).status, 200) << route.path << " names " << path;
    }
    EXPECT_FALSE(std::regex_search(text, std::regex(R"((src|href)="https?:)"))) << route.path;
  }
}

TEST(PageRoutes, LoadFromTheirServerAlone) {
  RunningServer running(page_settings());
  const std::string header = running.ask(get("/")).header;
  const size_t at = header.find("\r\nContent-Security-Policy: ");
  ASSERT_NE(at, std::string::npos);
  const std::string policy = header.substr(at + 2, header.find("\r\n", at + 2) - at - 2);
  for (const char* rule : {"default-src 'none'", "script-src 'self';", "style-src 'self';",
                           "connect-src 'self';", "frame-ancestors 'none'", "base-uri 'none'"})
    EXPECT_NE(policy.find(rule), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_EQ(policy.find('*'), std::string::npos) << policy;
}

TEST(PageRoutes, ABrowserThatHasTheFileGetsItNotAgain) {
  RunningServer running(page_settings());
  RawClient client = running.connect();
  for (const PageFile& file : page_files()) {
    if (file.name != "live.css") continue;
    const std::string tag(file.etag);
    EXPECT_TRUE(client.ask(get("/pages/live.css")).has("ETag: " + tag));
    for (const std::string& known : {tag, "W/" + tag, "\"other\", " + tag, std::string("*")}) {
      const RawClient::Answer same =
          client.ask(get("/pages/live.css", "If-None-Match: " + known + "\r\n"));
      EXPECT_EQ(same.status, 304) << known;
      EXPECT_EQ(same.body, "");
    }
    const RawClient::Answer other =
        client.ask(get("/pages/live.css", "If-None-Match: \"other\"\r\n"));
    EXPECT_EQ(other.status, 200);
    EXPECT_EQ(other.body, file.bytes);
  }
}

TEST(PageRoutes, NeedTheKeyAndMakeTheBrowserAskForIt) {
  ServerSettings settings = page_settings();
  settings.api_key = kKey;
  const std::vector<Route> routes = settings.routes;
  RunningServer running(std::move(settings));
  for (const Route& route : routes) {
    const RawClient::Answer refused = running.ask(get(route.path, "Accept: text/html\r\n"));
    EXPECT_EQ(refused.status, 401) << route.path;
    EXPECT_TRUE(refused.has(R"(WWW-Authenticate: Basic realm="weft", charset="UTF-8")"));
    const std::string basic = "Authorization: Basic d2VmdDowMTIzNDU2Nzg5YWJjZGVm\r\n";
    EXPECT_EQ(running.ask(get(route.path, basic)).status, 200) << route.path;
  }
}

}  // namespace
}  // namespace weft
