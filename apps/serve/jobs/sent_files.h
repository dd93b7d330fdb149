#pragma once
// Pictures and sounds that clients send inside a job. A client names no file of this machine.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job_spec.h"
#include "models/picture_conditioning.h"

namespace weft {

// Writes the pictures and the sound of a job, which are data URLs ("data:image/png;base64,..."), to
// files whose names begin with `stem`, and puts their paths into the job. Those of `files`, a field
// and the path of a file each, are moved there instead; as references they come before the URLs.
// Error(kUsage) for any other text, beginning with `where`, before a file is written; kOutput where
// one cannot be. Nothing is left then.
using FormFiles = std::vector<std::pair<std::string, std::string>>;
void save_sent_files(JobSpec& job, const std::string& stem, const std::string& where,
                     const FormFiles& files = {});
void remove_sent_files(const JobSpec& job);

// Refuses more references, URLs and files, than the model reads, before any of them is saved.
// Error(kUsage) that begins with `where`.
void check_reference_count(const JobSpec& job, const FormFiles& files,
                           const PictureConditioning& model, const std::string& where);

// The id of the job that a saved file of this name, without its folder, belongs to; "" for others.
std::string job_of_sent_file(const std::string& name);

// Second names of the files of a job, for another job, which moves them away. Those that are left
// are removed with this.
class LinkedFiles {
 public:
  LinkedFiles() = default;
  ~LinkedFiles();
  LinkedFiles(const LinkedFiles&) = delete;
  LinkedFiles& operator=(const LinkedFiles&) = delete;
  // Files for `field` of the other job: of a path, or a list of them, as stored jobs state them.
  // They are copies where the folder has no links. Error(kOutput).
  FormFiles of(const std::string& field, const nlohmann::json& paths);

 private:
  std::vector<std::string> paths_{};
};

// A second of silence, as a WAV file's bytes.
std::string silent_wav();

// The job with the names of these files in place of their paths.
JobSpec without_folders(JobSpec job);

}  // namespace weft
