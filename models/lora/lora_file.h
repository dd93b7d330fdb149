#pragma once
// LoraFile: one LoRA file, its tensors sorted by the modules that they change.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"
#include "models/lora/lora.h"
#include "models/lora/names.h"
#include "models/lora/peft_config.h"

namespace weft {

// Reads the values [first, first + count) of a tensor of floats.
void read_floats(const TensorFile& file, const std::string& name, int64_t first, int64_t count,
                 float* out);
std::vector<float> read_floats(const TensorFile& file, const std::string& name);

struct LoraModule {
  LoraName name{};
  std::map<LoraRole, std::string> tensors{};  // by name
  PeftConfig::Scale scale{};                  // that PEFT states beside the tensors

  const std::string* find(LoraRole role) const {
    const auto found = tensors.find(role);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

class LoraFile {
 public:
  // Error(kModel) names the tensor that is not read. What the user should know is added to `notes`.
  LoraFile(const Lora& lora, std::vector<std::string>& notes);

  [[noreturn]] void refuse(const std::string& reason) const;
  // True for zeros alone: files with full differences also name what has no weights.
  bool is_zero(const std::string& name) const;
  bool is_zero(const LoraModule& module) const;
  // The factor of what a module's factors of this rank add; 0: they have none, and no alpha.
  float factor(const LoraModule& module, int64_t rank) const;
  // Refuses a module with a value that is not finite.
  void check_values(const LoraModule& module) const;

  const TensorFile file;
  const std::string path;
  const float scale;
  std::map<std::string, LoraModule> modules;  // by the names that the file spells

 private:
  void add(const std::string& name);
  void read_config(std::vector<std::string>& notes);
  double number(const std::string& name) const;  // the only value of a tensor
};

}  // namespace weft
