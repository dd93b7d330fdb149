#pragma once
// Rank: the equipment of one rank of a job.
#include "engine/parts/components.h"
#include "engine/parts/rank_placement.h"
#include "kernels/arena.h"
#include "kernels/check.h"
#include "kernels/stream.h"

namespace weft {

struct Rank {
  // At the placement of its parts.
  Rank(Stream& on, Arena& workspace, Components& of)
      : Rank(on, workspace, static_cast<Experts&>(of), of.placement()) {
    components = &of;
  }
  Rank(Stream&, Arena&, Components&, const RankPlacement&) = delete;  // its parts have one
  // Without encoders and decoders: of a case that has the experts alone.
  Rank(Stream& on, Arena& workspace, Experts& of, const RankPlacement& at)
      : stream(on), arena(workspace), experts(of), placement(at) {}

  Components& parts() const {
    CHECK(components, "this rank has experts alone");
    return *components;
  }

  Stream& stream;
  Arena& arena;
  Experts& experts;
  const RankPlacement& placement;
  Components* components = nullptr;
  // The ranks of a stream whose decoder is no rank of the placement: the placement's ranks, and
  // the decoder after them, which has a placement of its own.
  Communicator* world = nullptr;
};

}  // namespace weft
