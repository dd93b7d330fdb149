#pragma once
// JobFailure: the error of a job as clients read it.
#include <string>
#include <vector>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {

struct JobFailure {
  std::string code, message;
  std::vector<std::string> hints{};
};
Json to_json(const JobFailure& failure);

// "usage", "memory" and so on, as results and servers name errors.
const char* error_code(ErrorKind kind);

// The error of a job without the folders of this machine. The hints are what the memory planner
// offers.
JobFailure failure_of(const Error& error);

// A text in which paths are shortened to the names of their files.
std::string without_folders(const std::string& text);

}  // namespace weft
