// Stages clips and displaced of `weft verify`: approximations of attention in a whole generation,
// from noise to latents.
#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/verify/verify_run.h"
#include "engine/sampling/guidance.h"
#include "engine/schedules/denoiser.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

Clips clips_method_of(const Case& c, int64_t frames) {
  constexpr IntRange kFrames{0, 1 << 20};
  Clips clips;
  clips.window = c.integer("window", kFrames);
  clips.global = c.integer("global_frames", kFrames);
  clips.trained = c.integer("trained_frames", kFrames);
  clips.bias = c.number("bias");
  clips.global_sigma = c.number("global_sigma");
  clips.stale = clips.warmup = 0;
  if (const std::string why = clips.refuse_frames(frames); !why.empty()) c.refuse_spec(why);
  return clips;
}

bool is_pipefusion(const Case& c) { return c.text("method") == "pipefusion"; }

Displaced displaced_of(const Case& c) {
  const std::string name = c.text("method");
  Displaced method{.patches = json_ints(c.spec, "patches", c.file("case.json"), {1, 1 << 20}),
                   .warmup = static_cast<int>(c.integer("warmup", IntRange{0, kMaxSteps}))};
  if (name == "pcpp")
    method.window = c.number("window");
  else if (name != "distrifusion" && name != "pipefusion")
    c.refuse_spec("method is '" + name + "', legal: distrifusion, pcpp, pipefusion");
  return method;
}

// The facts of a case, for a latent of `shape`.
JobFacts facts_of(const Case& c, const Method& method, const std::array<int64_t, 4>& shape) {
  JobFacts facts{.request = {},
                 .sampler = sampler_of(c, c.integer("steps", kMaxSteps)),
                 .latent = shape,
                 .window = shape,
                 .guidance = {c.number("guidance_scale")}};
  facts.request.method = method;
  facts.request.guidance_scale = facts.guidance[0];
  facts.dual_scope = method->dual_scope(facts.sampler);
  return facts;
}

DenoisePlanConfig plan_of(const Case& c, const CaseExperts& experts, const JobFacts& facts,
                          const Sequence& all) {
  const TransformerTraits& traits = experts.traits();
  DenoisePlanConfig config =
      staged_config(c.placement, traits, experts.dtype(), all, facts.patches);
  config.steps.assign(facts.sampler.steps(),
                      {.model = 0, .branches = guidance_branches(facts.guidance[0])});
  config.blocks = {traits.blocks};
  if (const auto& patches = facts.patches.pipefusion) displace_steps(config.steps, patches->warmup);
  return config;
}

// The tokens whose velocity a rank reports: the first rank of the last stage that has them.
CaseRun::Reported own_tokens(const RankPlacement& placement, const Sequence& all,
                             const StalePatches& patches) {
  return [=, &placement](const Pass&, int rank) {
    const int last = placement.layout()[Axis::kLayers] - 1;
    return placement.rank_of(last, placement.mesh().sequence_index(rank)) == rank
               ? placement.tokens_of(rank, all, patches)
               : TokenRanges{{}, all.tokens};
  };
}

// Generates with the case's guidance and the seams of its placement. The velocities of the first
// displaced step, of `first`, and of the last one are results.
NamedTensors denoise(Case& c,
                     const std::function<JobFacts(const std::array<int64_t, 4>& shape,
                                                  const Sequence& all)>& facts_on,
                     int first) {
  Bench bench(c);
  CaseExperts experts(c, bench.stream);
  const TensorView noise = bench.inputs.view("noise");
  const std::array<int64_t, 4> shape{noise[0], noise[1], noise[2], noise[3]};
  const auto grid = experts.traits().grid(shape[1], shape[2], shape[3]);
  const Sequence all{grid[0] * grid[1] * grid[2], grid[0]};
  const JobFacts facts = facts_on(shape, all);
  const DenoisePlanConfig config = plan_of(c, experts, facts, all);
  CaseRun run(c, bench, experts, facts, own_tokens(c.placement, all, facts.patches));
  const Tensor positive = bench.load("encoder_hidden_states");
  Tensor negative;
  if (config.steps[0].branches == 2) negative = bench.load("negative_encoder_hidden_states");
  run.job.prompts = {positive.view()};
  run.job.negative = negative;
  Denoiser(run.rank()).run(config, run.job);
  NamedTensors out;
  const int last = facts.sampler.steps() - 1;
  for (const int step : std::set{std::min(first, last), last})
    if (Tensor velocity = run.joined_velocity({.step = step}, shape[1]))
      out["velocity." + std::to_string(step)] = std::move(velocity);
  out["latents"] = std::move(run.latents);
  return out;
}

