#include "engine/generation/generator.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/generation/cached_steps.h"
#include "engine/generation/components.h"
#include "engine/generation/delivery.h"
#include "engine/generation/stages.h"
#include "engine/job/checkpoint_policy.h"
#include "engine/job/job_spec.h"
#include "engine/job/resume.h"
#include "engine/long_video/queue_run.h"
#include "engine/long_video/queue_settings.h"
#include "engine/memory/estimate.h"
#include "engine/memory/memory_meter.h"
#include "engine/sampling/guidance.h"
#include "io/sha256.h"
#include "kernels/cuda/device.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

struct Prompt {
  std::vector<int32_t> ids;
  Tensor embeds;  // [ids, d] f32, on the device
};

// Pads `embeds` with zero rows to the text length that the models were trained with.
Tensor padded(Stream& stream, const Tensor& embeds, int64_t text_length) {
  const HostCopy rows(stream, embeds);
  Tensor out(DType::kF32, {text_length, embeds.view()[1]});
  std::copy_n(rows.view().as<float>(), embeds.count(), out.as<float>());
  return out;
}

std::string text_hash(Stream& stream, std::span<const Prompt> prompts) {
  Sha256 hash;
  for (const Prompt& prompt : prompts) {
    const HostCopy rows(stream, prompt.embeds);
    if (rows.view()) hash.update(rows.view().data, rows.view().bytes());
  }
  return hash.hex();
}

}  // namespace

// The stages of one job share this.
struct Generator::Run {
  const Request& request;
  const Sampler& sampler;
  const RunOptions& options;
  FrameSink* sink;
  StageClock& clock;
  MemoryMeter& meter;
  RunResult& result;
  std::chrono::steady_clock::time_point started;
};

struct Generator::Impl {
  Impl(std::shared_ptr<const OpenModel> model, const GeneratorOptions& given, RankPlacement of)
      : options(given),
        placement(std::move(of)),
        parts(std::move(model),
              {.dtype = given.dtype,
               .weights = given.weights,
               .attention = given.attention,
               .resident = given.resident_blocks},
              given.vae_dtype, placement,
              given.planned || given.device.kind == Device::Kind::kCpu
                  ? given.planned
                  : std::optional(device_traits(given.device))),
        sampler(
            SamplerConfig::from_json_file(parts.directory().scheduler + "/scheduler_config.json")),
        stream(stream_on(given.device, given.threads, given.determinism, given.ops)),
        available(given.planned ? available_memory(*given.planned)
                                : available_memory(given.device)) {
    if (given.resident_blocks > 0 && !parts.device())
      throw Error(ErrorKind::kUsage,
                  "--resident-layers is " + std::to_string(given.resident_blocks) +
                      ", but on a cpu the weights are resident as a whole; legal: with --device "
                      "cuda");
    if (given.weights != WeightFormat::kCompute && placement.layout()[Axis::kTensor] > 1)
      throw Error(ErrorKind::kUsage, "--layout " + to_string(placement.layout()) +
                                         " splits the width, which 8-bit weights cannot: their "
                                         "scales would be others; legal with them: tensor=1");
    check_attention();
    parts.set_wire_dtype(given.wire_dtype);
    if (given.memory_limit)
      available = is_dry_run(stream) || given.planned
                      ? given.memory_limit
                      : std::min<uint64_t>(available, given.memory_limit);
    available /= static_cast<uint64_t>(given.ranks_per_device);
    if (parts.device()) {
      if (!given.planned) host_available = available_memory();
      if (given.host_memory_limit)
        host_available = std::min<uint64_t>(host_available, given.host_memory_limit);
      if (host_available < UINT64_MAX)
        host_available /= static_cast<uint64_t>(given.ranks_per_host);
    }
    const VaeTraits& vae = parts.vae_model().traits();
    const std::array<int64_t, 3>& patch = parts.expert_model(0).traits().patch;
    limits.size_multiple = vae.spatial_factor * std::lcm(patch[1], patch[2]);
    limits.frame_multiple = vae.temporal_factor * patch[0];
    limits.max_frames = std::min(kMaxFrames, vae.max_frames);
    limits.experts = parts.experts();
    limits.boundary_ratio = parts.directory().boundary_ratio.value_or(0);
    limits.text_length = parts.model()->tokenizer->max_ids();
  }

