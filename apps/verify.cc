// weft verify: runs conformance cases and compares with their expected tensors.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/compare.h"
#include "apps/device.h"
#include "apps/verify_stages.h"
#include "io/json.h"

namespace weft {
namespace {

VerifyRow compare_tensor(const std::string& name, const TensorView& expected,
                         const NamedTensors& produced, double bound) {
  VerifyRow row;
  row.tensor = name;
  row.bound = bound;
  const auto found = produced.find(name);
  if (found == produced.end()) {
    row.note = "not produced";
    return row;
  }
  const TensorView& actual = found->second.view();
  if (!std::ranges::equal(actual.shape(), expected.shape())) {
    row.note = "shape " + actual.to_string_shape() + ", expected " + expected.to_string_shape();
    return row;
  }
  const Comparison result = compare(actual, expected, name == "video" ? 0.5 : 0.0);
  row.rel_l2 = result.rel_l2;
  row.cosine = result.cosine;
  row.max_abs = result.max_abs;
  row.worst = result.worst;
  const bool integer = expected.dtype == DType::kI32 || expected.dtype == DType::kI64;
  row.pass = result.finite && (integer ? result.max_abs == 0 : result.rel_l2 <= bound);
  if (!result.finite) row.note = "not finite";
  return row;
}

std::vector<VerifyRow> run_case(const std::string& folder, const VerifyOptions& options) {
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::kModel, folder + ": no such case folder");
  const nlohmann::json spec = read_json_file(folder + "/case.json");
  std::vector<VerifyRow> rows;
  const NamedTensors produced = run_stage(folder, spec, options, rows);
  const std::string expected_path = folder + "/expected.safetensors";
  if (!rows.empty()) return rows;  // the stage compared by itself
  const double bound = options.dtype == DType::kBF16
                           ? spec.value("tolerance_bf16", 2e-2)
                           : json_number(spec, "tolerance", folder + "/case.json");
  const TensorFile expected = TensorFile::open(expected_path);
  for (const std::string& name : expected.names())
    rows.push_back(compare_tensor(name, expected.view(name), produced, bound));
  return rows;
}

void print_row(const std::string& name, const VerifyRow& row, bool json) {
  if (json) {
    nlohmann::json object{{"case", name},         {"tensor", row.tensor},   {"rel_l2", row.rel_l2},
                          {"cosine", row.cosine}, {"max_abs", row.max_abs}, {"bound", row.bound},
                          {"pass", row.pass}};
    if (!row.note.empty()) object["note"] = row.note;
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  if (!row.note.empty()) {
    std::printf("%s  %s  %s  %s\n", row.pass ? "PASS" : "FAIL", name.c_str(), row.tensor.c_str(),
                row.note.c_str());
    return;
  }
  std::printf("%s  %s  %s  rel_l2 %.3g  cosine %.9f  max_abs %.3g at %s  bound %.3g\n",
              row.pass ? "PASS" : "FAIL", name.c_str(), row.tensor.c_str(), row.rel_l2, row.cosine,
              row.max_abs, row.worst.c_str(), row.bound);
}

}  // namespace

int run_verify(const Flags& flags) {
  if (flags.operands().empty())
    throw Error(ErrorKind::kUsage, "weft verify needs at least one case folder");
  require_one_rank(flags);
  require_cpu(flags);
  VerifyOptions options;
  options.dtype = flags.text("dtype") == "bf16" ? DType::kBF16 : DType::kF32;
  options.threads = static_cast<int>(flags.integer("threads", 1, 4096).value_or(0));
  options.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;

  int failed = 0, passed = 0, malformed = 0;
  for (const std::string& folder : flags.operands()) {
    std::string name = std::filesystem::path(folder).filename().string();
    if (name.empty()) name = std::filesystem::path(folder).parent_path().filename().string();
    try {
      for (const VerifyRow& row : run_case(folder, options)) {
        print_row(name, row, flags.on("json"));
        ++(row.pass ? passed : failed);
      }
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kStopped) throw;
      std::fprintf(stderr, "weft: %s: %s\n", name.c_str(), error.what());
      ++malformed;
    } catch (const nlohmann::json::exception& error) {
      std::fprintf(stderr, "weft: %s: case.json: %s\n", name.c_str(), error.what());
      ++malformed;
    }
  }
  if (!flags.on("json"))
    std::printf("%d tensors passed, %d failed, %d cases malformed\n", passed, failed, malformed);
  if (malformed) return static_cast<int>(ErrorKind::kModel);
  return failed ? 1 : 0;
}

}  // namespace weft
