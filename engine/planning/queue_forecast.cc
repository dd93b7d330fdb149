#include "engine/planning/queue_forecast.h"

#include <algorithm>
#include <cmath>

#include "engine/denoising/denoiser.h"
#include "engine/long_video/queue_denoiser.h"
#include "engine/long_video/queue_run.h"

namespace weft {
namespace {

constexpr int kSpareBlocks = 4;  // beyond a full queue and its stages
constexpr int64_t kDecodedLatents = 9;

bool in_plan(Payload payload) {
  return payload == Payload::kHidden || payload == Payload::kLatent ||
         payload == Payload::kVelocity || payload == Payload::kControl;
}

void add(CommCounters& to, const CommCounters& counters, double times) {
  for (size_t kind = 0; kind < to.sent.size(); ++kind) {
    to.sent[kind].messages +=
        std::llround(times * static_cast<double>(counters.sent[kind].messages));
    to.sent[kind].bytes += std::llround(times * static_cast<double>(counters.sent[kind].bytes));
  }
}

CommCounters inside_a_forward(CommCounters counters, int forwards) {
  CommCounters out;
  for (size_t kind = 0; kind < counters.sent.size(); ++kind)
    if (in_plan(static_cast<Payload>(kind))) counters.sent[kind] = {};
  add(out, counters, 1.0 / forwards);
  return out;
}

// Ranks that compute forwards together have one number.
std::vector<int> groups_of(const Layout& layout) {
  const Mesh mesh(layout);
  std::vector<int> groups;
  for (int rank = 0; rank < layout.ranks(); ++rank)
    groups.push_back(mesh.at(Axis::kCfg, rank) * layout[Axis::kLayers] +
                     mesh.at(Axis::kLayers, rank));
  return groups;
}

// When the last update of every block ended.
std::vector<double> finished(const QueueTimeline& timeline) {
  std::vector<double> ends(timeline.config.blocks);
  for (size_t rank = 0; rank < timeline.plans.size(); ++rank)
    for (size_t i = 0; i < timeline.times[rank].size(); ++i)
      if (const Step& step = timeline.plans[rank].steps[i]; step.kind == Step::Kind::kUpdate)
        ends[step.pass.clip] = std::max(ends[step.pass.clip], timeline.times[rank][i].end_s);
  return ends;
}

}  // namespace

QueueForecast::QueueForecast(const PlannedJob& job)
    : job_(job), options_(without_limits(job.options)), facts_(job.facts()) {
  // One rank encodes the text, and one decodes, like a single rank with full attention.
  const VaeTraits& vae = job.model->directory.vae_model->traits();
  PlannedJob ends = job;
  ends.options.resident_blocks = 0;
  ends.request.method = Full();
  ends.request.endless = false;
  ends.request.frames = vae.frames(std::min(facts_.latent[1], kDecodedLatents));
  ends.requests = 1;
  const Forecast alone = QuickForecast(ends)({});
  const int prompts = 1 + facts_.guided();
  text_s_ = alone.stage("encode_text") *
            static_cast<double>(prompts + std::ssize(job.request.schedule)) / prompts;
  picture_s_ = alone.stage("decode") / static_cast<double>(ends.request.frames);
}

QueuePlanConfig QueueForecast::config_for(const Layout& replica) const {
  const RankPlacement placement(replica, 0);
  Components parts(job_.model, {.dtype = options_.dtype}, options_.vae_dtype, placement);
  parts.set_wire_dtype(options_.wire_dtype);
  return queue_plan(facts_, parts, placement);
}

std::shared_ptr<const OpenModel> QueueForecast::with_blocks(int blocks) {
  std::shared_ptr<const OpenModel>& found = models_[blocks];
  if (!found) found = std::make_shared<const OpenModel>(*job_.model, blocks);
  return found;
}

QueueForecast::StepClass QueueForecast::class_of(const Step& step, int rank) {
  StepClass out{.rank = rank,
                .kind = step.kind,
                .model = step.pass.model,
                .branch = step.pass.branch,
                .first_block = step.pass.clip == 0 && step.kind != Step::Kind::kCompute,
                .reuses = step.reuses};
  for (const SlotVersion& read : step.reads) out.reads_keys |= read.slot.kind == SlotKind::kKeys;
  return out;
}

// Forwards of a group begin when its last rank is there.
QueueForecast::Costs QueueForecast::costs_of(const Layout& replica, const std::vector<Done>& done,
                                             std::span<const SimulatedRank> ranks) {
  Costs out;
  const std::vector<int> groups = groups_of(replica);
  std::map<std::pair<int, Pass>, double> begun;  // by group: when its last rank began a forward
  for (int rank = 0; rank < replica.ranks(); ++rank)
    for (const auto& [step, time] : done[rank])
      if (step.kind == Step::Kind::kCompute) {
        double& latest_s = begun[{groups[rank], step.pass}];
        latest_s = std::max(latest_s, time.begin_s);
      }
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    int forwards = 0;
    for (const auto& [step, time] : done[rank]) {
      if (step.peer >= 0) continue;
      const bool computes = step.kind == Step::Kind::kCompute;
      const double took = time.end_s - (computes ? begun[{groups[rank], step.pass}] : time.begin_s);
      out.seconds[class_of(step, rank)] = took;
      forwards += computes && !step.reuses;
    }
    out.inside.push_back(inside_a_forward(ranks[rank].counters, forwards));
  }
  return out;
}

