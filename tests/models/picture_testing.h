#pragma once
// Runs a transformer of pictures, whose prompt's rows are joint rows, for tests.
#include <memory>
#include <span>
#include <string>

#include "kernels/copy.h"
#include "kernels/ops.h"
#include "models/blocks.h"
#include "models/transformer.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {

// A transformer with inputs of its own: the token rows of a latent, and a prompt's rows.
struct PictureModel {
  PictureModel(const TransformerModel& model, const TensorFile& file, const TransformerLoad& load,
               const Ops& ops = reference_ops())
      : stream(Stream::cpu(2, Determinism::kFixed, &ops)),
        traits(model.traits()),
        transformer(model.load(stream, file, load)) {}

  void set_latent(const TensorView& latent) {  // [C, H, W]
    const TensorView frame = latent.reshape({latent[0], 1, latent[1], latent[2]});
    grid = traits.grid(1, latent[1], latent[2]);
    tokens = grid[0] * grid[1] * grid[2];
    rows = Tensor(DType::kF32, {tokens, traits.row()});
    patchify(stream, frame, traits.patch, TokenRanges::all(tokens), rows);
  }
  // Takes the inputs of another model, whose latent is [C, H, W].
  void take_inputs(const PictureModel& other, const TensorView& latent) {
    set_latent(latent);
    time = other.time;
    guidance = other.guidance;
    const auto copied = [&](const Tensor& from) {
      Tensor out(DType::kF32, from.view().shape());
      copy(stream, from, out);
      return out;
    };
    text = copied(other.text);
    if (other.pooled) pooled = copied(other.pooled);
  }
  Context context(Observer* observer = nullptr) {
    return seams.context(stream, arena, {}, TokenRanges::all(tokens), observer);
  }
  Conditions conditions() const {
    return {.text = text,
            .text_length = text.view()[0],
            .pooled = pooled ? pooled.view() : TensorView(),
            .guidance = guidance};
  }
  std::unique_ptr<Conditioning> prepare(Context& c) const {
    return transformer->prepare(c, conditions(), grid);
  }
  // Runs `blocks` on `in`, with the rows that they give.
  Tensor run(Context& c, BlockRange blocks, const TensorView& in, const Conditioning& conditioning,
             std::array<int64_t, 3> start = {}) {
    const TimeSegment segment{.tokens = {0, tokens}, .timestep = time};
    Tensor embedding(DType::kF32, {1, traits.time_columns});
    transformer->timestep_embedding(stream, {&segment, 1}, embedding);
    const int64_t n = c.tokens.size();
    Tensor out(DType::kF32, {blocks.last() ? n : n + conditioning.joint_rows(),
                             blocks.last() ? traits.row() : traits.width});
    const Rope rope = transformer->rope(grid, start, conditioning);
    transformer->forward(c, {.blocks = blocks,
                             .in = in,
                             .times = {&segment, 1},
                             .embedding = embedding,
                             .conditioning = conditioning,
                             .rope = rope,
                             .out = out});
    return out;
  }
  // The output as token rows.
  Tensor run(Observer* observer = nullptr) {
    Context c = context(observer);
    return run(c, BlockRange::all(traits.blocks), rows, *prepare(c));
  }
  // Token rows as a latent [C, H, W].
  Tensor picture(const TensorView& from) {
    const int64_t h = grid[1] * traits.patch[1], w = grid[2] * traits.patch[2];
    Tensor out(DType::kF32, {traits.out_channels, h, w});
    unpatchify(stream, from, traits.patch, TokenRanges::all(tokens),
               out.view().reshape({traits.out_channels, 1, h, w}));
    return out;
  }

  Stream stream;
  Arena arena{size_t{1} << 30};
  SerialSeams seams;
  TransformerTraits traits;
  std::unique_ptr<Transformer> transformer;
  Tensor rows, text, pooled;
  float time = 500;
  double guidance = 0;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;
};

// The model and inputs of a golden case.
struct GoldenPicture : GoldenCase, PictureModel {
  GoldenPicture(const std::string& name, const TransformerModel& model, TransformerLoad load = {},
                const Ops& ops = reference_ops())
      : GoldenCase(name),
        PictureModel(model, TensorFile::open(folder + "/model/transformer"), load, ops),
        latent(input("hidden_states")) {
    set_latent(latent);
    text = input("encoder_hidden_states");
    time = input("timestep").as<float>()[0];
    if (traits.pooled_columns) pooled = input("pooled_projections");
    guidance = spec.value("guidance_scale", 0.0);
  }
  Tensor latent;
};

}  // namespace weft::test
