// The forecast of a segment queue.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/planning/forecast.h"
#include "engine/schedules/queue_denoiser.h"

namespace weft {
namespace {

constexpr int kSpareSegments = 4;  // beyond a full queue and its stages
constexpr int64_t kDecodedLatents = 9;

void add(CommCounters& to, const CommCounters& counters, double times) {
  for (size_t kind = 0; kind < to.sent.size(); ++kind) {
    to.sent[kind].messages +=
        std::llround(times * static_cast<double>(counters.sent[kind].messages));
    to.sent[kind].bytes += std::llround(times * static_cast<double>(counters.sent[kind].bytes));
  }
}

CommCounters inside_a_forward(CommCounters counters, int forwards) {
  for (const Payload in_plan :
       {Payload::kHidden, Payload::kLatent, Payload::kVelocity, Payload::kControl})
    counters.sent[static_cast<size_t>(in_plan)] = {};
  CommCounters out;
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

}  // namespace

// The times that the steps of a queue take on the ranks of a replica.
struct QuickForecast::QueueCosts {
  // Steps of a rank that take equally long.
  using StepClass = std::tuple<int, Step::Kind, int, int, bool, bool, bool>;
  static StepClass class_of(const Step& step, int rank) {
    const bool reads_keys = std::ranges::any_of(
        step.reads, [](const SlotVersion& read) { return read.slot.kind == SlotKind::kKeys; });
    return {rank,
            step.kind,
            step.pass.model,
            step.pass.branch,
            step.pass.segment == 0 && step.kind != Step::Kind::kCompute,
            step.reuses,
            reads_keys};
  }

  // The last step of a class counts, because the first one prepares the prompt. Forwards of a group
  // begin when its last rank is there.
  QueueCosts(const Layout& replica, const Sampled& ran) : layout(replica) {
    const std::vector<int> groups = groups_of(replica);
    std::map<std::pair<int, Pass>, double> begun;  // by group: when its last rank began a forward
    for (int rank = 0; rank < replica.ranks(); ++rank)
      for (const auto& [step, time] : ran.done[rank])
        if (step.kind == Step::Kind::kCompute) {
          double& latest_s = begun[{groups[rank], step.pass}];
          latest_s = std::max(latest_s, time.begin_s);
        }
    for (int rank = 0; rank < replica.ranks(); ++rank) {
      int forwards = 0;
      for (const auto& [step, time] : ran.done[rank]) {
        if (step.peer >= 0) continue;
        const bool computes = step.kind == Step::Kind::kCompute;
        seconds[class_of(step, rank)] =
            time.end_s - (computes ? begun[{groups[rank], step.pass}] : time.begin_s);
        forwards += computes && !step.reuses;
      }
      inside.push_back(inside_a_forward(ran.ranks[rank].counters, forwards));
    }
  }
  // Adds `more` times what those with more transformer blocks take beyond these.
  void extend(const QueueCosts& next, int more) {
    for (auto& [step, took] : seconds) took += more * (next.seconds.at(step) - took);
    for (size_t rank = 0; rank < inside.size(); ++rank) {
      const CommCounters before = inside[rank];
      add(inside[rank], next.inside[rank], more);
      add(inside[rank], before, -more);
    }
  }

  // The seconds of a step beside messages, decoding and the copying of weights.
  double of(const Step& step, int rank) const {
    StepClass kind = class_of(step, rank);
    auto found = seconds.find(kind);
    std::get<6>(kind) = false;  // the keys
    if (found == seconds.end()) found = seconds.find(kind);
    return found == seconds.end() ? 0 : found->second;
  }
  // The seconds in which the weights of a forward arrive, beside other work.
  double reading_s(const Step& step, int rank) const {
    if (memory.empty() || step.kind != Step::Kind::kCompute || step.reuses) return 0;
    const uint64_t bytes = memory[rank].parts.streamed[step.pass.model];
    return bytes ? static_cast<double>(bytes) / upload_bytes_per_s : 0;
  }

