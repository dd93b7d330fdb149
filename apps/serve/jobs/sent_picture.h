#pragma once
// Pictures that clients send inside a job. A client names no file of this machine.
#include <string>

#include "engine/job/job_spec.h"

namespace weft {

// Writes the pictures of a job, which are data URLs ("data:image/png;base64,..."), to files whose
// names begin with `stem`, and puts their paths into the job. Error(kUsage) for any other text,
// beginning with `where`; kOutput where a file cannot be written.
void save_sent_pictures(JobSpec& job, const std::string& stem, const std::string& where);
void remove_sent_pictures(const JobSpec& job);

// The job with the names of its pictures' files in place of their paths.
JobSpec without_picture_folders(JobSpec job);

}  // namespace weft
