#include "engine/generation/generator.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "engine/generation/components.h"
#include "engine/generation/decode.h"
#include "engine/generation/denoiser.h"
#include "engine/generation/stages.h"
#include "engine/job/checkpoint_policy.h"
#include "engine/job/resume.h"
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

// Returns the shortest text that reads back as the same number.
std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string text_hash(Stream& stream, const std::array<Prompt, 2>& prompts) {
  Sha256 hash;
  for (const Prompt& prompt : prompts) {
    const HostCopy rows(stream, prompt.embeds);
    if (rows.view()) hash.update(rows.view().data, rows.view().bytes());
  }
  return hash.hex();
}

std::optional<DeviceTraits> planned_device(const GeneratorOptions& options) {
  if (options.planned || options.device.kind == Device::Kind::kCpu) return options.planned;
  return device_traits(options.device);
}

}  // namespace

struct Generator::Impl {
  Impl(std::shared_ptr<const OpenModel> model, const GeneratorOptions& given, RankPlacement of)
      : options(given),
        placement(std::move(of)),
        parts(std::move(model),
              {.dtype = given.dtype,
               .weights = given.weights,
               .attention = given.attention,
               .resident = given.resident_blocks},
              given.vae_dtype, placement, planned_device(given)),
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
    limits.text_length = parts.tokenizer().max_ids();
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

  JobFacts job_facts(const Request& request) const;

  std::array<int64_t, 2> prompt_rows(const Request& request) const {
    return {static_cast<int64_t>(parts.tokenizer().encode(request.prompt).size()),
            guided(request)
                ? static_cast<int64_t>(parts.tokenizer().encode(*request.negative_prompt).size())
                : 0};
  }

  DenoisePlanConfig plan_of(const Request& request, const Sampler& sampler) const {
    return plan_config(request, sampler, parts, placement, token_count(parts, request),
                       prompt_rows(request));
  }

  MemoryPlan plan(const Request& request) const {
    const Sampler sampler(sampler_for(request), request.steps, request.sigmas);
    const size_t kept = options.keeping == Keeping::kCheckpoints && placement.root()
                            ? 1 + sampler.history(SamplerState(0)).size()
                            : 0;
    return plan_memory(predict_bytes(parts, placement, request, prompt_rows(request), kept),
                       available, host_available);
  }
  LayoutLimits layout_limits(const Request& request) const;
  std::string refusal(const Request& request, const MemoryPlan& plan);

