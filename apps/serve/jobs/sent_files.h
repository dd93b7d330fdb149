#pragma once
// Pictures and sounds that clients send inside a job. A client names no file of this machine.
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job_spec.h"

namespace weft {

// Writes the pictures and the sound of a job, which are data URLs ("data:image/png;base64,..."), to
// files whose names begin with `stem`, and puts their paths into the job. Those of `files`, a field
// and the path of a file each, are moved there instead. Error(kUsage) for any other text, beginning
// with `where`, before a file is written; kOutput where one cannot be.
using FormFiles = std::vector<std::pair<std::string, std::string>>;
void save_sent_files(JobSpec& job, const std::string& stem, const std::string& where,
                     const FormFiles& files = {});
void remove_sent_files(const JobSpec& job);

// A second of silence, as a WAV file's bytes.
std::string silent_wav();

// The job with the names of these files in place of their paths.
JobSpec without_folders(JobSpec job);

// The fields of a job that name files of its model, which no client sees.
std::vector<std::string> files_of_model();

}  // namespace weft
