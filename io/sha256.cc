#include "io/sha256.h"

#include <openssl/evp.h>

#include <fstream>
#include <vector>

#include "kernels/check.h"

namespace weft {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ &&
        EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::update(const void* data, size_t bytes) {
  CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, bytes) == 1);
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest, &size) == 1);
  constexpr char kDigit[] = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += kDigit[digest[i] >> 4];
    text += kDigit[digest[i] & 15];
  }
  return text;
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
