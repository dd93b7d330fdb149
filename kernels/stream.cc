#include "kernels/stream.h"

#include <omp.h>

#include "kernels/ops.h"

namespace weft {

Stream Stream::cpu(int threads, Determinism determinism, const Ops* ops) {
  CHECK(threads >= 0, "threads", threads);
  Stream stream;
  stream.ops_ = ops ? ops : &cpu_ops();
  stream.threads_ = threads > 0 ? threads : omp_get_max_threads();
  stream.determinism_ = determinism;
  return stream;
}

}  // namespace weft
