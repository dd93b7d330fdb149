#pragma once
// TextCache: the rows that a text encoder made of prompts, in a folder, so that a later job with
// the same prompt needs no text encoder. A file is named by the hash of everything that its rows
// depend on, and holds their own hash too.
#include <array>
#include <span>
#include <string>

#include "kernels/tensor.h"

namespace weft {

class TextCache {
 public:
  // Makes the folder where it is missing, Error(kOutput). `encoder` states the weights and how they
  // are computed with: rows of another statement are never returned.
  TextCache(std::string folder, std::string encoder);

  // The rows f32 of the shape on the host; empty where the folder has none, or damaged ones.
  Tensor find(std::span<const int32_t> ids, const std::array<int64_t, 2>& shape) const;
  // Writes a whole file or none. Error(kOutput).
  void keep(std::span<const int32_t> ids, const TensorView& rows) const;

 private:
  std::string path_of(std::span<const int32_t> ids) const;

  const std::string folder_, encoder_;
};

}  // namespace weft
