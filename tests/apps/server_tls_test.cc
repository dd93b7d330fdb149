// The server over TLS, with a certificate that the test makes.
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>

#include "kernels/check.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

const std::string kEnd = "to the end of the connection";

struct Certificate {
  std::string certificate_file = testing::TempDir() + "serve_certificate.pem";
  std::string key_file = testing::TempDir() + "serve_key.pem";

  Certificate() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    std::FILE* file = std::fopen(certificate_file.c_str(), "w");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    file = std::fopen(key_file.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~Certificate() {
    std::remove(certificate_file.c_str());
    std::remove(key_file.c_str());
  }
};

// A TLS connection to the server.
class TlsClient {
 public:
  explicit TlsClient(RunningServer& running, int newest_version = TLS1_3_VERSION)
      : client_(running.connect()) {
    SSL_CTX_set_max_proto_version(context_.get(), newest_version);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), client_.descriptor());
    is_open_ = SSL_connect(ssl_.get()) == 1;
  }
  bool is_open() const { return is_open_; }

  // Sends bytes and returns what comes back up to `mark`, or all.
  std::string ask(const std::string& bytes, const std::string& mark) {
    SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
    std::string answer;
    char piece[4096];
    int got;
    while (answer.find(mark) == std::string::npos &&
           (got = SSL_read(ssl_.get(), piece, sizeof piece)) > 0)
      answer.append(piece, static_cast<size_t>(got));
    return answer;
  }

 private:
  RawClient client_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{SSL_CTX_new(TLS_client_method()),
                                                             SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool is_open_ = false;
};

TEST(ServerTls, AnswersRequestsAndWebSockets) {
  const Certificate certificate;
  ServerSettings settings = echo_settings();
  settings.certificate_file = certificate.certificate_file;
  settings.key_file = certificate.key_file;
  settings.limits.header_timeout = 500ms;
  RunningServer running(std::move(settings));
  const std::string answer = TlsClient(running).ask(get("/task", "Connection: close\r\n"), kEnd);
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK") << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\nok")) << answer;
  TlsClient socket(running);
  EXPECT_NE(socket.ask(upgrade(), "\r\n\r\n").find(" 101 "), std::string::npos);
  EXPECT_EQ(socket.ask(text_frame("hello"), "hello"), "\x81\x05hello");
  EXPECT_NE(TlsClient(running).ask("GET /task HTT", kEnd).find(" 408 "), std::string::npos);
  // Neither plain text nor old versions of TLS get an answer.
  EXPECT_FALSE(TlsClient(running, TLS1_1_VERSION).is_open());
  RawClient plain = running.connect();
  EXPECT_EQ(plain.ask(get("/task")).status, 0);
  RawClient silent = running.connect();
  EXPECT_TRUE(silent.ended());
}

TEST(ServerTls, KeyAndCertificateBelongTogether) {
  const Certificate certificate;
  ServerSettings settings = echo_settings();
  settings.certificate_file = certificate.key_file;
  settings.key_file = certificate.key_file;
  EXPECT_THROW(HttpServer(settings).start(), Error);
  settings.certificate_file = certificate.certificate_file;
  settings.key_file = certificate.certificate_file;
  EXPECT_THROW(HttpServer(settings).start(), Error);
  settings.key_file.clear();
  EXPECT_THROW(HttpServer(settings).start(), Error);
}

}  // namespace
}  // namespace weft
