#include "engine/runner/sidecar.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/runner/job_runner.h"
#include "engine/runner/result_files.h"
#include "io/media/metadata.h"
#include "io/media/segments.h"
#include "io/text/utf8.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

// The job's record, as metadata hold it.
nlohmann::json job_record_of(const RecordRules& rules, const Generator& generator,
                             const JobSpec& job) {
  nlohmann::json record = parse_json(generator.job_record(job.request), "the record of a job");
  record["schema"] = "weft.params/v1";
  record["engine"]["version"] = rules.version;
  record["request"] = request_record(generator, job);
  if (rules.without_prompts)
    for (const char* field : {"prompt", "negative_prompt", "expanded_from"})
      record["request"].erase(field);
  return record;
}

// "moving left on a navy background ...": at most eight words.
std::string first_words(const std::string& text) {
  constexpr int kMost = 8;
  std::istringstream stream(text);
  std::string shown, word;
  for (int count = 0; stream >> word; ++count) {
    if (count == kMost) return shown + " ...";
    shown += (count ? " " : "") + word;
  }
  return shown;
}

}  // namespace

std::string cut_warning(const std::string& text, const PromptCut& cut) {
  return "the " + text + " has " + std::to_string(cut.tokens) +
         " tokens, but this model's text encoder reads " + std::to_string(cut.read) +
         "; it ignores everything from '" + first_words(cut.lost) + "' on";
}

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

std::map<std::string, std::string> embedded_metadata(const RecordRules& rules,
                                                     const Generator& generator,
                                                     const JobSpec& job) {
  nlohmann::json record = job_record_of(rules, generator, job);
  if (rules.without_folders) hide_folders(record["request"]);
  const Request& request = job.request;
  GenerationFacts facts;
  if (!rules.without_prompts) {
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
  facts.version = rules.version;
  return {{"parameters", parameters_text(facts)}, {"weft", record.dump()}};
}

void write_sidecar(const std::string& path, const RecordRules& rules, const Generator& generator,
                   const Finished& done, Overwrite overwrite) {
  const RunResult& result = done.result;
  Json stages = Json::object();
  for (const StageSeconds& stage : result.stages) stages[stage.stage] = stage.seconds;
  Json sidecar{{"output", path_text(done.output())},
               {"given", rules.given},
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
  sidecar.update(job_record_of(rules, generator, done.drawing.spec));
  if (done.segments > 0) sidecar["segments"] = done.segments;
  if (result.resident_layers > 0) sidecar["resident_layers"] = result.resident_layers;
  if (result.streaming.forwards > 0) sidecar["streaming"] = to_json(done.upload, result.streaming);
  if (!result.cached.empty()) sidecar["cache"] = cache_json(result);
  if (!done.profile.is_null()) sidecar["profile"] = done.profile;
  if (done.cut) {
    sidecar["prompt_cut"] = to_json(*done.cut);
    if (rules.without_prompts) sidecar["prompt_cut"].erase("lost");
  }
  write_text_file(path, sidecar.dump(1) + "\n", overwrite);
}

bool complete(const Generator& generator, const Drawing& drawing) {
  const nlohmann::json sidecar = sidecar_of(drawing.path);
  const bool exists = std::filesystem::exists(drawing.path) ||
                      std::filesystem::exists(segment_path(drawing.path, 0));
  return exists && sidecar.is_object() &&
         sidecar.value("job_sha256", nlohmann::json()) ==
             job_hash(generator.job_record(drawing.spec.request));
}

}  // namespace weft
