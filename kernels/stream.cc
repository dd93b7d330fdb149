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

Stream Stream::of_queue(Device device, std::shared_ptr<DeviceQueue> queue, const Ops& ops,
                        int threads, Determinism determinism) {
  Stream stream = cpu(threads, determinism, &ops);
  stream.device_ = device;
  stream.queue_ = std::move(queue);
  return stream;
}

}  // namespace weft