// Joins the rows [n + joint, columns] of every sequence index, which stage `stage` holds on the
// host, on the root as [all tokens + joint, columns]; returns an empty tensor elsewhere. The joint
// rows are those of the first sequence index; `before` of them come first in both.
struct JoinedRows {
  Sequence all;
  int64_t joint = 0, columns = 0;
  int64_t before = 0;
};
Tensor join_rows(Bench& bench, const RankPlacement& placement, const TensorView& own, int stage,
                 int index, const JoinedRows& shape) {
  const Sequence& all = shape.all;
  const int64_t joint = shape.joint, columns = shape.columns;
  const int64_t first = shape.before;  // of the tokens' rows
  const int64_t tokens_end = first + all.tokens + all.beside;
  Tensor whole, part;
  if (placement.root()) whole = Tensor(DType::kF32, {all.tokens + all.beside + joint, columns});
  const auto sends = [&](int rank) {
    return placement.rank_of(stage, placement.mesh().sequence_index(rank)) == rank;
  };
  const auto landing = [&](int rank) {
    if (!sends(rank) || rank == 0) return rank == 0 && sends(0) ? own : TensorView();
    const int64_t rows = placement.tokens_of(rank, all).size();
    part = Tensor(DType::kF32, {rows + joint, columns});
    return part.view();
  };
  const auto place = [&](int rank, const TensorView& from) {
    const TokenRanges tokens = placement.tokens_of(rank, all);
    const auto copy_rows = [&](int64_t at, int64_t to, int64_t count) {
      if (count == 0) return;
      const TensorView source = from.slice(0, at, count);
      std::memcpy(whole.view().slice(0, to, count).data, source.data, source.bytes());
    };
    int64_t at = first;
    for (const Range& range : tokens.ranges) {
      copy_rows(at, first + range.begin, range.size());
      at += range.size();
    }
    if (placement.mesh().sequence_index(rank) != 0) return;
    copy_rows(0, 0, first);
    copy_rows(at, tokens_end, joint - first);
  };
  if (placement.alone())
    place(0, own);
  else
    placement.communicator().gather_v(
        bench.stream, {.kind = Payload::kControl, .topic = Topic::kCheck, .hop = index},
        sends(placement.rank()) ? own : TensorView(), landing, place);
  return whole;
}

std::string observed_name(const TransformerTraits& traits, int block) {
  const auto [name, number] = traits.observed_block(block);
  return std::string(name) + "." + std::to_string(number);
}

// Joins on the root what the ranks' collectors saw of token rows, under the golden names. After a
// block there are `joint` other rows, and those of the pictures beside the latent.
void join_seen(Bench& bench, const RankPlacement& placement, const TransformerTraits& traits,
               const Sequence& all, int64_t joint, NamedTensors& seen) {
  if (placement.alone()) return;
  const int stages = placement.layout()[Axis::kLayers];
  int message = 0;
  const auto join = [&](const std::string& name, int stage, const Sequence& tokens, int64_t extra) {
    const auto own = seen.find(name);
    Tensor whole =
        join_rows(bench, placement, own == seen.end() ? TensorView() : own->second.view(), stage,
                  message++, {tokens, extra, traits.width, traits.joint_first ? extra : 0});
    if (whole) seen[name] = std::move(whole);
  };
  // Only the first stage sees rows that no block made. The root is one of its ranks, so all of them
  // have seen the same.
  std::set<std::string> blocks_seen;
  for (int i = 0; i < traits.blocks; ++i) blocks_seen.insert(observed_name(traits, i));
  std::vector<std::pair<std::string, int64_t>> before;
  const Sequence latent{all.tokens, all.frames};
  const int64_t own = placement.tokens(latent).size();
  for (const auto& [name, tensor] : seen)
    if (!blocks_seen.count(name) && tensor.view().rank == 2 &&
        (name == "patch_embedding" || name.find('.') != std::string::npos))
      before.emplace_back(name, tensor.view()[0] - own);
  const bool first = placement.blocks(traits.blocks).first();
  for (const auto& [name, extra] : before)
    if (first) join(name, 0, latent, extra);
  message = 1 << 10;
  for (int stage = 0; stage < stages; ++stage) {
    const BlockRange blocks = stage_blocks(traits.blocks, stages, stage);
    for (int i = blocks.begin; i < blocks.end; ++i)
      join(observed_name(traits, i), stage, all, joint);
  }
}

