#include "tests/support/hosted_ops.h"

namespace weft {

// The tables that the tests of kernels/ run over, in place of the CPU's.
std::vector<const Ops*> all_ops() { return {&test::hosted_ops()}; }

}  // namespace weft
