#include "kernels/host_tasks.h"

#include "kernels/cpu/parallel_for.h"

namespace weft {

void host_tasks(const Stream& stream, int64_t n, const std::function<void(int64_t)>& body) {
  cpu::parallel_tasks(stream, n, body);
}

}  // namespace weft
