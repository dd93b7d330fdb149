#pragma once
// AudioEncoder: turns a sound into the hidden states that a transformer is conditioned on.
#include <functional>
#include <memory>
#include <vector>

#include "models/text_encoder.h"

namespace weft {

struct AudioEncoderTraits {
  int64_t rate = 0;     // samples per second of the sounds that it reads
  int64_t hop = 0;      // samples from one row to the next
  int64_t window = 0;   // samples that a row sees before attention
  int64_t states = 0;   // hidden states: the input of each layer, and the last output
  int64_t columns = 0;  // of a hidden state
  int64_t heads = 0, ffn_columns = 0;  // what the width can be split into

  // The rows of a hidden state of a sound with so many samples.
  int64_t rows(int64_t samples) const {
    return samples < window ? 0 : (samples - window) / hop + 1;
  }
  // The ranks that share a text encoder's width share this one's in the same way.
  TextEncoderTraits split() const { return {columns, heads, ffn_columns}; }
};

// The longest sound that is encoded, in seconds. Every row attends to every other one.
inline constexpr int64_t kMostEncodedSeconds = 3600;

// The part of an audio encoder that one rank holds.
class AudioEncoder {
 public:
  virtual ~AudioEncoder() = default;
  virtual size_t bytes() const = 0;  // packed weights
  // Computes the hidden states of one sound and calls take(k, state) for k = 0 ... states - 1. A
  // state [rows, columns] f32 is valid during its call. `samples` [n] f32 lie on the host and are
  // as they were recorded, at traits().rate; the encoder normalises them as it was trained. If only
  // a part of the width is loaded, the Context needs a Reducer that sums over the parts. A sound
  // that is too short for a row or longer than kMostEncodedSeconds throws Error(kMedia).
  using Take = std::function<void(int64_t k, const TensorView& state)>;
  virtual void encode(Context& context, const TensorView& samples, const Take& take) const = 0;
};

using AudioEncoderModel = EncoderModel<AudioEncoder, AudioEncoderTraits>;

}  // namespace weft
