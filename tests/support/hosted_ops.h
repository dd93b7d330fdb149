#pragma once
// Runs cuda_ops() on views of host memory, so that the tests of the CPU's op tables can test a
// device.
#include "kernels/ops.h"

namespace weft::test {

// The op table takes a host stream. Every entry copies the memory that its views span to a device
// (with gaps and overlaps), runs there, waits, and copies its outputs back. Its inputs must be
// unchanged. Packs take host weights and stay on the device.
const Ops& hosted_ops();

}  // namespace weft::test