  RunResult run(const Request& request, FrameSink* sink, const RunOptions& run_options);
  void load_all(const Request& request, StageClock& clock, const RunOptions& run_options);
  std::array<Prompt, 2> encode_prompts(const Request& request, StageClock& clock,
                                       const RunOptions& run_options);
  void encode_prompt(const Prompt& prompt, const Pass& pass);
  Tensor initial_latents(const Request& request, const RunOptions& run_options);
  Start start_of(const Request& request, const Sampler& sampler, const RunOptions& run_options);
  void denoise(const Request& request, const Sampler& sampler, const std::array<Prompt, 2>& prompts,
               Start start, StageClock& clock, const RunOptions& run_options, RunResult& result,
               const std::function<void(const TensorView& latent)>& decode);
  void heed_stop(const char* stage, const RunOptions& run_options) const;
  void decode_latents(const Request& request, const TensorView& latent, FrameSink* sink,
                      StageClock& clock, const RunOptions& run_options, RunResult& result);
  void keep_latents(const Request& request, const TensorView& latent, const std::string& path,
                    const RunOptions& run_options, RunResult& result) const;
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

JobFacts Generator::Impl::job_facts(const Request& request) const {
  const SamplerConfig sampler = sampler_for(request);
  JobFacts facts{{"model", parts.directory().defaults.name},
                 {"weights_sha256", parts.model()->weights_hash},
                 {"numerics_epoch", std::to_string(kNumericsEpoch)},
                 {"dtype", std::string(to_string(options.dtype))},
                 {"weights", to_string(options.weights)},
                 {"attention", to_string(options.attention)},
                 {"vae_dtype", std::string(to_string(options.vae_dtype))},
                 {"deterministic", options.determinism == Determinism::kFixed ? "on" : "off"},
                 {"prompt", request.prompt},
                 {"negative_prompt", guided(request) ? *request.negative_prompt : ""},
                 {"width", std::to_string(request.width)},
                 {"height", std::to_string(request.height)},
                 {"frames", std::to_string(request.frames)},
                 {"fps", exact(request.fps)},
                 {"steps", std::to_string(request.steps)},
                 {"guidance_scale", exact(*request.guidance_scale)},
                 {"guidance_scale_2", exact(*request.guidance_scale_2)},
                 {"solver", std::string(to_string(sampler.kind))},
                 {"flow_shift", exact(sampler.shift)},
                 {"seed", std::to_string(request.seed)},
                 {"rng", std::string(to_string(request.rng))}};
  // A device rounds sums in another order. A job that changes devices midway would make frames that
  // neither device makes alone.
  if (options.device.kind != Device::Kind::kCpu) facts["device"] = to_string(options.device.kind);
  for (const double sigma : request.sigmas)
    facts["sigmas"] += (facts["sigmas"].empty() ? "" : ",") + exact(sigma);
  return facts;
}

// A single rank stops here. Several ranks stop together, between steps, when the root decides it.
void Generator::Impl::heed_stop(const char* stage, const RunOptions& run_options) const {
  if (placement.alone() && run_options.stop && run_options.stop->load())
    throw Error(ErrorKind::kStopped, std::string("stopped in ") + stage);
}

void Generator::Impl::load_all(const Request& request, StageClock& clock,
                               const RunOptions& run_options) {
  clock.enter(Zone::kLoad, 2 + parts.experts());
  int done = 0;
  heed_stop("load", run_options);
  if (placement.encodes_text(parts.text_model().traits())) parts.text_encoder(stream);
  clock.step(++done);
  for (int model = 0; model < parts.experts(); ++model) {
    heed_stop("load", run_options);
    if (computes_with(request, placement, model)) parts.expert(stream, model);
    clock.step(++done);
  }
  parts.vae(stream);
  clock.step(++done);
}

std::array<Prompt, 2> Generator::Impl::encode_prompts(const Request& request, StageClock& clock,
                                                      const RunOptions& run_options) {
  std::array<Prompt, 2> prompts;
  prompts[0].ids = parts.tokenizer().encode(request.prompt);
  if (guided(request)) prompts[1].ids = parts.tokenizer().encode(*request.negative_prompt);
  clock.enter(Zone::kEncodeText, prompts[1].ids.empty() ? 1 : 2);
  int done = 0;
  for (Prompt& prompt : prompts) {
    if (prompt.ids.empty()) continue;
    heed_stop("encode_text", run_options);
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
    clock.step(++done);
  }
  if (run_options.tap) {
    run_options.tap->tap("prompt_embeds", padded(stream, prompts[0].embeds,
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

Tensor Generator::Impl::initial_latents(const Request& request, const RunOptions& run_options) {
  const auto shape = latent_shape(parts, request);
  Tensor latent(DType::kF32, shape);
  if (!is_dry_run(stream)) NoiseField(request.rng, request.seed, shape).fill(latent);
  if (run_options.tap) run_options.tap->tap("latents_initial", latent);
  return on_device(stream, std::move(latent));
}

void Generator::Impl::keep_latents(const Request& request, const TensorView& latent,
                                   const std::string& path, const RunOptions& run_options,
                                   RunResult& result) const {
  Checkpoint checkpoint;
  checkpoint.facts = job_facts(request);
  checkpoint.notes = run_options.notes;
  checkpoint.step = checkpoint.total = result.steps;
  checkpoint.signature = result.signature;
  write_checkpoint(path, checkpoint, latent);
  result.latents_path = path;
}

Start Generator::Impl::start_of(const Request& request, const Sampler& sampler,
                                const RunOptions& run_options) {
  Checkpoint* from = run_options.resume.get();
  const auto shape = latent_shape(parts, request);
  if (from) check_resumable(*from, job_facts(request), sampler, shape);
  return agreed_start(stream, placement, from, sampler, shape, run_options.stop);
}

void Generator::Impl::decode_latents(const Request& request, const TensorView& on_device,
                                     FrameSink* sink, StageClock& clock,
                                     const RunOptions& run_options, RunResult& result) {
  const HostCopy copied(stream, on_device);
  const TensorView& latent = copied.view();
  result.signature = sha256_hex({static_cast<const char*>(latent.data), latent.bytes()});
  if (run_options.tap) run_options.tap->tap("latents_final", latent);
  const bool from_latents = result.resumed_at == result.steps;
  if (from_latents && run_options.resume) result.latents_path = run_options.resume->path;
  if (placement.root() && !run_options.latents_path.empty() && !from_latents) {
    keep_latents(request, latent, run_options.latents_path, run_options, result);
  }
  try {
    clock.enter(Zone::kDecode, static_cast<int>(latent[1]));
    const Vae& vae = parts.vae(stream);
    if (!placement.root()) {
      decode(stream, arena, vae, placement,
             {.latents = latent,
              .writer = nullptr,
              .video = {},
              .on_chunk = {},
              .stop = run_options.stop});
      return;
    }
    Tensor video;
    if (run_options.tap) {
      video = Tensor(DType::kF32, {3, request.frames, request.height, request.width});
    }
    FrameWriter writer(sink);
    decode(stream, arena, vae, placement,
           {.latents = latent,
            .writer = &writer,
            .video = video.view(),
            .on_chunk = [&](int chunk) { clock.step(chunk); },
            .stop = run_options.stop});
    clock.enter(Zone::kEncodeVideo, 1);
    writer.finish();
    clock.step(1);
    if (sink) {
      clock.enter(Zone::kWrite, 1);
      sink->finish();
      clock.step(1);
    }
    result.frames = writer.frames();
    result.framehash = writer.hash();
    if (run_options.tap) run_options.tap->tap("video", video);
  } catch (...) {
    const std::string& path = run_options.latents_on_failure;
    if (placement.root() && run_options.latents_path.empty() && !path.empty()) {
      keep_latents(request, latent, path, run_options, result);
    }
    throw;
  }
}

void Generator::Impl::denoise(const Request& request, const Sampler& sampler,
                              const std::array<Prompt, 2>& prompts, Start start, StageClock& clock,
                              const RunOptions& run_options, RunResult& result,
                              const std::function<void(const TensorView& latent)>& decode) {
  Checkpoint kept;
  kept.facts = job_facts(request);
  kept.notes = run_options.notes;
  kept.total = sampler.steps();
  if (placement.root() && run_options.stop) kept.text_hash = text_hash(stream, prompts);
  if (const Checkpoint* from = run_options.resume.get();
      from && from->text_hash != kept.text_hash && run_options.listener)
    run_options.listener->warning(
        "the prompt is encoded otherwise than when " + from->path +
        " was written: the frames may differ from an uninterrupted run's");
  CheckpointPolicy policy(run_options, std::move(kept), start.step, result.earlier_seconds);
  Denoiser denoiser(stream, arena, parts, placement, options.graphs);
  Job job{.request = request,
          .sampler = sampler,
          .embeds = {prompts[0].embeds.view(), prompts[1].embeds.view()},
          .latent = std::move(start.latent),
          .history = std::move(start.history),
          .on_update =
              [&](int step) {
                clock.kept(policy.kept());
                clock.step(step + 1, sampler.sigmas()[step]);
              },
          .decode =
              [&](const TensorView& latent) {
                policy.finish(result);
                decode(latent);
              }};
  job.before_step = [&](int done) {
    if (done == start.step) clock.enter(Zone::kDenoise, sampler.steps(), start.step);
    if (!run_options.stop) return StepAction::kContinue;
    // The first of several stages updates nothing, so it reports the finished step here.
    if (done > start.step && placement.layout()[Axis::kLayers] > 1)
      clock.step(done, sampler.sigmas()[done - 1]);
    const Tag tag{.kind = Payload::kControl, .pass = {.step = done}, .hop = kStepDecision};
    const auto own = placement.root() ? policy.decide(done) : StepAction::kContinue;
    return static_cast<StepAction>(placement.agreed(stream, tag, static_cast<int64_t>(own)));
  };
  job.keep = [&](int done, Snapshot snapshot) { policy.keep(done, std::move(snapshot)); };
  DenoisePlanConfig config = plan_of(request, sampler);
  config.first_step = start.step;
  try {
    denoiser.run(config, job);
    result.streaming = denoiser.streaming();
  } catch (...) {
    policy.finish(result);
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
  out.tokens = token_count(parts, request);
  out.guided = guided(request);
  out.whole_width = options.weights != WeightFormat::kCompute;
  return out;
}

std::string Generator::Impl::refusal(const Request& request, const MemoryPlan& memory) {
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
                       {.request = [&](const Request& changed) { return plan(changed); },
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
  Start start = start_of(request, steps, run_options);
  result.resumed_at = start.step;
  if (run_options.resume) result.earlier_seconds = run_options.resume->seconds;
  const bool decode_only = start.step == steps.steps();

  parts.on_load = nullptr;
  parts.set_residency(memory.residency);
  if (memory.residency == Residency::kAll && !decode_only) load_all(request, clock, run_options);
  parts.on_load = [&](const std::string&, const std::function<void()>& load) {
    clock.inside(Zone::kLoad, 1, load);
  };
  std::array<Prompt, 2> prompts;
  if (!decode_only) prompts = encode_prompts(request, clock, run_options);
  meter.stage_ended();

  if (start.step == 0) start.latent = initial_latents(request, run_options);
  const auto decode = [&](const TensorView& latent) {
    meter.stage_ended();
    decode_latents(request, latent, sink, clock, run_options, result);
    result.decode_high_water = meter.stage_ended();
  };
  if (decode_only)
    decode(start.latent);
  else
    denoise(request, steps, prompts, std::move(start), clock, run_options, result, decode);
  clock.leave();

  parts.on_load = nullptr;
  result.stages = clock.seconds();
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  result.arena_high_water = meter.arena_high_water;
  result.tensor_bytes_peak = meter.tensor_peak;
  result.memory_high_water = meter.high_water;
  return result;
}

Generator::Generator(const std::string& model_directory, const GeneratorOptions& options,
                     RankPlacement placement)
    : Generator(std::make_shared<const OpenModel>(model_directory), options, std::move(placement)) {
}
Generator::Generator(std::shared_ptr<const OpenModel> model, const GeneratorOptions& options,
                     RankPlacement placement)
    : impl_(std::make_unique<Impl>(std::move(model), options, std::move(placement))) {}
Generator::~Generator() = default;

const std::shared_ptr<const OpenModel>& Generator::model() const { return impl_->parts.model(); }
const DefaultSettings& Generator::defaults() const { return impl_->parts.directory().defaults; }
const ModelLimits& Generator::limits() const { return impl_->limits; }
const GeneratorOptions& Generator::options() const { return impl_->options; }
SamplerConfig Generator::sampler_config() const { return impl_->sampler; }
const Layout& Generator::layout() const { return impl_->placement.layout(); }
std::string Generator::model_name() const { return defaults().name; }
std::string Generator::weights_hash() const { return impl_->parts.model()->weights_hash; }

JobFacts Generator::job_facts(const Request& request) const { return impl_->job_facts(request); }

int64_t Generator::tokens(const Request& request) const {
  return token_count(impl_->parts, request);
}

LayoutLimits Generator::layout_limits(const Request& request) const {
  return impl_->layout_limits(request);
}

Request Generator::resolve(const Request& request) const {
  const Request resolved = weft::resolve(request, defaults());
  validate(resolved, impl_->limits);
  Sampler(impl_->sampler_for(resolved), resolved.steps,
          resolved.sigmas);  // refuses what is illegal
  return resolved;
}

std::optional<PromptCut> Generator::prompt_cut(const std::string& prompt) const {
  return impl_->parts.tokenizer().cut(prompt);
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

bool Generator::agreed(bool value) {
  const Tag tag{.kind = Payload::kControl, .hop = kJobDecision};
  return impl_->placement.agreed(impl_->stream, tag, value);
}

RunResult Generator::run(const Request& request, FrameSink* sink, const RunOptions& options) {
  return impl_->run(resolve(request), sink, options);
}

}  // namespace weft
