#include "engine/planning/forecast.h"

#include <algorithm>
#include <optional>

#include "engine/denoising/denoiser.h"
#include "engine/memory/estimate.h"
#include "engine/pictures/picture_conditions.h"
#include "engine/planning/queue_forecast.h"
#include "models/footprint.h"

namespace weft {
namespace {

constexpr int kSimulatedChunks = 3;
constexpr size_t kShown = 3;

// The simulated times at which stages and decoded chunks began on the first rank.
struct StageTimes final : ProgressListener {
  std::vector<std::pair<std::string, double>> begun;
  std::vector<double> chunks;
  void progress(const Progress& progress) override {
    const double now = simulated_seconds();
    if (begun.empty() || begun.back().first != progress.stage)
      begun.emplace_back(progress.stage, now);
    if (progress.stage == "decode") chunks.push_back(now);
  }
  // The seconds of each stage, which may have begun several times.
  std::vector<std::pair<std::string, double>> stages(double end) const {
    std::vector<std::pair<std::string, double>> stages;
    for (size_t i = 0; i < begun.size(); ++i) {
      const auto& [stage, since] = begun[i];
      const double until = i + 1 < begun.size() ? begun[i + 1].second : end;
      if (until <= since) continue;
      const auto found = std::ranges::find(stages, stage, &std::pair<std::string, double>::first);
      if (found == stages.end())
        stages.emplace_back(stage, until - since);
      else
        found->second += until - since;
    }
    return stages;
  }
};

TransformerLoad how_loaded(const GeneratorOptions& options) {
  return {.dtype = options.dtype,
          .weights = options.weights,
          .attention = options.attention,
          .resident = options.resident_blocks};
}

Layout replica_of(Layout layout) {
  layout[Axis::kData] = 1;
  return layout;
}

double latest(std::span<const SimulatedRank> ranks) {
  double end = 0;
  for (const SimulatedRank& rank : ranks) end = std::max(end, rank.seconds);
  return end;
}

// Runs the request as every rank of a simulated replica.
std::vector<SimulatedRank> simulate_run(const PlannedJob& job, const Request& request,
                                        const std::shared_ptr<const OpenModel>& model,
                                        const Layout& layout, StageTimes& times) {
  const GeneratorOptions options = without_limits(job.options);
  return simulate(layout.ranks(), job.machine.device, job.machine.link, [&](Communicator& world) {
    RunOptions run;
    if (world.rank() == 0) run.listener = &times;
    Generator(model, options, RankPlacement::of(world, layout)).run(request, nullptr, run);
  });
}

int64_t streamed_by(const PlannedJob& job, const Layout& layout) {
  const ModelDirectory& directory = job.model->directory;
  size_t most = 0;
  if (job.options.resident_blocks == 0) return 0;
  DryRun run(job.options.planned);
  for (int rank = 0; rank < layout.ranks(); ++rank)
    for (int index = 0; index < directory.experts(); ++index) {
      const TransformerModel& model = directory.expert(index);
      const TransformerLoad load =
          RankPlacement(layout, rank).load(model.traits(), how_loaded(job.options));
      const DryTransformer dry = dry_load(run, model, *job.model->expert_files[index], load);
      most = std::max(most, dry.model->streamed_bytes());
    }
  return static_cast<int64_t>(most);
}

void add_denoise(double more_s, Forecast& out) {
  for (auto& [stage, seconds] : out.stages)
    if (stage == "denoise") seconds += more_s;
  out.seconds += more_s;
}

// Adds the part of the copying that does not overlap with computing: a step takes as long as its
// forwards compute or as long as their weights arrive, whichever is longer.
void add_uploads(const PlannedJob& job, Forecast& out) {
  const Layout layout = replica_of(out.layout);
  out.uploads = uploads_of(job, layout,
                           out.memory.empty() ? streamed_by(job, layout) : streamed_by(out.memory));
  if (out.uploads.bytes == 0) return;
  const int steps = job.request.steps * job.facts().chunks;
  out.uploads.hidden_s = std::min(out.uploads.seconds, out.stage("denoise") / steps);
  add_denoise(steps * (out.uploads.seconds - out.uploads.hidden_s), out);
}

// The same of a queue, in which a step is one of a block, and stages wait for each other.
void add_queue_uploads(const PlannedJob& job, Forecast& out) {
  PlannedJob resident = job;
  resident.options.mode = MemoryMode::kLayers;
  resident.options.resident_blocks = 0;
  const Layout layout = replica_of(out.layout);
  const Forecast reads = QueueForecast(job)(layout);
  out.uploads = reads.uploads;
  if (out.uploads.bytes > 0)
    add_denoise(reads.seconds - QueueForecast(resident)(layout).seconds, out);
}

// Each replica draws its share of the prompts, one after the other.
void draw_all_prompts(const PlannedJob& job, Forecast& out) {
  const int replicas = out.layout[Axis::kData];
  out.seconds *= static_cast<double>((job.requests + replicas - 1) / replicas);
}

}  // namespace

double Forecast::stage(const std::string& name) const {
  for (const auto& [stage, seconds] : stages)
    if (stage == name) return seconds;
  return 0;
}

uint64_t Forecast::high_water() const {
  uint64_t most = 0;
  for (const MemoryPlan& plan : memory) most = std::max(most, plan.high_water);
  return most;
}

bool Forecast::fits() const {
  return std::ranges::all_of(memory, [](const MemoryPlan& plan) { return plan.fits(); });
}

GeneratorOptions without_limits(GeneratorOptions options) {
  options.planned.reset();
  options.mode = MemoryMode::kLayers;
  options.resident_blocks = 0;
  options.memory_limit = UINT64_MAX;
  return options;
}

Uploads uploads_of(const PlannedJob& job, const Layout& replica, int64_t forward_bytes) {
  Uploads uploads;
  if (forward_bytes == 0) return uploads;
  const bool both = job.facts().guided() && replica[Axis::kCfg] == 1;
  uploads.bytes = forward_bytes * (both ? 2 : 1);
  uploads.seconds = static_cast<double>(uploads.bytes) / job.machine.upload_bytes_per_s;
  return uploads;
}

int64_t streamed_by(std::span<const MemoryPlan> memory) {
  uint64_t most = 0;
  for (const MemoryPlan& plan : memory)
    for (const uint64_t bytes : plan.parts.streamed) most = std::max(most, bytes);
  return static_cast<int64_t>(most);
}

std::vector<int> blocks_of(const OpenModel& model) {
  std::vector<int> blocks;
  for (int expert = 0; expert < model.directory.experts(); ++expert)
    blocks.push_back(model.directory.expert(expert).traits().blocks);
  return blocks;
}

std::vector<MemoryPlan> memory_of(const PlannedJob& job, const Layout& layout) {
  const Layout replica = replica_of(layout);
  std::vector<MemoryPlan> plans(layout.ranks());
  simulate(1, {}, {}, [&](Communicator&) {
    for (int rank = 0; rank < replica.ranks(); ++rank)
      plans[rank] =
          Generator(job.model, job.options, RankPlacement(replica, rank)).plan(job.request);
  });
  for (int rank = replica.ranks(); rank < layout.ranks(); ++rank)
    plans[rank] = plans[rank % replica.ranks()];
  return plans;
}

Forecast forecast_whole(const PlannedJob& job, const Layout& layout) {
  Forecast out;
  out.layout = layout;
  out.memory = memory_of(job, layout);
  StageTimes times;
  out.ranks = simulate_run(job, job.request, job.model, replica_of(layout), times);
  out.seconds = latest(out.ranks);
  out.stages = times.stages(out.seconds);
  (job.request.method->in_blocks() ? add_queue_uploads : add_uploads)(job, out);
  draw_all_prompts(job, out);
  return out;
}

QuickForecast::~QuickForecast() = default;
QuickForecast::QuickForecast(const PlannedJob& job) : job_(job), facts_(job.facts()) {
  if (job.request.method->in_blocks())
    queue_ = std::make_unique<QueueForecast>(job);
  else
    sample_ = time_sample(facts_);
}

std::shared_ptr<const OpenModel> QuickForecast::with_blocks(int blocks) {
  std::shared_ptr<const OpenModel>& found = models_[blocks];
  if (!found) found = std::make_shared<const OpenModel>(*job_.model, blocks);
  return found;
}

const QuickForecast::Ends& QuickForecast::ends(const Layout& layout) {
  const auto [found, fresh] = ends_.try_emplace(layout.ranks());
  Ends& ends = found->second;
  if (!fresh) return ends;
  const std::shared_ptr<const OpenModel> model = with_blocks(layout[Axis::kLayers]);
  if (job_.model->directory.clips.any()) return ends = ends_of_clips(layout, model);
  const int64_t latents = facts_.latent[1];
  Request brief =
      ends_sample(facts_, job_.model->directory, std::min<int64_t>(latents, kSimulatedChunks));
  // The same ranks encode and decode without displaced patches.
  Layout split = layout;
  if (facts_.patches.displaced) split[Axis::kRing] = std::exchange(split[Axis::kPatch], 1);
  // Clips may have more global frames than so short a video.
  const Generator generator(model, without_limits(job_.options));
  if (facts_.dual_scope || !refuse(split, generator.layout_limits(brief)).empty())
    brief.frames = job_.request.frames;
  StageTimes times;
  const double end = latest(simulate_run(job_, brief, model, split, times));
  for (const auto& [stage, seconds] : times.stages(end)) {
    if (stage == "encode_text") ends.text = seconds;
    if (stage == "encode_image") ends.image += seconds;
  }
  const std::vector<double>& chunks = times.chunks;
  const auto simulated = static_cast<int64_t>(chunks.size()) - 1;
  ends.decode = end - chunks.front();
  if (latents > simulated) {
    ends.decode +=
        static_cast<double>(latents - simulated) * (chunks[simulated] - chunks[simulated - 1]);
    if (job_.model->directory.pictures.form == PictureForm::kChannels)
      ends.image *= static_cast<double>(latents) / static_cast<double>(simulated);
  }
  return ends;
}

// Simulates one clip and two of them, of one step each.
QuickForecast::Ends QuickForecast::ends_of_clips(const Layout& layout,
                                                 const std::shared_ptr<const OpenModel>& model) {
  const auto of = [&](int chunks) {
    const Request brief = ends_sample(facts_, job_.model->directory, chunks);
    StageTimes times;
    const double end = latest(simulate_run(job_, brief, model, layout, times));
    Ends ends;
    for (const auto& [stage, seconds] : times.stages(end)) {
      if (stage == "encode_text") ends.text = seconds;
      if (stage == "encode_audio") ends.audio = seconds;
      if (stage == "encode_image") ends.image = seconds;
      if (stage == "decode") ends.decode = seconds;
    }
    return ends;
  };
  Ends ends = of(1);
  const int more = facts_.chunks - 1;
  if (more == 0) return ends;
  const Ends two = of(2);
  ends.image += more * (two.image - ends.image);
  ends.decode += more * (two.decode - ends.decode);
  return ends;
}

// Runs the simulated steps as one rank of `layout`. `updated` receives the times of its updates.
void QuickForecast::draw(Communicator& world, const Layout& layout, int blocks,
                         std::vector<double>& updated) {
  const TransformerLoad load = how_loaded(without_limits(job_.options));
  const JobFacts& few = sample_->facts;
  const RankPlacement placement = RankPlacement::of(world, layout);
  Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
  Arena arena;
  Components parts(models_.at(blocks), load, job_.options.vae_dtype, placement);
  const Rank rank(stream, arena, parts, placement);
  PictureConditions pictures;
  if (!pictures_of(job_.request).empty()) pictures = PictureEncoder(rank, few).blank();
  std::array<Tensor, 2> embeds;
  for (size_t branch = 0; branch < embeds.size(); ++branch)
    if (few.prompt_rows[branch] > 0)
      embeds[branch] =
          Tensor(DType::kF32, {few.prompt_rows[branch], parts.text_model().traits().columns});
  const Tensor pooled(DType::kF32, {parts.traits().pooled_columns});
  const std::array<int64_t, 4>& shape = few.latent;
  const SoundClips& clips = parts.directory().clips;
  Tensor signal, motion;
  if (clips.any())
    signal =
        Tensor(DType::kF32, {shape[1] / parts.traits().patch[0], parts.traits().signal_columns});
  if (few.chunks > 1)
    motion = Tensor(DType::kF32,
                    {shape[0], parts.vae_model().traits().latent_frames(clips.motion_frames),
                     shape[2], shape[3]});
  Job job{.facts = few,
          .embeds = {embeds[0].view(), embeds[1].view()},
          .pooled = {pooled.view(), pooled.view()},
          .latent = Tensor(DType::kF32,
                           placement.split(shape, parts.traits().patch[0]).held(placement.rank())),
          .pictures = pictures.views(),
          .signal = {signal.view(), signal.view()},
          .motion = motion.view(),
          .on_update = [&](int step) { updated[step] = simulated_seconds(); },
          .decode = [](const TensorView&) {}};
  Denoiser(rank).run(plan_config(few, parts, placement, few.chunks > 1), job);
}

// The seconds of all steps, where a transformer has at most so many blocks.
double QuickForecast::denoise_with(const Layout& layout, int blocks, bool alone) {
  with_blocks(blocks);
  std::vector<std::vector<double>> updated(layout.ranks(),
                                           std::vector<double>(sample_->facts.sampler.steps()));
  const Machine& machine = job_.machine;
  const auto work = [&](Communicator& world) {
    draw(world, layout, blocks, updated[world.rank()]);
  };
  double seconds = alone
                       ? simulate_first(layout.ranks(), machine.device, machine.link, work).seconds
                       : latest(simulate(layout.ranks(), machine.device, machine.link, work));
  const auto updated_at = [&](int step) {
    double last = 0;
    for (const std::vector<double>& times : updated) last = std::max(last, times[step]);
    return last;
  };
  for (const auto& [first, count] : sample_->alike)
    if (count > kSampledSteps)
      seconds += (count - kSampledSteps) * (updated_at(first + 1) - updated_at(first));
  return seconds;
}

double QuickForecast::denoise(const Layout& layout, bool alone) {
  const auto [fewest, next, more] = layers_sample(blocks_of(*job_.model), layout[Axis::kLayers]);
  const double seconds = denoise_with(layout, fewest, alone);
  return more ? seconds + more * (denoise_with(layout, next, alone) - seconds) : seconds;
}

// No rank is done sooner than one that waits for no message. In a pipeline every step waits for the
// one before, so that a branch passes all stages, and the slowest stage computes the other one too.
double QuickForecast::least_denoise(Layout layout) {
  const int stages = std::exchange(layout[Axis::kLayers], 1);
  if (stages == 1) return denoise(layout, true);
  if (facts_.patches.pipefusion)
    return denoise(layout, true) / stages;  // patches do not wait for whole steps
  const bool both =
      layout[Axis::kCfg] == 1 &&
      std::ranges::all_of(facts_.steps, [](const auto& step) { return step.branches == 2; });
  if (facts_.guided()) layout[Axis::kCfg] = 2;
  return denoise(layout, true) * (both ? stages + 1 : stages) / stages;
}

Forecast QuickForecast::at_least(const Layout& layout) {
  const Layout replica = replica_of(layout);
  return queue_ ? with_queue(layout, queue_->at_least(replica))
                : with_denoise(layout, least_denoise(replica));
}

Forecast QuickForecast::operator()(const Layout& layout) {
  const Layout replica = replica_of(layout);
  return queue_ ? with_queue(layout, (*queue_)(replica))
                : with_denoise(layout, std::max(denoise(replica, false), least_denoise(replica)));
}

Forecast QuickForecast::with_queue(const Layout& layout, Forecast replica) {
  replica.layout = layout;
  draw_all_prompts(job_, replica);
  return replica;
}

Forecast QuickForecast::with_denoise(const Layout& layout, double seconds) {
  const Ends& at_ends = ends(replica_of(layout));
  Forecast out;
  out.layout = layout;
  out.stages = {{"encode_text", at_ends.text}};
  if (at_ends.audio > 0) out.stages.emplace_back("encode_audio", at_ends.audio);
  if (at_ends.image > 0) out.stages.emplace_back("encode_image", at_ends.image);
  out.stages.emplace_back("denoise", seconds * facts_.chunks);
  out.stages.emplace_back("decode", at_ends.decode);
  for (const auto& [stage, seconds] : out.stages) out.seconds += seconds;
  add_uploads(job_, out);
  draw_all_prompts(job_, out);
  return out;
}

namespace {

// Layouts in the order of their times. A layout is simulated when it may be the next.
class ByTime {
 public:
  ByTime(const PlannedJob& job, std::span<const Layout> layouts) : forecast_(job) {
    for (const Layout& layout : layouts) left_.push_back({forecast_.at_least(layout)});
  }
  // The fastest layout that has not been returned; nullopt where all have.
  std::optional<Forecast> next() {
    while (!left_.empty()) {
      const auto least = std::ranges::min_element(left_, {}, [](const Candidate& one) {
        return std::pair(one.forecast.seconds, one.simulated);
      });
      if (least->simulated) return take(least);
      simulate(*least);
    }
    return std::nullopt;
  }
  // This layout, if it has not been returned and takes at most so many seconds.
  std::optional<Forecast> within(const Layout& layout, double seconds) {
    const auto found =
        std::ranges::find(left_, layout, [](const Candidate& one) { return one.forecast.layout; });
    if (found == left_.end() || found->forecast.seconds > seconds) return std::nullopt;
    if (!found->simulated) simulate(*found);
    if (found->forecast.seconds > seconds) return std::nullopt;
    return take(found);
  }
  int simulated() const { return simulated_; }

