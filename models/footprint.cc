#include "models/footprint.h"

#include <algorithm>

namespace weft {

namespace {

// The footprint of two parts of a program that run one after the other.
Footprint followed(const Footprint& first, const Footprint& next) {
  return {.held = first.held + next.held,
          .passing = std::max(first.passing, next.passing),
          .arena = std::max(first.arena, next.arena),
          .scratch = std::max(first.scratch, next.scratch)};
}

// The inputs of a prepare, without values.
struct DryConditions {
  DryConditions(const DryRun& run, const TransformerTraits& traits, std::array<int64_t, 3> grid,
                int64_t rows) {
    const auto latent = [&](int64_t channels, int64_t frames) {
      return channels * frames == 0
                 ? Tensor()
                 : run.tensor(DType::kF32, {channels, frames, grid[1] * traits.patch[1],
                                            grid[2] * traits.patch[2]});
    };
    text = run.tensor(DType::kF32, {rows, traits.text_columns});
    if (traits.image_columns)
      image = run.tensor(DType::kF32, {traits.image_rows, traits.image_columns});
    channels = latent(traits.given_channels(), grid[0] * traits.patch[0]);
    pooled = run.tensor(DType::kF32, {traits.pooled_columns});
    reference = latent(traits.out_channels, traits.reference_frames);
    motion = latent(traits.out_channels, traits.motion_frames);
  }
  Conditions conditions(int64_t text_length) const {
    return {.text = text,
            .text_length = text_length,
            .image = image,
            .channels = channels,
            .pooled = pooled,
            .reference = reference,
            .motion = motion};
  }

  Tensor text, image, channels, pooled, reference, motion;
};

}  // namespace

DryTransformer dry_load(DryRun& run, const TransformerModel& model, const TensorFile& file,
                        const TransformerLoad& load) {
  DryTransformer dry;
  dry.weights = run.measure([&] { dry.model = model.load(run.stream(), file, load); });
  // The window's queue has scratch of its own, for conversions.
  if (dry.model->streamed_bytes() > 0 && run.device()) dry.weights.passing += kDevicePiece;
  return dry;
}

Footprint dry_forward(DryRun& run, const Transformer& model, Context& context,
                      std::array<int64_t, 3> grid, int64_t text, int64_t text_length) {
  const TransformerTraits& traits = model.traits();
  const BlockRange blocks = model.loaded().blocks;
  const DryConditions given(run, traits, grid, text);
  std::unique_ptr<Conditioning> conditioning;
  Rope rope;
  const Footprint prepared = run.measure([&] {
    conditioning = model.prepare(context, given.conditions(text_length), grid);
    rope = on_device(run.stream(), model.rope(grid, {}, *conditioning));
  });
  const int64_t own = context.tokens.size(), joint = conditioning->joint_rows();
  const auto rows_at = [&](bool end) {
    return end ? run.tensor(DType::kF32, {own, traits.row()})
               : run.tensor(DType::kF32, {own + joint, traits.width});
  };
  const Tensor in = rows_at(blocks.first()), out = rows_at(blocks.last());
  // Each latent frame follows its own signal.
  const int64_t segments = traits.signal_columns ? grid[0] : 1;
  const Tensor embedding = run.tensor(DType::kF32, {segments, traits.time_columns});
  std::vector<TimeSegment> times;
  for (int64_t i = 0, n = context.tokens.total / segments; i < segments; ++i)
    times.push_back({{i * n, (i + 1) * n}, 0});
  const Tensor signal =
      traits.signal_columns ? run.tensor(DType::kF32, {segments, traits.signal_columns}) : Tensor();
  const Footprint ran = run.measure([&] {
    model.forward(context, {.blocks = blocks,
                            .in = in,
                            .times = times,
                            .embedding = embedding,
                            .conditioning = *conditioning,
                            .rope = rope,
                            .out = out,
                            .signal = signal});
  });
  return followed(prepared, ran);
}

Footprint dry_decode(DryRun& run, const Vae& vae, Context& context, int64_t h, int64_t w,
                     int64_t latent_frames) {
  const Tensor latent = run.tensor(DType::kF32, {vae.traits().channels, h, w});
  std::optional<VaeDecoder> decoder;
  Footprint all = run.measure([&] { decoder.emplace(vae, h, w); });
  // The second chunk is like all later ones.
  for (int64_t chunk = 0; chunk < std::min<int64_t>(latent_frames, 2); ++chunk) {
    const Tensor frames =
        run.tensor(DType::kF32, {decoder->next_frames(), 3, decoder->height(), decoder->width()});
    all = followed(all, run.measure([&] { decoder->decode_chunk(context, latent, frames); }));
  }
  return all;
}

}  // namespace weft
