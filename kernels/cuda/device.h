#pragma once
// The CUDA backend's door. Built from device.cc where WEFT_CUDA is on, else from unavailable.cc.
#include <string>

#include "kernels/stream.h"

namespace weft {

// The number of CUDA devices; throws Error(kUsage) naming the build option where there is no
// backend.
int cuda_device_count();

// "driver 12.4, toolkit 12.4"; "" where there is no backend.
std::string cuda_versions();

// A stream on CUDA device `index`. Throws Error(kUsage) while no CUDA op table exists.
Stream cuda_stream(int index);

}  // namespace weft