// The program runs a short queue of transformers that have at most so many blocks. The last
// step of a class counts, because the first one prepares the prompt.
QueueForecast::Costs QueueForecast::measured(const Layout& replica, int blocks) {
  const std::shared_ptr<const OpenModel> model = with_blocks(blocks);
  const JobFacts few = time_sample(facts_).facts;

  std::vector<Done> done(replica.ranks());
  const auto run = [&](Communicator& world) {
    RankPlacement placement = RankPlacement::of(world, replica);
    Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
    Arena arena;
    Components parts(
        model,
        {.dtype = options_.dtype, .weights = options_.weights, .attention = options_.attention},
        options_.vae_dtype, placement);
    parts.set_wire_dtype(options_.wire_dtype);
    std::array<Tensor, 2> texts;
    for (size_t branch = 0; branch < texts.size(); ++branch)
      if (few.prompt_rows[branch] > 0)
        texts[branch] =
            Tensor(DType::kF32, {few.prompt_rows[branch], parts.text_model().traits().columns});
    const std::vector<TensorView> prompts{texts[0].view()};
    double before = simulated_seconds();
    QueueJob job{.facts = few,
                 .prompts = prompts,
                 .negative = texts[1].view(),
                 .noise = [](int, const TensorView&) {},
                 .decode = {}};
    job.on_step = [&](const Step& step) {
      const double now = simulated_seconds();
      done[world.rank()].push_back({step, {std::exchange(before, now), now}});
    };
    QueuePlanConfig config = queue_plan(few, parts, placement);
    config.decoder = 0;
    QueueDenoiser({stream, arena, parts, placement}, parts.wire_dtype()).run(config, job);
  };
  const std::vector<SimulatedRank> ranks =
      simulate(replica.ranks(), job_.machine.device, job_.machine.link, run);
  return costs_of(replica, done, ranks);
}

// Forwards with one or two blocks per stage say what those with all blocks take.
QueueForecast::Costs QueueForecast::measured_all(const Layout& replica) {
  const auto [fewest, next, more] = layers_sample(blocks_of(*job_.model), replica[Axis::kLayers]);
  Costs one = measured(replica, fewest);
  if (more == 0) return one;
  const Costs two = measured(replica, next);
  for (auto& [step, seconds] : one.seconds) seconds += more * (two.seconds.at(step) - seconds);
  for (size_t rank = 0; rank < one.inside.size(); ++rank) {
    const CommCounters before = one.inside[rank];
    add(one.inside[rank], two.inside[rank], more);
    add(one.inside[rank], before, -more);
  }
  return one;
}