  void check_attention() const {
    if (options.attention == AttentionFormat::kCompute) return;
    const auto refuse = [](const std::string& why) {
      throw Error(ErrorKind::kUsage, "--attention is fp8, but " + why + "; legal: compute");
    };
    const int size = parts.expert_model(0).traits().head_dim;
    if (size > kLargestFp8Head)
      refuse("the model's heads have " + std::to_string(size) + " columns, fp8 supports up to " +
             std::to_string(kLargestFp8Head));
    const Device device = options.device;
    if (device.kind == Device::Kind::kCuda && !cuda_attends_in_fp8(device.index))
      refuse(to_string(device) +
             " is no device of compute capability 9.0: " + cuda_device_description(device.index));
  }

  SamplerConfig sampler_for(const Request& request) const {
    SamplerConfig config = sampler;
    if (!request.solver.empty()) config.kind = solver_from_name(request.solver);
    if (request.flow_shift) config.shift = *request.flow_shift;
    config.even_sigmas = parts.directory().family->even_sigmas;
    return config;
  }

  bool guided(const Request& request) const {
    bool any = false;
    for (int model = 0; model < limits.experts; ++model) {
      any |= guidance_branches(guidance_of(request, model)) == 2;
    }
    return any;
  }

  nlohmann::json engine_facts() const;
  std::string job_record(const Request& request) const;

  // The second one is empty where no negative prompt is used.
  std::array<std::vector<int32_t>, 2> prompt_ids(const Request& request) const {
    std::array<std::vector<int32_t>, 2> ids{parts.model()->tokens(request.prompt)->ids};
    if (guided(request)) ids[1] = parts.model()->tokens(*request.negative_prompt)->ids;
    return ids;
  }

  std::array<int64_t, 2> prompt_rows(const Request& request) const {
    const auto ids = prompt_ids(request);
    return {std::ssize(ids[0]), std::ssize(ids[1])};
  }

  DenoisePlanConfig plan_of(const Request& request, const Sampler& sampler) {
    place_patches(placement, request, token_grid(parts, request));
    return plan_config(request, sampler, parts, placement, sequence_of(parts, request),
                       prompt_rows(request));
  }

  MemoryPlan plan(const Request& request) const {
    const Sampler sampler(sampler_for(request), request.steps, request.sigmas);
    const size_t kept = options.keeping == Keeping::kCheckpoints && placement.root()
                            ? 1 + sampler.history(SamplerState(0)).size()
                            : 0;
    return plan_memory(
        predict_bytes(parts, placement,
                      {request, sampler, prompt_rows(request), kept, is_queue(request)}),
        available, host_available);
  }
  LayoutLimits layout_limits(const Request& request) const;
  std::string refusal(const Request& request, const MemoryPlan& plan);

  RunResult run(const Request& request, FrameSink* sink, const RunOptions& run_options);
  void load_all(const Run& run);
  std::vector<Prompt> encode_prompts(const Run& run);
  void encode_prompt(const Prompt& prompt, const Pass& pass);
  Tensor initial_latents(const Run& run);
  Start start_of(const Run& run);
  void denoise(const Run& run, std::span<const Prompt> prompts, Start start);
  void denoise_queue(const Run& run, std::span<const Prompt> prompts, int first_turn);
  Checkpoint described(const Run& run, std::span<const Prompt> prompts);
  void heed_stop(const char* stage, const Run& run) const;
  Delivery delivery(const Run& run);
  LatentSplit latent_split(const Request& request) const {
    return placement.split(latent_shape(parts, request), parts.traits().patch[0]);
  }
  bool decodes(const Request& request) const {
    return placement.band(latent_shape(parts, request)[2]).size() > 0;
  }
  uint64_t memory_now() const { return tensor_bytes_live(options.device.kind) + arena.used(); }

  GeneratorOptions options;
  RankPlacement placement;
  Components parts;
  SamplerConfig sampler;
  ModelLimits limits;
  Stream stream;
  uint64_t available;                    // measured before anything is loaded
  uint64_t host_available = UINT64_MAX;  // host memory where the job runs on a device
  Arena arena{size_t{256} << 30, options.device};
};

