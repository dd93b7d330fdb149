#pragma once
// LoRA files (Hu et al. 2021): small changes of a transformer's weights, merged when the weights
// are read. The files of diffusers, PEFT, ComfyUI, kohya and those with full differences are read.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"

namespace weft {

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
// not escaped belongs to the path where such a file exists. Error(kUsage) begins with `label`.
std::vector<Lora> parse_loras(const std::string& text, const std::string& label);

// The family of a file of LoRAs, as the guide to weights lists them: "diffusers, PEFT", "ComfyUI",
// "full difference", "kohya"; nullopt for any other file.
std::optional<std::string> lora_family(const TensorFile& file);

// Returns the transformer's `weights` with the changes of the `loras`, in their order. A changed
// tensor is f32: W + scale (alpha / rank) B A, computed from f32 factors when it is read, so it is
// rounded once, to the dtype in which it is held. Throws Error(kModel) that names every module that
// the model has not. Modules that only its relatives have are listed in `notes`.
TensorFile with_loras(std::shared_ptr<const TensorFile> weights, const TransformerModel& model,
                      std::span<const Lora> loras, std::vector<std::string>& notes);

}  // namespace weft
