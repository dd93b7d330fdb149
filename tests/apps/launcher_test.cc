// Ranks that are processes, as launchers start them: how many threads each runs, and who prints
// errors of usage.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "kernels/linear.h"
#include "parallel/bootstrap/cpu_share.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using namespace test;

const std::string kMpirun = "mpirun --allow-run-as-root --oversubscribe ";
const std::string kDryRun =
    "generate --model models/pocket -p x --num-frames 5 --steps 2 --dry-run --json ";

bool has_mpirun() { return std::system("command -v mpirun > /dev/null") == 0; }

// The threads that a dry run reports; the command may begin with a launcher.
int64_t dry_threads(const std::string& arguments, const std::string& before = "") {
  const Outcome outcome = run(arguments, before + WEFT_BINARY);
  EXPECT_EQ(outcome.code, 0) << before << arguments << "\n" << outcome.err;
  return outcome.code == 0 ? nlohmann::json::parse(outcome.out).at("threads").get<int64_t>() : -1;
}

using Launchers = Cli;

TEST_F(Launchers, ARankRunsItsShareOfTheCpus) {
  const ThreadCount all = threads_of_rank(cpu_pools());
  const int cpus = all.threads, half = threads_of_rank(cpu_pools(), 2).threads;
  EXPECT_EQ(dry_threads(kDryRun), cpus);
  EXPECT_EQ(dry_threads(kDryRun + "--ranks 2 --layout cfg=2"), half);
  EXPECT_EQ(dry_threads(kDryRun + "--threads 3 "), 3);
  EXPECT_EQ(dry_threads(kDryRun, "SLURM_CPUS_PER_TASK=1 "), 1);
  EXPECT_EQ(dry_threads(kDryRun, "OMP_NUM_THREADS=1 "), 1);
  EXPECT_EQ(dry_threads(kDryRun + "--threads 3 ", "SLURM_CPUS_PER_TASK=1 "), 3);
  EXPECT_EQ(dry_threads(kDryRun, "SLURM_CPUS_PER_TASK=4096 "), cpus);
  const std::string rates = " --device-gflops 100 --device-gbs 10";
  const std::string plan = "plan --model models/pocket --json --layout cfg=2 --ranks 2" + rates;
  EXPECT_EQ(dry_threads(plan), half);
  EXPECT_EQ(dry_threads(plan, "SLURM_CPUS_PER_TASK=1 "), 1);
  const std::string stream = "plan --model models/pocket_avatar --json" + rates;
  EXPECT_EQ(dry_threads(stream), cpus);
  EXPECT_EQ(dry_threads(stream, "SLURM_CPUS_PER_TASK=1 "), 1);
  const auto cores = [](const std::string& before) {
    for (const nlohmann::json& check : json_lines_of("doctor --json", before + WEFT_BINARY))
      if (check.at("check") == "cores") return check.at("detail").get<std::string>();
    return std::string();
  };
  EXPECT_NE(cores("").find(" usable, " + to_string(all)), std::string::npos);
  EXPECT_NE(cores("SLURM_CPUS_PER_TASK=1 ").find(", 1 thread a rank: SLURM_CPUS_PER_TASK"),
            std::string::npos);
}

// A binding stays, but that of mpirun, which is the default of it and no user's wish.
TEST_F(Launchers, BindingsAreKept) {
  const int cpus = threads_of_rank(cpu_pools()).threads;
  if (cpus < 2) GTEST_SKIP() << "one CPU";
  const std::string list = affinity().list, first = list.substr(0, list.find_first_of("-,"));
  const std::string bound = "taskset -c " + first + " ";
  EXPECT_EQ(dry_threads(kDryRun, bound), 1);
  EXPECT_EQ(dry_threads(kDryRun, "SLURM_STEP_NUM_TASKS=1 SLURM_CPUS_PER_TASK=2 " + bound), 1);
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun";
  EXPECT_EQ(dry_threads(kDryRun, "mpirun --allow-run-as-root --bind-to core -n 1 "), cpus);
  EXPECT_EQ(
      dry_threads(kDryRun,
                  "mpirun --allow-run-as-root --bind-to core -n 1 sh -c '\"$@\"; exit $?' sh "),
      cpus);
  EXPECT_EQ(dry_threads(kDryRun, bound + kMpirun + "-n 1 "), 1);
  EXPECT_EQ(dry_threads(kDryRun + "--layout cfg=2", kMpirun + "-n 2 "), std::max(1, cpus / 2));
  EXPECT_EQ(dry_threads(kDryRun + "--layout cfg=2", "SLURM_CPUS_PER_TASK=1 " + kMpirun + "-n 2 "),
            1);
}

// OpenMP tells of every thread that it starts.
TEST_F(Launchers, OneThreadStartsNoOther) {
  const std::string shown = "OMP_DISPLAY_AFFINITY=TRUE OMP_AFFINITY_FORMAT='thread %n of %N' ";
  const auto told = [&](const std::string& more) {
    const Outcome outcome =
        run("generate --model models/pocket -p x --num-frames 5 --steps 2 --progress none "
            "--overwrite -o " +
                path("a.mp4 ") + more,
            shown + WEFT_BINARY);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_NE(told("--threads 2").find("thread 1 of 2"), std::string::npos);
  const std::string int8 = cpu_has_int8() ? "--weights int8 " : "";
  for (const std::string& more :
       {std::string("--threads 1"), std::string("--threads 1 --dtype f32"), "--threads 1 " + int8})
    EXPECT_EQ(told(more).find("thread 1 of"), std::string::npos) << more;
}

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
  return count;
}

