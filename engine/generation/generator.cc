#include "engine/generation/generator.h"

#include <algorithm>

#include "engine/generation/cached_steps.h"
#include "engine/generation/checkpoint_policy.h"
#include "engine/generation/engine_facts.h"
#include "engine/generation/job_run.h"
#include "engine/generation/layout_limits.h"
#include "engine/job/job_spec.h"
#include "engine/job/resume.h"
#include "engine/job/speech_chunks.h"
#include "engine/memory/estimate.h"
#include "engine/memory/memory_advice.h"
#include "engine/memory/memory_meter.h"
#include "engine/memory/memory_mode.h"
#include "engine/parts/components.h"
#include "engine/schedules/queue_denoiser.h"
#include "kernels/cuda/device.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

// A text encoder that is not in the compute dtype is not split over ranks: its scales or blocks
// would be others.
RankPlacement encoding_rank(const RankPlacement& placement, const GeneratorOptions& options) {
  const bool whole = options.text_weights != WeightFormat::kCompute && !placement.alone();
  return whole ? placement.encoding_on_root() : placement;
}

}  // namespace

struct Generator::Impl {
  Impl(std::shared_ptr<const OpenModel> model, const GeneratorOptions& given,
       const RankPlacement& of)
      : options(given),
        opened(std::move(model)),
        parts(opened,
              {.dtype = given.dtype,
               .weights = given.weights,
               .attention = given.attention,
               .resident = given.resident_blocks},
              given.vae_dtype, encoding_rank(of, given),
              given.planned || given.device.kind == Device::Kind::kCpu
                  ? given.planned
                  : std::optional(device_traits(given.device)),
              given.text_weights),
        stream(stream_on(given.device, given.threads, given.determinism, given.ops)),
        available(given.planned ? available_memory(*given.planned)
                                : available_memory(given.device)) {
    if (given.mode == MemoryMode::kSpeed && given.resident_blocks > 0)
      throw Error(ErrorKind::kUsage,
                  "--mode is speed, which keeps all layers in memory, but --resident-layers is " +
                      std::to_string(given.resident_blocks) + "; legal with it: auto, memory");
    if (given.resident_blocks == 1)
      throw Error(ErrorKind::kUsage,
                  "--resident-layers is 1, legal: 2 ... (one in use, one being copied in)");
    check_width(placement.layout());
    check_attention();
    if (given.preview_every > 0) preview_fit = preview_fit_of(parts.directory());
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
    limits = model_limits(parts);
  }

  void check_width(const Layout& layout) const {
    if (rounds_to_8bit(options.weights) && layout[Axis::kTensor] > 1)
      throw Error(ErrorKind::kUsage, "--layout " + to_string(layout) +
                                         " splits the width, which 8-bit weights cannot: their "
                                         "scales would be others; legal with them: tensor=1");
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
    const std::string need = " is no device of compute capability 9.0";
    const Device device = options.device;
    if (options.planned && !options.planned->has_warpgroups()) refuse(options.planned->name + need);
    if (device.kind == Device::Kind::kCuda && !cuda_attends_in_fp8(device.index))
      refuse(to_string(device) + need + ": " + cuda_device_description(device.index));
  }

  // The model with the LoRAs of a request.
  std::shared_ptr<const OpenModel> model_of(const Request& request) const {
    return variant_of(opened, request.loras);
  }
  // Calls `use` with the parts of that model, which may be others than those that are loaded.
  template <class Use>
  auto with_parts_of(const Request& request, Use use) const {
    const std::shared_ptr<const OpenModel> model = model_of(request);
    return model == parts.model() ? use(parts) : use(parts.of_variant(model));
  }
  JobFacts facts(const Request& request) const { return facts_of(*opened, request); }
  std::string job_record(const JobFacts& facts) const;

  DenoisePlanConfig plan_of(const JobFacts& facts) const {
    return plan_config(facts, parts, placement, facts.chunks > 1);
  }

