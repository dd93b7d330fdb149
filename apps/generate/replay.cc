// weft replay: makes a finished file again from its metadata or the sidecar beside it.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/generate.h"
#include "apps/generate/progress.h"
#include "apps/model_folder.h"
#include "apps/scratch_folder.h"
#include "engine/job/job_spec.h"
#include "engine/runner/result_files.h"
#include "engine/runner/sidecar.h"
#include "io/json.h"
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/metadata.h"
#include "io/media/video.h"
#include "io/text/path_list.h"
#include "io/text/utf8.h"
#include "kernels/ops.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The facts that a finished file and its sidecar state.
struct Record {
  std::string path;        // a folder of frames ends in '/'
  nlohmann::json request;  // as resolved
  nlohmann::json engine;   // version, weights, device, layout
  std::string framehash;   // of the frames before encoding; empty without a sidecar
  std::string model;       // the folder it was made with, or ""
};

nlohmann::json embedded(const std::string& path) {
  std::string file = path;
  if (path.ends_with('/')) file += "00000.png";
  const MediaInfo info = probe_media(file);
  const auto found = info.metadata.find("weft");
  if (found == info.metadata.end()) return nullptr;
  return parse_json(found->second, path);
}

bool describes(const nlohmann::json& object) {
  return object.is_object() && object.value("schema", nlohmann::json()) == "weft.params/v1" &&
         object.contains("request") && object["request"].is_object() && object.contains("engine") &&
         object["engine"].is_object();
}

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// True where both are of one job. Files that servers hand out name no folders.
bool of_one_job(const nlohmann::json& inside, const nlohmann::json& beside) {
  nlohmann::json shown = beside["request"];
  if (inside["request"] == shown) return true;
  hide_folders(shown);
  return inside["request"] == shown;
}

Record read_record(const std::string& operand) {
  if (!fs::exists(operand)) throw Error(ErrorKind::kUsage, operand + ": no such file or folder");
  Record record{.path = operand, .request = {}, .engine = {}, .framehash = {}, .model = {}};
  if (fs::is_directory(operand) && !operand.ends_with('/')) record.path += '/';
  const bool is_sidecar = operand.ends_with(".json");
  const std::string sidecar = is_sidecar ? operand : sidecar_path(record.path);
  const nlohmann::json inside = is_sidecar ? nlohmann::json() : embedded(record.path);
  nlohmann::json beside;
  if (fs::is_regular_file(sidecar)) beside = read_json_file(sidecar);
  const bool has_inside = describes(inside);
  bool has_beside = describes(beside);
  // The sidecar may belong to another clip that had this name before.
  if (has_inside && has_beside && !of_one_job(inside, beside)) {
    std::fprintf(stderr, "weft: warning: %s belongs to another job and is not used\n",
                 printable(sidecar).c_str());
    has_beside = false;
  }
  if (!has_inside && !has_beside)
    throw Error(ErrorKind::kMedia, operand + ": holds no metadata of Weft, and " + sidecar +
                                       " does not either; made with --no-metadata?");
  const nlohmann::json& source = has_beside ? beside : inside;
  record.request = source["request"];
  record.engine = source["engine"];
  if (has_beside) {
    record.framehash = text_of(beside, "framehash");
    if (is_sidecar) record.path = path_of_text(text_of(beside, "output"));
    if (beside.contains("given") && beside["given"].contains("model"))
      record.model = path_of_text(text_of(beside["given"]["model"], "value"));
  }
  return record;
}

// The hash of the frames that decoding the file gives.
std::string decoded_hash(const std::string& path) {
  FrameHash hash;
  if (path.ends_with('/')) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path().extension() == ".png") files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) hash.add(read_png(file));
  } else if (file_ending(path) == ".png") {
    hash.add(read_png(path));
  } else {
    VideoReader reader(path);
    for (Frame frame; reader.next(frame);) hash.add(frame);
  }
  return hash.hex();
}

struct Difference {
  std::string what, file, here;
};

