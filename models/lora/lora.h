#pragma once
// Files of LoRA (Hu et al. 2021), LoKr and LoHa: small changes of the weights of a transformer and
// of text encoders, merged when the weights are read. names.h has the names that are read.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"

namespace weft {

class CheckpointModel;
class TransformerModel;

// The experts of a model with two that a LoRA changes. Only kAll is legal for a model with one.
enum class LoraExpert : uint8_t { kAll, kHigh, kLow };

struct Lora {
  std::string file;
  double scale = 1;
  LoraExpert expert = LoraExpert::kAll;
  bool operator==(const Lora&) const = default;

  bool changes(int model) const {
    return expert == LoraExpert::kAll || (expert == LoraExpert::kHigh) == (model == 0);
  }
};

// "FILE", "FILE:0.8", "FILE:0.8:high"; the scale is left out only where it is 1 and no expert is
// named. FILE is path_text() (io/text/utf8.h) whose commas and colons are escaped, too.
std::string to_string(const Lora& lora);
std::string to_string(std::span<const Lora> loras);  // separated by commas
// The reverse, which also takes "FILE:high" and makes the path absolute. A comma or colon that is
// not escaped belongs to the path where such a file exists. "none" is no LoRA, as "" is.
// Error(kUsage) begins with `label`.
inline constexpr const char* kNoLora = "none";
std::vector<Lora> parse_loras(const std::string& text, const std::string& label);

// The family of a file of LoRAs: "LoKr", "LoHa", "XLabs", "kohya", "diffusers, PEFT", "full
// difference", "ComfyUI"; nullopt for any other file.
std::optional<std::string> lora_family(const TensorFile& file);

// Returns the transformer's `weights` with the changes of the `loras`, in their order. A changed
// tensor is f32: W + scale (alpha / rank) B A, or what LoKr and LoHa have in place of B A, computed
// from f32 factors when it is read, so it is rounded once, to the dtype in which it is held. Throws
// Error(kModel) that names every module that the model has not. Modules that only its relatives
// have are listed in `notes`, and so are keys of PEFT's patterns that apply to nothing. Modules of
// text encoders are passed over.
TensorFile with_loras(std::shared_ptr<const TensorFile> weights, const TransformerModel& model,
                      std::span<const Lora> loras, std::vector<std::string>& notes);

// Changes the weights of a pipeline's text encoders alike: each module of the `loras` for a text
// encoder changes the first one that has it in its sizes. The others are listed in `notes`.
struct TextEncoderWeights {
  const CheckpointModel& model;
  std::shared_ptr<const TensorFile>& weights;
};
void change_text_encoders(std::span<const TextEncoderWeights> encoders, std::span<const Lora> loras,
                          std::vector<std::string>& notes);

}  // namespace weft
