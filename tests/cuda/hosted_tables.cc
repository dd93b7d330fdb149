#include "tests/support/hosted_ops.h"

namespace weft {

// The tests of kernels/ run over these tables in place of the CPU's.
std::vector<const Ops*> all_ops() { return {&test::hosted_ops()}; }

}  // namespace weft
