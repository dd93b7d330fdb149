#include "engine/runner/result_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/job/checkpoint.h"
#include "io/part_file.h"
#include "io/text/utf8.h"

namespace weft {

namespace fs = std::filesystem;

namespace {

Json json_or_null(const std::string& path) {
  try {
    return read_json_file(path);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

OutputNames output_names(const std::string& path) {
  return OutputNames(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
}

OutputNames older_names(const std::string& path) {
  return path.ends_with('/') ? output_names(path) : OutputNames(path.substr(0, path.rfind('.')));
}

bool is_record_of(const std::string& path, const std::string& recorded) {
  return recorded.ends_with('/') == path.ends_with('/') &&
         file_ending(recorded) == file_ending(path);
}

std::string sidecar_path(const std::string& path) {
  const std::string sidecar = output_names(path).sidecar, older = older_names(path).sidecar;
  std::error_code ignored;  // a name that is too long is one that is not there
  if (std::filesystem::exists(sidecar, ignored) || !std::filesystem::exists(older, ignored))
    return sidecar;
  const Json record = json_or_null(older);
  const bool states = record.contains("output") && is_record_of(path, record.text("output"));
  return states ? older : sidecar;
}

Json sidecar_of(const std::string& path) { return json_or_null(sidecar_path(path)); }

std::vector<std::string> files_left(const OutputNames& names) {
  std::vector<std::string> files{names.latents, names.checkpoint,
                                 older_checkpoint(names.checkpoint)};
  std::error_code ignored;  // a name that is too long is one that is not there
  std::erase_if(files, [&](const std::string& path) { return !fs::exists(path, ignored); });
  return files;
}

void adopt_older(const std::string& path) {
  const OutputNames names = output_names(path), older = older_names(path);
  if (!files_left(names).empty()) return;
  for (const auto& [from, to] :
       {std::pair{older.latents, names.latents},
        {older.checkpoint, names.checkpoint},
        {older_checkpoint(older.checkpoint), older_checkpoint(names.checkpoint)}}) {
    std::error_code ignored;
    if (!fs::exists(from, ignored)) continue;
    try {
      for (const nlohmann::json& job : parse_json(read_checkpoint(from).notes["jobs"], from))
        if (is_record_of(path, job.at("output").get<std::string>()))
          return fs::rename(from, to, ignored);
    } catch (const std::exception&) {
      continue;  // not whole: of no use under any name
    }
  }
}

void drop_leftovers(const OutputNames& names, Latents latents) {
  remove_checkpoints(names.checkpoint);
  if (latents == Latents::kRemove) fs::remove(names.latents);
}

}  // namespace weft
