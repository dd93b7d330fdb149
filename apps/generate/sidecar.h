#pragma once
// The JSON sidecar beside a result, and the metadata inside it.
#include <map>
#include <string>

#include "apps/generate/generate.h"
#include "io/part_file.h"

namespace weft {

// The other files of a result at `path`: outputs/a.mp4 has outputs/a.json,
// outputs/a.latents.safetensors and outputs/a.checkpoint.safetensors; frames/ has frames.json, ...
struct OutputNames {
  std::string sidecar, latents, checkpoint;
};
OutputNames output_names(const std::string& path);

// Keys "parameters" (A1111 form) and "weft" (JSON, schema weft.params/v1) for
// VideoSettings::metadata. `expanded_from` is Finished's.
std::map<std::string, std::string> embedded_metadata(const Flags& flags, const Generator& generator,
                                                     const Request& request,
                                                     const std::string& expanded_from);

// Writes the request as given and as resolved, engine, weights hash, seconds per stage, memory
// peaks and framehash; and where they are there the uploads, the profile and the prompt's cut.
void write_sidecar(const std::string& path, const Flags& flags, const Generator& generator,
                   const Finished& done, Overwrite overwrite);

}  // namespace weft
