#pragma once
// JobSpec: one job as a value with one JSON form, weft.job/v1 (apps/job.schema.json). Flags, lines
// of prompt files and batches, sidecars and checkpoints all make it and read it.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/job/request.h"
#include "io/json.h"

namespace weft {

inline constexpr const char* kJobSchema = "weft.job/v1";

struct JobSpec {
  std::string id{};             // its name in a batch
  std::string output{};         // its path inside the folder of results
  std::string preset{};         // whose LoRAs are still to be found (take_preset)
  std::string expanded_from{};  // the prompt from which a language model wrote request.prompt
  Request request{};            // fields that are left open mean the model's default
  bool seeded = false;          // request.seed is given; else it is random
  double seconds = 0;           // the length in place of request.frames; 0: not given
  bool round_frames = false;    // takes the nearest legal request.frames
};

// The JSON types that a field takes: a text; a number, or a text that is one; true, false, "on" or
// "off"; a list of numbers, or a text with commas; a list of texts, or one of them; a list of
// objects.
enum class FieldForm : uint8_t { kText, kNumber, kSwitch, kNumbers, kTexts, kEntries };

// A field of the JSON form. `legal` is as in the table of flags: "a|b|c" of a text, "1 ... 1000" of
// a number; null where the setter has a rule of its own. Paths are path_text() (io/text/utf8.h).
struct JobField {
  const char* name;
  const char* legal;
  FieldForm form = FieldForm::kText;
};
std::span<const JobField> job_fields();

// Names a field in messages: "--steps", "line 3: steps".
using FieldLabel = std::function<std::string(const std::string& field)>;

// Sets the fields of `object` on top of what `job` has. Error(kUsage)
// names the field, its value and the legal ones; for an unknown field the nearest known one.
void read_job(const nlohmann::json& object, const FieldLabel& label, JobSpec& job);
// Fields that are left open are absent.
Json to_json(const JobSpec& job);

// Gives the job the LoRAs of its preset, unless it has others, after which it has no preset.
// Error(kUsage) where the preset does not belong to the model, or where its LoRAs are not there.
void take_preset(JobSpec& job, const ModelDirectory& model, const FieldLabel& label);

// The fields that name files of pictures and sounds, each a path or a list of paths. Their hashes
// are fields of the same name and "_sha256".
inline constexpr const char* kFileFields[] = {"image", "last_image", "reference", "audio"};
// Puts another path in place of each of them in the JSON form of a job.
void change_file_paths(nlohmann::json& job,
                       const std::function<std::string(const std::string& path)>& changed);
// Leaves no path of this machine in the JSON form of a job: files of pictures, sounds and LoRAs
// become names, and the files of the model's parts are absent.
void hide_folders(nlohmann::json& job);

// Reads the files of the job's pictures and of its sound and fills in their facts. Error(kUsage)
// where a file is not the recorded one; Error(kMedia) where one is no picture or sound.
void take_facts(JobSpec& job, const FieldLabel& label);

// The request for a model: frames instead of seconds. Error(kUsage) where the model cannot draw the
// size or the number of frames.
Request request_of(const JobSpec& job, const DefaultSettings& defaults, const ModelLimits& limits,
                   const FieldLabel& label);

// "832x480" or "832*480" as width and height; nullopt for any other text.
std::optional<std::pair<int64_t, int64_t>> parse_size(const std::string& text);

// The record of a job: {"request": to_json() of the resolved job, "engine": {...}}, as JSON text.
// It states everything that the frames depend on. Sidecars and checkpoints hold it.

// SHA-256 of a record, hex, without the machine, the number of threads, the layout and the version.
std::string job_hash(const std::string& record);
// Lists the differences between records, without the same: "seed is '5' there and '6' here; ...".
// Empty where the two agree.
std::string difference(const std::string& there, const std::string& here);

}  // namespace weft
