// The inputs of the Wan transformer that do not depend on the timestep: keys and values of the
// prompt and of pictures, and given channels.
#include <cmath>

#include "models/wan/transformer.h"

namespace weft {

namespace {

constexpr float kImageEps = 1e-5f;  // of both norms around the MLP

std::string count_text(int64_t count) { return count == 0 ? "none" : std::to_string(count); }

}  // namespace

void WanTransformer::load_image_embedder(Stream& stream, const CheckpointPart& tensors) {
  const std::string name = "condition_embedder.image_embedder.";
  if (config_.image_positions) image_.positions = tensors.table(stream, name + "pos_embed");
  image_.norm1_weight = tensors.vector(stream, name + "norm1.weight");
  image_.norm1_bias = tensors.vector(stream, name + "norm1.bias");
  image_.linear_1 = tensors.linear(stream, name + "ff.net.0.proj", load_.dtype);
  image_.linear_2 = tensors.linear(stream, name + "ff.net.2", load_.dtype);
  image_.norm2_weight = tensors.vector(stream, name + "norm2.weight");
  image_.norm2_bias = tensors.vector(stream, name + "norm2.bias");
}

// Throws Error(kModel) unless the model gets the pictures and the channels that it reads.
void WanTransformer::check_given(const Conditions& conditions) const {
  const TensorView &image = conditions.image, &channels = conditions.channels;
  const auto expect = [](const char* what, int64_t got, int64_t legal) {
    if (got != legal)
      throw Error(ErrorKind::kModel, std::string("transformer: ") + what + ": " + count_text(got) +
                                         " given (legal: " + count_text(legal) + ")");
  };
  expect("columns of an image encoder's rows", image ? image[1] : 0, config_.image_dim);
  if (config_.image_positions)
    expect("rows of an image encoder", image[0], config_.image_positions);
  expect("channels beside the latent's", channels ? channels[0] : 0, traits_.given_channels());
}

// Writes the context rows of pictures, from an image encoder's rows [n, image_dim] f32.
void WanTransformer::embed_image(Context& context, const TensorView& image, WanText& text) const {
  Stream& stream = context.stream;
  const int64_t n = image[0], in = config_.image_dim, d = config_.width();
  text.image_context = Tensor(load_.dtype, {n, d}, stream.device());
  const Arena::Scope scope(context.arena);
  TensorView x = image;
  if (image_.positions) {
    x = context.arena.alloc(DType::kF32, {n, in});
    add(stream, image, image_.positions, x);
  }
  const TensorView h = context.arena.alloc(load_.dtype, {n, in});
  const TensorView hidden = context.arena.alloc(load_.dtype, {n, in});
  const TensorView out = context.arena.alloc(DType::kF32, {n, d});
  layer_norm(stream, x, image_.norm1_weight, image_.norm1_bias, kImageEps, h);
  linear(stream, h, image_.linear_1, LinearActivation::kNone, hidden);
  gelu_erf(stream, hidden, hidden);
  linear(stream, hidden, image_.linear_2, LinearActivation::kNone, out);
  layer_norm(stream, out, image_.norm2_weight, image_.norm2_bias, kImageEps, text.image_context);
}

// Appends the next layer's keys and values of the prompt and of pictures.
void WanTransformer::add_keys(Context& context, const WanBlock& weights, WanText& text) const {
  Stream& stream = context.stream;
  const auto project = [&](const Tensor& rows, const PackedLinear& to, std::vector<Tensor>& list) {
    const int64_t n = rows.view()[0], width = to.out();
    list.emplace_back(load_.dtype,
                      std::initializer_list<int64_t>{n, width / config_.head_dim, config_.head_dim},
                      stream.device());
    const TensorView out = list.back().view().reshape({n, width});
    linear(stream, rows, to, LinearActivation::kNone, out);
    return out;
  };
  const auto keys = [&](const Tensor& rows, const PackedLinear& to, const Tensor& norm,
                        std::vector<Tensor>& list) {
    full_rms_norm(context, project(rows, to, list), config_.width(), norm, config_.eps);
  };
  const WanBlock::Attention& attention = weights.attn2;
  keys(text.context, attention.to_k, attention.norm_k, text.k);
  project(text.context, attention.to_v, text.v);
  if (!text.image_context) return;
  const WanBlock::ImageKeys& own = weights.image_keys;
  keys(text.image_context, config_.image_keys ? own.add_k : attention.to_k,
       config_.image_keys ? own.norm : attention.norm_k, text.image_k);
  project(text.image_context, config_.image_keys ? own.add_v : attention.to_v, text.image_v);
}

// Adds to merged [N, A * E] the attention of q [N, A, E] over keys with a softmax of their own.
void WanTransformer::add_attention(Context& context, const TensorView& q, const KVSegment& keys,
                                   const TensorView& merged) const {
  const Arena::Scope scope(context.arena);
  const TensorView out = context.arena.alloc(load_.dtype, q.shape());
  attention(context.stream, {.q = q,
                             .segments = {&keys, 1},
                             .scale = 1 / std::sqrt(static_cast<float>(q[2])),
                             .out = out});
  add(context.stream, merged, out.reshape({q[0], q[1] * q[2]}), merged);
}

}  // namespace weft
