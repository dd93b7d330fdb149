#pragma once
// The benches of weft_measure. They print a table, or with --json one object per line, of which
// plot.py draws pictures.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

// weft bench dit with random weights that are quantised as --stored says: with --weights file in
// turns with the same weights in the compute dtype.
int measure_dit(const Flags& flags, DType dtype, int repeat);

// A model's layouts of two ranks, each over links of several speeds: what a step of each takes,
// and what the simulation of weft plan says of it.
int measure_layouts(const Flags& flags, DType dtype, int repeat);

// The methods of long video side by side, on one rank and on several: speed, traffic, memory, and
// how well the video keeps what its prompt asks for. Draws `repeat` clips with every method on 1 to
// --ranks ranks, which are threads.
int measure_long(const Flags& flags, DType dtype, int repeat);

// The cost of each approximation in quality, and what it saves in bytes and time. Without
// --simulate it draws clips of the pocket model with every method, compares them with those of full
// attention, and reads them back. With --simulate it forecasts a step of --model on eight ranks.
int measure_truth(const Flags& flags, DType dtype, int repeat);

// The seconds of each stage of clips at a model folder's defaults. The first clip, which loads the
// model, is marked.
int measure_generate(const Flags& flags, DType dtype, int repeat);

// The likeness of the pocket avatar's mouth to --seconds of a made-up voice.
int measure_lips(const Flags& flags, DType dtype, int repeat);
// One line that holds a stream of the avatar which is idle, listens, speaks and is idle again.
int measure_face(const Flags& flags, DType dtype, int repeat);
// Forecasts of streams on 1 to 5 devices like this machine and like those of Live Avatar (2025,
// arXiv 2512.04677), beside its published numbers.
int measure_streams(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
