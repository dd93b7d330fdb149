#pragma once
// What `weft verify` runs per stage: a case folder in, the tensors it produced out.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/replica.h"
#include "io/tensor_file.h"
#include "kernels/stream.h"

namespace weft {

class Profiling;

struct VerifyOptions {
  std::vector<Device> devices{Device{}};  // of the replicas' ranks, in turns
  DType dtype = DType::kF32;
  int threads = 0;
  Determinism determinism = Determinism::kFast;
  Profiling* profiling = nullptr;
  const Ops* ops = nullptr;  // null: cpu_ops()
};

// One line of the report.
struct VerifyRow {
  std::string tensor;
  double rel_l2 = 0, cosine = 1, max_abs = 0, bound = 0;
  std::string worst;
  bool pass = false;
  std::string note;  // why it failed where numbers do not say it
};

using NamedTensors = std::map<std::string, Tensor>;

// The case's bound in a compute dtype. Error(kModel): malformed case.
double case_bound(const std::string& folder, const nlohmann::json& spec, DType dtype);

// What a layout for the case may split. Error(kModel): malformed case.
LayoutLimits stage_limits(const std::string& folder, const nlohmann::json& spec);

// Runs the case of stage `stage` at `folder` as one rank of `replica`; the root returns what all of
// them made. Integer and text stages compare by themselves and add
// rows; the others return the tensors they produced. A stage that is known and not built adds a
// FAIL row. Error(kModel): malformed case or weights.
NamedTensors run_stage(const std::string& folder, const nlohmann::json& spec,
                       const VerifyOptions& options, std::vector<VerifyRow>& rows,
                       Replica replica = {});

}  // namespace weft
