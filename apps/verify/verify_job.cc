// The run of a case's job: common to all stages of `weft verify` that denoise.
#include <filesystem>

#include "apps/verify/verify_run.h"
#include "engine/latents/latent_program.h"

namespace weft {

int experts_of(const Case& c) { return std::filesystem::exists(c.part("transformer_2")) ? 2 : 1; }

std::shared_ptr<const TransformerModel> expert_model(const Case& c, int model) {
  return open_transformer(c.part_file(model ? "transformer_2" : "transformer", "config.json"));
}

CaseExperts::CaseExperts(const Case& c, Stream& stream) {
  for (int model = 0; model < experts_of(c); ++model) {
    auto weights = std::make_shared<const TensorFile>(open_part_weights(
        PartKind::kTransformer, model ? c.part("transformer_2") : c.transformer_path()));
    models.push_back(model ? expert_model(c, model) : c.transformer_model(*weights));
    if (model == 0) weights = merge_loras(c, std::move(weights), models[0].get(), nullptr);
    loaded.push_back(models[model]->load(
        stream, *weights, c.placement.load(models[model]->traits(), {.dtype = c.options.dtype})));
  }
}

Sampler sampler_of(const Case& c, int steps) {
  return {SamplerConfig::from_json_file(c.part_file("scheduler", "scheduler_config.json")), steps};
}

CaseRun::CaseRun(Case& c, Bench& bench, CaseExperts& experts, const JobFacts& facts,
                 Reported reported)
    : job{.facts = facts, .host = *this},
      case_(c),
      bench_(bench),
      experts_(experts),
      reported_(std::move(reported)) {
  if (!bench.inputs.contains("noise")) return;
  noises = on_host(bench.stream, bench.load("noise"));
  latents = Tensor(DType::kF32, noises.view().shape());
}

void CaseRun::noise(const Segment& segment, const TensorView& to) {
  copy(bench_.host, noises.view().slice(1, segment.frames.begin, segment.frames.size()), to);
}

void CaseRun::take(const Segment& segment, const TensorView& latent) {
  if (latents && latent.data)
    copy(bench_.host, HostCopy(bench_.stream, latent),
         latents.view().slice(1, segment.frames.begin, segment.frames.size()));
}

void CaseRun::velocity(const Pass& pass, const Range& own, const TensorView& velocity) {
  const Pass of{.segment = pass.segment, .step = pass.step};
  const int64_t rows = reported_(of, case_.placement.rank()).size();
  if (rows == 0) return;
  Tensor& kept = velocities_[of];
  if (!kept) kept = Tensor(DType::kF32, {rows, velocity[1]});
  copy(bench_.host, HostCopy(bench_.stream, velocity), kept.view().slice(0, own.begin, own.size()));
}

Tensor CaseRun::joined_velocity(const Pass& pass, int64_t frames) {
  const auto found = velocities_.find(pass);
  const auto& window = job.facts.window;
  const Rank on_host{bench_.host, host_arena_, experts_, case_.placement};
  const Tag tag{.kind = Payload::kControl, .pass = pass, .topic = Topic::kCheck};
  const TensorView own = found == velocities_.end() ? TensorView() : found->second.view();
  return join_on_root(on_host, tag, own, {window[0], frames, window[2], window[3]},
                      [&](int rank) { return reported_(pass, rank); });
}

void CaseRun::latents_from(int from) {
  const RankPlacement& placement = case_.placement;
  if (placement.alone()) return;
  placement.communicator().gather_v(
      bench_.host, {.kind = Payload::kLatent, .topic = Topic::kCheck},
      placement.rank() == from ? latents.view() : TensorView(),
      [&](int rank) { return rank == from ? latents.view() : TensorView(); });
}

NamedTensors CaseRun::results(std::span<const Range> blocks, int steps) {
  NamedTensors out;
  for (size_t block = 0; block < blocks.size(); ++block)
    for (int step = 0; step < steps; ++step)
      if (Tensor whole = joined_velocity({.segment = static_cast<int>(block), .step = step},
                                         blocks[block].size()))
        out["velocity." + std::to_string(block) + "." + std::to_string(step)] = std::move(whole);
  out["latents"] = std::move(latents);
  return out;
}

}  // namespace weft
