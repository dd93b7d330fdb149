#pragma once
// The stages of `weft verify`: each runs a case folder and returns the tensors that it produced.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/parts/rank_placement.h"
#include "io/weights/tensor_file.h"
#include "kernels/stream.h"

namespace weft {

class Profiling;

struct VerifyOptions {
  std::vector<Device> devices{Device{}};  // the ranks of a replica take them in turns
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
  std::string note;    // why it failed, where the numbers do not show it
  std::string sha256;  // of the bytes that were produced; "" of a text and of what was not produced
};

using NamedTensors = std::map<std::string, Tensor>;

// The case's bound in a compute dtype. Error(kModel) for a malformed case.
double case_bound(const std::string& folder, const nlohmann::json& spec, DType dtype);

// The limits of layouts for the case. Error(kModel) for a malformed case.
LayoutLimits stage_limits(const std::string& folder, const nlohmann::json& spec);

// Runs the case of stage `stage` at `folder` as one rank of `replica`; the root returns the
// tensors that all of them made. Integer and text stages compare their results themselves and add
// rows instead. A stage that is known but not built adds a FAIL row. Error(kModel) for a malformed
// case or weights.
NamedTensors run_stage(const std::string& folder, const nlohmann::json& spec,
                       const VerifyOptions& options, std::vector<VerifyRow>& rows,
                       RankPlacement placement = {});

}  // namespace weft
