#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "models/prompt_tokenizer.h"

namespace weft {

// The turns of a chat around a prompt, with which a language model was trained as a text encoder.
struct ChatForm {
  std::string_view before, after;
  int64_t most_ids = 0;    // of a prompt with its turns
  int64_t unread_ids = 0;  // at the beginning, whose rows the transformer does not read
  std::string_view
      padding{};  // a token that fills up a prompt to `most_ids`, hidden; "": none does
  // `after` is tokenized by itself, follows a prompt that was cut, too, and is no part of
  // `most_ids`.
  bool keeps_after = false;
};

// The turns before and after the description of a picture, of which the system's has 34 ids of the
// published tokenizer. A use adds `most_ids`.
inline constexpr ChatForm kPictureChat{
    .before =
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
        "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
        "<|im_start|>user\n",
    .after = "<|im_end|>\n<|im_start|>assistant\n",
    .unread_ids = 34};

// Opens the byte-level tokenizer in `folder`.
std::unique_ptr<PromptTokenizer> chat_prompts(const std::string& folder, const ChatForm& form);

}  // namespace weft
