#include "io/sha256.h"

// The interface that replaces these functions does not show the state.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <fstream>
#include <span>
#include <vector>

#include "kernels/check.h"

namespace weft {

namespace {

SHA256_CTX& of(void* context) { return *static_cast<SHA256_CTX*>(context); }

std::string hex_of(std::span<const unsigned char> bytes) {
  constexpr char kDigit[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigit[byte >> 4];
    text += kDigit[byte & 15];
  }
  return text;
}

}  // namespace

Sha256::Sha256(const std::string& state) : context_(new SHA256_CTX) {
  CHECK(SHA256_Init(&of(context_)) == 1);
  if (state.empty()) return;
  auto* bytes = static_cast<unsigned char*>(context_);
  if (state.size() == 2 * sizeof(SHA256_CTX))
    for (size_t i = 0; i < sizeof(SHA256_CTX); ++i)
      bytes[i] =
          static_cast<unsigned char>(std::strtoul(state.substr(2 * i, 2).c_str(), nullptr, 16));
  if (this->state() == state && of(context_).num < SHA256_CBLOCK) return;
  delete &of(context_);
  throw Error(ErrorKind::kModel, "'" + state.substr(0, 80) + "' is no state of a hash");
}

Sha256::~Sha256() { delete &of(context_); }

void Sha256::update(const void* data, size_t bytes) {
  CHECK(SHA256_Update(&of(context_), data, bytes) == 1);
}

std::string Sha256::state() const {
  return hex_of({static_cast<const unsigned char*>(context_), sizeof(SHA256_CTX)});
}

std::string Sha256::hex() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  CHECK(SHA256_Final(digest, &of(context_)) == 1);
  return hex_of(digest);
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string file_hash(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::vector<char> buffer(size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), file.gcount() > 0)
    hash.update(buffer.data(), static_cast<size_t>(file.gcount()));
  return hash.hex();
}

}  // namespace weft