std::vector<Difference> differences(const Record& record, const Flags& flags, const Flags& job,
                                    const std::string& weights) {
  std::vector<Difference> out;
  const auto compare = [&](const char* what, const std::string& here) {
    const std::string file = text_of(record.engine, what);
    if (!file.empty() && file != here) out.push_back({what, file, here});
  };
  compare("version", version_text());
  compare("numerics_epoch", std::to_string(kNumericsEpoch));
  compare("weights_sha256", weights);
  compare("device", wants_cuda(job) ? "cuda" : "cpu");
  compare("isa", cpu_isa());
  compare("dtype", std::string(to_string(compute_dtype(job))));
  if (flags.given("layout") || flags.given("ranks"))
    compare("layout", flags.given("layout") ? flags.text("layout") : "auto");
  if (flags.given("threads")) compare("threads", flags.text("threads"));
  return out;
}

// The job that the file states. A prompt that it hides is taken from the flags.
GivenJob job_of(const Record& record, const Flags& flags) {
  nlohmann::json fields = record.request;
  if (fields.value("endless", false))
    throw Error(ErrorKind::kUsage, record.path +
                                       " is the beginning of an endless video, which "
                                       "would have no end here either; legal: a result "
                                       "that was not made with --endless");
  for (const auto& [flag, key] :
       {std::pair{"prompt", "prompt"}, {"negative-prompt", "negative_prompt"}}) {
    const bool told = fields.contains(key);
    if (told && flags.given(flag))
      throw Error(ErrorKind::kUsage, flags.label(flag) + " is given, but " + record.path +
                                         " holds its own; weft generate draws another");
    if (!told && !flags.given(flag) && std::string(flag) == "prompt")
      throw Error(ErrorKind::kUsage,
                  record.path + " was made with --no-prompt-metadata; give --" + std::string(flag));
    if (!told && flags.given(flag)) fields[key] = text_argument(flags, flag);
  }
  GivenJob job{.spec = {},
               .label = [path = flags.operands().front()](
                            const std::string& field) { return path + ": " + field; },
               .model = {}};
  read_named_job(fields, job.label, job.spec);
  // The flags tell where the recorded pictures and the sound lie now.
  Request& request = job.spec.request;
  for (const auto& [flag, path] : {std::pair{"image", &request.image.path},
                                   {"last-image", &request.last_image.path},
                                   {"audio", &request.audio.path}}) {
    if (!flags.given(flag)) continue;
    if (path->empty())
      throw Error(ErrorKind::kUsage, flags.label(flag) + " is given, but " + record.path +
                                         " was made without; weft generate draws another");
    *path = flags.text(flag);
  }
  if (flags.given("reference")) {
    std::vector<GivenPicture> moved;
    for (const std::string& path : split_paths(flags.text("reference")))
      moved.push_back({.path = path});
    if (moved.size() != request.references.size())
      throw Error(ErrorKind::kUsage,
                  flags.label("reference") + " is given " + std::to_string(moved.size()) +
                      " times, but " + record.path + " was made with " +
                      std::to_string(request.references.size()) + "; weft generate draws another");
    keep_hashes(request.references, moved);
    request.references = std::move(moved);
  }
  return job;
}

// The --output and --frames of the job: the user's --output, or a scratch file that is removed at
// the end.
struct Target {
  std::string output;
  bool frames_as_pictures = false;
  bool kept = false;
};

Target target_of(const Record& record, const Flags& flags, const ScratchFolder& scratch) {
  const bool was_folder = record.path.ends_with('/');
  const std::string extension = was_folder ? "" : file_ending(record.path);
  if (flags.origin("output") != "flag")
    return {scratch.file("replay" + extension), was_folder, false};
  const std::string output = flags.text("output");
  const std::string theirs = file_ending(output);
  const bool same_kind = was_folder ? theirs.empty() : theirs == extension || output.ends_with('/');
  if (record.framehash.empty() && !same_kind)
    throw Error(ErrorKind::kUsage,
                flags.label("output") + " is '" + output + "', legal: a " +
                    (was_folder ? "folder" : "name that ends in " + extension) +
                    " (without its sidecar the file is compared with one of its own kind)");
  return {output, was_folder && theirs.empty(), true};
}

