#pragma once
// Reads the folder of a golden case, and compares tensors with it: the relative L2 error must be
// within the case's bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/weights/tensor_file.h"
#include "kernels/copy.h"
#include "kernels/ops.h"
#include "tests/support/compare.h"

namespace weft::test {

// Copies a tensor to aligned memory of its own. Floats become f32.
inline Tensor load_tensor(const TensorFile& file, const std::string& name) {
  Stream stream = Stream::cpu(1);
  const TensorView view = file.view(name);
  Tensor tensor(view.dtype == DType::kI32 ? DType::kI32 : DType::kF32, view.shape());
  copy(stream, view, tensor);
  return tensor;
}

// A run of a golden case: the table "reference" or "cpu", and the type of values.
struct OpsRun {
  const char* ops;
  DType dtype;
  const Ops& table() const { return ops == std::string("reference") ? reference_ops() : cpu_ops(); }
};
inline constexpr OpsRun kOpsRuns[] = {{"reference", DType::kF32},
                                      {"reference", DType::kBF16},
                                      {"cpu", DType::kF32},
                                      {"cpu", DType::kBF16}};

// The path of a part of a golden case's model: the one that its case.json names, or else the folder
// in model/.
inline std::string golden_part(const std::string& name, const std::string& part) {
  const std::string folder = "tests/golden/" + name + "/";
  const nlohmann::json spec = read_json_file(folder + "case.json");
  return folder + spec.value("model", nlohmann::json::object()).value(part, "model/" + part);
}

// Tests that use it must run in the repository's root.
struct GoldenCase {
  explicit GoldenCase(const std::string& name)
      : folder("tests/golden/" + name),
        spec(read_json_file(folder + "/case.json")),
        inputs(TensorFile::open(folder + "/inputs.safetensors")),
        expected(TensorFile::open(folder + "/expected.safetensors")) {}

  Tensor input(const std::string& name) const { return load_tensor(inputs, name); }

  double bound(DType dtype) const {
    return dtype == DType::kF32 ? spec.at("tolerance").get<double>()
                                : spec.value("tolerance_bf16", 2e-2);
  }

  testing::AssertionResult matches(const std::string& name, const TensorView& got,
                                   DType dtype) const {
    const Tensor want = load_tensor(expected, name);
    if (got.to_string_shape() != want.view().to_string_shape())
      return testing::AssertionFailure() << name << " is " << got.to_string_shape() << ", expected "
                                         << want.view().to_string_shape();
    const std::vector<double> a = to_f64(got), b = to_f64(want);
    const double error = relative_l2(a, b);
    std::printf("[  golden  ] %s %s: relative L2 %.3g, bound %.3g\n", folder.c_str(), name.c_str(),
                error, bound(dtype));
    if (error <= bound(dtype)) return testing::AssertionSuccess();
    size_t worst = 0;
    for (size_t i = 0; i < a.size(); ++i)
      if (!(std::fabs(a[i] - b[i]) <= std::fabs(a[worst] - b[worst]))) worst = i;
    return testing::AssertionFailure()
           << folder << " " << name << ": relative L2 " << error << " over " << bound(dtype)
           << ", worst at " << coordinate(got, static_cast<int64_t>(worst)) << ": " << a[worst]
           << ", expected " << b[worst];
  }

  // The PSNR in dB of pictures in -1 ... 1; values beyond are clamped, as in a file.
  double psnr(const std::string& name, const TensorView& got) const {
    const std::vector<double> a = to_f64(got), b = to_f64(load_tensor(expected, name));
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i)
      squares += std::pow(std::clamp(a[i], -1.0, 1.0) - std::clamp(b[i], -1.0, 1.0), 2);
    const double psnr = 10 * std::log10(4 * static_cast<double>(a.size()) / squares);
    std::printf("[  golden  ] %s %s: PSNR %.1f dB\n", folder.c_str(), name.c_str(), psnr);
    return psnr;
  }

  std::string folder;
  nlohmann::json spec;
  TensorFile inputs, expected;
};

}  // namespace weft::test
