#pragma once
// WeightBinder: checks a checkpoint's tensors by name and shape and reports all faults at once.
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"
#include "kernels/attention.h"
#include "kernels/device_plan.h"
#include "kernels/stored_matrix.h"
#include "kernels/stream.h"
#include "parallel/partition.h"

namespace weft {

// The part of a transformer's width that a rank holds: whole attention heads and columns of the
// feed-forward's hidden layer, each by global index. Reducer::sum adds the results of the other
// parts. {} means all. Any other empty range is a bug. So is a part of one range with all of the
// other, because the sums would count the latter several times.
struct WidthSlice {
  Range heads, ffn;

  // The same slice with {} replaced by the full ranges.
  WidthSlice of(int64_t all_heads, int64_t all_ffn) const;
  bool operator==(const WidthSlice&) const = default;
};

// "compute", "int8", "fp8", "fp8-tensor", "file"
std::string to_string(WeightFormat format);
// True for the formats that round weights to 8 bits with scales of their own, which a part of a
// matrix would have others of.
constexpr bool rounds_to_8bit(WeightFormat format) {
  return format != WeightFormat::kCompute && format != WeightFormat::kFile;
}
std::string to_string(AttentionFormat format);  // "compute", "fp8"

// The diffusers name and the extents that a config prescribes for one tensor of a checkpoint. Every
// model lists its tensors from the config alone.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// Appends the weight [out, in] and the bias [out] of a linear layer.
inline void add_linear(std::vector<TensorSpec>& list, const std::string& name, int64_t out,
                       int64_t in) {
  list.push_back({name + ".weight", {out, in}});
  list.push_back({name + ".bias", {out}});
}

// The part of a tensor that a rank holds: `range` of dimension `dim`, and all of the others.
struct TensorPart {
  int dim = 0;
  Range range;

  bool whole(const TensorSpec& tensor) const { return range.size() == tensor.shape[dim]; }
  int64_t count(const TensorSpec& tensor) const;  // number of values
};

// A tensor as it lies in a file: `taken` of the `parts` equal stretches of the file's rows, from
// stretch `part` on.
struct TensorPlace {
  std::string name;
  int64_t part = 0, parts = 1, taken = 1;
  bool swapped = false;  // the two halves of the rows are exchanged
};

// A network that is known by its configuration alone, as its checkpoints hold it.
class CheckpointModel {
 public:
  virtual ~CheckpointModel() = default;

  virtual std::vector<TensorSpec> tensors() const = 0;  // of the whole checkpoint
  // The places of the tensor with this name in the spellings of all files, without a prefix; the
  // first is the name itself.
  virtual std::vector<TensorPlace> spellings(const std::string& name) const {
    return {{.name = name}};
  }
};

inline int64_t parameter_count(std::span<const TensorSpec> tensors) {
  int64_t total = 0;
  for (const TensorSpec& tensor : tensors) {
    int64_t count = 1;
    for (int64_t extent : tensor.shape) count *= extent;
    total += count;
  }
  return total;
}

// Makes a file that holds the names, extents and dtypes of tensors, but no values. Dry runs load
// it.
TensorFile without_values(const std::vector<TensorSpec>& tensors, DType dtype = DType::kBF16);

// Returns whether a file's tensor with the extents `is` has the values of one with the extents
// `wants`, in the same order, as writers with fewer dimensions store them: without extents of one,
// or, of a kernel of four dimensions or more, with the first extents merged.
bool same_values(std::span<const int64_t> is, std::span<const int64_t> wants);

// The part of one tensor that a rank holds, by its name in the file, where it has `shape` or other
// extents of the same values. The whole tensor is a view of
// the mapped file. A part is read into memory of its own as `dtype`, and so is a whole tensor of a
// derived file; values are rounded once, here or when they are packed. The destructor frees the
// memory and drops the file's pages, so the file must outlive it.
class HeldWeight {
 public:
  HeldWeight(Stream& stream, const TensorFile& file, const std::string& name,
             const TensorPart& part, std::span<const int64_t> shape, DType dtype);
  ~HeldWeight();
  HeldWeight(const HeldWeight&) = delete;
  HeldWeight& operator=(const HeldWeight&) = delete;

  const TensorView& view() const { return memory_ ? memory_.view() : mapped_; }
  bool whole() const { return whole_; }

 private:
  void read(Stream& stream, const std::string& name, const TensorPart& part, DType dtype);

  const TensorFile& file_;
  std::vector<int64_t> shape_;
  bool whole_;
  TensorView mapped_;  // the whole tensor
  Tensor memory_;      // a part of it, or all of one that is computed
};

// Reads the part of a matrix [out, ...] of the whole `shape` as the file stores it. Returns nullopt
// where that would take no less memory than `dtype`, or is of no type that can be kept. Throws
// Error(kUsage) that names the tensor if the part cuts its blocks.
std::optional<StoredMatrix> held_blocks(Stream& stream, const TensorFile& file,
                                        const std::string& name, const TensorPart& part,
                                        std::span<const int64_t> shape, DType dtype);

class WeightBinder {
 public:
  // `rename` maps a diffusers name to the file's spelling; empty = identity. Messages name the
  // `component` ("transformer").
  WeightBinder(const TensorFile& file, std::string component,
               std::function<std::string(const std::string&)> rename = {});

  // Returns whether the file has the tensor with this shape (or same_values) and a float dtype
  // (f32, bf16, f16, f64). Otherwise it notes the fault.
  bool take(const std::string& name, std::initializer_list<int64_t> shape) {
    return take(name, std::span<const int64_t>(shape.begin(), shape.size()));
  }
  bool take(const std::string& name, std::span<const int64_t> shape);
  // Takes a tensor that may have any of several names. Returns its name in the file, or "" if there
  // was a fault.
  std::string take_any(std::initializer_list<std::string> names,
                       std::initializer_list<int64_t> shape);
  // Says that the file may contain this name (in the file's spelling) without its being used.
  void ignore(const std::string& name);
  // Says so of all names without this prefix: a single-file checkpoint may contain other models.
  void ignore_without(const std::string& prefix);

  // If there were faults, throws Error(kModel) that lists every missing, extra, misshapen and
  // wrongly typed tensor by name.
  void finish();

 private:
  bool check(const std::string& spelled, std::span<const int64_t> shape);

  const TensorFile& file_;
  std::string component_;
  std::function<std::string(const std::string&)> rename_;
  std::set<std::string> used_;
  std::vector<std::string> missing_, misshapen_, mistyped_;
};

}  // namespace weft
