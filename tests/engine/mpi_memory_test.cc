// Memory per rank, with processes. Each loads its slice of a random model of Wan 1.3B's width. Its
// anonymous memory exceeds that of an empty process of the same job by the bytes of the formula
// (a dry run, which includes replicated parts).
// usage: mpi_memory_test FILE BLOCKS            writes the model, bf16
//        mpi_memory_test FILE BLOCKS LAYOUT     under mpirun with one process more than the layout
//                                               has ranks: the last stays empty
//        ... --json                             one line of figures
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/parts/rank_placement.h"
#include "models/random_weights/random_weights.h"
#include "tests/models/footprint_testing.h"
#include "tests/support/process_rank.h"

namespace weft::test {
namespace {

constexpr double kMemoryBound = 0.1;

// Returns the resident bytes of this process from /proc/self/status ("RssAnon:", "RssFile:").
int64_t resident_bytes(const std::string& kind) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kind)) return std::atoll(line.c_str() + kind.size()) * 1024;
  throw Error(ErrorKind::kMemory, "/proc/self/status has no " + kind);
}

std::vector<std::string> work_memory(Communicator& world, const std::string& path,
                                     const WanConfig& config, const std::string& text, bool json) {
  const int ranks = world.size() - 1;
  const Layout layout = parse_layout(
      text, ranks, {.heads = config.heads, .layers = config.layers, .ffn = config.ffn_dim});
  Stream stream = Stream::cpu(1);
  std::optional<TensorFile> file;  // stays open, as in a job
  std::optional<WanTransformer> model;
  size_t predicted = 0;
  if (world.rank() < ranks) {
    const TransformerLoad load =
        RankPlacement(layout, world.rank()).load(config.traits(), {.dtype = DType::kBF16});
    predicted = dry_weights(*make_wan_model(config), load);
    file = TensorFile::open(path);
    model = WanTransformer::load(stream, *file, config, load);
  }
  const auto all = gather(
      world, {resident_bytes("RssAnon:"), static_cast<int64_t>(predicted),
              resident_bytes("RssFile:"), static_cast<int64_t>(file ? file->bytes_read() : 0)});
  std::vector<std::string> faults;
  if (world.rank() != 0) return faults;
  const std::vector<int64_t>& empty = all[ranks];
  const auto mib = [](int64_t bytes) {
    return std::round(static_cast<double>(bytes) / 0x1p20 * 10) / 10;
  };
  const auto whole = static_cast<double>(
      dry_weights(*make_wan_model(config), {.dtype = DType::kBF16, .blocks = {}}));
  nlohmann::json figures{{"op", "memory_per_rank"},
                         {"impl", "mpi"},
                         {"dtype", "bf16"},
                         {"shape", "wan 1.3B"},
                         {"layers", config.layers},
                         {"layout", text},
                         {"empty_mib", mib(empty[0])},
                         {"whole_mib", std::round(whole / 0x1p20)}};
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t held = all[rank][0] - empty[0], formula = all[rank][1];
    const int64_t mapped = all[rank][2] - empty[2];
    const double error = static_cast<double>(held) / static_cast<double>(formula) - 1;
    const double share = static_cast<double>(held) / whole;
    char line[240];
    std::snprintf(line, sizeof line,
                  "%s rank %d: %.1f MiB anonymous, formula %.1f MiB (%+.2f %%), %.1f %% of the "
                  "whole; %.1f MiB by pread, %.1f MiB mapped",
                  text.c_str(), rank, mib(held), mib(formula), 100 * error, 100 * share,
                  mib(all[rank][3]), mib(mapped));
    if (!json) std::printf("%s\n", line);
    figures["anonymous_mib"].push_back(mib(held));
    figures["formula_mib"].push_back(mib(formula));
    figures["mapped_mib"].push_back(mib(mapped));
    if (!(std::abs(error) <= kMemoryBound)) faults.emplace_back(line);
    if (!(share < 0.75)) faults.push_back(std::string(line) + ": nothing is split");
    if (!(static_cast<double>(mapped) < kMemoryBound * static_cast<double>(formula)))
      faults.push_back(std::string(line) + ": pages of the file are held");
  }
  if (json) std::printf("%s\n", figures.dump().c_str());
  return faults;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string path = argv[1], layout = argc > 3 ? argv[3] : "";
  const weft::WanConfig config = weft::wan_1_3b(std::atoi(argv[2]));
  if (layout.empty()) {
    weft::write_random(path, weft::random_wan(config));
    return 0;
  }
  const bool json = argc > 4 && std::string(argv[4]) == "--json";
  return weft::test::process_main([&](weft::Communicator& world) {
    return weft::test::work_memory(world, path, config, layout, json);
  });
}
