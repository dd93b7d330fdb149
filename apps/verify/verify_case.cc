#include "apps/verify/verify_case.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/generate/profile.h"
#include "apps/tensor_compare.h"
#include "io/json.h"
#include "io/sha256.h"

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
  row.sha256 = sha256_hex({static_cast<const char*>(actual.data), actual.bytes()});
  const bool integer = expected.dtype == DType::kI32 || expected.dtype == DType::kI64;
  row.pass = result.finite && (integer ? result.max_abs == 0 : result.rel_l2 <= bound);
  if (!result.finite) row.note = "not finite";
  return row;
}

}  // namespace

std::vector<VerifyRow> verify_rank(const std::string& folder, const VerifyOptions& options,
                                   RankPlacement placement) {
  const nlohmann::json spec = read_json_file(folder + "/case.json");
  const bool root = placement.root();
  std::vector<VerifyRow> rows;
  const NamedTensors produced = run_stage(folder, spec, options, rows, std::move(placement));
  const std::string expected_path = folder + "/expected.safetensors";
  if (!root || !rows.empty()) return rows;  // the stage has compared its results itself
  const double bound = case_bound(folder, spec, options.dtype);
  const TensorFile expected = TensorFile::open(expected_path);
  for (const std::string& name : expected.names())
    rows.push_back(compare_tensor(name, expected.view(name), produced, bound));
  return rows;
}

std::vector<VerifyRow> verify_case(const std::string& folder, const VerifyOptions& options,
                                   const Ranks& ranks, const std::string& layout_text) {
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::kModel, folder + ": no such case folder");
  const LayoutLimits limits = stage_limits(folder, read_json_file(folder + "/case.json"));
  const Layout layout = parse_layout(layout_text, ranks.count, limits);
  const auto recorded = [&](int rank) {
    return options.profiling ? options.profiling->record(rank) : nullptr;
  };
  if (ranks.alone()) {
    const auto scope = recorded(0);
    return verify_rank(folder, options, {});
  }
  std::vector<std::vector<VerifyRow>> of_rank(ranks.count);
  on_ranks(ranks, [&](Communicator& world) {
    const auto scope = recorded(world.rank());
    of_rank[world.rank()] = verify_rank(folder, options, RankPlacement::of(world, layout));
  });
  std::vector<VerifyRow> rows = std::move(of_rank[0]);
  for (int rank = 1; rank < ranks.count; ++rank)
    for (size_t i = 0; i < std::min(rows.size(), of_rank[rank].size()); ++i)
      if (!of_rank[rank][i].pass || of_rank[rank][i].rel_l2 > rows[i].rel_l2)
        rows[i] = of_rank[rank][i];
  return rows;
}

}  // namespace weft
