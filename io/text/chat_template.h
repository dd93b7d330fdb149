#pragma once
// Formats the turns of a conversation as the text that a language model was trained on.
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

class ChatTemplate {
 public:
  static const ChatTemplate& chatml();  // io/text/chatml.txt, part of the binary
  // io/text/chatml.txt describes the format. Messages begin with `what`. Throws Error(kModel).
  static ChatTemplate parse(std::string_view text, const std::string& what);

  // Returns the turns in order and the opening of the assistant's next turn, for
  // ByteBpeTokenizer::encode. The parts point into the template and the turns. Contents are
  // kAsText, so that a user's text cannot end a turn or begin another.
  std::vector<TextPart> prompt(std::span<const ChatTurn> turns, Thinking thinking) const;
  // The token with which the assistant ends its turn.
  const std::string& end_of_turn() const { return end_of_turn_; }

 private:
  struct Frame {
    std::string before, after;
  };
  const Frame& frame(ChatRole role) const;

  Frame system_, user_, assistant_;
  std::string no_thinking_, end_of_turn_;
};

// Returns the text after the last </think> and its line ends, or the whole reply if it has none.
std::string_view without_thoughts(std::string_view reply);

namespace detail {
extern const char* const kChatml;  // generated from chatml.txt
}

}  // namespace weft