 private:
  struct Candidate {
    Forecast forecast;  // at least, unless it is simulated
    bool simulated = false;
  };
  void simulate(Candidate& one) {
    one = {forecast_(one.forecast.layout), true};
    ++simulated_;
  }
  Forecast take(std::vector<Candidate>::iterator one) {
    Forecast forecast = std::move(one->forecast);
    left_.erase(one);
    return forecast;
  }
  QuickForecast forecast_;
  std::vector<Candidate> left_;
  int simulated_ = 0;
};

// The forecast of a layout with the layers in memory that the job's mode chooses.
Forecast in_its_mode(const PlannedJob& job, const Layout& layout) {
  std::vector<MemoryPlan> memory = memory_of(job, layout);
  PlannedJob chosen = job;
  chosen.options.resident_blocks = memory.front().resident_layers;
  Forecast out = QuickForecast(chosen)(layout);
  out.memory = std::move(memory);
  return out;
}

}  // namespace

LayoutChoice choose_layout(const PlannedJob& given, std::span<const Layout> layouts) {
  CHECK(!layouts.empty(), "no layouts");
  // Layouts are compared with all layers in memory. One that has to read them is the last resort.
  const MemoryMode mode = given.options.mode;
  PlannedJob job = given;
  if (mode != MemoryMode::kSpeed) job.options.mode = MemoryMode::kLayers;
  ByTime by_time(job, layouts);
  LayoutChoice choice;
  std::vector<Forecast>& best = choice.best;
  std::optional<Forecast> smallest;  // of those that do not fit
  while (best.size() < kShown) {
    std::optional<Forecast> one = by_time.next();
    if (!one) break;
    one->memory = memory_of(job, one->layout);
    if (one->fits()) {
      best.push_back(*std::move(one));
      continue;
    }
    ++choice.too_large;
    if (!smallest || one->high_water() < smallest->high_water()) smallest = std::move(one);
  }
  if (best.empty()) best = {*smallest};
  // The first of `layouts` that is about as fast as the fastest one.
  const double alike = kAlike * best.front().seconds;
  for (const Layout& layout : layouts) {
    const auto chosen = std::ranges::find(best, layout, &Forecast::layout);
    if (chosen != best.end() && chosen->seconds <= alike) {
      std::rotate(best.begin(), chosen, chosen + 1);
      break;
    }
    std::optional<Forecast> one = by_time.within(layout, alike);
    if (!one) continue;
    one->memory = memory_of(job, layout);
    if (!one->fits()) continue;
    best.insert(best.begin(), *std::move(one));
    best.resize(kShown);
    break;
  }
  choice.simulated = by_time.simulated();
  if (mode == MemoryMode::kMemory || (mode == MemoryMode::kAuto && !best.front().fits()))
    best.front() = in_its_mode(given, best.front().layout);
  return choice;
}

}  // namespace weft
