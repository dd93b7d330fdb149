#include "apps/generate/sidecar.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/generate/job_runner.h"
#include "io/media/metadata.h"
#include "io/media/segments.h"
#include "io/text/utf8.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

bool hide_prompts(const Flags& flags) { return flags.on("no-prompt-metadata"); }

Json as_given(const Flags& flags) {
  Json given = Json::object();
  for (const auto& [name, value] : flags.values()) {
    if (value.second == "default") continue;
    const bool prompt = name == "prompt" || name == "negative-prompt";
    if (prompt && hide_prompts(flags)) continue;
    given[name] = {{"value", recorded_value(find_flag(flags.command(), name), value.first)},
                   {"origin", value.second}};
  }
  return given;
}

// The job's record, as metadata hold it.
nlohmann::json job_record_of(const Flags& flags, const Generator& generator, const JobSpec& job) {
  nlohmann::json record = parse_json(generator.job_record(job.request), "the record of a job");
  record["schema"] = "weft.params/v1";
  record["engine"]["version"] = version_text();
  record["request"] = request_record(generator, job);
  if (hide_prompts(flags))
    for (const char* field : {"prompt", "negative_prompt", "expanded_from"})
      record["request"].erase(field);
  return record;
}

Json json_or_null(const std::string& path) {
  try {
    return read_json_file(path);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

Json to_json(const PromptCut& cut) {
  return {{"tokens", cut.tokens}, {"read", cut.read}, {"lost", cut.lost}};
}

nlohmann::json request_record(const Generator& generator, const JobSpec& job) {
  nlohmann::json request =
      parse_json(generator.job_record(job.request), "the record of a job").at("request");
  for (const auto& [field, value] : {std::pair{"expanded_from", job.expanded_from}, {"id", job.id}})
    if (!value.empty()) request[field] = value;
  return request;
}

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

Json cache_json(const RunResult& result) {
  Json steps = Json::array();
  for (const CachedStep& step : result.cached) {
    Json line{{"skipped", step.skipped}, {"embedding_change", step.embedding_change}};
    if (step.output_change) line["output_change"] = *step.output_change;
    if (step.error) line["error"] = *step.error;
    steps.push_back(line);
  }
  return {{"setting", to_string(result.request.cache)},
          {"skipped", std::ranges::count(result.cached, true, &CachedStep::skipped)},
          {"steps", steps}};
}

std::map<std::string, std::string> embedded_metadata(const Flags& flags, const Generator& generator,
                                                     const JobSpec& job) {
  const nlohmann::json record = job_record_of(flags, generator, job);
  const Request& request = job.request;
  GenerationFacts facts;
  if (!hide_prompts(flags)) {
    facts.prompt = request.prompt;
    facts.negative_prompt = request.negative_prompt.value_or("");
  }
  facts.steps = request.steps;
  facts.sampler = record["request"]["solver"];
  facts.guidance_scale = request.guidance_scale.value_or(1);
  facts.seed = request.seed;
  facts.width = static_cast<int>(request.width);
  facts.height = static_cast<int>(request.height);
  facts.model = path_text(generator.model_name());
  facts.rng = to_string(request.rng);
  facts.version = version_text();
  return {{"parameters", parameters_text(facts)}, {"weft", record.dump()}};
}

void write_sidecar(const std::string& path, const Flags& flags, const Generator& generator,
                   const Finished& done, Overwrite overwrite) {
  const RunResult& result = done.result;
  Json stages = Json::object();
  for (const StageSeconds& stage : result.stages) stages[stage.stage] = stage.seconds;
  Json sidecar{{"output", path_text(done.output())},
               {"given", as_given(flags)},
               {"job_sha256", job_hash(generator.job_record(result.request))},
               {"resumed_after_step", result.resumed_at},
               {"checkpoints", result.checkpoints},
               {"checkpoint_seconds", result.checkpoint_seconds},
               {"seconds", result.earlier_seconds + result.seconds},
               {"stage_seconds", stages},
               {"first_frame_seconds", result.first_frame_seconds},
               {"arena_high_water_bytes", result.arena_high_water},
               {"decode_high_water_bytes", result.decode_high_water},
               {"tensor_bytes_peak", result.tensor_bytes_peak},
               {"memory_high_water_bytes", result.memory_high_water},
               {"frames", result.frames},
               {"framehash", result.framehash},
               {"signature", result.signature}};
  sidecar.update(job_record_of(flags, generator, done.drawing.spec));
  if (done.segments > 0) sidecar["segments"] = done.segments;
  if (result.resident_layers > 0) sidecar["resident_layers"] = result.resident_layers;
  if (result.streaming.forwards > 0) sidecar["streaming"] = to_json(done.upload, result.streaming);
  if (!result.cached.empty()) sidecar["cache"] = cache_json(result);
  if (!done.profile.is_null()) sidecar["profile"] = done.profile;
  if (done.cut) {
    sidecar["prompt_cut"] = to_json(*done.cut);
    if (hide_prompts(flags)) sidecar["prompt_cut"].erase("lost");
  }
  write_text_file(path, sidecar.dump(1) + "\n", overwrite);
}

Json sidecar_of(const std::string& path) { return json_or_null(sidecar_path(path)); }

bool complete(const Generator& generator, const Drawing& drawing) {
  const nlohmann::json sidecar = sidecar_of(drawing.path);
  const bool exists = std::filesystem::exists(drawing.path) ||
                      std::filesystem::exists(segment_path(drawing.path, 0));
  return exists && sidecar.is_object() &&
         sidecar.value("job_sha256", nlohmann::json()) ==
             job_hash(generator.job_record(drawing.spec.request));
}

}  // namespace weft