  int layers() const {  // of a transformer on this rank
    const BlockRange blocks = placement.blocks(parts.expert_model(0).traits().blocks);
    return blocks.end - blocks.begin;
  }
  MemoryPlan plan(const JobFacts& facts) const {
    const size_t kept = options.keeping == Keeping::kCheckpoints && placement.root()
                            ? 1 + facts.sampler.history(SamplerState(0)).size()
                            : 0;
    const bool all = options.resident_blocks >= layers();  // as the user asks
    return with_parts_of(facts.request, [&](const Components& of) {
      const auto bytes = [&](int blocks) {
        return predict_bytes(of, placement,
                             {facts, kept, facts.request.method->in_segments(), blocks,
                              preview_fit ? &*preview_fit : nullptr});
      };
      return choose_plan({.mode = options.mode,
                          .layers = all ? 0 : layers(),
                          .resident = all ? 0 : options.resident_blocks,
                          .bytes = bytes,
                          .available = available,
                          .host_available = host_available});
    });
  }
  LayoutLimits layout_limits(const JobFacts& facts) const {
    return with_parts_of(
        facts.request, [&](const Components& of) { return limits_of(facts, of, options.weights); });
  }
  // Less may be free now, as others have loaded their weights since.
  void take_memory_of(const Impl& earlier) {
    available = earlier.available;
    host_available = earlier.host_available;
  }
  std::string refusal(const JobFacts& facts, const MemoryPlan& plan);
  MemoryPlan fitting_plan(const JobFacts& facts, const TensorView& image_rows);

  RunResult run(const Request& request, FrameSink* sink, const RunOptions& run_options);
  void load_all(JobRun& run, bool with_text_encoder);
  void encode_prompts(JobRun& run, PromptEncoder& encoder);
  void encode_pictures(JobRun& run);
  int first_step(const JobFacts& facts, const RunOptions& options);
  void encode(JobRun& run, const MemoryPlan& memory);
  // From now on what is loaded is a stage inside another.
  void watch_loads(JobRun& run) {
    parts.on_load = [&run](const std::string&, const std::function<void()>& load) {
      run.clock.inside(Zone::kLoad, 1, load);
    };
  }
  void heed_stop(const char* stage, const JobRun& run) const;
  uint64_t memory_now() const { return tensor_bytes_live(options.device.kind) + arena.used(); }

  GeneratorOptions options;
  const std::shared_ptr<const OpenModel> opened;
  Components parts;  // of it, or of it with the LoRAs of the last job
  const RankPlacement& placement = parts.placement();
  ModelLimits limits;
  Stream stream;
  uint64_t available;                    // measured before anything is loaded
  uint64_t host_available = UINT64_MAX;  // host memory where the job runs on a device
  std::optional<PreviewFit> preview_fit{};
  Arena arena{size_t{256} << 30, options.device};
  const Rank rank{stream, arena, parts};
};

std::string Generator::Impl::job_record(const JobFacts& facts) const {
  const SamplerConfig& config = facts.sampler.config();
  JobSpec job{.request = before_run(facts.request), .seeded = true};
  job.request.solver = to_string(config.kind);
  if (facts.request.sigmas.empty() && opened->sampler().only_shifts())
    job.request.flow_shift = config.shift;
  if (!facts.guided()) job.request.negative_prompt = "";
  const std::shared_ptr<const OpenModel> model = model_of(facts.request);
  if (model->loras.empty()) job.request.loras.reset();
  return Json{{"engine", engine_facts(options, *model, placement.layout())},
              {"request", to_json(job)}}
      .dump();
}

// A single rank stops here. Several ranks stop together, between steps, when the root decides it.
void Generator::Impl::heed_stop(const char* stage, const JobRun& run) const {
  if (placement.alone() && run.options.stop && run.options.stop->load())
    throw Error(ErrorKind::kStopped, std::string("stopped in ") + stage);
}

