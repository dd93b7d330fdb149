#pragma once
// TensorFile: the named tensors of a safetensors file or of a sharded index, mapped read-only.
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/stored_tensors.h"
#include "kernels/tensor.h"

namespace weft {

class TensorFile {
 public:
  // Opens a .safetensors file, a *.safetensors.index.json, or a component folder. In a folder the
  // index comes first unless shards of it are missing and the folder has a whole file, then the
  // only .safetensors file. Hostile or truncated files throw Error(kModel) that names the file and
  // the reason.
  static TensorFile open(const std::string& path);

  // Gives the tensors other names; "" leaves one out. Error(kModel) names two that become one.
  using Renaming = std::function<std::string(const std::string& name)>;
  void rename(const Renaming& renamed);

  // Makes a TensorFile in memory without a file. `fill` computes a tensor's values when a view is
  // first requested, and again after its pages were dropped. So only tensors in use take memory.
  struct Generated {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::string stored{};  // the type that a file gives it, where that is another: "Q4_K"
  };
  using Fill = std::function<void(const std::string& name, const TensorView& out)>;
  static TensorFile generated(const std::vector<Generated>& tensors, Fill fill);

  // Makes a TensorFile whose values follow from those of another file, such as one of quantised
  // tensors. `part` computes the values [first, first + out.count()) of a tensor, counted over all
  // of its dimensions; `out` has one dimension and the tensor's dtype. It is called from several
  // threads. Whole tensors take memory only while a view of them is in use.
  using Part = std::function<void(const std::string& name, int64_t first, const TensorView& out)>;
  struct Origin {
    std::string format;  // "GGUF 3"
    std::vector<std::string> files;
    std::map<std::string, std::string> metadata;
    std::string header_hash;
    size_t bytes = 0;  // of the tensors as they are stored
    std::map<std::string, std::string> unread{};
  };
  static TensorFile derived(const std::vector<Generated>& tensors, Part part, Origin origin,
                            std::shared_ptr<const StoredTensors> stored = {});
  // True for such a file: a view has to be computed, and takes memory.
  bool is_derived() const;

  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

  const std::vector<std::string>& names() const;  // sorted
  bool contains(std::string_view name) const;
  // Tensors that are not among these, because values of their type are not read: name, type.
  const std::map<std::string, std::string>& unread() const;
  // Returns a view of the tensor in the mapped file, with dtype and extents from the header (a rank
  // above kMaxRank is an Error). The data may be misaligned for its dtype; copy and pack ops accept
  // that. The view is valid as long as the TensorFile exists. An unknown name is a bug.
  TensorView view(std::string_view name) const;
  // Returns only dtype and extents, without data.
  TensorView describe(std::string_view name) const;
  // The name of the type in which the file holds the tensor: "f32", "f8_e4m3", "Q4_K".
  std::string stored_type(std::string_view name) const;
  // The type of the blocks in which the file holds the tensor, if it is one of BlockType.
  std::optional<BlockType> blocks(std::string_view name) const;
  // Reads whole blocks of such a tensor to `out` [bytes] kU8, from block `first` on, counted over
  // all of its dimensions.
  void read_blocks(std::string_view name, int64_t first, const TensorView& out) const;
  // The object that knows more of a derived file's tensors; null for other files.
  const StoredTensors* stored() const;
  const std::string& format() const;  // of the file: "safetensors"
  // Reads a box of the tensor with pread, exactly its bytes and not through the mapping. The box
  // begins at the element `begin`, one index per dimension, and has the extents of `out`, which is
  // contiguous and has the tensor's dtype and rank. `shape` are the extents that the tensor is
  // taken to have, of the same product; {}: its own. Throws Error(kModel) that names file and
  // tensor if the file cannot be read.
  void read(std::string_view name, std::span<const int64_t> begin, const TensorView& out,
            std::span<const int64_t> shape = {}) const;
  // Reads the values [first, first + out.count()) of the tensor, counted over all of its
  // dimensions. `out` has one dimension.
  void read_run(std::string_view name, int64_t first, const TensorView& out) const;
  // Reads [begin, begin + count) of dimension `dim` and all of the others.
  Tensor read(std::string_view name, int dim, int64_t begin, int64_t count) const;
  uint64_t bytes_read() const;  // bytes that read() has read since the file was opened
  // The `__metadata__` strings of the (first) file.
  const std::map<std::string, std::string>& metadata() const;
  size_t bytes() const;  // tensor bytes in all shards
  const std::vector<std::string>& files() const;
  std::string header_hash() const;  // SHA-256 over the shards' headers and sizes, hex
  // Asks the system to start reading a tensor that is needed soon. Does not wait for it.
  void read_ahead(std::string_view name) const;
  // Drops the pages of a view from this process; they stay in the page cache. A generated tensor is
  // freed when the last of its views is dropped.
  void drop_pages(const TensorView& view) const;

 private:
  struct Impl;
  explicit TensorFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes tensors (contiguous views) and metadata. The file appears complete or not at all. A tensor
// without data is written from the parts that parts(write) passes to `write`, in order.
using TensorParts = std::function<void(const std::function<void(const TensorView&)>& write)>;
void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const TensorParts& parts = {});

}  // namespace weft
