#pragma once
// cuda_ops() behind views of the host: what tests of the CPU's tables call runs on a device.
#include "kernels/ops.h"

namespace weft::test {

// Of a stream of the host. Every entry copies the memory its views span to a device as it lies
// (gaps and overlaps too), runs there, waits, and copies what it may write back; what it may only
// read must be unchanged. Packs take weights of the host and stay on the device.
const Ops& hosted_ops();

}  // namespace weft::test
