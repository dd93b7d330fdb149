#pragma once
// The files beside a result: its sidecar, and what an interrupted job leaves.
#include <string>
#include <vector>

#include "io/json.h"

namespace weft {

// The other files of a result at `path`: outputs/a.mp4 has outputs/a.mp4.json,
// outputs/a.mp4.latents.safetensors and outputs/a.mp4.checkpoint.safetensors; frames/ has
// frames.json, ...
struct OutputNames {
  explicit OutputNames(const std::string& stem)
      : sidecar(stem + ".json"),
        latents(stem + ".latents.safetensors"),
        checkpoint(stem + ".checkpoint.safetensors") {}
  std::string sidecar, latents, checkpoint;
};
OutputNames output_names(const std::string& path);
// The names that earlier versions gave them, without the ending: outputs/a.json.
OutputNames older_names(const std::string& path);
// True where a record of such a name, which states the output `recorded`, belongs to `path`.
bool is_record_of(const std::string& path, const std::string& recorded);
// The sidecar's name; the older one where that file alone is there and belongs to the result.
std::string sidecar_path(const std::string& path);

// The sidecar of a result at `path`; null where there is none that can be read.
Json sidecar_of(const std::string& path);

// The files that an interrupted job has left at `names`; the one with the most work done comes
// first.
std::vector<std::string> files_left(const OutputNames& names);

// Renames what an earlier version has left of an interrupted job of the output `path`, under
// older_names(), to today's names.
void adopt_older(const std::string& path);

// Removes the files that only a running job needs. This comes after the sidecar: a job that is
// killed before it can be resumed, and one that is killed after it is complete; the next run of the
// same command tidies up.
enum class Latents : uint8_t { kRemove, kKeep };
void drop_leftovers(const OutputNames& names, Latents latents);

}  // namespace weft
