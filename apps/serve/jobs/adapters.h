#pragma once
// Adapters: the LoRAs that the clients of a server may name, each by the name of its file in the
// folder of --adapters. A client names no path, and sees none.
#include <map>
#include <memory>
#include <string>

#include "apps/command_line/flags.h"
#include "engine/parts/open_model.h"
#include "io/json.h"

namespace weft {

class Adapters {
 public:
  // Reads the folder and opens every .safetensors file of it with the model. Error(kUsage) for a
  // folder that cannot be read, or a name that a job could not have; the errors of OpenModel for a
  // file that does not fit the model.
  Adapters(const Flags& flags, const std::shared_ptr<const OpenModel>& model);

  Json names() const;
  // The field `lora` of a job, "NAME[:SCALE[:high|low]],..." or "none", with files in place of the
  // names. Error(kUsage) that begins with `label` and lists the names that are known.
  std::string with_files(const std::string& loras, const std::string& label) const;

 private:
  std::map<std::string, std::string> files_;  // by name
};

// Throws the exception that is being handled: one that names a LoRA's file without its folder.
[[noreturn]] void rethrow_without_lora_folders();

}  // namespace weft
