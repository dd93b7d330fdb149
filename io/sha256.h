#pragma once
// Computes SHA-256 (FIPS 180-4) of bytes, as lower-case hex.
#include <cstddef>
#include <string>
#include <string_view>

namespace weft {

class Sha256 {
 public:
  // Goes on from a state(); "" begins anew. Throws Error(kModel) for another text.
  explicit Sha256(const std::string& state = "");
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string state() const;  // of the bytes so far, as hex
  // Returns the 64 hex digits of all bytes so far. The object cannot be used afterwards.
  std::string hex();

 private:
  void* context_;
};

std::string sha256_hex(std::string_view bytes);
// The hash of a file; one that cannot be read counts as empty.
std::string file_hash(const std::string& path);

}  // namespace weft
