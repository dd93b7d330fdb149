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

}  // namespace

DryTransformer dry_load(DryRun& run, const TransformerModel& model, const TensorFile& file,
                        const TransformerLoad& load) {
  DryTransformer dry;
  dry.weights = run.measure([&] { dry.model = model.load(run.stream(), file, load); });
  // The window's queue has scratch of its own, for conversions.
  if (dry.model->streamed_bytes() > 0) dry.weights.passing += kDevicePiece;
  return dry;
}

Footprint dry_forward(DryRun& run, const Transformer& model, Context& context,
                      std::array<int64_t, 3> grid, int64_t text, int64_t text_length) {
  const TransformerTraits& traits = model.traits();
  const BlockRange blocks = model.loaded().blocks;
  const Tensor rows = run.tensor(DType::kF32, {text, traits.text_columns});
  std::unique_ptr<Conditioning> conditioning;
  Rope rope;
  const Footprint prepared = run.measure([&] {
    conditioning = model.prepare(context, {.text = rows, .text_length = text_length}, grid);
    rope = on_device(run.stream(), model.rope(grid, {}, *conditioning));
  });
  const int64_t own = context.tokens.size(), joint = conditioning->joint_rows();
  const auto rows_at = [&](bool end) {
    return end ? run.tensor(DType::kF32, {own, traits.row()})
               : run.tensor(DType::kF32, {own + joint, traits.width});
  };
  const Tensor in = rows_at(blocks.first()), out = rows_at(blocks.last());
  const Tensor embedding = run.tensor(DType::kF32, {1, traits.time_columns});
  const TimeSegment time{{0, context.tokens.total}, 0};
  const Tensor signal =
      traits.signal_columns ? run.tensor(DType::kF32, {1, traits.signal_columns}) : Tensor();
  const Footprint ran = run.measure([&] {
    model.forward(context, {.blocks = blocks,
                            .in = in,
                            .times = {&time, 1},
                            .embedding = embedding,
                            .conditioning = *conditioning,
                            .rope = rope,
                            .out = out,
                            .signal = signal});
  });
  return followed(prepared, ran);
}

Footprint dry_encode(DryRun& run, const TextEncoder& encoder, Context& context, int64_t n,
                     int64_t columns) {
  const Tensor out = run.tensor(DType::kF32, {n, columns});
  const std::vector<int32_t> ids(static_cast<size_t>(n));
  return run.measure([&] { encoder.encode(context, ids, out); });
}

Footprint dry_decode(DryRun& run, const Vae& vae, Context& context, int64_t h, int64_t w,
                     int64_t latent_frames) {
  const Tensor latent = run.tensor(DType::kF32, {vae.traits().channels, h, w});
  std::unique_ptr<VaeDecoder> decoder;
  Footprint all = run.measure([&] { decoder = vae.decoder(h, w); });
  // The second chunk is like all later ones.
  for (int64_t chunk = 0; chunk < std::min<int64_t>(latent_frames, 2); ++chunk) {
    const Tensor frames =
        run.tensor(DType::kF32, {decoder->next_frames(), 3, decoder->height(), decoder->width()});
    all = followed(all, run.measure([&] { decoder->decode_chunk(context, latent, frames); }));
  }
  return all;
}

}  // namespace weft
