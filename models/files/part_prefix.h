#pragma once
// The prefixes that the names of a component have in a file that holds several, or that the code
// which saved the file gave them.
#include <span>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"

namespace weft {

// The beginnings of names that lead to a component, in any number and order. A star stands for one
// part of a name.
std::span<const char* const> component_prefixes();
// Those that only wrap one. They say nothing of what it is.
std::span<const char* const> wrapper_prefixes();
// Parts that are left out wherever a name has them.
std::span<const char* const> wrapper_parts();

// The names of a file's tensors, and the prefixes under which components may be.
class PartNames {
 public:
  // Opens the weights of the path for their names alone.
  explicit PartNames(const std::string& path);
  explicit PartNames(const std::vector<std::string>& names);

  const std::vector<std::string>& sorted() const { return names_; }
  const std::vector<std::string>& prefixes() const { return prefixes_; }  // the shortest first
  // The names of the component under the prefix, without it. It leaves out all others.
  static TensorFile::Renaming under(const std::string& prefix);
  // Returns whether both are of the same component: `longer` only adds wrappers to `prefix`.
  static bool same_part(const std::string& prefix, const std::string& longer);

 private:
  std::vector<std::string> names_;  // without parts that wrap
  std::vector<std::string> prefixes_;
};

}  // namespace weft
