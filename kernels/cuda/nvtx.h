#pragma once
// Named ranges of the calling thread for NVIDIA's profilers; they nest. They cost nothing if no
// profiler runs or the build has no CUDA.
namespace weft::cuda {

void push_range(const char* name);
void pop_range();

}  // namespace weft::cuda
