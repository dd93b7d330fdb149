#pragma once
// What stands beside and inside a result: the JSON sidecar and the metadata of the file.
#include <map>
#include <string>

#include "apps/generate.h"
#include "io/part_file.h"

namespace weft {

// The names a result at `path` claims: outputs/a.mp4 -> outputs/a.json,
// outputs/a.latents.safetensors, outputs/a.checkpoint.safetensors; frames/ -> frames.json, ...
struct OutputNames {
  std::string sidecar, latents, checkpoint;
};
OutputNames output_names(const std::string& path);

// Keys "parameters" (A1111 form) and "weft" (JSON, schema weft.params/v1) for
// VideoSettings::metadata. `expanded_from`: what a language model made the prompt of, or "".
std::map<std::string, std::string> embedded_metadata(const Flags& flags, const Generator& generator,
                                                     const Request& request,
                                                     const std::string& expanded_from);

// Request as given and as resolved, engine, weights hash, seconds per stage, peaks, framehash; what
// passed through a device, and the profile where it is not null.
void write_sidecar(const std::string& path, const Flags& flags, const Generator& generator,
                   const Finished& done, Overwrite overwrite);

}  // namespace weft
