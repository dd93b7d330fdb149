// weft verify: runs conformance cases and compares with their expected tensors.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/profile.h"
#include "apps/verify/verify_case.h"
#include "io/json.h"

namespace weft {
namespace {

void print_row(const std::string& name, const VerifyRow& row, bool json) {
  if (json) {
    Json object{{"case", name},         {"tensor", row.tensor},   {"rel_l2", row.rel_l2},
                {"cosine", row.cosine}, {"max_abs", row.max_abs}, {"bound", row.bound},
                {"pass", row.pass}};
    if (!row.note.empty()) object["note"] = row.note;
    if (!row.sha256.empty()) object["sha256"] = row.sha256;
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  if (!row.note.empty()) {
    std::printf("%s  %s  %s  %s\n", row.pass ? "PASS" : "FAIL", printable(name).c_str(),
                printable(row.tensor).c_str(), printable(row.note).c_str());
    return;
  }
  std::printf("%s  %s  %s  rel_l2 %.3g  cosine %.9f  max_abs %.3g at %s  bound %.3g\n",
              row.pass ? "PASS" : "FAIL", printable(name).c_str(), printable(row.tensor).c_str(),
              row.rel_l2, row.cosine, row.max_abs, row.worst.c_str(), row.bound);
}

}  // namespace

int run_verify(const Flags& flags) {
  if (flags.operands().empty())
    throw Error(ErrorKind::kUsage, "weft verify needs at least one case folder");
  VerifyOptions options;
  options.dtype = flags.text("dtype") == "bf16" ? DType::kBF16 : DType::kF32;
  set_attention_path(flags, flags.text("attention-path"));
  const Ranks ranks = ranks_of(flags);
  options.devices.clear();
  for (int rank = 0; rank < ranks.count; ++rank)
    options.devices.push_back(device_of(flags, ranks, rank));
  options.threads = threads_per_rank(flags, ranks);
  options.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;
  Profiling profiling(flags, ranks);
  options.profiling = &profiling;
  options.ops = profiling.ops();

  int failed = 0, passed = 0, malformed = 0;
  profiling.around({{"weft", version_text()}}, [&] {
    for (const std::string& folder : flags.operands()) {
      std::string name = std::filesystem::path(folder).filename().string();
      if (name.empty()) name = std::filesystem::path(folder).parent_path().filename().string();
      try {
        for (const VerifyRow& row : verify_case(folder, options, ranks, layout_text(flags))) {
          print_row(name, row, flags.on("json"));
          ++(row.pass ? passed : failed);
        }
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kStopped) throw;
        std::fprintf(stderr, "weft: %s: %s\n", printable(name).c_str(),
                     printable(error.what()).c_str());
        ++malformed;
      }
    }
  });
  if (ranks.speaks && !flags.on("json"))
    std::printf("%d tensors passed, %d failed, %d cases malformed\n", passed, failed, malformed);
  if (malformed) return static_cast<int>(ErrorKind::kModel);
  return failed ? 1 : 0;
}

}  // namespace weft