nlohmann::json Generator::Impl::engine_facts() const {
  nlohmann::json facts{{"numerics_epoch", kNumericsEpoch},
                       {"model", parts.directory().defaults.name},
                       {"weights_sha256", parts.model()->weights_hash},
                       {"dtype", to_string(options.dtype)},
                       {"weights", to_string(options.weights)},
                       {"attention", to_string(options.attention)},
                       {"vae_dtype", to_string(options.vae_dtype)},
                       {"device", to_string(options.device.kind)},
                       {"isa", cpu_isa()},
                       {"threads", options.threads},
                       {"deterministic", options.determinism == Determinism::kFixed},
                       {"layout", to_string(placement.layout())}};
  if (options.wire_dtype) facts["wire_dtype"] = to_string(*options.wire_dtype);
  return facts;
}

std::string Generator::Impl::job_record(const Request& request) const {
  const SamplerConfig config = sampler_for(request);
  JobSpec job{.request = before_run(request), .seeded = true};
  job.request.solver = to_string(config.kind);
  if (request.sigmas.empty()) job.request.flow_shift = config.shift;
  if (!guided(request)) job.request.negative_prompt = "";
  return nlohmann::json{{"engine", engine_facts()}, {"request", to_json(job)}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A single rank stops here. Several ranks stop together, between steps, when the root decides it.
void Generator::Impl::heed_stop(const char* stage, const Run& run) const {
  if (placement.alone() && run.options.stop && run.options.stop->load())
    throw Error(ErrorKind::kStopped, std::string("stopped in ") + stage);
}

void Generator::Impl::load_all(const Run& run) {
  run.clock.enter(Zone::kLoad, 2 + parts.experts());
  int done = 0;
  heed_stop("load", run);
  if (placement.encodes_text(parts.text_model().traits())) parts.text_encoder(stream);
  run.clock.step(++done);
  for (int model = 0; model < parts.experts(); ++model) {
    heed_stop("load", run);
    if (computes_with(run.request, placement, model)) parts.expert(stream, model);
    run.clock.step(++done);
  }
  if (decodes(run.request)) parts.vae(stream);
  run.clock.step(++done);
}

// The positive prompt, the negative one, and those of the schedule.
std::vector<Prompt> Generator::Impl::encode_prompts(const Run& run) {
  std::vector<Prompt> prompts;
  for (std::vector<int32_t>& ids : prompt_ids(run.request)) prompts.push_back({std::move(ids), {}});
  for (const ScheduledPrompt& later : run.request.schedule)
    prompts.push_back({parts.model()->tokens(later.prompt)->ids, {}});
  run.clock.enter(Zone::kEncodeText,
                  static_cast<int>(prompts.size()) - (prompts[1].ids.empty() ? 1 : 0));
  int done = 0;
  for (Prompt& prompt : prompts) {
    if (prompt.ids.empty()) continue;
    heed_stop("encode_text", run);
    const auto rows = static_cast<int64_t>(prompt.ids.size());
    prompt.embeds =
        Tensor(DType::kF32, {rows, parts.text_model().traits().columns}, stream.device());
    encode_prompt(prompt, Pass{.branch = done});
    if (first_non_finite(stream, prompt.embeds) >= 0) {
      throw Error(ErrorKind::kNonFinite, "NaN or infinity in encode_text, " +
                                             std::string(done ? "negative" : "positive") +
                                             " prompt. Try --dtype f32, or check the weights with "
                                             "weft inspect");
    }
    run.clock.step(++done);
  }
  if (run.options.tap) {
    run.options.tap->tap("prompt_embeds", padded(stream, prompts[0].embeds,
                                                 parts.text_length(prompts[0].embeds.view()[0])));
  }
  parts.done_with_text_encoder();
  return prompts;
}

// The ranks that hold a part of the encoder compute the rows together. The root sends the rows to
// the other ranks.
void Generator::Impl::encode_prompt(const Prompt& prompt, const Pass& pass) {
  const TextEncoderTraits& traits = parts.text_model().traits();
  const Tag tag{.kind = Payload::kText, .pass = pass};
  if (!placement.encodes_text(traits)) {
    placement.communicator().receive(stream, 0, tag, prompt.embeds);
    return;
  }
  const TextEncoder& encoder = parts.text_encoder(stream);
  const Arena::Scope scope(arena);
  Context context = placement.text_context(stream, arena, pass, traits, prompt.embeds.view()[0]);
  encoder.encode(context, prompt.ids, prompt.embeds);
  if (!placement.root()) return;
  for (int rank = placement.text_parts(traits); rank < placement.ranks(); ++rank)
    placement.communicator().send(stream, rank, tag, prompt.embeds);
}

Tensor Generator::Impl::initial_latents(const Run& run) {
  const LatentSplit split = latent_split(run.request);
  const auto drawn = [&](const std::array<int64_t, 4>& shape, int64_t first) {
    Tensor latent(DType::kF32, shape);
    if (!is_dry_run(stream))
      NoiseField(run.request.rng, run.request.seed, split.shape).fill(latent, first);
    return latent;
  };
  if (run.options.tap) run.options.tap->tap("latents_initial", drawn(split.shape, 0));
  const int rank = placement.rank();
  return on_device(stream, drawn(split.held(rank), split.frames[rank].begin));
}

Start Generator::Impl::start_of(const Run& run) {
  Checkpoint* from = run.options.resume.get();
  if (is_queue(run.request)) {
    if (from)
      check_queue_resumable(*from, job_record(run.request), run.request, run.sampler, parts);
    return {.step = agreed_step(stream, placement, from ? from->step : 0, run.options.stop)};
  }
  const LatentSplit split = latent_split(run.request);
  if (from) check_resumable(*from, job_record(run.request), run.sampler, split.shape, run.request);
  return agreed_start(stream, placement, from, run.sampler, split, run.options.stop);
}

Delivery Generator::Impl::delivery(const Run& run) {
  return Delivery({stream, arena, parts, placement, run.request, run.options, run.sink, run.clock,
                   run.meter, run.result, run.started, job_record(run.request)});
}

// The job as its checkpoints describe it. The root alone hashes the prompts, where it may keep any.
Checkpoint Generator::Impl::described(const Run& run, std::span<const Prompt> prompts) {
  const bool hashed = placement.root() && run.options.stop && !prompts.empty();
  return describe_job(run.options, job_record(run.request), run.sampler.steps(),
                      hashed && prompts[0].embeds ? text_hash(stream, prompts) : "");
}

void Generator::Impl::denoise_queue(const Run& run, std::span<const Prompt> prompts,
                                    int first_turn) {
  std::vector<TensorView> texts{prompts[0].embeds};
  for (const Prompt& later : prompts.subspan(2)) texts.push_back(later.embeds);
  run_queue({stream, arena, parts, placement, run.request, run.sampler, texts, prompts[1].embeds,
             first_turn, described(run, prompts)},
            run.sink, run.options, run.clock, run.result, run.started);
  run.meter.stage_ended(MemoryMeter::kDenoise);
}

void Generator::Impl::denoise(const Run& run, std::span<const Prompt> prompts, Start start) {
  std::array<TensorView, 2> embeds;  // a job that begins with its final latent has none
  for (size_t i = 0; i < std::min(embeds.size(), prompts.size()); ++i)
    embeds[i] = prompts[i].embeds.view();
  CheckpointPolicy policy(run.options, described(run, prompts), start.step,
                          run.result.earlier_seconds, why_not_between_steps(run.request),
                          [&run](int done) { return goes_on_after(run.request, done); });
  Delivery delivered = delivery(run);
  Denoiser denoiser(stream, arena, parts, placement, options.graphs);
  DenoisePlanConfig config = plan_of(run.request, run.sampler);
  config.first_step = start.step;
  Job job{.request = run.request,
          .sampler = run.sampler,
          .embeds = embeds,
          .latent = std::move(start.latent),
          .history = std::move(start.history),
          .on_update =
              [&](int step) {
                run.clock.kept(policy.kept());
                run.clock.step(step + 1, run.sampler.sigmas()[step]);
              },
          .finished =
              [&](const Job::Channels& each) {
                policy.finish(run.result);
                delivered.keep(each);
              },
          .decode =
              [&](const TensorView& latent) {
                if (placement.has_clips()) return delivered.decode(latent);
                policy.finish(run.result);
                delivered.whole(latent);
              }};
  job.before_step = [&](int done) {
    if (done == start.step) run.clock.enter(Zone::kDenoise, run.sampler.steps(), start.step);
    // A checkpoint holds nothing that a skipped step adds, so the job stops before a computed one.
    if (!run.options.stop || denoiser.skips(done)) return StepAction::kContinue;
    // The first of several stages updates nothing, so it reports the finished step here.
    if (done > start.step && placement.layout()[Axis::kLayers] > 1)
      run.clock.step(done, run.sampler.sigmas()[done - 1]);
    const Tag tag{.kind = Payload::kControl, .pass = {.step = done}, .hop = kStepDecision};
    const auto own = placement.root() ? policy.decide(done) : StepAction::kContinue;
    return static_cast<StepAction>(placement.agreed(stream, tag, static_cast<int64_t>(own)));
  };
  job.cache_audit = run.options.cache_audit;
  job.skipped =
      agreed_skips(stream, placement, run.options.resume.get(), start, run.result.request);
  job.keep = [&](int done, Snapshot snapshot) {
    policy.keep(done, std::move(snapshot), written_skips(run.result.request.cache));
  };
  try {
    denoiser.run(config, job);
    if (placement.root()) report_cached(parts, run.sampler, denoiser, run.result);
    delivered.finish();
    run.result.streaming = denoiser.streaming();
  } catch (...) {
    policy.finish(run.result);
    throw;
  }
}

LayoutLimits Generator::Impl::layout_limits(const Request& request) const {
  LayoutLimits out;
  for (int model = 0; model < limits.experts; ++model) {
    const TransformerTraits& traits = parts.expert_model(model).traits();
    const auto least = [](int64_t& limit, int64_t value) {
      limit = limit ? std::min(limit, value) : value;
    };
    least(out.heads, traits.heads);
    least(out.layers, traits.blocks);
    least(out.ffn, traits.ffn_columns);
  }
  const Sequence all = sequence_of(parts, request);
  out.tokens = all.tokens;
  if (request.method.kind == MethodKind::kClips) out.clip_frames = all.frames;
  out.one_patch_each = parts.expert_model(0).joint_rows(out.tokens, 1) > 0;
  limit_patches(request.method, token_grid(parts, request), out);
  out.whole_frames = is_queue(request);
  out.guided = guided(request);
  out.whole_width = options.weights != WeightFormat::kCompute;
  return out;
}

std::string Generator::Impl::refusal(const Request& request, const MemoryPlan& memory) {
  const auto of = [&](const Request& changed) {
    // A small picture may have fewer tokens than the layout has ranks, and a short video fewer
    // frames than are global.
    const std::optional<DualScope> scope = dual_scope_of(changed.method, 0);
    if (!refuse(placement.layout(), layout_limits(changed)).empty() ||
        (scope && !weft::refuse(*scope, sequence_of(parts, changed).frames).empty()))
      return MemoryPlan{.parts = {}, .high_water = UINT64_MAX};
    return plan(changed);
  };
  const auto with_resident = [&](int layers) {
    parts.set_resident_blocks(layers);
    const MemoryPlan changed = plan(request);
    parts.set_resident_blocks(options.resident_blocks);
    return changed;
  };
  const BlockRange blocks = placement.blocks(parts.expert_model(0).traits().blocks);
  const auto under = [&](const Layout& layout, int rank) {
    return Generator(parts.model(), options, RankPlacement(layout, rank)).plan(request);
  };
  return weft::refusal(request, memory, limits, options.dtype,
                       {.request = of,
                        .resident = with_resident,
                        .layers = parts.device() ? blocks.end - blocks.begin : 0,
                        .layout = under,
                        .layouts = other_layouts(placement.layout(), layout_limits(request))});
}

RunResult Generator::Impl::run(const Request& request, FrameSink* sink,
                               const RunOptions& run_options) {
  const JobScope job(placement);
  const Sampler steps(sampler_for(request), request.steps, request.sigmas);
  const MemoryPlan memory = plan(request);
  if (!memory.fits()) throw Error(ErrorKind::kMemory, refusal(request, memory));
  const auto started = std::chrono::steady_clock::now();
  StageClock clock(run_options.listener, [this] { return memory_now(); });
  MemoryMeter meter(stream, arena);
  RunResult result;
  result.request = request;
  result.steps = steps.steps();
  const Run run{request, steps, run_options, sink, clock, meter, result, started};
  Start start = start_of(run);
  result.resumed_at = start.step;
  if (run_options.resume) result.earlier_seconds = run_options.resume->seconds;
  const bool decode_only = !is_queue(request) && start.step == steps.steps();

  parts.on_load = nullptr;
  parts.set_residency(memory.residency);
  if (memory.residency == Residency::kAll && !decode_only) load_all(run);
  parts.on_load = [&](const std::string&, const std::function<void()>& load) {
    clock.inside(Zone::kLoad, 1, load);
  };
  std::vector<Prompt> prompts;
  if (!decode_only) prompts = encode_prompts(run);
  meter.stage_ended(MemoryMeter::kEncodeText);

  if (start.step == 0 && !is_queue(request)) start.latent = initial_latents(run);
  if (is_queue(request))
    denoise_queue(run, prompts, start.step);
  else if (Delivery decoded = delivery(run); decode_only && !placement.has_clips())
    decoded.whole(start.latent), decoded.finish();
  else
    denoise(run, prompts, std::move(start));
  clock.leave();

  parts.on_load = nullptr;
  result.stages = clock.seconds();
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  result.arena_high_water = meter.arena_high_water;
  result.tensor_bytes_peak = meter.tensor_peak;
  result.stage_high_water = meter.high_water;
  result.memory_high_water = std::ranges::max(meter.high_water);
  return result;
}

Generator::Generator(const std::string& model_directory, const GeneratorOptions& options,
                     RankPlacement placement)
    : Generator(std::make_shared<OpenModel>(model_directory), options, std::move(placement)) {}
Generator::Generator(std::shared_ptr<const OpenModel> model, const GeneratorOptions& options,
                     RankPlacement placement)
    : impl_(std::make_unique<Impl>(std::move(model), options, std::move(placement))) {}
Generator::~Generator() = default;

const std::shared_ptr<const OpenModel>& Generator::model() const { return impl_->parts.model(); }
const DefaultSettings& Generator::defaults() const { return impl_->parts.directory().defaults; }
const ModelLimits& Generator::limits() const { return impl_->limits; }
const GeneratorOptions& Generator::options() const { return impl_->options; }
const Layout& Generator::layout() const { return impl_->placement.layout(); }
std::string Generator::model_name() const { return defaults().name; }
std::string Generator::job_record(const Request& request) const {
  return impl_->job_record(request);
}

int64_t Generator::tokens(const Request& request) const {
  return sequence_of(impl_->parts, request).tokens;
}

LayoutLimits Generator::layout_limits(const Request& request) const {
  return impl_->layout_limits(request);
}

std::array<int64_t, 3> Generator::grid(const Request& request) const {
  return token_grid(impl_->parts, request);
}

Request Generator::resolve(const Request& request) const {
  Request resolved = weft::resolve(request, defaults());
  validate(resolved, impl_->limits);
  const SamplerConfig config = impl_->sampler_for(resolved);
  Sampler(config, resolved.steps, resolved.sigmas);  // refuses what is illegal
  const VaeTraits& vae = impl_->parts.vae_model().traits();
  resolved.method = resolve_method(
      resolved.method,
      {.latents = vae.latent_frames(resolved.frames),
       .trained_latents = vae.latent_frames(defaults().trained_frames.value_or(defaults().frames)),
       .flow_shift = config.shift,
       .grid = token_grid(impl_->parts, resolved)});
  validate_method(resolved, impl_->parts.expert_model(0), model_name());
  decide_skips(impl_->parts, sampler(resolved), resolved);
  if (resolved.endless)
    resolved.frames =
        std::min(resolved.frames, vae.frames(queue_settings(resolved.method).most_latents()));
  if (impl_->options.wire_dtype && !is_queue(resolved))
    throw Error(ErrorKind::kUsage, "--wire-dtype is given, but the method is " +
                                       to_string(resolved.method) + "; legal with it: none");
  return resolved;
}

std::optional<PromptCut> Generator::prompt_cut(const std::string& prompt) const {
  return impl_->parts.model()->tokens(prompt)->cut;
}

MemoryPlan Generator::plan(const Request& request) const { return impl_->plan(request); }

std::string Generator::refusal(const Request& request) {
  return impl_->refusal(request, impl_->plan(request));
}

Sampler Generator::sampler(const Request& request) const {
  return Sampler(impl_->sampler_for(request), request.steps, request.sigmas);
}

DenoisePlanConfig Generator::schedule(const Request& request) const {
  return impl_->plan_of(request, sampler(request));
}

JobSchedule Generator::whole_schedule(const Request& request) const {
  if (is_queue(request))
    return queue_schedule(request, sampler(request), impl_->parts, impl_->placement);
  const DenoisePlanConfig config = schedule(request);
  return {plan_denoise(config), denoise_rules(config)};
}

bool Generator::agreed(bool value) {
  const Tag tag{.kind = Payload::kControl, .hop = kJobDecision};
  return impl_->placement.agreed(impl_->stream, tag, value);
}

RunResult Generator::run(const Request& request, FrameSink* sink, const RunOptions& options) {
  return impl_->run(resolve(request), sink, options);
}

}  // namespace weft
