#pragma once
// ConfigCheck: reports all faults of the keys of a configuration file at once.
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/json.h"

namespace weft {

// Returns the object that a configuration file holds. Throws Error(kModel) where it holds something
// else.
nlohmann::json read_config(const std::string& path);

// Reads a value for each axis of a latent, if the key is there. Error(kModel) where there are not
// three, or one is not legal.
void read_axes(const nlohmann::json& config, const std::string& key, const std::string& path,
               const IntRange& legal, std::array<int64_t, 3>& out);
// Checks the columns of a head that the rotary embedding turns for each axis: even numbers that add
// up to those of the head. Error(kModel) names the key otherwise.
void check_rotary_axes(const std::string& key, const std::array<int64_t, 3>& columns,
                       int64_t head_columns, const std::string& path);
// The complex pairs of these columns.
std::array<int, 3> rotary_pairs(const std::array<int64_t, 3>& columns);

class ConfigCheck {
 public:
  // `path` is the file's name for messages.
  ConfigCheck(const nlohmann::json& config, std::string path)
      : config_(config), path_(std::move(path)) {}

  // Notes the keys that are missing or unknown. Keys that begin with '_' are no configuration, and
  // a quantization_config is legal where the tensors tell all of it.
  void keys(const std::vector<std::string>& required, const std::vector<std::string>& optional);
  // Notes that the value of a key is not supported.
  void refuse(const std::string& key, const std::string& why);
  // Throws Error(kModel) where there are faults: the file is not `kind` ("a VAE's configuration").
  void finish(const std::string& kind) const;

 private:
  void check_quantization(const nlohmann::json& quantization);

  const nlohmann::json& config_;
  std::string path_;
  std::vector<std::string> known_, missing_, unknown_, refused_;
};

}  // namespace weft
