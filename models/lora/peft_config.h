#pragma once
// PeftConfig: what PEFT states of the modules of a LoRA beside their factors.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/text/split_pattern.h"
#include "io/weights/tensor_file.h"
#include "models/lora/names.h"

namespace weft {

// Matches the names of modules that a key of PEFT's patterns means: `(.*\.)?(KEY)$` from the
// beginning, in the syntax of Python's re. Error(kModel) where it is no such expression.
SplitPattern module_pattern(const std::string& key, const std::string& what);

class PeftConfig {
 public:
  PeftConfig() = default;
  // The configuration of the file at `path`: in its metadata or, if PEFT itself wrote the file, in
  // adapter_config.json beside it. It is empty where there is none. Error(kModel) names the field
  // that is malformed.
  PeftConfig(const TensorFile& file, const std::string& path, bool from_peft);

  struct Scale {
    std::optional<double> alpha, rank;
    bool root = false;  // alpha / sqrt(rank)
  };
  // Returns what it states of a module. It notes which keys of the patterns that takes: the first
  // of each that matches, as in PEFT.
  // Error(kModel) names a key whose matching takes longer than the limit.
  Scale scale(const LoraName& module, const SplitPattern::TimeLimit& limit);
  size_t keys() const;  // of all patterns
  // Adds a warning for each pattern with keys that scale() has not taken.
  void tell_unused(std::vector<std::string>& notes) const;
  const std::string& what() const { return what_; }  // for messages

 private:
  struct Entry {
    std::string text;
    SplitPattern pattern;
    double value = 0;
    bool used = false;
  };
  // A file of diffusers has a section per part of the pipeline.
  struct Section {
    std::optional<double> alpha;
    bool root = false;
    std::vector<Entry> alphas, ranks;
  };
  void read(const std::string& text);

  std::string what_;
  std::map<std::string, Section> sections_;  // by the prefix of their fields
};

}  // namespace weft
