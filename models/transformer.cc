#include "models/transformer.h"

#include <cmath>

#include "kernels/transfer.h"

namespace weft {

std::array<int64_t, 3> TransformerTraits::grid(int64_t frames, int64_t height,
                                               int64_t width) const {
  const std::array<int64_t, 3> size{frames, height, width};
  const char* names[] = {"frames", "rows", "columns"};
  std::array<int64_t, 3> tokens;
  for (int axis = 0; axis < 3; ++axis) {
    if (size[axis] <= 0 || size[axis] % patch[axis])
      throw Error(ErrorKind::kUsage, "a latent of " + std::to_string(size[axis]) + " " +
                                         names[axis] +
                                         " cannot be cut into patches (legal: multiples of " +
                                         std::to_string(patch[axis]) + ")");
    tokens[axis] = size[axis] / patch[axis];
  }
  return tokens;
}

void time_embedding(float timestep, const TensorView& out) {
  const int64_t half = out.count() / 2;
  float* cosine = out.as<float>();
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    const double angle = static_cast<double>(timestep) * frequency;
    cosine[i] = static_cast<float>(std::cos(angle));
    cosine[half + i] = static_cast<float>(std::sin(angle));
  }
}

int64_t reference_rows_of(const TransformerTraits& traits,
                          std::span<const std::array<int64_t, 2>> references) {
  int64_t rows = 0;
  for (const auto& [height, width] : references) {
    const auto grid = traits.grid(traits.patch[0], height, width);
    rows += grid[0] * grid[1] * grid[2];
  }
  return rows;
}

TransformerLoad TransformerLoad::of(const TransformerTraits& traits) const {
  TransformerLoad all = *this;
  if (blocks.total == 0) all.blocks = BlockRange::all(traits.blocks);
  CHECK(all.blocks.total == traits.blocks && 0 <= all.blocks.begin &&
            all.blocks.begin <= all.blocks.end && all.blocks.end <= all.blocks.total,
        "blocks", blocks.begin, blocks.end, blocks.total);
  all.width = width.of(traits.heads, traits.ffn_columns);
  CHECK(!rounds_to_8bit(weights) || all.width.heads.size() == traits.heads,
        "8-bit weights of a part of the width");
  return all;
}

void Transformer::check_forward(const Context& context, const ForwardArgs& args) const {
  const BlockRange &blocks = args.blocks, &held = loaded().blocks;
  const bool ends_alone = blocks.begin == blocks.end && (blocks.first() || blocks.last());
  CHECK((blocks.begin >= held.begin || ends_alone) && blocks.end <= held.end &&
            blocks.total == held.total,
        "blocks", blocks.begin, blocks.end, "loaded", held.begin, held.end);
  const auto& grid = args.rope.grid;
  CHECK(grid[0] * grid[1] * grid[2] + args.conditioning.beside() == context.tokens.total, "grid",
        grid[0], grid[1], grid[2], "beside", args.conditioning.beside(), "tokens",
        context.tokens.total);
  const int64_t columns = traits().signal_columns, segments = std::ssize(args.times);
  CHECK(columns == 0
            ? !args.signal
            : args.signal.rank == 2 && args.signal[0] == segments && args.signal[1] == columns,
        "signal", args.signal.to_string_shape(), "for", segments, "segments of", columns);
  check_reducer(context);
}

void Transformer::check_reducer(const Context& context) const {
  const Range& heads = loaded().width.heads;
  CHECK((context.reducer.parts() == 1) == (heads.size() == traits().heads), "a sum over",
        context.reducer.parts(), "parts for heads", to_string(heads), "of", traits().heads);
}

void TransformerModel::signal_rows(const TensorView&, const TensorView&) const {
  throw Error(ErrorKind::kModel,
              "this model hears no features of a sound (legal: speech to video)");
}

void Transformer::timestep_embedding(Stream& stream, std::span<const TimeSegment> times,
                                     const TensorView& out) const {
  CHECK(out.rank == 2 && out[0] == static_cast<int64_t>(times.size()) &&
            out[1] == traits().time_columns,
        out.to_string_shape());
  make_on_host(stream, out, [&](const TensorView& to) {
    for (size_t i = 0; i < times.size(); ++i)
      time_embedding(traits().time_offset + traits().time_scale * times[i].timestep,
                     to.select(0, static_cast<int64_t>(i)));
  });
}

}  // namespace weft