// The flags that compute the job as the file was computed, under those of replay. Values from the
// file are data: each is checked as the value of a flag.
StoredFlags stored_flags(const Record& record, const Flags& flags, const Target& target) {
  StoredFlags stored{.values = {}, .origin = record.path};
  for (const char* name : {"dtype", "weights", "text_encoder_weights", "attention", "vae_dtype",
                           "wire_dtype", "device", "threads", "layout"})
    if (const std::string value = text_of(record.engine, name); !value.empty())
      stored.values[name] = value;
  stored.values["deterministic"] = text_of(record.engine, "deterministic") == "true" ? "on" : "off";
  if (flags.given("ranks") || flags.given("layout") || stored.values["layout"] == "one rank")
    stored.values.erase("layout");
  for (const auto& [name, value] : flags.values())
    if (flags.given(name) && name != "prompt" && name != "negative-prompt" && name != "image" &&
        name != "last-image" && name != "audio")
      stored.values[name] = value.first;
  stored.values["output"] = target.output;
  stored.values["frames"] = target.frames_as_pictures ? "png" : "file";
  if (!target.kept) {
    stored.values["no-metadata"] = "on";
    stored.values["checkpoint-every"] = "none";
  }
  return stored;
}

void report(const Flags& flags, const Record& record, const std::vector<Difference>& differ,
            const std::string& expected, const std::string& measured, const std::string& output) {
  const bool same = expected == measured;
  if (flags.on("json")) {
    Json object{{"file", path_text(record.path)},
                {"framehash", measured},
                {"expected", expected},
                {"compared", record.framehash.empty() ? "decoded frames" : "frames"},
                {"differences", Json::object()}};
    if (!measured.empty()) object["same"] = same;
    if (!output.empty()) object["output"] = path_text(output);
    for (const Difference& d : differ)
      object["differences"][d.what] = {{"file", d.file}, {"here", d.here}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s %s %s\n", same ? "SAME" : "DIFFERENT", record.path.c_str(), measured.c_str());
  if (!same)
    std::fprintf(stderr, "weft: the file's frames have %s%s\n", expected.c_str(),
                 differ.empty() ? "; nothing that is known to matter differs" : "");
}

}  // namespace

int run_replay(const Flags& flags) {
  if (flags.operands().size() != 1)
    throw Error(ErrorKind::kUsage,
                "weft replay takes one file, got " + std::to_string(flags.operands().size()));
  const Record record = read_record(flags.operands().front());
  const GivenJob given = job_of(record, flags);
  const ScratchFolder scratch;
  const Target target = target_of(record, flags, scratch);
  Flags job = Flags::parse(kGenerate, {}, stored_flags(record, flags, target));
  if (!flags.on("dry-run")) check_outputs(job, {given});

  const PartFiles& files = given.spec.request.files;
  std::string model;
  if (flags.given("model"))
    model = model_folder(flags);
  else if (!record.model.empty())
    model = find_model(record.model);
  if (model.empty() && files.transformer.empty())
    throw Error(ErrorKind::kUsage, "weft replay needs --model FOLDER: " + record.path +
                                       " was made with " + text_of(record.engine, "model") +
                                       " and does not say in which folder that is");
  if (!model.empty()) job.imply("model", model, record.path);
  const auto opened = std::make_shared<const OpenModel>(
      model, given.spec.request.loras.value_or(std::vector<Lora>()), files);
  const std::string weights = opened->weights_hash;
  const std::vector<Difference> differ = differences(record, flags, job, weights);
  for (const Difference& d : differ)
    if (informative(flags))
      std::fprintf(stderr, "differs %s: %s in the file, %s here\n", d.what.c_str(), d.file.c_str(),
                   d.here.c_str());
  const std::string theirs = text_of(record.engine, "weights_sha256");
  if (theirs != weights && !flags.on("allow-other-weights"))
    throw Error(ErrorKind::kModel, opened->directory.path + " holds other weights (" +
                                       weights.substr(0, 12) + "...) than " + record.path +
                                       " was made with (" + theirs.substr(0, 12) +
                                       "...). Try --model with the folder "
                                       "it was made with, or --allow-other-weights");
  if (flags.on("dry-run")) {
    if (flags.on("json")) report(flags, record, differ, record.framehash, "", "");
    return 0;
  }
  std::string expected = record.framehash, measured, output;
  if (expected.empty()) expected = decoded_hash(record.path);
  const int code = generate(
      job, {given},
      [&](const Finished& done) {
        measured =
            record.framehash.empty() ? decoded_hash(done.drawing.path) : done.result.framehash;
        if (target.kept) output = done.drawing.path;
      },
      opened);
  if (code) return code;
  report(flags, record, differ, expected, measured, output);
  return expected == measured ? 0 : 1;
}

}  // namespace weft