void Generator::Impl::load_all(JobRun& run, bool with_text_encoder) {
  run.clock.enter(Zone::kLoad, 2 + parts.experts());
  int done = 0;
  heed_stop("load", run);
  if (with_text_encoder) parts.load_text_encoders(stream);
  run.clock.step(++done);
  for (int model = 0; model < parts.experts(); ++model) {
    heed_stop("load", run);
    if (computes_with(run.facts, placement, model)) parts.expert(stream, model);
    run.clock.step(++done);
  }
  if (placement.band(run.facts.latent[2]).size() > 0) parts.vae(stream);
  run.clock.step(++done);
}

// Fills in the rows that the encoder has not recalled.
void Generator::Impl::encode_prompts(JobRun& run, PromptEncoder& encoder) {
  const auto given = [](const Prompt& prompt) { return !prompt.ids.empty(); };
  run.clock.enter(Zone::kEncodeText, static_cast<int>(std::ranges::count_if(run.prompts, given)));
  encoder.encode(
      run.prompts, [&] { heed_stop("encode_text", run); }, [&](int done) { run.clock.step(done); });
  parts.done_with_text_encoders();
}

void Generator::Impl::encode_pictures(JobRun& run) {
  PictureEncoder encoder(rank, run.facts, run.options.image_rows);
  run.clock.enter(Zone::kEncodeImage, encoder.pieces());
  heed_stop("encode_image", run);
  run.pictures = encoder.encode([&](int done) {
    heed_stop("encode_image", run);
    run.clock.step(done);
  });
  if (run.options.tap)
    for (size_t i = 0; i < run.pictures.references.size(); ++i)
      run.options.tap->tap(("reference_latents." + std::to_string(i)).c_str(),
                           HostCopy(stream, run.pictures.references[i]).view());
  run.meter.stage_ended(MemoryMeter::kEncodeImage);
}

// The step, or turn of the queue, that the job goes on with.
int Generator::Impl::first_step(const JobFacts& facts, const RunOptions& options) {
  const Checkpoint* const from = options.resume.get();
  if (from) check_resumable(*from, job_record(facts), facts, parts.vae_model().traits);
  return agreed_step(stream, placement, from ? from->step : 0, options.stop);
}

// Makes the prompts and the pictures of a job.
void Generator::Impl::encode(JobRun& run, const MemoryPlan& memory) {
  const Request& request = run.facts.request;
  PromptEncoder encoder(rank, run.options.text_cache);
  run.prompts = prompts_of(request, *parts.model(), run.facts.guided());
  const bool encodes = !encoder.recall(run.prompts);
  if (memory.residency == Residency::kAll) load_all(run, encodes);
  watch_loads(run);
  if (encodes) encode_prompts(run, encoder);
  if (run.options.tap) tap_prompt(stream, run.prompts[0], parts, *run.options.tap);
  run.meter.stage_ended(MemoryMeter::kEncodeText);
  if (!pictures_of(request).empty()) encode_pictures(run);
}

std::string Generator::Impl::refusal(const JobFacts& facts, const MemoryPlan& memory) {
  const RefusedJob job{.request = facts.request,
                       .options = options,
                       .plan = memory,
                       .layout = placement.layout(),
                       .rank = placement.rank(),
                       .limits = limits,
                       .layouts = legal_layouts(placement.ranks(), layout_limits(facts)),
                       .layers = layers()};
  return weft::refusal(job, [this](const Request& request, const GeneratorOptions& other,
                                   const Layout& layout, int rank) {
    // A small picture may have fewer tokens than the layout has ranks, and a short video fewer
    // frames than are global.
    const JobFacts changed = this->facts(request);
    if (!refuse(layout, layout_limits(changed)).empty() ||
        !request.method->refuse_frames(changed.grid[0]).empty())
      return MemoryPlan{.parts = {}, .high_water = UINT64_MAX};
    const bool own = layout == placement.layout();  // its messages may be staged
    const Generator planner(opened, other, own ? placement : RankPlacement(layout, rank));
    planner.impl_->take_memory_of(*this);
    return planner.plan(request);
  });
}

