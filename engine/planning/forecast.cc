#include "engine/planning/forecast.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "engine/memory/blank_job.h"
#include "kernels/dry_run.h"

namespace weft {
namespace {

constexpr int kSimulatedChunks = 3;

using Stages = std::vector<std::pair<std::string, double>>;

void add_to_stage(Stages& stages, const std::string& stage, double seconds) {
  const auto found = std::ranges::find(stages, stage, &Stages::value_type::first);
  if (found == stages.end())
    stages.emplace_back(stage, seconds);
  else
    found->second += seconds;
}

// Adds up the simulated seconds of the stages of a rank, which may begin several times.
struct StageTimes final : ProgressListener {
  Stages stages;
  std::string stage, outer;  // `outer` is the one in which weights are loaded
  double since = 0, text_end_s = 0;
  std::vector<double> chunks;  // when each decoded chunk began
  void progress(const Progress& progress) override {
    const double now = simulated_seconds();
    const bool loads = progress.stage == "load";
    if (loads && stage != "load") outer = stage;
    if (progress.stage != stage) enter(progress.stage, now);
    if (loads && progress.step == progress.total) enter(outer, now);
    if (progress.stage == "decode") chunks.push_back(now);
  }
  void enter(const std::string& next, double now) {
    const bool text = stage == "encode_text";  // others may wait for it where the first does not
    if (!stage.empty() && (now > since || text)) add_to_stage(stages, stage, now - since);
    if (text) text_end_s = now;
    stage = next;
    since = now;
  }
};

// A simulated job computes nothing, so it need not fit in memory.
GeneratorOptions without_limits(GeneratorOptions options) {
  options.planned.reset();
  options.mode = MemoryMode::kLayers;
  options.resident_blocks = 0;
  options.memory_limit = UINT64_MAX;
  return options;
}

Layout replica_of(Layout layout) {
  layout[Axis::kData] = 1;
  return layout;
}

double latest(std::span<const SimulatedRank> ranks) {
  return std::ranges::max_element(ranks, {}, &SimulatedRank::seconds)->seconds;
}

// Runs the request as every rank of a simulated replica. `chunks` are when decoded chunks began.
Forecast simulate_run(const PlannedJob& job, const Request& request,
                      const std::shared_ptr<const OpenModel>& model, const Layout& replica,
                      std::vector<double>* chunks = nullptr) {
  const GeneratorOptions options = without_limits(job.options);
  Forecast out;
  out.layout = replica;
  std::vector<StageTimes> times(replica.ranks());
  out.ranks =
      simulate(replica.ranks(), job.machine.device, job.machine.link, [&](Communicator& world) {
        RunOptions run;
        run.listener = &times[world.rank()];
        Generator(model, options, RankPlacement::of(world, replica)).run(request, nullptr, run);
      });
  out.seconds = latest(out.ranks);
  times.front().enter("", out.seconds);
  out.stages = times.front().stages;
  // The text is encoded when the last rank has it. The first waits for that in its next stage.
  const auto text = std::ranges::find(out.stages, "encode_text", &Stages::value_type::first);
  if (std::distance(text, out.stages.end()) > 1) {
    const double last_s = std::ranges::max_element(times, {}, &StageTimes::text_end_s)->text_end_s;
    double& next_s = std::next(text)->second;
    const double late_s = std::min(last_s - times.front().text_end_s, next_s);
    text->second += late_s;
    next_s -= late_s;
  }
  if (chunks) *chunks = std::move(times.front().chunks);
  return out;
}

// Adds the part of the copying that does not overlap with computing: a step takes as long as its
// forwards compute or as long as their weights arrive, whichever is longer.
void add_uploads(const PlannedJob& job, const JobFacts& facts, uint64_t forward_bytes,
                 Forecast& out) {
  out.uploads = uploads_of(job, facts, out.layout, forward_bytes);
  if (out.uploads.bytes == 0) return;
  const int steps = job.request.steps * facts.chunks;
  out.uploads.hidden_s = std::min(out.uploads.seconds, out.stage("denoise") / steps);
  const double more_s = steps * (out.uploads.seconds - out.uploads.hidden_s);
  add_to_stage(out.stages, "denoise", more_s);
  out.seconds += more_s;
}

// Each replica draws its share of the prompts, one after the other.
Forecast of_all_prompts(const PlannedJob& job, const Layout& layout, Forecast replica) {
  const int replicas = layout[Axis::kData];
  replica.layout = layout;
  replica.seconds *= static_cast<double>((job.requests + replicas - 1) / replicas);
  return replica;
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

Uploads uploads_of(const PlannedJob& job, const JobFacts& facts, const Layout& replica,
                   uint64_t forward_bytes) {
  Uploads uploads;
  if (forward_bytes == 0) return uploads;
  const bool both = facts.guided() && replica[Axis::kCfg] == 1;
  uploads.bytes = static_cast<int64_t>(forward_bytes) * (both ? 2 : 1);
  uploads.seconds = static_cast<double>(uploads.bytes) / job.machine.upload_bytes_per_s;
  return uploads;
}

std::vector<MemoryPlan> memory_of(const PlannedJob& job, const Layout& layout) {
  const Layout replica = replica_of(layout);
  std::vector<MemoryPlan> plans;
  simulate(1, {}, {}, [&](Communicator&) {
    for (int rank = 0; rank < layout.ranks(); ++rank)
      plans.push_back(
          rank < replica.ranks()
              ? Generator(job.model, job.options, RankPlacement(replica, rank)).plan(job.request)
              : plans[rank % replica.ranks()]);
  });
  return plans;
}

Forecast forecast_whole(const PlannedJob& job, const Layout& layout) {
  Forecast out = simulate_run(job, job.request, job.model, replica_of(layout));
  out.memory = memory_of(job, layout);
  if (!job.request.method->in_segments())
    add_uploads(job, facts_of(*job.model, job.request), most_streamed(out.memory), out);
  return of_all_prompts(job, layout, std::move(out));
}

QuickForecast::QuickForecast(const PlannedJob& job)
    : job_(job), facts_(facts_of(*job.model, job.request)), sample_(time_sample(facts_)) {
  if (facts_.segments() > 0) begin_queue();
}

std::shared_ptr<const OpenModel> QuickForecast::with_blocks(int blocks) {
  std::shared_ptr<const OpenModel>& found = models_[blocks];
  if (!found) found = std::make_shared<const OpenModel>(*job_.model, blocks);
  return found;
}

Components QuickForecast::parts(const std::shared_ptr<const OpenModel>& model,
                                const RankPlacement& placement) const {
  const GeneratorOptions& options = job_.options;
  Components out(
      model, {.dtype = options.dtype, .weights = options.weights, .attention = options.attention},
      options.vae_dtype, placement);
  out.set_wire_dtype(options.wire_dtype);
  return out;
}

uint64_t QuickForecast::streamed(const Layout& replica) const {
  if (job_.options.resident_blocks == 0) return 0;
  size_t most = 0;
  DryRun run(job_.options.planned);
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    const RankPlacement placement(replica, rank);
    Components parts = this->parts(job_.model, placement);
    parts.set_resident_blocks(job_.options.resident_blocks);
    for (int model = 0; model < parts.experts(); ++model)
      most = std::max(most, parts.expert(run.stream(), model).streamed_bytes());
  }
  return most;
}

// The ranks of a replica, and those of the stages that are no axes.
QuickForecast::StageKey QuickForecast::stage_key(const Layout& replica) {
  return {replica.ranks(), replica.text_ranks, replica.vae_ranks, replica.decode_rank};
}

const QuickForecast::Ends& QuickForecast::ends(const Layout& replica) {
  const auto [found, fresh] = ends_.try_emplace(stage_key(replica));
  Ends& ends = found->second;
  if (!fresh) return ends;
  const ModelDirectory& directory = job_.model->directory;
  const std::shared_ptr<const OpenModel> model = with_blocks(replica[Axis::kLayers]);
  // The same ranks encode and decode without displaced patches.
  Layout split = replica;
  if (facts_.patches.displaced) split[Axis::kRing] = std::exchange(split[Axis::kPatch], 1);
  std::vector<double> chunks;
  double end = 0;
  const auto of = [&](int64_t pieces) -> Ends {
    Request brief = ends_sample(facts_, directory, pieces);
    // Clips may have more global frames than so short a video.
    const Generator generator(model, without_limits(job_.options));
    if (!directory.chunks.any() &&
        (facts_.dual_scope || !refuse(split, generator.layout_limits(brief)).empty()))
      brief.frames = job_.request.frames;
    const Forecast ran = simulate_run(job_, brief, model, split, &chunks);
    end = ran.seconds;
    return {ran.stage("encode_text"), ran.stage("encode_audio"), ran.stage("encode_image"),
            ran.stage("decode")};
  };
  if (directory.chunks.any()) {
    ends = of(1);
    const int more = facts_.chunks - 1;
    if (more == 0) return ends;
    const Ends two = of(2);
    ends.image += more * (two.image - ends.image);
    ends.decode += more * (two.decode - ends.decode);
    return ends;
  }
  const int64_t latents = facts_.latent[1];
  ends = of(std::min<int64_t>(latents, kSimulatedChunks));
  const auto simulated = static_cast<int64_t>(chunks.size()) - 1;
  ends.decode = end - chunks.front();
  if (latents > simulated) {
    ends.decode +=
        static_cast<double>(latents - simulated) * (chunks[simulated] - chunks[simulated - 1]);
    if (directory.pictures.form == PictureForm::kChannels)
      ends.image *= static_cast<double>(latents) / static_cast<double>(simulated);
  }
  return ends;
}

// Runs the sample's steps as the ranks of a replica, where a transformer has at most so many
// blocks; or as the first rank alone.
QuickForecast::Sampled QuickForecast::sampled(const Layout& replica, int blocks, bool alone) {
  const std::shared_ptr<const OpenModel> model = with_blocks(blocks);
  Layout split = replica;
  if (facts_.segments() > 0) split.decode_rank = -1;  // the decoding of a queue is added later
  Sampled out;
  out.done.resize(split.ranks());
  const auto work = [&](Communicator& world) {
    Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
    Arena arena;
    Components parts = this->parts(model, RankPlacement::of(world, split));
    const Rank rank(stream, arena, parts);
    double before = 0;
    BlankJob(rank, sample_.facts).run(sample_.facts, [&](const Step& step) {
      const double now = simulated_seconds();
      out.done[world.rank()].push_back({step, {std::exchange(before, now), now}});
    });
  };
  const auto& [device, link, upload] = job_.machine;
  if (alone)
    out.ranks.push_back(simulate_first(split.ranks(), device, link, work));
  else
    out.ranks = simulate(split.ranks(), device, link, work);
  return out;
}

// A stage that is no axis leaves the others as they are, so each is varied alone.
const std::vector<QuickForecast::StagedLayout>& QuickForecast::stage_choices(const Layout& layout) {
  const Layout replica = replica_of(layout);
  const auto [found, fresh] = choices_.try_emplace(stage_key(replica));
  std::vector<StagedLayout>& out = found->second;
  if (!fresh) return out;
  if (facts_.segments() > 0) return out = {{replica, 0}};  // where nothing is left to choose
  const double given_s = ends(replica).seconds();
  for (const Layout& text : with_stage_ranks(replica, &Layout::text_ranks))
    for (Layout both : with_stage_ranks(replica, &Layout::vae_ranks)) {
      const double vae_s = ends(both).seconds();
      both.text_ranks = text.text_ranks;
      out.push_back({both, ends(text).seconds() + vae_s - given_s});
    }
  return out;
}

double QuickForecast::denoise(const Layout& layout, bool alone) {
  // The ranks of other stages play no part, but clips send their frames to those that decode.
  Layout replica = layout;
  replica.text_ranks = 0;
  if (replica[Axis::kClip] == 1) replica.take_stages({});
  const auto [found, fresh] = denoise_.try_emplace({replica, alone});
  if (fresh) found->second = simulated_denoise(replica, alone);
  return found->second;
}

double QuickForecast::simulated_denoise(const Layout& replica, bool alone) {
  // The seconds of all steps, where a transformer has at most so many blocks.
  const auto with = [&](int blocks) {
    const Sampled ran = sampled(replica, blocks, alone);
    const auto updated_at = [&](int step) {
      double last = 0;
      for (const auto& of_rank : ran.done)
        for (const auto& [update, time] : of_rank)
          if (update.pass.step == step) last = std::max(last, time.end_s);
      return last;
    };
    double seconds = latest(ran.ranks);
    for (const auto& [first, count] : sample_.alike)
      if (count > kSampledSteps)
        seconds += (count - kSampledSteps) * (updated_at(first + 1) - updated_at(first));
    return seconds;
  };
  const auto [fewest, next, more] = layers_sample(job_.model->directory, replica[Axis::kLayers]);
  const double seconds = with(fewest);
  return more ? seconds + more * (with(next) - seconds) : seconds;
}

// No rank is done sooner than one that waits for no message. In a pipeline every step waits for the
// one before, so that a branch passes all stages, and the slowest stage computes the other one too.
double QuickForecast::least_denoise(Layout replica) {
  const int stages = std::exchange(replica[Axis::kLayers], 1);
  if (stages == 1) return denoise(replica, true);
  if (facts_.patches.pipefusion)
    return denoise(replica, true) / stages;  // patches do not wait for whole steps
  const bool both =
      replica[Axis::kCfg] == 1 &&
      std::ranges::all_of(facts_.steps, [](const auto& step) { return step.branches == 2; });
  if (facts_.guided()) replica[Axis::kCfg] = 2;
  return denoise(replica, true) * (both ? stages + 1 : stages) / stages;
}

Forecast QuickForecast::forecast(const Layout& layout, bool least) {
  const Layout replica = replica_of(layout);
  if (facts_.segments() > 0)
    return of_all_prompts(job_, layout, least ? least_queue(replica) : queue_forecast(replica));
  double denoise_s = least_denoise(replica);
  if (!least) denoise_s = std::max(denoise(replica, false), denoise_s);
  const Ends& at_ends = ends(replica);
  Forecast out;
  out.layout = replica;
  out.stages = {{"encode_text", at_ends.text}};
  if (at_ends.audio > 0) out.stages.emplace_back("encode_audio", at_ends.audio);
  if (at_ends.image > 0) out.stages.emplace_back("encode_image", at_ends.image);
  out.stages.emplace_back("denoise", denoise_s * facts_.chunks);
  out.stages.emplace_back("decode", at_ends.decode);
  for (const auto& [stage, seconds] : out.stages) out.seconds += seconds;
  add_uploads(job_, facts_, streamed(replica), out);
  return of_all_prompts(job_, layout, std::move(out));
}

}  // namespace weft
