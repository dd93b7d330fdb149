// Tests how the flags and the launcher's variables say by which way processes reach each other.
#include "apps/command_line/process_place.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Variables = std::map<std::string, std::string>;

const Variables kAlone, kByMpirun{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}},
    kByTorchrun{{"WORLD_SIZE", "3"}, {"RANK", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "7"}},
    kBySrun{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NODELIST", "n[1-2]"}},
    kBySrunWithPmix{
        {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NODELIST", "n[1-2]"}, {"PMIX_NAMESPACE", "x"}},
    kByKubernetes{
        {"JOB_COMPLETION_INDEX", "1"}, {"WEFT_RANKS", "2"}, {"MASTER_ADDR", "weft-0.weft"}};

std::optional<ProcessPlace> place(const std::vector<std::string>& arguments,
                                  const Variables& variables) {
  return process_place(Flags::parse(kGenerate, arguments), [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string place_refusal(const std::vector<std::string>& arguments, const Variables& variables) {
  return error_of([&] { place(arguments, variables); }, ErrorKind::kUsage);
}

TEST(ProcessPlace, AutoFollowsTheLauncher) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--transport", "auto"}}) {
    EXPECT_FALSE(place(flags, kAlone));
    EXPECT_EQ(place(flags, kByMpirun)->network, Network::kMpi);
    EXPECT_EQ(place(flags, kBySrunWithPmix)->network, Network::kMpi);
    for (const Variables& launcher : {kByTorchrun, kBySrun, kByKubernetes})
      EXPECT_EQ(place(flags, launcher)->network, Network::kUcx);
  }
  EXPECT_EQ(place({}, kByTorchrun)->point.text(), "h port 7");
  EXPECT_EQ(place({"--port", "8"}, kByTorchrun)->point.text(), "h port 8");
  EXPECT_EQ(place({}, kByKubernetes)->point.text(), "weft-0.weft port 29400");
  EXPECT_EQ(place({}, kBySrun)->point.host, "n1");
  EXPECT_FALSE(place({"--transport", "local"}, kAlone));
  EXPECT_EQ(place({"--transport", "mpi"}, kByMpirun)->network, Network::kMpi);
  EXPECT_EQ(place({"--transport", "ucx"}, kByTorchrun)->network, Network::kUcx);
  // NCCL works beside them.
  EXPECT_EQ(place({"--transport", "nccl"}, kByMpirun)->network, Network::kMpi);
  EXPECT_EQ(place({"--transport", "nccl"}, kByTorchrun)->network, Network::kUcx);
}

TEST(ProcessPlace, UcxServesMpirunWhereAHostIsNamed) {
  Variables launcher = kByMpirun;
  EXPECT_TRUE(contains(place_refusal({"--transport", "ucx"}, launcher), "UCX needs MASTER_ADDR"));
  launcher["MASTER_ADDR"] = "h";
  EXPECT_EQ(place({"--transport", "ucx"}, launcher)->network, Network::kUcx);
  EXPECT_EQ(place({"--transport", "ucx"}, launcher)->launch.rank, 1);
  EXPECT_EQ(place({}, launcher)->network, Network::kMpi);
  EXPECT_EQ(place({"--transport", "ucx"}, kBySrunWithPmix)->point.host, "n1");
  launcher = kByKubernetes;
  launcher.erase("MASTER_ADDR");
  EXPECT_EQ(place_refusal({}, launcher),
            "started as 2 processes by a Kubernetes indexed Job, which does not say where they "
            "meet; UCX needs MASTER_ADDR, the host of rank 0");
}

TEST(ProcessPlace, ATransportThatTheLauncherDoesNotHaveIsRefused) {
  EXPECT_EQ(place_refusal({"--transport", "mpi"}, kAlone),
            "--transport is mpi, but the job is one process; legal here: auto, local");
  for (const char* transport : {"ucx", "nccl"})
    EXPECT_EQ(place_refusal({"--transport", transport}, kAlone),
              std::string("--transport is ") + transport +
                  ", but the job is one process; legal here: auto, local");
  EXPECT_EQ(place_refusal({"--transport", "local"}, kByMpirun),
            "--transport is local, but the job is 2 processes by mpirun; legal here: auto, mpi, "
            "ucx, nccl");
  for (const char* transport : {"local", "mpi"})
    EXPECT_EQ(place_refusal({"--transport", transport}, kByTorchrun),
              std::string("--transport is ") + transport +
                  ", but the job is 3 processes by torchrun; legal here: auto, ucx, nccl");
  EXPECT_TRUE(contains(place_refusal({"--transport", "tcp"}, kAlone), "auto|local|mpi|ucx|nccl"));
  for (const Variables& launcher : {kAlone, kByMpirun})
    EXPECT_TRUE(contains(place_refusal({"--port", "7"}, launcher), "legal here: no --port"));
}

TEST(ProcessPlace, NodesAreALauncher) {
  const auto node = place({"--nodes", "a,b,a", "--node-rank", "2"}, kAlone);
  ASSERT_TRUE(node);
  EXPECT_EQ(node->network, Network::kUcx);
  EXPECT_EQ(node->launch.rank, 2);
  EXPECT_EQ(node->launch.ranks, 3);
  EXPECT_EQ(node->launch.ranks_here, 2);
  EXPECT_EQ(node->point.text(), "a port 29400");
  EXPECT_EQ(place({"--nodes", "a,b", "--node-rank", "0", "--port", "9"}, kAlone)->point.port, 9);

  EXPECT_EQ(place_refusal({"--nodes", "a,b"}, kAlone),
            "--nodes is a,b, which needs --node-rank; legal: 0 ... 1");
  EXPECT_EQ(place_refusal({"--nodes", "a,b", "--node-rank", "2"}, kAlone),
            "--node-rank is 2, but --nodes names 2 hosts; legal: 0 ... 1");
  EXPECT_EQ(place_refusal({"--node-rank", "0"}, kAlone),
            "--node-rank is 0, which needs --nodes HOST,HOST");
  for (const char* hosts : {"a", "a,,b", ",a", ","})
    EXPECT_TRUE(contains(place_refusal({"--nodes", hosts, "--node-rank", "0"}, kAlone),
                         "legal: 2 ... 1024 names of hosts"))
        << hosts;
  EXPECT_EQ(place_refusal({"--nodes", "a,b", "--node-rank", "0"}, kByMpirun),
            "--nodes is a,b, but the job was started as 2 processes by mpirun; legal: no --nodes");
  EXPECT_EQ(
      place_refusal({"--nodes", "a,b", "--node-rank", "0", "--transport", "mpi"}, kAlone),
      "--transport is mpi, but the job is 2 processes by --nodes; legal here: auto, ucx, nccl");
}

// A layout says how many threads there are; processes are as many as they are.
TEST(ProcessPlace, ALayoutOfNodesImpliesNoThreads) {
  EXPECT_EQ(
      Flags::parse(kGenerate, std::vector<std::string>{"--layout", "ulysses=2"}).text("ranks"),
      "2");
  EXPECT_FALSE(Flags::parse(kGenerate, std::vector<std::string>{"--layout", "ulysses=2", "--nodes",
                                                                "a,b", "--node-rank", "0"})
                   .given("ranks"));
}

}  // namespace
}  // namespace weft::test
