#include "apps/serve/http/access.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "kernels/check.h"

namespace weft {
namespace {

const std::string kAccessKey = "0123456789abcdef";

std::string key_of(const std::string& bytes) {
  const std::string path = testing::TempDir() + "serve_key";
  std::ofstream(path, std::ios::binary) << bytes;
  return read_key_file(path);
}
std::string refusal_of(const std::string& bytes) {
  try {
    return "read " + key_of(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(KeyFile, OneNewlineIsDropped) {
  EXPECT_EQ(key_of(kAccessKey), kAccessKey);
  EXPECT_EQ(key_of(kAccessKey + "\n"), kAccessKey);
  EXPECT_EQ(key_of(std::string(4096, '~')), std::string(4096, '~'));
}

TEST(KeyFile, RefusalsNameTheRuleAndHideTheKey) {
  const auto expect = [](const std::string& bytes, const std::string& why) {
    const std::string message = refusal_of(bytes);
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_NE(message.find("16 ... 4096"), std::string::npos) << message;
    EXPECT_EQ(message.find("abcde"), std::string::npos) << message;
  };
  expect("", "holds 0 characters");
  expect("abcdef", "holds 6 characters");
  expect(kAccessKey + "\n" + kAccessKey + "\n", "more than one line");
  expect(kAccessKey + "\n\n", "more than one line");
  expect(kAccessKey + "\r\n", "not printable");
  expect(kAccessKey + " x", "a space");
  expect(kAccessKey + '\0', "not printable");
  expect(kAccessKey + "\xc3\xa4", "not printable");
  expect(std::string(4097, 'a'), "more than 4096");
  expect(std::string(9000, 'a'), "more than 4096");
  EXPECT_THROW(read_key_file("/no/such/file"), Error);
  EXPECT_THROW(read_key_file(testing::TempDir()), Error);
}

TEST(Secret, IsTheSameOrNot) {
  EXPECT_TRUE(same_secret(kAccessKey, kAccessKey));
  EXPECT_FALSE(same_secret(kAccessKey + "x", kAccessKey));
  EXPECT_FALSE(same_secret(kAccessKey + kAccessKey, kAccessKey));
  EXPECT_FALSE(same_secret(kAccessKey.substr(1), kAccessKey));
  EXPECT_FALSE(same_secret("0123456789abcdeF", kAccessKey));
  EXPECT_FALSE(same_secret("", kAccessKey));
  EXPECT_FALSE(same_secret("", ""));
}

TEST(Secret, Base64UrlOfTheStandard) {
  EXPECT_EQ(base64url(""), "");
  EXPECT_EQ(base64url("f"), "Zg");
  EXPECT_EQ(base64url("fo"), "Zm8");
  EXPECT_EQ(base64url("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64url("\xff\xef\xfe"), "_-_-");
}

HttpRequest request_with(HttpHeaders headers) {
  headers.emplace("host", "localhost:8080");
  return {.method = "GET", .path = "/task", .headers = std::move(headers)};
}
int status(const AccessRules& rules, HttpHeaders headers, KeyRule key = KeyRule::kNeeded) {
  const auto refused = access_refusal(rules, request_with(std::move(headers)), key);
  return refused ? refused->status : 200;
}

TEST(Access, KeyComesInAHeaderOrASubprotocol) {
  const AccessRules rules{.api_key = kAccessKey};
  EXPECT_EQ(status(rules, {}), 401);
  EXPECT_EQ(status(rules, {}, KeyRule::kOpen), 200);
  EXPECT_EQ(status(rules, {{"authorization", "Bearer " + kAccessKey}}), 200);
  EXPECT_EQ(status(rules, {{"authorization", "bearer " + kAccessKey}}), 200);
  EXPECT_EQ(status(rules, {{"authorization", "Bearer " + kAccessKey + "x"}}), 401);
  EXPECT_EQ(status(rules, {{"authorization", "Basic " + kAccessKey}}), 401);
  EXPECT_EQ(status(rules, {{"x-api-key", kAccessKey}}), 200);
  EXPECT_EQ(status(rules, {{"x-api-key", kAccessKey + ", " + kAccessKey}}), 401);
  // A wrong key is not made good by a right one elsewhere.
  EXPECT_EQ(status(rules, {{"authorization", "Bearer x"}, {"x-api-key", kAccessKey}}), 401);
  const std::string protocol = "weft.stream, weft.key." + base64url(kAccessKey);
  EXPECT_EQ(status(rules, {{"sec-websocket-protocol", protocol}}), 401);
  EXPECT_EQ(status(rules, {{"upgrade", "websocket"}, {"sec-websocket-protocol", protocol}}), 200);
  EXPECT_EQ(status(rules, {{"upgrade", "websocket"}, {"sec-websocket-protocol", protocol + "A"}}),
            401);
  EXPECT_EQ(chosen_protocol(request_with({{"sec-websocket-protocol", "weft.key.aa, weft.stream"}})),
            "weft.stream");
  EXPECT_EQ(chosen_protocol(request_with({{"sec-websocket-protocol", "weft.key.aa"}})),
            "weft.key.aa");
  EXPECT_EQ(chosen_protocol(request_with({})), "");
}

TEST(Access, ABrowserGivesTheKeyAsThePassword) {
  const AccessRules rules{.api_key = kAccessKey};
  const auto basic = [&](const std::string& credentials) {
    return status(rules, {{"authorization", credentials}});
  };
  EXPECT_EQ(basic("Basic d2VmdDowMTIzNDU2Nzg5YWJjZGVm"), 200);      // weft:0123456789abcdef
  EXPECT_EQ(basic("basic OjAxMjM0NTY3ODlhYmNkZWY="), 200);          // :0123456789abcdef
  EXPECT_EQ(basic("Basic MDEyMzQ1Njc4OWFiY2RlZg=="), 401);          // 0123456789abcdef
  EXPECT_EQ(basic("Basic d2VmdDowMTIzNDU2Nzg5YWJjZGVmZw=="), 401);  // weft:0123456789abcdefg
  EXPECT_EQ(basic("Basic d2VmdDo="), 401);                          // weft:
  for (const char* wrong : {"Basic ", "Basic =", "Basic ====", "Basic d2VmdDowMTIzNDU2Nzg5YWJjZGV",
                            "Basic d2VmdDow*TIzNDU2Nzg5YWJjZGVm"})
    EXPECT_EQ(basic(wrong), 401) << wrong;
  // A key may hold colons: the user name ends at the first one.
  EXPECT_EQ(status({.api_key = "0123:456789abcdef"},
                   {{"authorization", "Basic dTowMTIzOjQ1Njc4OWFiY2RlZg=="}}),
            200);
}

TEST(Access, OnlyPagesMakeABrowserAskForAPassword) {
  const auto challenge = [](const std::string& accept) {
    const auto refused = access_refusal({.api_key = kAccessKey}, request_with({{"accept", accept}}),
                                        KeyRule::kNeeded);
    EXPECT_EQ(refused->headers.back().first, "WWW-Authenticate");
    return refused->headers.back().second;
  };
  EXPECT_EQ(challenge("text/html,application/xhtml+xml"), R"(Basic realm="weft", charset="UTF-8")");
  EXPECT_EQ(challenge("*/*"), "Bearer");
}

TEST(Access, LoopbackListenersAnswerLoopbackHostsAlone) {
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:8080"})
    EXPECT_EQ(status({}, {{"host", host}}), 200) << host;
  for (const char* host : {"", "example.org", "localhost.example.org", "127.0.0.1.example.org",
                           "128.0.0.1", "localhost, example.org", "[::2]", "::1", "0.0.0.0"})
    EXPECT_EQ(status({}, {{"host", host}}), 403) << host;
  EXPECT_EQ(status({.loopback = false}, {{"host", "example.org"}}), 200);
}

TEST(Access, OriginIsTheServerItselfOrAllowed) {
  const AccessRules rules{.allowed_origins = {"https://Example.org"}};
  for (const char* origin :
       {"http://localhost:8080", "https://LOCALHOST:8080", "https://example.org"})
    EXPECT_EQ(status(rules, {{"origin", origin}}), 200) << origin;
  for (const char* origin :
       {"null", "", "http://localhost", "http://localhost:8081", "localhost:8080",
        "http://example.org", "https://example.org.evil.net", "NULL"})
    EXPECT_EQ(status(rules, {{"origin", origin}}), 403) << origin;
  // Not even a list of origins allows "null".
  EXPECT_EQ(status({.allowed_origins = {"null"}}, {{"origin", "null"}}), 403);
}

TEST(Access, OthersNeedAKeyOrALoopbackAddress) {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) check_binding({host});
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    EXPECT_THROW(check_binding({host}), Error) << host;
    check_binding({host, true});
    check_binding({host, false, true});
  }
}

}  // namespace
}  // namespace weft
