#pragma once
// Plan: the schedule as data. A pure function makes the list of steps per rank
// (parallel/schedule/denoise_plan.h), one executor runs it, one checker proves it, `weft plan`
// prints it.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/partition.h"
#include "parallel/pass.h"
#include "parallel/tag.h"

namespace weft {

struct Step {
  enum class Kind : uint8_t {
    kLoad,     // make expert `pass.model` resident (and release the other where memory asks for it)
    kCompute,  // run `blocks` of a forward
    kSend,     // posts the slot it reads; never blocks
    kReceive,  // blocks until the slot it writes is there
    kWait,     // blocks until what was posted from the slots it reads is taken
    kUpdate,   // the sampler's update of step `pass.step`
    kDecode,
  };
  Kind kind = Kind::kCompute;
  Pass pass;
  BlockRange blocks{};
  int peer = -1;
  Payload payload = Payload::kControl;
  int64_t bytes = 0;
  std::vector<int> reads{}, writes{};  // slots
};

struct Plan {
  int rank = 0, ranks = 1;
  std::vector<Step> steps;
};

// Returns a description of the first fault, or nullopt where the plans are sound: every slot is
// written before it is read and is not overwritten while a send reads it; every compute of an
// expert comes after its load; sends are matched by receives in order; and there is no deadlock
// even where a send ends only when its receiver has come (rendezvous).
std::optional<std::string> check_plans(std::span<const Plan> plans);

std::string to_string(const Step& step);
std::string to_string(const Plan& plan);

}  // namespace weft
