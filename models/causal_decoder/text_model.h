#pragma once
// A causal decoder as a text encoder.
#include <memory>

#include "models/causal_decoder/decoder.h"
#include "models/encoder.h"

namespace weft {

// The rows that a text encoder gives.
enum class DecoderRows : uint8_t {
  kBeforeLast,  // hidden states before the last block
  kFinal,       // the last hidden states, after the final norm
};

// The model offers taps (TextEncoderModel::with_taps).
std::unique_ptr<TextEncoderModel> make_decoder_text_model(const DecoderConfig& config,
                                                          DecoderRows rows);

}  // namespace weft
