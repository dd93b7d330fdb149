#pragma once
// Flags about the place of a job that follow from other flags: --gpus, --device auto, and the
// number of ranks of a layout.
#include <optional>
#include <string>

#include "apps/command_line/flags.h"
#include "parallel/mesh.h"

namespace weft {

// Fills in --device and --ranks: --gpus N is --device cuda --ranks N; --device auto is cuda where
// the build and the machine have it, else cpu; a layout without --ranks takes as many ranks as its
// axes multiply to, but under a launcher the processes are the ranks. Error(kUsage) where flags
// contradict each other and where --gpus finds no GPU.
void resolve_placement(Flags& flags);

// A header's words on a device that --device auto chose: " (chosen by --device auto)", with the
// reason where a build for GPUs takes the CPU; "" where the user chose it.
std::string chosen_by_auto(const Flags& flags);

// The text of --layout, or the one that --ulysses N and the like put together ("auto" without
// either), followed by --text-ranks, --vae-ranks and --decode-rank. Error(kUsage) where the layout
// is given twice.
std::string layout_text(const Flags& flags);

// The number that this text gives an axis, if any.
std::optional<int64_t> parts_along(Axis axis, const Flags& flags);

// The flag that splits this axis, "tp" for tensor.
const char* flag_of_axis(Axis axis);

}  // namespace weft