// Starts processes with the variables of a launcher; RANK stands for the number of each. Expects
// that all end with `code`, or that none ends with 0, and returns what they print together.
std::string started(const std::string& variables, const std::string& arguments,
                    std::optional<int> code) {
  const std::string program = "sh -c 'for rank in 0 1 2; do (" + variables + " " WEFT_BINARY " " +
                              arguments + "; echo code $?) & done; wait' ";
  std::string text = program;
  for (size_t at = 0; (at = text.find("=RANK", at)) != std::string::npos;)
    text.replace(at, 5, "=$rank");
  const Outcome outcome = run("", text);
  const std::string line = "code " + std::to_string(code.value_or(0)) + "\n";
  EXPECT_EQ(count_of(outcome.out, line), code ? 3u : 0u) << variables << "\n"
                                                         << outcome.out << outcome.err;
  return outcome.err;
}

// A port that other tests are unlikely to take.
std::string port_here() { return std::to_string(21000 + getpid() % 8000); }

// The variables and flags of launchers whose processes meet.
std::vector<std::pair<std::string, std::string>> meeting_launchers() {
  const std::string port = port_here(), at = "MASTER_ADDR=localhost MASTER_PORT=" + port;
  return {
      {"SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=RANK " + at, ""},
      {"WORLD_SIZE=3 RANK=RANK LOCAL_RANK=RANK " + at, ""},
      {"JOB_COMPLETION_INDEX=RANK WEFT_RANKS=3 " + at, ""},
      {"A=RANK", "--nodes localhost,localhost,localhost --port " + port + " --node-rank=RANK "}};
}

TEST_F(Launchers, OneProcessPrintsAnErrorOfUsageWhereTheyMeet) {
  for (const auto& [variables, flags] : meeting_launchers())
    for (const std::string& wrong :
         {"generate --model models/pocket -p x --steps none " + flags,
          "verify tests/golden/dit_wan_tiny --layout cfg=3 --no-such-flag " + flags}) {
      const std::string said = started(variables, wrong, 2);
      EXPECT_EQ(lines(said), 1u) << variables << flags << "\n" << said;
    }
}

// The others wait for the one that has the error, and end with it.
TEST_F(Launchers, AnErrorOfUsageOfOneProcessIsPrinted) {
  for (const auto& [variables, flags] : meeting_launchers())
    for (const std::string wrong : {"0", "1", "2"}) {
      const std::string command =
          "verify tests/golden/dit_wan_tiny --threads $([ $rank = " + wrong +
          " ] && echo none || echo 1) " + flags;
      const std::string said = started(variables, command, std::nullopt);
      EXPECT_EQ(count_of(said, "--threads is"), 1u) << variables << flags << "\n" << said;
      const std::string others = "weft: start-up: rank " + wrong + " has ended with an error";
      EXPECT_EQ(count_of(said, others) > 0, wrong != "0") << variables << flags << "\n" << said;
    }
}

TEST_F(Launchers, OneProcessPrintsAnErrorOfUsage) {
  const std::string wrong = "generate --model models/pocket -p x --steps none";
  for (const char* variables :
       {"SLURM_STEP_NUM_TASKS=3 PMIX_NAMESPACE=slurm.pmix.1.0 SLURM_PROCID=RANK",
        "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=RANK",
        "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=RANK", "PMI_SIZE=3 PMI_RANK=RANK",
        "PALS_RANKID=RANK"}) {
    const std::string said = started(variables, wrong, 2);
    EXPECT_EQ(lines(said), 1u) << variables << "\n" << said;
    EXPECT_TRUE(said.starts_with("weft: --steps is 'none'")) << said;
  }
  EXPECT_EQ(lines(started("PMI_SIZE=3 PMI_RANK=RANK", "no-such-command", 2)), 1u);
  EXPECT_EQ(started("PMI_SIZE=3 PMI_RANK=RANK", "", 2), run("").err);
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun";
  const auto started_by_mpirun = [](const std::string& arguments) {
    const Outcome outcome = run(arguments, kMpirun);
    EXPECT_EQ(outcome.code, 2);
    size_t said = 0;
    for (const char* word : {"weft: --steps is", "weft: unknown flag"})
      said += count_of(outcome.err, word);
    EXPECT_EQ(said, 1u) << outcome.err;
  };
  started_by_mpirun("-n 3 " WEFT_BINARY " " + wrong);
  started_by_mpirun("-n 3 " WEFT_BINARY " " + wrong + " --no-such-flag");
  // The first process has no error and waits for the other.
  started_by_mpirun("-n 1 " WEFT_BINARY " generate --model models/pocket -p x --steps 2 -o " +
                    path("a.mp4") + " : -n 1 " WEFT_BINARY " " + wrong);
}

// The processes of a launcher that connects none of them would all draw the whole job.
TEST_F(Launchers, OtherMpisAreRefusedByName) {
  for (const std::string& command :
       {std::string("generate --model models/pocket -p x -o ") + path("a.mp4"),
        std::string("verify tests/golden/dit_wan_tiny"),
        std::string("complete --model models/pocket/language x"),
        std::string("stream --model models/pocket_avatar --say x -o ") + path("a.mp4")}) {
    const std::string said = started("PMI_SIZE=3 PMI_RANK=RANK", command, 2);
    EXPECT_NE(said.find("MPICH or Intel MPI (PMI_SIZE is 3)"), std::string::npos) << said;
    EXPECT_EQ(lines(said), 1u) << said;
  }
  EXPECT_TRUE(files().empty());
  const Outcome doctor = run("doctor --json", "PMI_SIZE=3 PMI_RANK=0 " WEFT_BINARY);
  EXPECT_EQ(doctor.code, 1);
  EXPECT_NE(doctor.out.find("\"check\":\"launcher\""), std::string::npos);
}

}  // namespace
}  // namespace weft
