// The rows of a prompt: blocks that mix the states of several layers of a language model, then the
// rows that these become.
#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "models/krea2/transformer.h"

namespace weft {

namespace {

constexpr int64_t kRowsAtOnce = 128;  // of a prompt, whose taps are mixed together

}  // namespace

size_t Krea2Fusion::bytes() const {
  size_t total = bytes_of(std::tie(projector, norm, linear_1, linear_2));
  for (const std::vector<Krea2Block>* list : {&tap_blocks, &refiner_blocks})
    for (const Krea2Block& block : *list) total += bytes_of(block.weights());
  return total;
}

// Writes the rows of a prompt's states text [T, taps * text_dim] f32 to out [T, D] f32.
void Krea2Transformer::fuse(Context& context, const TensorView& text, const TensorView& out) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t rows = text[0], taps = config_.taps, columns = config_.text_dim;
  const TensorView y = context.arena.alloc(DType::kF32, {rows, columns});
  fill_zero(stream, y);
  const TensorView room =
      context.arena.alloc(DType::kF32, {std::min(rows, kRowsAtOnce) * taps, columns});
  for (int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - begin);
    const TensorView states = room.slice(0, 0, count * taps);
    const TensorView of_rows = states.reshape({count, taps, columns});
    for (int64_t tap = 0; tap < taps; ++tap)
      copy(stream, text.slice(0, begin, count).slice(1, tap * columns, columns),
           of_rows.select(1, tap));
    for (const Krea2Block& block : fusion_.tap_blocks) text_block(context, block, taps, states);
    const TensorView sum = y.slice(0, begin, count);
    for (int64_t tap = 0; tap < taps; ++tap)
      gated_add(stream, sum, of_rows.select(1, tap), fusion_.projector.view().select(0, tap), sum);
  }
  for (const Krea2Block& block : fusion_.refiner_blocks) text_block(context, block, rows, y);
  const TensorView h = rms_normed(context, y, fusion_.norm, config_.eps, DType::kF32);
  const TensorView hidden = context.arena.alloc(DType::kF32, out.shape());
  linear(stream, h, fusion_.linear_1, LinearActivation::kGeluTanh, hidden);
  linear(stream, hidden, fusion_.linear_2, LinearActivation::kNone, out);
}

// Applies a block to x [rows, text_dim] f32 in place, of which each `group` rows attend to each
// other.
void Krea2Transformer::text_block(Context& context, const Krea2Block& weights, int64_t group,
                                  const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const TensorView h = context.arena.alloc(DType::kF32, x.shape());
  const TensorView y = context.arena.alloc(DType::kF32, x.shape());
  rms_norm(stream, x, weights.norm1, config_.eps, h);
  gated_attention(
      context, weights, h,
      [&](const Heads& heads, const TensorView& out) {
        norm_heads(stream, heads.q, {weights.heads.norm_q, config_.eps});
        norm_heads(stream, heads.k, {weights.heads.norm_k, config_.eps});
        const float scale = 1 / std::sqrt(static_cast<float>(config_.text_head_dim()));
        for (int64_t row = 0; row < x[0]; row += group) {
          const auto rows = [&](const TensorView& of) { return of.slice(0, row, group); };
          const KVSegment keys{.k = rows(heads.k), .v = rows(heads.v)};
          attention(stream,
                    {.q = rows(heads.q), .segments = {&keys, 1}, .scale = scale, .out = rows(out)});
        }
      },
      y);
  add(stream, x, y, x);
  rms_norm(stream, x, weights.norm2, config_.eps, h);
  feed_forward(context, weights, h, y);
  add(stream, x, y, x);
}

}  // namespace weft