// The timesteps of a case as segments: of all tokens, or one per token. A segment is a latent frame
// at most where each frame follows its own signal.
std::vector<TimeSegment> segments_of(const Case& c, const Tensor& timestep, const Sequence& all,
                                     bool of_frames) {
  const int64_t count = timestep.count(), tokens = all.tokens;
  if (count != 1 && count != tokens)
    c.refuse("timestep has " + std::to_string(count) + " values (legal: 1, or one for each of " +
             std::to_string(tokens) + " tokens)");
  const float* t = timestep.as<float>();
  std::vector<TimeSegment> out;
  const int64_t segments = of_frames ? all.frames : 1, each = tokens / segments;
  if (count == 1) {
    for (int64_t i = 0; i < segments; ++i) out.push_back({{i * each, (i + 1) * each}, t[0]});
    return out;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (out.empty() || t[i] != out.back().timestep) out.push_back({{i, i}, t[i]});
    out.back().tokens.end = i + 1;
  }
  return out;
}

// Repeats the rows that a forward has per segment of equal timesteps: a row per token.
void give_each_token_its_time(std::span<const TimeSegment> times, NamedTensors& seen) {
  for (const auto& [name, columns] : {std::pair{"temb", 1}, {"timestep_proj", 2}}) {
    const auto found = seen.find(name);
    if (found == seen.end()) continue;
    const TensorView from = found->second.view();
    const int64_t row = from.count() / static_cast<int64_t>(times.size());
    const int64_t tokens = times.back().tokens.end, d = from[-1];
    Tensor all =
        columns == 1 ? Tensor(DType::kF32, {tokens, d}) : Tensor(DType::kF32, {tokens, row / d, d});
    for (size_t i = 0; i < times.size(); ++i)
      for (int64_t token = times[i].tokens.begin; token < times[i].tokens.end; ++token)
        std::copy_n(from.as<float>() + static_cast<int64_t>(i) * row, row,
                    all.as<float>() + token * row);
    found->second = std::move(all);
  }
}

// The inputs of a transformer beside the latent and the prompt.
struct GivenInputs {
  Tensor image, channels;
  std::vector<Tensor> references;

  std::vector<TensorView> reference_views() const { return {references.begin(), references.end()}; }
};
GivenInputs given_inputs(Bench& bench, const Case& c, const TensorView& x,
                         const TransformerTraits& traits) {
  if (x[0] != traits.in_channels)
    c.refuse("hidden_states has " + std::to_string(x[0]) +
             " channels (legal: " + std::to_string(traits.in_channels) + ")");
  GivenInputs given;
  const std::string image = "encoder_hidden_states_image";
  if (bench.inputs.contains(image)) {
    given.image = bench.load(image);
    if (given.image.view().rank != 2)
      c.refuse(image + " is " + given.image.view().to_string_shape() + " (legal: [N, d])");
  }
  const auto reference = [&] {
    return "reference_latents." + std::to_string(given.references.size());
  };
  while (traits.reads_references && bench.inputs.contains(reference())) {
    const Tensor& latent = given.references.emplace_back(bench.load(reference()));
    if (latent.view().rank != 3 || latent.view()[0] != traits.out_channels)
      c.refuse("a reference is " + latent.view().to_string_shape() + " (legal: [" +
               std::to_string(traits.out_channels) + ", h, w])");
  }
  if (const int64_t channels = traits.given_channels()) {
    given.channels = bench.tensor(DType::kF32, {channels, x[1], x[2], x[3]});
    copy(bench.stream, x.slice(0, traits.out_channels, channels), given.channels);
  }
  return given;
}

// The prompt's rows. Those that encoder_attention_mask hides are dropped: no other row sees them.
Tensor prompt_rows(Bench& bench, const Case& c) {
  Tensor all = bench.load("encoder_hidden_states");
  if (all.view().rank != 2) c.refuse("encoder_hidden_states is [T, d]");
  const std::string name = "encoder_attention_mask";
  if (!bench.inputs.contains(name)) return all;
  const TensorView mask = bench.inputs.view(name);
  if (mask.dtype != DType::kI32 || mask.rank != 1 || mask[0] != all.view()[0])
    c.refuse(name + " is int32 [T], with a value for each row of encoder_hidden_states");
  std::vector<int64_t> seen;
  for (int64_t row = 0; row < mask[0]; ++row)
    if (mask.as<int32_t>()[row] != 0) seen.push_back(row);
  if (seen.empty()) c.refuse(name + " hides all rows");
  Tensor rows = bench.tensor(DType::kF32, {std::ssize(seen), all.view()[1]});
  for (int64_t i = 0; i < std::ssize(seen); ++i)
    copy(bench.stream, all.view().select(0, seen[i]), rows.view().select(0, i));
  return rows;
}

}  // namespace

