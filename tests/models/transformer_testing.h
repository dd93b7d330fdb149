#pragma once
// Runs a transformer on whole latents, for tests: rows are cut and joined outside of the arena.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/transformer.h"
#include "models/wan/transformer.h"

namespace weft::test {

// Stores f32 copies of the tensors it observes, under the names of the golden case.
struct Recorder final : Observer {
  void see(Context& context, const char* name, int index, const TensorView& value) override {
    Tensor kept(DType::kF32, value.shape());
    copy(context.stream, value, kept);
    seen[index < 0 ? name : std::string(name) + "." + std::to_string(index)] = std::move(kept);
  }
  std::map<std::string, Tensor> seen;
};

// The prompt's rows `embeds`, prepared.
inline WanText prepare_text(const WanTransformer& model, Context& context, const TensorView& embeds,
                            int64_t text_length) {
  const auto prepared =
      model.prepare(context, {.text = embeds, .text_length = text_length}, {1, 1, 1});
  return std::move(dynamic_cast<WanText&>(*prepared));
}

inline Rope rope_of(const Transformer& model, std::array<int64_t, 3> grid,
                    std::array<int64_t, 3> start = {}) {
  return model.rope(grid, start, WanText{});
}

// A forward whose `in` is a latent [C, F, H, W] if the blocks begin the model, and whose `out` is a
// velocity of that shape if they end it (the patches of this rank's tokens). Others are rows.
inline void forward(const Transformer& model, Context& context, BlockRange blocks,
                    const TensorView& in, std::span<const TimeSegment> times,
                    const Conditioning& conditioning, const Rope& rope, const TensorView& out,
                    const TensorView& signal = {}) {
  Stream& stream = context.stream;
  const TransformerTraits& traits = model.traits();
  const int64_t n = context.tokens.size();
  const Tensor embedding(DType::kF32, {static_cast<int64_t>(times.size()), traits.time_columns},
                         stream.device());
  model.timestep_embedding(stream, times, embedding);
  Tensor latent, velocity;
  if (blocks.first()) {
    latent = Tensor(DType::kF32, {n, traits.row()}, stream.device());
    patchify(stream, in, traits.patch, context.tokens, latent);
  }
  if (blocks.last()) velocity = Tensor(DType::kF32, {n, traits.row()}, stream.device());
  model.forward(context, {.blocks = blocks,
                          .in = blocks.first() ? latent.view() : in,
                          .times = times,
                          .embedding = embedding,
                          .conditioning = conditioning,
                          .rope = rope,
                          .out = blocks.last() ? velocity.view() : out,
                          .signal = signal});
  if (blocks.last()) unpatchify(stream, velocity, traits.patch, context.tokens, out);
  stream.sync();
}

}  // namespace weft::test
