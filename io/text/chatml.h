#pragma once
// ChatML, the format in which Qwen2.5 and Qwen3 read the turns of a conversation.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/byte_bpe.h"

namespace weft {

enum class ChatRole { kSystem, kUser, kAssistant };

struct ChatTurn {
  ChatRole role;
  std::string content;  // an assistant's turn: without its thoughts
};

// kOff begins the reply with an empty think block, as Qwen3 was trained. kOn adds nothing; it is
// also the right choice for models that do not think.
enum class Thinking { kOn, kOff };

// The token with which the assistant ends its turn.
inline constexpr const char* kEndOfTurn = "<|im_end|>";

// Returns the turns in order and the opening of the assistant's next turn, for
// ByteBpeTokenizer::encode. The parts point into the turns. Contents are kAsText, so that a user's
// text cannot end a turn or begin another.
std::vector<TextPart> chatml_prompt(std::span<const ChatTurn> turns, Thinking thinking);

// Returns the text after the last </think> and its line ends, or the whole reply if it has none.
std::string_view without_thoughts(std::string_view reply);

}  // namespace weft
