#pragma once
// Dry runs of models, which tests compare with real runs.
#include <memory>

#include "models/footprint.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/transport/silent.h"

namespace weft::test {

// The bytes of the weights that a rank packs on a CPU.
inline size_t dry_weights(const TransformerModel& model, const TransformerLoad& load) {
  DryRun run;
  return dry_load(run, model, without_values(model.tensors()), load).model->weights_bytes();
}

// The reducer of one of `parts` ranks that share a width, for dry runs.
inline std::unique_ptr<Reducer> silent_reducer(int parts, int rank,
                                               AllReduce algorithm = AllReduce::kRing) {
  if (parts == 1) return std::make_unique<IdentityReducer>();
  return std::make_unique<TensorReducer>(
      Communicator(std::make_shared<SilentTransport>(rank, parts)), algorithm);
}

// Prepare and forward of one rank on a CPU, over all tokens of the grid. `text` is the number of a
// prompt's rows and the text length.
inline Footprint dry_forward(const TransformerModel& model, const TransformerLoad& load,
                             std::array<int64_t, 3> grid, std::array<int64_t, 2> text,
                             Reducer& reducer) {
  DryRun run;
  const DryTransformer dry = dry_load(run, model, without_values(model.tensors()), load);
  SerialSeams seams;
  Context context{run.stream(),
                  run.arena(),
                  seams.mixer,
                  reducer,
                  seams.halo,
                  {},
                  TokenRanges::all(grid[0] * grid[1] * grid[2])};
  return weft::dry_forward(run, *dry.model, context, grid, text[0], text[1]);
}

inline size_t rope_bytes(const Rope& rope) {
  size_t bytes = 0;
  for (const Tensor& table : rope.table)
    if (table) bytes += table.view().bytes();
  return bytes;
}

}  // namespace weft::test