// The plan of a job that can begin.
MemoryPlan Generator::Impl::fitting_plan(const JobFacts& facts, const TensorView& image_rows) {
  check_image_encoder(facts.request, parts.directory(), image_rows);
  MemoryPlan memory = plan(facts);
  if (!memory.fits()) throw Error(ErrorKind::kMemory, refusal(facts, memory));
  return memory;
}

RunResult Generator::Impl::run(const Request& request, FrameSink* sink,
                               const RunOptions& run_options) {
  const JobFacts facts = this->facts(request);
  parts.change_model(model_of(request));
  const MemoryPlan memory = fitting_plan(facts, run_options.image_rows);
  const JobScope job(placement);
  const int steps = facts.sampler.steps();
  const auto started = std::chrono::steady_clock::now();
  StageClock clock(run_options.listener, [this] { return memory_now(); });
  MemoryMeter meter(stream, arena);
  RunResult result;
  result.request = request;
  result.resident_layers = memory.resident_layers;
  result.steps = steps;
  JobRun run{.rank = rank,
             .facts = facts,
             .options = run_options,
             .sink = sink,
             .clock = clock,
             .meter = meter,
             .result = result,
             .started = started,
             .graphs = options.graphs,
             .first = first_step(facts, run_options)};
  result.resumed_at = run.first;
  if (run_options.resume) result.earlier_seconds = run_options.resume->seconds;
  parts.on_load = nullptr;
  parts.take_loaded();  // of a job that failed
  parts.set_resident_blocks(memory.resident_layers);
  parts.set_residency(memory.residency);
  const uint64_t spare = available - memory.high_water;
  parts.release_unused([&](int model) { return computes_with(facts, placement, model); },
                       placement.band(facts.latent[2]).size() > 0,
                       spare - std::min(spare, run_options.beside));
  const int total = facts.chunks * steps;
  if (!keeps_latent(request) || run.first < total)  // else it is decoded alone
    encode(run, memory);
  else
    watch_loads(run), meter.stage_ended(MemoryMeter::kEncodeText);
  // The root alone hashes the prompts, where it may keep a checkpoint.
  const bool hashed = placement.root() && run_options.stop && !run.prompts.empty();
  run.about = describe_job(run_options, job_record(facts), total,
                           hashed && run.prompts[0].embeds ? text_hash(stream, run.prompts) : "");
  if (preview_fit) run.preview = {&*preview_fit, options.preview_every};
  run.preview_share = options.preview_share;
  (request.method->in_segments() ? run_queue : run_chunks)(run);
  clock.leave();

  parts.on_load = nullptr;
  result.loaded = parts.take_loaded();
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
                     const RankPlacement& placement)
    : Generator(std::make_shared<OpenModel>(model_directory), options, placement) {}
Generator::Generator(std::shared_ptr<const OpenModel> model, const GeneratorOptions& options,
                     const RankPlacement& placement)
    : impl_(std::make_unique<Impl>(std::move(model), options, placement)) {}
Generator::~Generator() = default;

const std::shared_ptr<const OpenModel>& Generator::model() const { return impl_->opened; }
std::shared_ptr<const OpenModel> Generator::model_of(const Request& request) const {
  return impl_->model_of(request);
}
const DefaultSettings& Generator::defaults() const { return impl_->parts.directory().defaults; }
const ModelLimits& Generator::limits() const { return impl_->limits; }
const GeneratorOptions& Generator::options() const { return impl_->options; }
const RankPlacement& Generator::placement() const { return impl_->placement; }
std::string Generator::model_name() const { return defaults().name; }
std::string Generator::job_record(const Request& request) const {
  return impl_->job_record(facts(request));
}

JobFacts Generator::facts(const Request& request) const { return impl_->facts(request); }

LayoutLimits Generator::layout_limits(const Request& request) const {
  return impl_->layout_limits(facts(request));
}

