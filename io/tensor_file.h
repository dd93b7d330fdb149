#pragma once
// TensorFile: named tensors of one safetensors file, or of a sharded index, by read-only mmap.
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

class TensorFile {
 public:
  // `path`: a .safetensors file, a *.safetensors.index.json, or a folder that holds one of either
  // (a component folder: the index first, then the only .safetensors file). Hostile or truncated
  // files throw Error(kModel) that names the file and the reason.
  static TensorFile open(const std::string& path);

  // The same in memory and without a file: `fill` makes a tensor's values when they are first asked
  // for, and again after their pages were dropped, so that only what is in use is held.
  struct Generated {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };
  using Fill = std::function<void(const std::string& name, const TensorView& out)>;
  static TensorFile generated(const std::vector<Generated>& tensors, Fill fill);

  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

  const std::vector<std::string>& names() const;  // sorted
  bool contains(std::string_view name) const;
  // The tensor's bytes in the mapping: dtype and extents as in the header (rank above kMaxRank is
  // an Error). The data may be misaligned for its dtype; copy and pack ops take it as it is. Valid
  // while the TensorFile lives. A name that is not there is a bug.
  TensorView view(std::string_view name) const;
  // Dtype and extents alone, without data.
  TensorView describe(std::string_view name) const;
  // Reads a box of the tensor past the mapping, exactly its bytes: into `out` (contiguous, the
  // tensor's dtype and rank) from the element `begin` on, one index per dimension. Error(kModel)
  // that names file and tensor where the file does not give them.
  void read(std::string_view name, std::span<const int64_t> begin, const TensorView& out) const;
  // The same for [begin, begin + count) of one dimension and all of the others.
  Tensor read(std::string_view name, int dim, int64_t begin, int64_t count) const;
  uint64_t bytes_read() const;  // by read() since the opening
  // The `__metadata__` strings of the (first) file.
  const std::map<std::string, std::string>& metadata() const;
  size_t bytes() const;  // tensor bytes in all shards
  const std::vector<std::string>& files() const;
  std::string header_hash() const;  // SHA-256 over the shards' headers and sizes, hex
  // Has the system begin to read a tensor that is asked for soon; nothing waits for it.
  void read_ahead(std::string_view name) const;
  // The pages behind a view are dropped from this process (they stay in the page cache). A made
  // tensor goes with the last of its views that is dropped.
  void drop_pages(const TensorView& view) const;

 private:
  struct Impl;
  explicit TensorFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes tensors (contiguous views) and metadata; the file appears whole or not at all.
void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace weft
