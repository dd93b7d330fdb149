#pragma once
// TensorNames: the names of a file's tensors, by which the models know what a file holds.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "io/weights/tensor_file.h"

namespace weft {

class TensorNames {
 public:
  TensorNames(const TensorFile& file) : names_(file.names()) {}
  // The names that begin with `prefix`, without it. `sorted` must outlive this object.
  TensorNames(const std::vector<std::string>& sorted, std::string prefix)
      : names_(sorted), prefix_(std::move(prefix)) {}

  bool contains(const std::string& name) const {
    return std::ranges::binary_search(names_, prefix_ + name);
  }

 private:
  const std::vector<std::string>& names_;
  std::string prefix_;
};

}  // namespace weft