Request Generator::resolve(const Request& request) const {
  const ModelDirectory& directory = impl_->parts.directory();
  const Request sized =
      with_sound_length(with_clip_size(request, directory, impl_->limits.size_multiple), directory);
  Request resolved = take_opened(*model(), weft::resolve(sized, defaults()));
  const std::shared_ptr<const OpenModel> changed = model_of(resolved);  // refuses what does not fit
  validate(resolved, impl_->limits);
  const SamplerConfig config = sampler_of(*model(), resolved);
  const Sampler sampler(config, resolved.steps, resolved.sigmas);  // refuses what is illegal
  const VaeTraits& vae = impl_->parts.vae_model().traits;
  const int64_t latents = latent_of(directory, resolved)[1];
  const int64_t trained = defaults().trained_frames.value_or(defaults().frames);
  resolved.method = resolve_method(
      resolved.method,
      {.latents = latents,
       .trained_latents = directory.chunks.any() ? latents : vae.latent_frames(trained),
       .flow_shift = config.shift,
       .grid = grid_of(directory, resolved)});
  validate_method(resolved, impl_->parts.expert_model(0), model_name());
  validate_pictures(resolved, directory);
  validate_sound(resolved, directory);
  decide_skips(*changed, sampler, resolved);
  if (resolved.endless)
    resolved.frames =
        std::min(resolved.frames, vae.frames(std::get<Queue>(resolved.method).most_latents()));
  if (impl_->options.wire_dtype && !resolved.method->in_segments())
    throw Error(ErrorKind::kUsage, "--wire-dtype is given, but the method is " +
                                       to_string(resolved.method) + "; legal with it: none");
  return resolved;
}

std::optional<PromptCut> Generator::prompt_cut(const std::string& prompt) const {
  return impl_->opened->tokens(prompt)->cut;
}

MemoryPlan Generator::plan(const Request& request) const { return impl_->plan(facts(request)); }

std::shared_ptr<Generator> Generator::planning_rank(Layout layout) const {
  layout[Axis::kData] = 1;
  GeneratorOptions planned = options();
  if (planned.device.kind != Device::Kind::kCpu) {
    planned.planned = device_traits(planned.device);
    planned.device = {};
    planned.ops = &metered_ops();
  }
  auto rank = std::make_shared<Generator>(model(), planned, RankPlacement(layout, 0));
  rank->impl_->take_memory_of(*impl_);
  return rank;
}

std::string Generator::refusal(const Request& request) {
  const JobFacts facts = this->facts(request);
  return impl_->refusal(facts, impl_->plan(facts));
}

JobSchedule Generator::whole_schedule(const Request& request) const {
  const JobFacts facts = this->facts(request);
  if (request.method->in_segments()) {
    const auto config =
        std::make_shared<QueuePlanConfig>(queue_plan(facts, impl_->parts, impl_->placement));
    PlanRules rules = queue_rules(*config);
    rules.bytes = [config, bytes = rules.bytes](const Step& message) { return bytes(message); };
    return {plan_queue(*config), std::move(rules)};
  }
  const DenoisePlanConfig config = impl_->plan_of(facts);
  return {plan_denoise(config), denoise_rules(config)};
}

void Generator::check(const Request& request) { impl_->fitting_plan(facts(resolve(request)), {}); }

void Generator::place(Communicator& world, const Layout& layout) {
  impl_->check_width(layout);
  world.begin_anew(impl_->stream);
  impl_->parts.place(encoding_rank(RankPlacement::of(world, layout), impl_->options));
}

int64_t Generator::broadcast_from_root(int64_t value) {
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kJob};
  return impl_->placement.broadcast_from_root(impl_->stream, tag, value);
}

RunResult Generator::run(const Request& request, FrameSink* sink, const RunOptions& options) {
  return impl_->run(resolve(request), sink, options);
}

MemoryPlan plan_of_rank(const std::shared_ptr<const OpenModel>& model,
                        const GeneratorOptions& options, Layout layout, const Request& request) {
  layout[Axis::kData] = 1;
  return Generator(model, options, RankPlacement(layout, 0)).plan(request);
}

}  // namespace weft
