#pragma once
// Opens the tokenizer of a text encoder where people have it: in a folder, in a file of its own, or
// inside the file of the encoder's weights.
#include <string>

#include "io/text/byte_bpe.h"
#include "io/text/tokenizer.h"

namespace weft {

// Returns whether a weights file holds a tokenizer beside the weights: a tensor "spiece_model", or
// the metadata of a GGUF file. A path of anything else is false.
bool holds_tokenizer(const std::string& weights);

// The path of a tokenizer for the encoder whose weights are given: itself, or a file beside it;
// "" where there is none.
std::string find_tokenizer(const std::string& text_encoder);

// Open a tokenizer by the path of a folder that holds its file, of that file (spiece.model,
// tokenizer.json), or of a weights file that holds it. Error(kModel) says what is legal.
SentencePieceTokenizer open_sentencepiece(const std::string& path);
ByteBpeTokenizer open_byte_bpe(const std::string& path);

}  // namespace weft
