#pragma once
// Builds the bytes of GGUF files, well-formed or not.
#include <cstdint>
#include <string>
#include <vector>

namespace weft::test {

template <class T>
std::string le(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof value; ++i)
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return out;
}

inline std::string gguf_text(const std::string& text) { return le<uint64_t>(text.size()) + text; }

// A metadata entry: key, number of the type, bytes of the value.
inline std::string gguf_entry(const std::string& key, uint32_t type, const std::string& value) {
  return gguf_text(key) + le(type) + value;
}

// `extents` begins with the innermost dimension, as in the file.
inline std::string gguf_tensor(const std::string& name, const std::vector<uint64_t>& extents,
                               uint32_t type, uint64_t offset) {
  std::string out = gguf_text(name) + le(static_cast<uint32_t>(extents.size()));
  for (const uint64_t extent : extents) out += le(extent);
  return out + le(type) + le(offset);
}

struct GgufBytes {
  uint32_t version = 3;
  std::vector<std::string> entries, tensors;
  std::string data;
  uint64_t alignment = 32;

  std::string header() const {
    std::string out =
        "GGUF" + le(version) + le<uint64_t>(tensors.size()) + le<uint64_t>(entries.size());
    for (const std::string& entry : entries) out += entry;
    for (const std::string& tensor : tensors) out += tensor;
    return out;
  }
  std::string file() const {
    std::string out = header();
    out.append((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

}  // namespace weft::test
