#pragma once
// TokenizerKind: the kinds of tokenizers that text encoders have.
#include <cstdint>

namespace weft {

enum class TokenizerKind : uint8_t { kSentencePiece, kByteBpe, kClip };

}  // namespace weft
