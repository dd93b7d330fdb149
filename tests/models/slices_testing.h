#pragma once
// Shared by the tests of width slices: ranks that share a width, random models, and files in which
// only one rank's part is not NaN.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/copy.h"
#include "models/blocks.h"
#include "models/weights.h"
#include "parallel/context.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/transport/local.h"

namespace weft::test {

// Runs work(rank, its reducer) on ranks that share one width.
inline void run_parts(int parts, const std::function<void(int, Reducer&)>& work,
                      AllReduce algorithm = AllReduce::kRing) {
  run_ranks(parts, [&](Communicator& world) {
    std::vector<int> all;
    for (int rank = 0; rank < parts; ++rank) all.push_back(rank);
    TensorReducer reducer(world.group(all, 1), algorithm);
    work(world.rank(), reducer);
  });
}

// The `index`-th of `parts` slices of a width.
inline WidthSlice width_part(int64_t heads, int64_t ffn, int parts, int index) {
  return {.heads = partition(heads, parts, index), .ffn = partition(ffn, parts, index)};
}

using NamedTensors = std::map<std::string, Tensor>;

inline Tensor waves(std::initializer_list<int64_t> shape, double step) {
  Tensor out(DType::kF32, shape);
  for (int64_t i = 0; i < out.count(); ++i)
    out.as<float>()[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  return out;
}

// Random weights that keep a network's activations near one: vectors are around 1 or 0, and
// matrices are scaled by their number of inputs.
inline NamedTensors random_weights(const std::vector<TensorSpec>& specs, uint64_t seed) {
  NamedTensors tensors;
  for (const TensorSpec& spec : specs) {
    Tensor& tensor = tensors[spec.name] = Tensor(DType::kF32, spec.shape);
    const bool matrix = spec.shape.size() > 1;
    const float centre = spec.name.find("norm") != spec.name.npos && !spec.name.ends_with("bias");
    int64_t inputs = 1;
    for (size_t i = 1; i < spec.shape.size(); ++i) inputs *= spec.shape[i];
    const float scale = matrix ? 1 / std::sqrt(static_cast<float>(inputs)) : 0.2f;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const auto unit = static_cast<float>(static_cast<double>(seed >> 33) * 0x1p-30 - 1.0);
      tensor.as<float>()[i] = (matrix ? 0 : centre) + scale * unit;
    }
  }
  return tensors;
}

inline void write_file(const std::string& path, const NamedTensors& tensors) {
  std::vector<std::pair<std::string, TensorView>> list;
  for (const auto& [name, tensor] : tensors) list.emplace_back(name, tensor.view());
  write_safetensors(path, list);
}

// Writes the tensors with NaN everywhere outside of the parts that the rank holds. `keeps` returns
// false for a tensor of which it holds nothing, and otherwise sets `part`.
using Keeps = std::function<bool(const TensorSpec& tensor, TensorPart* part)>;
inline void write_poisoned(const std::string& path, const std::vector<TensorSpec>& specs,
                           const NamedTensors& tensors, const Keeps& keeps) {
  Stream stream = Stream::cpu(1);
  NamedTensors poisoned;
  for (const TensorSpec& spec : specs) {
    Tensor& tensor = poisoned[spec.name] = Tensor(DType::kF32, spec.shape);
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
    TensorPart part;
    if (!keeps(spec, &part)) continue;
    const auto held = [&](const TensorView& view) {
      return view.slice(part.dim, part.range.begin, part.range.size());
    };
    copy(stream, held(tensors.at(spec.name)), held(tensor));
  }
  write_file(path, poisoned);
}

}  // namespace weft::test
