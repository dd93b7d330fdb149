#pragma once
// The causal audio encoder of Wan 2.2 speech to video: features of a sound, several per latent
// frame, become a few rows of the model's width.
#include <tuple>
#include <vector>

#include "kernels/conv.h"
#include "models/blocks.h"

namespace weft {

inline constexpr int64_t kWanAudioLayers = 25;  // hidden states of the sound encoder
// Features (video frames) of a latent frame, and those that it hears: the encoder's three
// convolutions of width 3, two of them of stride 2, reach from five features before the latent
// frame's first to its last.
inline constexpr int64_t kWanAudioStep = 4, kWanAudioBefore = 5,
                         kWanAudioHeard = kWanAudioBefore + kWanAudioStep;

struct WanAudioSizes {
  int64_t dim = 0, tokens = 0, width = 0;
  int64_t signal_columns() const { return kWanAudioHeard * kWanAudioLayers * dim; }
};

std::vector<TensorSpec> wan_audio_tensors(const WanAudioSizes& sizes);

// The rows that latent frames hear, and a vector of each.
struct WanAudioRows {
  TensorView tokens;  // [F, tokens + 1, D] f32
  TensorView global;  // [F, D] f32
};

struct WanAudioEncoder {
  WanAudioSizes sizes;
  Tensor mix;                                    // [layers, A] f32: a layer's share, repeated
  PackedConv local_1, global_1, conv_2, conv_3;  // f32
  PackedLinear final_linear;                     // [D, D] f32
  Tensor padding;                                // [1, D] f32, the learned token

  static WanAudioEncoder load(Stream& stream, const CheckpointPart& tensors,
                              const WanAudioSizes& sizes);
  size_t bytes() const;
  // `signal` [F, heard * layers * A] f32 has the features of each latent frame in time's order.
  WanAudioRows encode(Context& context, const TensorView& signal) const;
};

// Does what TransformerModel::signal_rows does.
void wan_audio_signal(const WanAudioSizes& sizes, const TensorView& features,
                      const TensorView& rows);

}  // namespace weft
