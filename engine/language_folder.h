#pragma once
// LanguageFolder: what a language model's folder says besides its weights, and prompts as ids.
#include <optional>
#include <string>
#include <vector>

#include "io/byte_bpe.h"
#include "io/chat_template.h"
#include "models/qwen.h"

namespace weft {

struct LanguageFolder {
  std::string path;
  QwenConfig config;
  ByteBpeTokenizer tokenizer;
  std::vector<int32_t> end_ids;  // that end a text; may be empty

  // config.json, generation_config.json and tokenizer.json of a transformers folder. Error(kModel)
  // says what was found instead and what is legal.
  static LanguageFolder open(const std::string& path);
  // Whether the folder is meant to be one: its config.json has a model_type known here.
  static bool recognise(const std::string& path);

  // A turn of the user and the opening of the assistant's. kOff counts where the model knows how to
  // think. Error(kModel) for a model without the template's tokens.
  std::vector<int32_t> chat(const std::optional<std::string>& system, const std::string& user,
                            Thinking thinking) const;
  // end_ids and the token that ends a turn.
  std::vector<int32_t> chat_end_ids() const;
};

}  // namespace weft
