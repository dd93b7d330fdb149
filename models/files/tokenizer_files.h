#pragma once
// Opens the tokenizer of a text encoder where people have it: in a folder, in a file of its own, or
// inside the file of the encoder's weights.
#include <string>

#include "io/text/bpe/clip_tokenizer.h"
#include "io/text/byte_bpe.h"
#include "io/text/tokenizer.h"
#include "models/files/tokenizer_kind.h"

namespace weft {

// Returns whether a weights file holds a tokenizer beside the weights: a tensor "spiece_model", or
// the metadata of a GGUF file. A path of anything else is false.
bool holds_tokenizer(const std::string& weights);

// Returns whether the path is that of a tokenizer of this kind: its file, a folder that has it, or
// weights that hold it.
bool is_tokenizer(const std::string& path, TokenizerKind kind);

// The files that a tokenizer of this kind is made of: "spiece.model".
const char* files_of(TokenizerKind kind);

// The path of a tokenizer of this kind for the encoder whose weights are given: itself, a file
// beside it, or the folder `name` there or beside its own folder; "" where there is none.
std::string find_tokenizer(const std::string& text_encoder, TokenizerKind kind, const char* name);

// Open a tokenizer by the path of a folder that holds its file, of that file (spiece.model,
// tokenizer.json, vocab.json beside merges.txt), or of a weights file that holds it. Error(kModel)
// says what is legal.
SentencePieceTokenizer open_sentencepiece(const std::string& path);
ByteBpeTokenizer open_byte_bpe(const std::string& path);
ClipTokenizer open_clip_tokenizer(const std::string& path);

}  // namespace weft
