#pragma once
// Plan: the schedule as data. A pure function makes the list of steps per rank, one executor runs
// it, one checker proves it, `weft plan` prints it. The serial plan is the one-rank answer.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/partition.h"
#include "parallel/pass.h"

namespace weft {

enum class Payload : uint8_t { kNone, kHidden, kKV, kLatent, kText };

struct Step {
  enum class Kind : uint8_t {
    kLoad,     // make expert `pass.model` resident (and release the other where memory asks for it)
    kCompute,  // run `blocks` of a forward
    kSend,
    kReceive,
    kWait,
    kUpdate,  // the sampler's update of step `pass.step`
    kDecode,
    kRelease,
  };
  Kind kind = Kind::kCompute;
  Pass pass;
  BlockRange blocks{};
  int peer = -1;
  Payload payload = Payload::kNone;
  int64_t bytes = 0;
  std::vector<int> reads{}, writes{};  // slots
};

struct Plan {
  int rank = 0, ranks = 1;
  std::vector<Step> steps;
};

struct SerialPlanConfig {
  struct DenoiseStep {
    int model = 0;
    int branches = 1;  // 2 with guidance
  };
  std::vector<DenoiseStep> steps;
  std::vector<int> blocks;  // blocks of each expert
};

// Slots: 0 = the latent, 1 + branch = that branch's velocity, 3 = the frames.
Plan plan_serial(const SerialPlanConfig& config);

// nullopt = sound, else the first fault in words: every slot written before it is read, every
// compute of an expert after its load, sends matched by receives in order.
std::optional<std::string> check_plans(std::span<const Plan> plans);

std::string to_string(const Step& step);
std::string to_string(const Plan& plan);

}  // namespace weft
