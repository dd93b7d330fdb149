// Runs golden cases under many layouts with ranks that are the processes of a launcher, or else
// threads, and prints a line for each tensor that a case expects: with a hash of its bits.
// tests/process_cases.sh compares the lines of threads and processes.
// usage: process_cases_test DEVICE RANKS SEEDS CASE[@LAYOUT]...
//   DEVICE    cpu, or cuda: rank r has GPU r, and those of processes exchange by NCCL
//   SEEDS     so often each is run again with messages that random delays hold up
//   CASE      of tests/golden; under every legal layout where none is given
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/verify/verify_case.h"
#include "engine/generation/layout_limits.h"
#include "io/json.h"
#include "parallel/transport/local.h"
#include "tests/support/process_rank.h"
#include "tests/support/random_delays.h"

namespace weft::test {
namespace {

constexpr int kDelayUs = 300;

using Rows = std::vector<VerifyRow>;
// Calls work(world) as every rank of this process. Seed 0: no delays.
using RunRanks =
    std::function<void(int seed, const std::function<void(Communicator& world)>& work)>;

// Returns the rows of the first rank; none in a process that does not hold it.
Rows rows_of(const std::string& folder, const Layout& layout, bool gpus, int seed,
             const RunRanks& run) {
  Rows rows;
  run(seed, [&](Communicator& world) {
    const RankPlacement placement =
        world.size() == 1 ? RankPlacement() : RankPlacement::of(world, layout);
    const VerifyOptions options{.devices = {device_of_rank(gpus, world.rank())}, .threads = 1};
    Rows own = verify_rank(folder, options, placement);
    if (world.rank() == 0) rows = std::move(own);
  });
  return rows;
}

// Returns a line for each tensor that is not the expected one, or that a delay changes.
std::vector<std::string> run_golden(const std::string& operand, bool gpus, int ranks, int seeds,
                                    const RunRanks& run) {
  const size_t at = operand.find('@');
  const std::string name = operand.substr(0, at), folder = "tests/golden/" + name;
  const LayoutLimits limits = stage_limits(folder, read_json_file(folder + "/case.json"));
  const std::vector<Layout> layouts =
      at == std::string::npos ? legal_layouts(ranks, limits)
                              : std::vector{parse_layout(operand.substr(at + 1), ranks, limits)};
  std::vector<std::string> faults;
  for (const Layout& layout : layouts) {
    if (layout[Axis::kData] > 2) continue;  // more of the same
    const std::string job = name + " [" + to_string(layout) + "] ";
    const Rows rows = rows_of(folder, layout, gpus, 0, run);
    for (const VerifyRow& row : rows) {
      std::printf("%s%s %s\n", job.c_str(), row.tensor.c_str(), row.sha256.c_str());
      if (!row.pass)
        faults.push_back(job + row.tensor + ": rel_l2 " + std::to_string(row.rel_l2) + ", bound " +
                         std::to_string(row.bound) + " " + row.note);
    }
    for (int seed = 1; seed <= seeds; ++seed) {
      const Rows late = rows_of(folder, layout, gpus, seed, run);
      for (size_t i = 0; i < rows.size(); ++i)
        if (late.at(i).sha256 != rows[i].sha256)
          faults.push_back(job + rows[i].tensor + ": delays of seed " + std::to_string(seed) +
                           " change it");
    }
  }
  return faults;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  using namespace weft;
  using namespace weft::test;
  if (argc < 5) return 2;
  const bool gpus = std::string(argv[1]) == "cuda";
  const int ranks = std::atoi(argv[2]), seeds = std::atoi(argv[3]);
  const auto run_all = [&](const RunRanks& run) {
    std::vector<std::string> faults;
    for (int i = 4; i < argc; ++i)
      for (const std::string& fault : run_golden(argv[i], gpus, ranks, seeds, run))
        faults.push_back(fault);
    return faults;
  };
  if (detect_launch().launcher != Launcher::kNone)
    return process_main([&](Communicator&) {
      return run_all([&](int seed, const auto& work) {
        const std::shared_ptr<Transport> transport = rank_transport(gpus);
        Communicator world(seed == 0 ? transport
                                     : std::make_shared<RandomDelays>(transport, seed, kDelayUs));
        work(world);
      });
    });
  const std::vector<std::string> faults = run_all([&](int seed, const auto& work) {
    run_ranks(ranks, work,
              {.rendezvous = seed % 2 == 1,
               .delay_seed = static_cast<uint64_t>(seed),
               .max_delay_us = kDelayUs});
  });
  for (const std::string& fault : faults) std::fprintf(stderr, "FAIL  %s\n", fault.c_str());
  return faults.empty() ? 0 : 1;
}
