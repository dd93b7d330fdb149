#pragma once
// A small random transformer with self-attention, that adds its signal to the rows of every block,
// for tests of methods that let forwards see each
// other's keys. Everything but attention is computed row by row, so that the bits of a row do not
// depend on the rank that computes it.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/engine/toy_transformer.h"

namespace weft::test {

struct ToyAttention final : ToyTransformer {
  static constexpr int kHeads = 6, kHead = 6, kWidth = kHeads * kHead;

  float seed;
  // Sees every forward before it computes and after it.
  std::function<void(const Context&, const ForwardArgs&)> before{}, after{};

  explicit ToyAttention(int blocks, float seed_of = 1)
      : ToyTransformer(kWidth, blocks), seed(seed_of) {
    own.heads = kHeads;
    own.head_dim = kHead;
    own.ffn_columns = kWidth;
  }

  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
            const Conditioning&) const override {
    return make_rope(grid, start, kHead);
  }

  // The weights of a matrix, made when they are first used.
  const std::vector<float>& weights(int layer, int matrix, int64_t in, int64_t out) const {
    std::vector<float>& w = weights_[{layer, matrix}];
    if (!w.empty()) return w;
    const auto n = static_cast<float>(layer * 5 + matrix);
    for (int64_t i = 0; i < in; ++i)
      for (int64_t j = 0; j < out; ++j)
        w.push_back(0.4f * std::sin(seed * (1.7f * static_cast<float>(i) + 0.31f) +
                                    2.3f * static_cast<float>(j) + 0.9f * n));
    return w;
  }
  // to += from W, row by row.
  void multiply(int layer, int matrix, const TensorView& from, const TensorView& to) const {
    const int64_t in = from.count() / from[0], out = to.count() / to[0];
    const std::vector<float>& w = weights(layer, matrix, in, out);
    for (int64_t row = 0; row < from[0]; ++row)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t j = 0; j < out; ++j)
          to.as<float>()[row * out + j] += from.as<float>()[row * in + i] * w[i * out + j];
  }
  static Tensor zeros(std::initializer_list<int64_t> shape) {
    Tensor x(DType::kF32, shape);
    std::fill_n(x.as<float>(), x.count(), 0.0f);
    return x;
  }

  static void add_signal(const Context& context, const ForwardArgs& args, const Tensor& x) {
    int64_t at = 0;  // of this rank's tokens
    for (const Range& range : context.tokens.ranges)
      for (int64_t token = range.begin; args.signal && token < range.end; ++token, ++at) {
        int64_t segment = 0;
        while (token >= args.times[segment].tokens.end) ++segment;
        const float* row = args.signal.as<float>() + segment * args.signal[1];
        for (int64_t j = 0; j < kWidth; ++j)
          x.as<float>()[at * kWidth + j] += 0.1f * row[(token * kWidth + j) % args.signal[1]];
      }
  }

  void forward(Context& context, const ForwardArgs& args) const override {
    if (before) before(context, args);
    const int64_t n = args.in[0];
    const float prompt = prompt_of(args);
    const float time = args.times[0].timestep / 1000;
    Tensor x = zeros({n, kWidth});
    if (args.blocks.first())
      multiply(-1, 0, args.in, x);
    else
      std::copy_n(args.in.as<float>(), x.count(), x.as<float>());
    for (int layer = args.blocks.begin; layer < args.blocks.end; ++layer) {
      Tensor h = zeros({n, kWidth});
      for (int64_t i = 0; i < h.count(); ++i)
        h.as<float>()[i] = std::tanh(x.as<float>()[i] * (1 + time) + 0.2f * prompt);
      const Tensor q = zeros({n, kHeads, kHead}), k = zeros({n, kHeads, kHead}),
                   v = zeros({n, kHeads, kHead}), out = zeros({n, kHeads, kHead});
      multiply(layer, 0, h, q);
      multiply(layer, 1, h, k);
      multiply(layer, 2, h, v);
      context.mixer.attend(
          context,
          {.layer = layer, .q = q, .k = k, .v = v, .out = out, .rope = &args.rope, .scale = 0.4f});
      multiply(layer, 3, out, x);
      add_signal(context, args, x);
    }
    if (args.blocks.last()) {
      if (args.hook) args.hook(x);
      std::fill_n(args.out.as<float>(), args.out.count(), 0.0f);
      multiply(-2, 0, x, args.out);
    } else {
      std::copy_n(x.as<float>(), x.count(), args.out.as<float>());
    }
    if (after) after(context, args);
  }

 private:
  mutable std::map<std::pair<int, int>, std::vector<float>> weights_;  // by layer and matrix
};

struct ToyAttentionExperts final : ToyExperts {
  std::vector<std::unique_ptr<ToyAttention>> models;
  ToyAttentionExperts(int experts, int blocks) {
    for (int model = 0; model < experts; ++model)
      models.push_back(
          std::make_unique<ToyAttention>(blocks, 1 + 0.3f * static_cast<float>(model)));
  }
  const TransformerTraits& traits() const override { return models[0]->own; }
  const Transformer& expert(Stream&, int model) override { return *models[model]; }
};

}  // namespace weft::test
