#pragma once
// WeightBinder: takes a checkpoint's tensors by name and shape and reports every fault at once.
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/tensor_file.h"
#include "kernels/attention.h"
#include "kernels/device_plan.h"
#include "kernels/stream.h"
#include "parallel/partition.h"

namespace weft {

// Which part of a transformer's width is held: whole heads of its attentions and columns of its
// feed-forwards' hidden layer, each by global index. What falls on another part is added by
// Reducer::sum. {} = all; every other empty range is a bug, and so is a part of one with all of the
// other: the sums would count it twice.
struct WidthSlice {
  Range heads, ffn;

  // With the ranges written out.
  WidthSlice of(int64_t all_heads, int64_t all_ffn) const;
};

std::string to_string(WeightFormat format);     // "compute", "int8", "fp8", "fp8-tensor"
std::string to_string(AttentionFormat format);  // "compute", "fp8"

// One tensor of a checkpoint as its config demands it: diffusers name and extents. Every model
// lists its own from the config alone.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// What is held of a tensor: `range` of one of its dimensions, all of the others.
struct TensorPart {
  int dim = 0;
  Range range;

  bool whole(const TensorSpec& tensor) const { return range.size() == tensor.shape[dim]; }
  int64_t count(const TensorSpec& tensor) const;  // values
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

// What a model's weights take on a device, and more while they are loaded.
struct DeviceBytes {
  size_t weights = 0, loading = 0;
};

// How a file's biases are kept on a device: whether bf16 holds them all.
Bias biases_of(const TensorFile& file);

// Arena bytes that a pass's seams take while they run, on top of the model's own.
struct SeamBytes {
  size_t attend = 0;                            // TokenMixer::attend
  std::function<size_t(int64_t values)> sum{};  // Reducer::sum of so many; empty = none

  size_t of_sum(int64_t values) const { return sum ? sum(values) : 0; }
};

// What is held of one tensor, by its name in the file: a view of the mapping where that is all of
// it, else the part alone, read into memory of its own as `dtype` (the values are rounded once,
// here or in the pack). Gives memory and pages back at its end, so the file must outlive it.
class HeldWeight {
 public:
  HeldWeight(Stream& stream, const TensorFile& file, const std::string& name,
             const TensorPart& part, DType dtype);
  ~HeldWeight();
  HeldWeight(const HeldWeight&) = delete;
  HeldWeight& operator=(const HeldWeight&) = delete;

  const TensorView& view() const { return memory_ ? memory_.view() : mapped_; }
  bool mapped() const { return !memory_; }  // all of the tensor

 private:
  const TensorFile& file_;
  TensorView mapped_;
  Tensor memory_;
};

class WeightBinder {
 public:
  // `rename` maps a name of ours (diffusers spelling) to the file's spelling; empty = identity.
  // `component` stands in messages ("transformer").
  WeightBinder(const TensorFile& file, std::string component,
               std::function<std::string(const std::string&)> rename = {});

  // Whether the tensor is there with this shape and a float dtype (f32, bf16, f16, f64); else the
  // fault is noted.
  bool take(const std::string& name, std::initializer_list<int64_t> shape) {
    return take(name, std::span<const int64_t>(shape.begin(), shape.size()));
  }
  bool take(const std::string& name, std::span<const int64_t> shape);
  // Any one of several spellings of one tensor: its view, empty where there was a fault.
  TensorView take_any(std::initializer_list<std::string> names,
                      std::initializer_list<int64_t> shape);
  // Names (file spelling) that may stand in the file unused.
  void ignore(const std::string& name);

  // Throws Error(kModel) that lists every missing, extra, misshapen and wrongly typed tensor, each
  // by name; no-op when all is well.
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
