#pragma once
// A job of a server in JSON, as clients see it.
#include <optional>
#include <string>

#include "engine/service/service.h"
#include "io/json.h"

namespace weft {

// The job without the folders of this machine; `live` is what it does now, if it runs here.
Json job_json(const StoredJob& job, const std::optional<LiveJob>& live);

// The result of a completed job, as its team told it.
struct JobOutput {
  std::string path{}, content_type{}, sha256{}, framehash{};
  uint64_t bytes = 0;
  int64_t frames = 0;
  std::string prompt{};  // that a language model wrote for it; "": none did
};
std::optional<JobOutput> output_of(const StoredJob& job);  // nullopt where it has none

std::string error_code_of(const StoredJob& job);  // "" where it has no error

// Refuses JSON that is nested deeply, has thousands of keys in one object, or one of them twice.
// Error(kModel) that begins with `where`.
void check_json(const std::string& body, const std::string& where);

}  // namespace weft