const QueueForecast::Costs& QueueForecast::costs(const Layout& replica) {
  const auto found = std::ranges::find(costs_, replica, &std::pair<Layout, Costs>::first);
  if (found != costs_.end()) return found->second;
  return costs_.emplace_back(replica, measured_all(replica)).second;
}

// The seconds of a step beside messages, decoding and the copying of weights.
double QueueForecast::seconds(const Costs& costs, const Step& step, int rank) {
  StepClass of = class_of(step, rank);
  auto found = costs.seconds.find(of);
  of.reads_keys = false;
  if (found == costs.seconds.end()) found = costs.seconds.find(of);
  return found == costs.seconds.end() ? 0 : found->second;
}

// The plans of the ranks, from which the weights follow that do not stay in memory. Empty where the
// job keeps all of them.
const std::vector<MemoryPlan>& QueueForecast::memory(const Layout& replica) {
  const auto found =
      std::ranges::find(memory_, replica, &std::pair<Layout, std::vector<MemoryPlan>>::first);
  if (found != memory_.end()) return found->second;
  const MemoryMode mode = job_.options.mode;
  const bool streams =
      job_.options.resident_blocks > 0 || mode == MemoryMode::kAuto || mode == MemoryMode::kMemory;
  return memory_
      .emplace_back(replica, streams ? memory_of(job_, replica) : std::vector<MemoryPlan>())
      .second;
}

// The seconds in which the weights of a forward arrive, beside other work.
double QueueForecast::reading_s(std::span<const MemoryPlan> memory, const Step& step,
                                int rank) const {
  if (memory.empty() || step.kind != Step::Kind::kCompute || step.reuses) return 0;
  const uint64_t bytes = memory[rank].parts.streamed[step.pass.model];
  return bytes ? static_cast<double>(bytes) / job_.machine.upload_bytes_per_s : 0;
}

// The hidden share is that of the rank that reads the most.
Uploads QueueForecast::uploads(const QueueTimeline& timeline, const Layout& replica) {
  const std::vector<MemoryPlan>& memory = this->memory(replica);
  Uploads out = uploads_of(job_, replica, streamed_by(memory));
  double most_s = 0, hidden_s = 0;
  for (size_t rank = 0; rank < timeline.plans.size(); ++rank) {
    double read_s = 0, beside_s = 0;
    for (const Step& step : timeline.plans[rank].steps) {
      const double took = reading_s(memory, step, static_cast<int>(rank));
      read_s += took;
      beside_s += std::min(took, seconds(costs(replica), step, static_cast<int>(rank)));
    }
    if (read_s > most_s) {
      most_s = read_s;
      hidden_s = beside_s;
    }
  }
  if (most_s > 0) out.hidden_s = out.seconds * hidden_s / most_s;
  return out;
}

// The pictures that a block is decoded to.
int64_t QueueForecast::pictures(int block) const {
  const BlockFrames frames = std::get<Queue>(job_.request.method).frames();
  const VaeTraits& vae = job_.model->directory.vae_model->traits();
  const int64_t first = frames.first(block),
                end = std::min<int64_t>(first + frames.count(block), facts_.latent[1]);
  return vae.frames(end) - (first > 0 ? vae.frames(first) : 0);
}

