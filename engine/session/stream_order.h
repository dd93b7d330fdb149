#pragma once
// StreamOrder: what the first rank of a stream tells the others before each run. All ranks of the
// world hear it, also those that an engine's split has no use for. It has 80 bytes.
#include "kernels/check.h"
#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace weft {

struct StreamOrder {
  enum class Kind : int64_t { kRun, kEnd, kFailed };  // kEnd, kFailed: no run follows
  Kind kind = Kind::kRun;
  int64_t engine = 0;  // counts the first rank's engines
  Layout layout{};
  bool decodes_apart = false;
  int64_t prompt_rows = 0;     // that follow; 0: the prompt is that of the run before
  bool shows_anew = false;     // the latents of the picture follow
  int64_t code = 0, text = 0;  // kFailed: an ErrorKind, and the bytes of its message

  void tell(Communicator& world) const;  // on the first rank
  static StreamOrder heard(Communicator& world);
};

// Ends follow_streams() on the other ranks, with the error that ended the work of the first one.
void dismiss_streams(Communicator& world, const Error* failed);
// The error that a kFailed order announces.
Error failure_heard(Communicator& world, const StreamOrder& order);

}  // namespace weft