  Layout layout;
  std::map<StepClass, double> seconds{};
  std::vector<CommCounters> inside{};  // of one forward, by rank
  QueuePlanConfig config{};            // of the whole queue
  // By rank: which weights do not stay in memory. Empty where the job keeps all of them.
  std::vector<MemoryPlan> memory{};
  double upload_bytes_per_s = 0;
};

// One rank encodes the text, and one decodes, like a single rank with full attention.
void QuickForecast::begin_queue() {
  const VaeTraits& vae = job_.model->directory.vae_model->traits;
  PlannedJob ends = job_;
  ends.options.resident_blocks = 0;
  ends.options.wire_dtype.reset();
  ends.request.method = Full();
  ends.request.endless = false;
  ends.request.frames = vae.frames(std::min(facts_.latent[1], kDecodedLatents));
  ends.requests = 1;
  const Forecast alone = QuickForecast(ends)({});
  const int prompts = 1 + facts_.guided();
  text_s_ = alone.stage("encode_text") *
            static_cast<double>(prompts + std::ssize(job_.request.schedule)) / prompts;
  picture_s_ = alone.stage("decode") / static_cast<double>(ends.request.frames);
}

// Forwards with one or two segments per stage say what those with all segments take.
const QuickForecast::QueueCosts& QuickForecast::queue_costs(const Layout& replica) {
  for (const auto& [layout, costs] : queue_costs_)
    if (layout == replica) return *costs;
  const auto [fewest, next, more] = layers_sample(job_.model->directory, replica[Axis::kLayers]);
  const auto out = std::make_shared<QueueCosts>(replica, sampled(replica, fewest, false));
  if (more > 0) out->extend({replica, sampled(replica, next, false)}, more);
  const RankPlacement placement(replica, 0);
  out->config = queue_plan(facts_, parts(job_.model, placement), placement);
  out->upload_bytes_per_s = job_.machine.upload_bytes_per_s;
  const MemoryMode mode = job_.options.mode;
  if (job_.options.resident_blocks > 0 || mode == MemoryMode::kAuto || mode == MemoryMode::kMemory)
    out->memory = memory_of(job_, replica);
  queue_costs_.emplace_back(replica, out);
  return *out;
}

QueueTimeline QuickForecast::queue_timeline(const QueueCosts& costs) const {
  QueueTimeline out{.config = costs.config, .plans = {}, .times = {}, .inside = {}};
  const auto steps = static_cast<int>(out.config.steps.size());
  const int kept =
      std::min(out.config.segments, steps + costs.layout[Axis::kLayers] + kSpareSegments);
  out.skipped = std::exchange(out.config.segments, kept) - kept;
  out.plans = plan_queue(out.config);
  const SegmentFrames frames = std::get<Queue>(job_.request.method).frames();
  const VaeTraits& vae = job_.model->directory.vae_model->traits;
  const auto pictures = [&](int segment) {  // that a segment is decoded to
    const int64_t first = frames.first(segment),
                  end = std::min<int64_t>(first + frames.count(segment), facts_.latent[1]);
    return vae.frames(end) - (first > 0 ? vae.frames(first) : 0);
  };
  const auto seconds = [&](const Step& step, int rank) {
    double took = costs.of(step, rank);
    if (step.kind == Step::Kind::kDecode) {
      const bool last = step.pass.segment + 1 == out.config.segments;
      took +=
          picture_s_ * static_cast<double>(pictures(step.pass.segment + (last ? out.skipped : 0)));
    }
    return std::max(took, costs.reading_s(step, rank));
  };
  out.times = time_plans(out.plans, job_.machine.device, job_.machine.link, seconds,
                         groups_of(costs.layout));
  std::vector<double> ends(kept);  // of the last update of every segment
  for (size_t rank = 0; rank < out.plans.size(); ++rank) {
    CHECK(out.times[rank].size() == out.plans[rank].steps.size(), "rank", rank, "waits for ever");
    int64_t forwards = 0;
    for (size_t i = 0; i < out.times[rank].size(); ++i) {
      const Step& step = out.plans[rank].steps[i];
      const StepTime& time = out.times[rank][i];
      const bool decodes = step.kind == Step::Kind::kDecode;
      if (step.kind == Step::Kind::kUpdate)
        ends[step.pass.segment] = std::max(ends[step.pass.segment], time.end_s);
      if (decodes && step.pass.segment == 0) out.first_frame_s = time.begin_s + picture_s_;
      if (decodes && rank == 0)
        out.decode_s += static_cast<double>(out.repeats(step.pass)) * (time.end_s - time.begin_s);
      forwards += step.kind == Step::Kind::kCompute && !step.reuses;
    }
    out.end_s = std::max(out.end_s, out.times[rank].back().end_s);
    forwards += forwards / kept * out.skipped;
    out.inside.emplace_back();
    add(out.inside.back(), costs.inside[rank], static_cast<double>(forwards));
  }
  const int full = kept - steps;  // the last segment that leaves a full queue
  if (full > 1) out.segment_s = (ends[full] - ends[full / 2]) / (full - full / 2);
  out.end_s += out.skipped * out.segment_s;
  return out;
}

Forecast QuickForecast::least_queue(const Layout& replica) {
  const QueueCosts& costs = queue_costs(replica);
  Forecast out;
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    const RankPlacement placement(replica, rank);
    double segment_s = 0;  // a segment in all its steps
    for (const auto& step : costs.config.steps)
      for (int branch = 0; branch < step.branches; ++branch)
        if (placement.computes(branch) && !step.skipped) {
          const Pass pass{.model = step.model, .branch = branch};
          const Step forward{.kind = Step::Kind::kCompute, .pass = pass};
          segment_s += std::max(costs.of(forward, rank), costs.reading_s(forward, rank));
        }
    out.seconds = std::max(out.seconds, costs.config.segments * segment_s);
  }
  return out;
}

Forecast QuickForecast::queue_forecast(const Layout& replica) {
  const QueueCosts& costs = queue_costs(replica);
  const auto timeline = std::make_shared<const QueueTimeline>(queue_timeline(costs));
  Forecast out;
  out.queue = timeline;
  // A run has the same stages. Decoding takes turns with forwards on the first rank, if it decodes.
  out.stages = {{"encode_text", text_s_}, {"denoise", timeline->end_s - timeline->decode_s}};
  if (timeline->decode_s > 0) out.stages.emplace_back("decode", timeline->decode_s);
  out.seconds = text_s_ + timeline->end_s;
  out.first_frame_s = text_s_ + timeline->first_frame_s;
  out.uploads = uploads_of(job_, facts_, replica, most_streamed(costs.memory));
  double most_s = 0;  // that a rank reads; the hidden share is that of this rank
  for (size_t rank = 0; rank < timeline->plans.size(); ++rank) {
    const auto number = static_cast<int>(rank);
    SimulatedRank& ran = out.ranks.emplace_back();
    ran.seconds =
        text_s_ + timeline->times[rank].back().end_s + timeline->skipped * timeline->segment_s;
    ran.counters = timeline->inside[rank];
    double read_s = 0, beside_s = 0;
    for (const Step& step : timeline->plans[rank].steps) {
      const double took = costs.reading_s(step, number);
      read_s += took;
      beside_s += std::min(took, costs.of(step, number));
      if (step.kind != Step::Kind::kSend) continue;
      CommCounters::Count& sent = ran.counters.sent[static_cast<size_t>(step.payload)];
      sent.messages += timeline->repeats(step.pass);
      sent.bytes += timeline->repeats(step.pass) * step.bytes;
    }
    if (read_s > most_s) {
      most_s = read_s;
      out.uploads.hidden_s = out.uploads.seconds * beside_s / read_s;
    }
  }
  return out;
}

}  // namespace weft
