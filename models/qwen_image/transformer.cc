#include "models/qwen_image/transformer.h"

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/qwen_image/names.h"

namespace weft {

namespace {

// Checks the file's tensors and finds the part of each that the slice holds.
CheckpointPart checked_tensors(const TensorFile& file, const QwenImageConfig& config,
                               const TransformerLoad& load) {
  WeightBinder binder(file, "transformer");
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : qwen_image_tensors(config))
    tensors.take(binder, tensor, {.name = tensor.name},
                 qwen_image_part(config, tensor, load.width));
  binder.finish();
  return tensors;
}

}  // namespace

size_t QwenImageConditioning::bytes() const { return bytes_of(text) + bytes_of(positions); }

QwenImageTransformer QwenImageTransformer::load(Stream& stream, const TensorFile& file,
                                                const QwenImageConfig& config,
                                                const TransformerLoad& load) {
  QwenImageTransformer model;
  model.set_load(config, load);
  const BlockRange& blocks = model.load_.blocks;
  const CheckpointPart tensors = checked_tensors(file, config, load);
  model.time_ = load_embedder(stream, tensors, "time_text_embed.timestep_embedder");
  if (blocks.first()) {
    model.image_in_ = tensors.linear(stream, "img_in", DType::kF32);
    model.text_norm_ = tensors.vector(stream, "txt_norm.weight");
    model.text_in_ = tensors.linear(stream, "txt_in", load.dtype);
  }
  model.load_blocks(stream, [tensors, how = model.load_](Stream& own, int index) {
    const std::string block = "transformer_blocks." + std::to_string(index) + ".";
    if (how.resident > 0) tensors.read_ahead(own, block);
    return DoubleStreamBlock{load_stream(own, tensors, how, block, kQwenImageLatent),
                             load_stream(own, tensors, how, block, kQwenImageText)};
  });
  if (blocks.last()) model.head_ = load_head(stream, tensors);
  return model;
}

size_t QwenImageTransformer::weights_bytes() const {
  return blocks_bytes() + time_.bytes() + head_.bytes() +
         bytes_of(std::tie(image_in_, text_norm_, text_in_));
}

std::unique_ptr<Conditioning> QwenImageTransformer::prepare(Context& context,
                                                            const Conditions& conditions,
                                                            std::array<int64_t, 3> grid) const {
  const TensorView& embeds = conditions.text;
  CHECK(embeds.rank == 2 && embeds[1] == config_.text_dim && embeds[0] > 0, "embeds",
        embeds.to_string_shape());
  check_reducer(context);
  auto prepared = std::make_unique<QwenImageConditioning>();
  prepared->rows = embeds[0];
  prepared->positions = on_device(context.stream, config_.text_rope(grid, embeds[0]));
  if (!load_.blocks.first()) return prepared;

  const Arena::Scope scope(context.arena);
  prepared->text = Tensor(DType::kF32, {embeds[0], config_.width()}, context.stream.device());
  const TensorView normed = rms_normed(context, embeds, text_norm_, kDoubleStreamEps, load_.dtype);
  linear(context.stream, normed, text_in_, LinearActivation::kNone, prepared->text);
  return prepared;
}

void QwenImageTransformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& prompt = dynamic_cast<const QwenImageConditioning&>(conditioning);
  const int64_t n = context.tokens.size();
  check_forward(context, args);
  CHECK(times.size() == 1, "time segments", times.size());

  const Arena::Scope scope(context.arena);
  const TensorView x =
      blocks.last() ? context.arena.alloc(DType::kF32, {n + prompt.rows, config_.width()}) : out;
  const TensorView time = embedded(context, time_, embedding);
  JointPass pass{.time = active_time(context, time, config_.sizes(), load_),
                 .rope = rope,
                 .text_rope = &prompt.positions,
                 .load = load_};
  if (blocks.first())
    embed(context, in, prompt, x);
  else
    copy(context.stream, in, x);
  for (pass.layer = blocks.begin; pass.layer < blocks.end; ++pass.layer) {
    const ZoneScope zone(Zone::kBlock, pass.layer);
    with_block(context.stream, pass.layer, [&](const DoubleStreamBlock& weights) {
      double_stream_block(context, weights, pass, x);
    });
    observe_text_first(context, traits_.block_name, pass.layer, x);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  apply_head(context, head_, time, x.slice(0, 0, n), out);
}

// Writes the embedded tokens and the prompt's rows to x.
void QwenImageTransformer::embed(Context& context, const TensorView& in,
                                 const QwenImageConditioning& prompt, const TensorView& x) const {
  const int64_t n = context.tokens.size();
  CHECK(in.rank == 2 && in[0] == n && in[1] == config_.patch_dim(), in.to_string_shape());
  linear(context.stream, in, image_in_, LinearActivation::kNone, x.slice(0, 0, n));
  copy(context.stream, prompt.text, x.slice(0, n, prompt.rows));
}

}  // namespace weft
