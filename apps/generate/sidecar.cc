#include "apps/generate/sidecar.h"

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "io/media/metadata.h"
#include "kernels/ops.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

bool hide_prompts(const Flags& flags) { return flags.on("no-prompt-metadata"); }

nlohmann::json as_given(const Flags& flags) {
  nlohmann::json given = nlohmann::json::object();
  for (const auto& [name, value] : flags.values()) {
    if (value.second == "default") continue;
    const bool prompt = name == "prompt" || name == "negative-prompt";
    if (prompt && hide_prompts(flags)) continue;
    given[name] = {{"value", value.first}, {"origin", value.second}};
  }
  return given;
}

nlohmann::json as_resolved(const Flags& flags, const Generator& generator, const Request& request,
                           const std::string& expanded_from) {
  const SamplerConfig sampler = generator.sampler_config();
  nlohmann::json out{
      {"width", request.width},
      {"height", request.height},
      {"num_frames", request.frames},
      {"fps", request.fps},
      {"steps", request.steps},
      {"solver", request.solver.empty() ? std::string(to_string(sampler.kind)) : request.solver},
      {"guidance_scale", request.guidance_scale.value_or(1)},
      {"seed", request.seed},
      {"rng", to_string(request.rng)}};
  if (generator.limits().experts > 1)
    out["guidance_scale_2"] = request.guidance_scale_2.value_or(request.guidance_scale.value_or(1));
  if (request.sigmas.empty())
    out["flow_shift"] = request.flow_shift.value_or(sampler.shift);
  else
    out["sigmas"] = request.sigmas;  // used as they are, without a shift
  if (!hide_prompts(flags)) {
    out["prompt"] = request.prompt;
    if (!expanded_from.empty()) out["expanded_from"] = expanded_from;
    out["negative_prompt"] = request.negative_prompt.value_or("");
  }
  return out;
}

nlohmann::json engine_facts(const Generator& generator) {
  return {{"version", version_text()},
          {"numerics_epoch", kNumericsEpoch},
          {"model", generator.model_name()},
          {"weights_sha256", generator.weights_hash()},
          {"dtype", to_string(generator.options().dtype)},
          {"weights", to_string(generator.options().weights)},
          {"attention", to_string(generator.options().attention)},
          {"vae_dtype", to_string(generator.options().vae_dtype)},
          {"device", to_string(generator.options().device.kind)},
          {"isa", cpu_isa()},
          {"threads", generator.options().threads},
          {"deterministic", generator.options().determinism == Determinism::kFixed},
          {"layout", to_string(generator.layout())}};
}

}  // namespace

nlohmann::json to_json(const PromptCut& cut) {
  return {{"tokens", cut.tokens}, {"read", cut.read}, {"lost", cut.lost}};
}

OutputNames output_names(const std::string& path) {
  std::string stem = path;
  if (stem.ends_with('/'))
    stem.pop_back();
  else
    stem.resize(stem.rfind('.'));
  return {stem + ".json", stem + ".latents.safetensors", stem + ".checkpoint.safetensors"};
}

std::map<std::string, std::string> embedded_metadata(const Flags& flags, const Generator& generator,
                                                     const Request& request,
                                                     const std::string& expanded_from) {
  nlohmann::json ours{{"schema", "weft.params/v1"},
                      {"engine", engine_facts(generator)},
                      {"request", as_resolved(flags, generator, request, expanded_from)}};
  GenerationFacts facts;
  if (!hide_prompts(flags)) {
    facts.prompt = request.prompt;
    facts.negative_prompt = request.negative_prompt.value_or("");
  }
  facts.steps = request.steps;
  facts.sampler = ours["request"]["solver"];
  facts.guidance_scale = request.guidance_scale.value_or(1);
  facts.seed = request.seed;
  facts.width = static_cast<int>(request.width);
  facts.height = static_cast<int>(request.height);
  facts.model = generator.model_name();
  facts.rng = to_string(request.rng);
  facts.version = version_text();
  return {{"parameters", parameters_text(facts)}, {"weft", ours.dump()}};
}

void write_sidecar(const std::string& path, const Flags& flags, const Generator& generator,
                   const Finished& done, Overwrite overwrite) {
  const RunResult& result = done.result;
  nlohmann::json stages = nlohmann::json::object();
  for (const StageSeconds& stage : result.stages) stages[stage.stage] = stage.seconds;
  nlohmann::json sidecar{
      {"schema", "weft.params/v1"},
      {"output", done.path},
      {"given", as_given(flags)},
      {"request", as_resolved(flags, generator, result.request, done.expanded_from)},
      {"engine", engine_facts(generator)},
      {"job_sha256", job_hash(generator.job_facts(result.request))},
      {"resumed_after_step", result.resumed_at},
      {"checkpoints", result.checkpoints},
      {"checkpoint_seconds", result.checkpoint_seconds},
      {"seconds", result.earlier_seconds + result.seconds},
      {"stage_seconds", stages},
      {"arena_high_water_bytes", result.arena_high_water},
      {"decode_high_water_bytes", result.decode_high_water},
      {"tensor_bytes_peak", result.tensor_bytes_peak},
      {"memory_high_water_bytes", result.memory_high_water},
      {"frames", result.frames},
      {"framehash", result.framehash},
      {"signature", result.signature}};
  if (result.streaming.forwards > 0) sidecar["streaming"] = to_json(done.upload, result.streaming);
  if (!done.profile.is_null()) sidecar["profile"] = done.profile;
  if (done.cut) {
    sidecar["prompt_cut"] = to_json(*done.cut);
    if (hide_prompts(flags)) sidecar["prompt_cut"].erase("lost");
  }
  write_text_file(path, sidecar.dump(1) + "\n", overwrite);
}

}  // namespace weft
