#pragma once
// The part that toy transformers of tests have in common: they have no weights, and a prompt is one
// number.
#include <cstring>
#include <memory>

#include "engine/parts/components.h"
#include "models/transformer.h"

namespace weft::test {

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.count() == b.count() && std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

struct ToyPrompt final : Conditioning {
  float value = 0;
  size_t bytes() const override { return 0; }
};

struct ToyTransformer : Transformer {
  TransformerTraits own{};
  TransformerLoad load{};

  // A token has 1x2x2 places of a latent of two channels.
  ToyTransformer(int64_t width, int blocks) {
    own.width = width;
    own.blocks = blocks;
    own.heads = 6;
    own.head_dim = 2;
    own.in_channels = own.out_channels = 2;
    own.patch = {1, 2, 2};
    own.text_columns = 1;
    own.time_columns = 2;
  }

  const TransformerTraits& traits() const override { return own; }
  const TransformerLoad& loaded() const override { return load; }
  size_t weights_bytes() const override { return 0; }
  size_t streamed_bytes() const override { return 0; }
  WeightOffload streamed() const override { return {}; }
  std::unique_ptr<Conditioning> prepare(Context&, const Conditions& conditions,
                                        std::array<int64_t, 3>) const override {
    auto made = std::make_unique<ToyPrompt>();
    made->value = conditions.text.as<float>()[0];
    return made;
  }
  Rope rope(std::array<int64_t, 3>, std::array<int64_t, 3>, const Conditioning&) const override {
    return {};
  }

  static float prompt_of(const ForwardArgs& args) {
    return static_cast<const ToyPrompt&>(args.conditioning).value;
  }
};

struct ToyExperts : Experts {
  ModelFamily row{};
  const ModelFamily& family() const override { return row; }
  DType dtype() const override { return DType::kF32; }
  int64_t text_length(int64_t rows) const override { return rows; }
  void done_with_experts() override {}
};

}  // namespace weft::test