// A generation of one step, of which the velocity is the result.
NamedTensors run_transformer(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  Bench bench(c);
  CaseExperts experts(c, bench.stream);
  const TransformerTraits& traits = experts.traits();
  const Tensor latent = bench.load("hidden_states");
  const Tensor timestep = on_host(bench.stream, bench.load("timestep"));
  const Tensor embeds = prompt_rows(bench, c);
  const TensorView x = as_video(latent);
  if (x.rank != 4) c.refuse("hidden_states is [C, F, H, W] or [C, H, W]");
  const auto grid = traits.grid(x[1], x[2], x[3]);
  const Sequence all{grid[0] * grid[1] * grid[2], grid[0]};
  const GivenInputs given = given_inputs(bench, c, x, traits);
  const SpeechInputs speech = speech_inputs(bench, c, *experts.models[0], grid[0]);
  const Tensor pooled = traits.pooled_columns ? bench.load("pooled_projections") : Tensor();
  const std::array<int64_t, 4> shape{traits.out_channels, x[1], x[2], x[3]};
  std::vector<std::array<int64_t, 2>> sizes;
  for (const Tensor& each : given.references) sizes.push_back({each.view()[1], each.view()[2]});
  const JobFacts facts{.request = {},
                       .sampler = {{.kind = SolverKind::kEuler}, 1},
                       .latent = shape,
                       .window = shape,
                       .reference_rows = reference_rows_of(traits, sizes),
                       .guidance = {1}};
  const Sequence with_references{all.tokens, all.frames, facts.beside()};
  Collector prepared, collector;
  NamedTensors& seen = collector.tensors;
  CaseRun run(c, bench, experts, facts, own_tokens(c.placement, all, {}));
  Job& job = run.job;
  job.prompts = {embeds.view()};
  if (pooled) job.pooled[0] = pooled;
  job.conditions = {.image = given.image,
                    .channels = given.channels,
                    .guidance = json_number_or(c.spec, "guidance_scale", c.file("case.json"), 0),
                    .reference = speech.reference,
                    .motion = speech.motion,
                    .references = given.reference_views(),
                    .motion_scales = speech.motion_scales,
                    .pose = speech.pose};
  job.signal = {speech.signal.view()};
  run.noises = Tensor(DType::kF32, shape);
  copy(bench.host, HostCopy(bench.stream, x).view().slice(0, 0, traits.out_channels), run.noises);
  job.times = segments_of(c, timestep, all, traits.signal_columns > 0);
  job.prompt_observer = &prepared;
  job.observer = &collector;
  DenoisePlanConfig config = plan_of(c, experts, facts, with_references);
  const int64_t joint = config.joint_rows[0] = joint_rows_of(
      *experts.models[0], grid, embeds.view()[0], bool(speech.reference), bool(speech.motion));
  Denoiser(run.rank()).run(config, job);
  join_seen(bench, c.placement, traits, with_references, joint, seen);
  Tensor out = run.joined_velocity({}, x[1]);
  if (timestep.count() > 1) give_each_token_its_time(job.times, seen);
  if (out && latent.view().rank == 3)
    out = f32_copy(bench.host, out, {x.extent[0], x.extent[2], x.extent[3]});
  if (out) seen["output"] = std::move(out);
  seen.merge(prepared.tensors);
  return std::move(seen);
}

NamedTensors run_clips(Case& c) {
  return denoise(
      c,
      [&](const auto& shape, const Sequence& all) {
        return facts_of(c, clips_method_of(c, all.frames), shape);
      },
      0);
}

NamedTensors run_displaced(Case& c) {
  const Displaced method = displaced_of(c);
  return denoise(
      c,
      [&](const auto& shape, const Sequence& all) {
        if (const std::string why = refuse(method, all.tokens); !why.empty()) c.refuse_spec(why);
        JobFacts facts = facts_of(c, Full(), shape);
        if (is_pipefusion(c))
          facts.patches.pipefusion = PipeFusion{method.patches, method.warmup};
        else
          facts.patches.displaced = method;
        return facts;
      },
      method.warmup);
}

MethodLimit limit_displaced(const Case& c) {
  const std::vector<int64_t> patches = displaced_of(c).patches;
  if (is_pipefusion(c) && !patches.empty())
    return {SplitRule::kStagedPatches, std::ranges::min(patches)};
  return {SplitRule::kPatches, std::ssize(patches)};
}

}  // namespace weft
