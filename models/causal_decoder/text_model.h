#pragma once
// A causal decoder as a text encoder: its rows are the hidden states before the last block.
#include <memory>

#include "models/causal_decoder/decoder.h"
#include "models/text_encoder.h"

namespace weft {

std::unique_ptr<TextEncoderModel> make_decoder_text_model(const DecoderConfig& config);

}  // namespace weft