QueueTimeline QueueForecast::timeline(const Layout& replica) {
  QueueTimeline out{
      .config = config_for(replica), .plans = {}, .times = {}, .uploads = {}, .inside = {}};
  const auto steps = static_cast<int>(out.config.steps.size());
  const int kept = std::min(out.config.blocks, steps + replica[Axis::kLayers] + kSpareBlocks);
  out.skipped = std::exchange(out.config.blocks, kept) - kept;
  out.plans = plan_queue(out.config);
  const Costs& costs = this->costs(replica);
  const std::vector<MemoryPlan>& memory = this->memory(replica);
  const auto seconds = [&](const Step& step, int rank) {
    double took = QueueForecast::seconds(costs, step, rank);
    if (step.kind == Step::Kind::kDecode) {
      const bool last = step.pass.clip + 1 == out.config.blocks;
      took += picture_s_ * static_cast<double>(pictures(step.pass.clip + (last ? out.skipped : 0)));
    }
    return std::max(took, reading_s(memory, step, rank));
  };
  out.times =
      time_plans(out.plans, job_.machine.device, job_.machine.link, seconds, groups_of(replica));
  const std::vector<double> ends = finished(out);
  const int full = kept - steps;  // the last block that leaves a full queue
  if (full > 1) out.block_s = (ends[full] - ends[full / 2]) / (full - full / 2);
  for (size_t rank = 0; rank < out.plans.size(); ++rank) {
    CHECK(out.times[rank].size() == out.plans[rank].steps.size(), "rank", rank, "waits for ever");
    int64_t forwards = 0;
    for (size_t i = 0; i < out.times[rank].size(); ++i) {
      const Step& step = out.plans[rank].steps[i];
      const StepTime& time = out.times[rank][i];
      const bool decodes = step.kind == Step::Kind::kDecode;
      if (decodes && step.pass.clip == 0) out.first_frame_s = time.begin_s + picture_s_;
      if (decodes && rank == 0)
        out.decode_s += static_cast<double>(out.repeats(step.pass)) * (time.end_s - time.begin_s);
      forwards += step.kind == Step::Kind::kCompute && !step.reuses;
    }
    out.end_s = std::max(out.end_s, out.times[rank].back().end_s);
    forwards += forwards / kept * out.skipped;
    out.inside.emplace_back();
    add(out.inside.back(), costs.inside[rank], static_cast<double>(forwards));
  }
  out.end_s += out.skipped * out.block_s;
  out.uploads = uploads(out, replica);
  return out;
}

Forecast QueueForecast::at_least(const Layout& replica) {
  const QueuePlanConfig config = config_for(replica);
  const Costs& costs = this->costs(replica);
  const std::vector<MemoryPlan>& memory = this->memory(replica);
  Forecast out;
  out.layout = replica;
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    const RankPlacement placement(replica, rank);
    double block_s = 0;  // a block in all its steps
    for (const auto& step : config.steps)
      for (int branch = 0; branch < step.branches; ++branch)
        if (placement.computes(branch) && !step.skipped) {
          const Pass pass{.model = step.model, .branch = branch};
          const Step forward{.kind = Step::Kind::kCompute, .pass = pass};
          block_s += std::max(seconds(costs, forward, rank), reading_s(memory, forward, rank));
        }
    out.seconds = std::max(out.seconds, config.blocks * block_s);
  }
  return out;
}

Forecast QueueForecast::operator()(const Layout& replica) {
  const QueueTimeline timeline = this->timeline(replica);
  Forecast out;
  out.layout = replica;
  // A run has the same stages. Decoding takes turns with forwards on the first rank, if it decodes.
  out.stages = {{"encode_text", text_s_}, {"denoise", timeline.end_s - timeline.decode_s}};
  if (timeline.decode_s > 0) out.stages.emplace_back("decode", timeline.decode_s);
  out.seconds = text_s_ + timeline.end_s;
  out.uploads = timeline.uploads;
  out.first_frame_s = text_s_ + timeline.first_frame_s;
  for (size_t rank = 0; rank < timeline.plans.size(); ++rank) {
    SimulatedRank& ran = out.ranks.emplace_back();
    ran.seconds = text_s_ + timeline.times[rank].back().end_s + timeline.skipped * timeline.block_s;
    ran.counters = timeline.inside[rank];
    for (const Step& step : timeline.plans[rank].steps)
      if (step.kind == Step::Kind::kSend) {
        CommCounters::Count& sent = ran.counters.sent[static_cast<size_t>(step.payload)];
        sent.messages += timeline.repeats(step.pass);
        sent.bytes += timeline.repeats(step.pass) * step.bytes;
      }
  }
  return out;
}

}  // namespace weft
