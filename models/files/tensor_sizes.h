#pragma once
// TensorSizes: reads a model's sizes from the tensors of a file that has no configuration.
#include <functional>
#include <string>

#include "io/weights/tensor_file.h"
#include "models/config_reader.h"

namespace weft {

// The file's name in messages.
std::string shown_name(const TensorFile& file);

class TensorSizes {
 public:
  // Returns the file's spelling of one of this library's names.
  using Spelling = std::function<std::string(const std::string& name)>;

  // The file must outlive this object. Extents of 1 to `widest` are legal.
  TensorSizes(const TensorFile& file, Spelling spelling, int64_t widest = 1 << 20)
      : file_(file), spelling_(std::move(spelling)), widest_(widest) {}

  bool has(const std::string& name) const { return file_.contains(spelling_(name)); }
  // Returns the shape of a tensor of `rank` dimensions, which the file may store with fewer
  // (same_values): ones come first, or after the first two extents of a kernel of four dimensions
  // or more, whose bias tells the first where the two are merged. Error(kModel) names a tensor that
  // is missing or has another shape.
  TensorView shape(const std::string& name, int rank) const;
  // Returns one extent of a tensor of any rank; dimensions below 0 count from the last one. Throws
  // as shape() does.
  int64_t extent(const std::string& name, int dim) const;
  // Returns how many of the blocks "<list>0", "<list>1", ... have a tensor "<block><part>", at most
  // 1024.
  int count(const std::string& list, const std::string& part) const;
  // Returns how many heads of `columns` columns the width has. Error(kModel) where they do not
  // divide it.
  int heads(int64_t width, int64_t columns) const;
  // Throws Error(kModel): "<file>: no config.json, and <why>".
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    refuse_model(shown_name(file_), "no config.json, and ", why...);
  }

 private:
  std::vector<int64_t> restored(const std::string& name, const TensorView& view, int rank) const;

  const TensorFile& file_;
  Spelling spelling_;
  int64_t widest_;
};

}  // namespace weft
