#include "parallel/schedule/denoise_plan.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

namespace {

// Writes one rank's plan, step by step.
class Writer {
 public:
  Writer(const DenoisePlanConfig& config, const Mesh& mesh, int rank)
      : config_(config),
        mesh_(mesh),
        stages_(mesh.layout()[Axis::kLayers]),
        stage_(mesh.at(Axis::kLayers, rank)),
        cfg_(mesh.layout()[Axis::kCfg]),
        branch_(mesh.at(Axis::kCfg, rank)),
        sequence_(mesh.sequence_index(rank)),
        tokens_(config.tokens.empty() ? 0 : config.tokens[sequence_]) {
    plan_.rank = rank;
    plan_.ranks = mesh.layout().ranks();
  }

  Plan write() {
    int loaded = -1;
    for (size_t i = config_.first_step; i < config_.steps.size(); ++i) {
      const Pass pass{.model = config_.steps[i].model, .step = static_cast<int>(i)};
      if (pass.model != loaded) add({.kind = Step::Kind::kLoad, .pass = pass});
      loaded = pass.model;
      denoise(pass, config_.steps[i].branches);
    }
    const Pass last{.step = std::max(0, static_cast<int>(config_.steps.size()) - 1)};
    gather(last);
    while (!sending_.empty()) wait_for_send(last, sending_.front());
    std::vector<int> reads;
    if (this->last()) reads.push_back(kLatentSlot);
    if (gathered_) reads.push_back(kWholeSlot);
    add({.kind = Step::Kind::kDecode, .pass = last, .reads = reads, .writes = {kFramesSlot}});
    return std::move(plan_);
  }

 private:
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  // The rank that stands elsewhere along two axes and as this one along the others.
  int peer(int branch, int stage) const {
    std::array<int, kAxes> at{};
    for (int axis = 0; axis < kAxes; ++axis)
      at[axis] = mesh_.at(static_cast<Axis>(axis), plan_.rank);
    at[static_cast<int>(Axis::kCfg)] = branch;
    at[static_cast<int>(Axis::kLayers)] = stage;
    return mesh_.rank_at(at);
  }

  void add(Step step) { plan_.steps.push_back(std::move(step)); }
  void message(Step::Kind kind, const Pass& pass, int to, Payload payload, int64_t bytes,
               int slot) {
    Step step{.kind = kind, .pass = pass, .peer = to, .payload = payload, .bytes = bytes};
    (kind == Step::Kind::kSend ? step.reads : step.writes) = {slot};
    add(step);
    if (kind == Step::Kind::kSend) sending_.push_back(slot);
  }
  // Adds a wait where the slot is still being sent, so that it may be written again.
  void wait_for_send(const Pass& pass, int slot) {
    if (std::erase(sending_, slot) > 0)
      add({.kind = Step::Kind::kWait, .pass = pass, .reads = {slot}});
  }

  void denoise(const Pass& pass, int branches) {
    for (int branch = 0; branch < branches; ++branch)
      if (cfg_ == 1 || branch == branch_) forward(pass, branch);
    const int64_t latent = tokens_ * config_.latent_bytes;
    if (last()) {
      exchange_velocities(pass, branches, latent);
      wait_for_send(pass, kLatentSlot);
      std::vector<int> reads{kLatentSlot};
      for (int branch = 0; branch < branches; ++branch) reads.push_back(kVelocitySlot + branch);
      add({.kind = Step::Kind::kUpdate, .pass = pass, .reads = reads, .writes = {kLatentSlot}});
    }
    const bool again = pass.step + 1 < static_cast<int>(config_.steps.size());
    if (stages_ == 1 || !again) return;
    if (last())
      message(Step::Kind::kSend, pass, peer(branch_, 0), Payload::kLatent, latent, kLatentSlot);
    if (first())
      message(Step::Kind::kReceive, pass, peer(branch_, stages_ - 1), Payload::kLatent, latent,
              kLatentSlot);
  }

  void forward(const Pass& pass, int branch) {
    Pass forward = pass;
    forward.branch = branch;
    const int64_t hidden = tokens_ * config_.hidden_bytes;
    const int in = kHiddenSlot + branch, velocity = kVelocitySlot + branch;
    // A stage sends the buffer it received: the hidden rows change in place.
    wait_for_send(forward, in);
    if (!first())
      message(Step::Kind::kReceive, forward, peer(branch_, stage_ - 1), Payload::kHidden, hidden,
              in);
    add({.kind = Step::Kind::kCompute,
         .pass = forward,
         .blocks = stage_blocks(config_.blocks[pass.model], stages_, stage_),
         .reads = std::vector<int>(1, first() ? kLatentSlot : in),
         .writes = std::vector<int>(1, last() ? velocity : in)});
    if (!last())
      message(Step::Kind::kSend, forward, peer(branch_, stage_ + 1), Payload::kHidden, hidden, in);
  }

  // Every branch's last stage needs both velocities for its update.
  void exchange_velocities(const Pass& pass, int branches, int64_t bytes) {
    if (cfg_ == 1) return;
    const int other = 1 - branch_;
    Pass mine = pass, theirs = pass;
    mine.branch = branch_;
    theirs.branch = other;
    if (branch_ < branches)
      message(Step::Kind::kSend, mine, peer(other, stage_), Payload::kVelocity, bytes,
              kVelocitySlot + branch_);
    if (other < branches)
      message(Step::Kind::kReceive, theirs, peer(other, stage_), Payload::kVelocity, bytes,
              kVelocitySlot + other);
    wait_for_send(pass, kVelocitySlot + branch_);
  }

  // Sends each last stage's tokens to every rank of its branch and width, once.
  void gather(const Pass& pass) {
    if (plan_.ranks == 1) return;
    if (last()) wait_for_send(pass, kLatentSlot);
    const std::vector<int> group =
        mesh_.along({Axis::kLayers, Axis::kRing, Axis::kTokenRing, Axis::kUlysses}, plan_.rank);
    const auto is_last = [&](int rank) { return mesh_.at(Axis::kLayers, rank) == stages_ - 1; };
    if (last())
      for (int to : group)
        if (to != plan_.rank)
          message(Step::Kind::kSend, pass, to, Payload::kLatent, tokens_ * config_.latent_bytes,
                  kLatentSlot);
    for (int from : group)
      if (from != plan_.rank && is_last(from)) {
        message(Step::Kind::kReceive, pass, from, Payload::kLatent,
                config_.tokens[mesh_.sequence_index(from)] * config_.latent_bytes, kWholeSlot);
        gathered_ = true;
      }
    if (last()) wait_for_send(pass, kLatentSlot);
  }

  const DenoisePlanConfig& config_;
  const Mesh& mesh_;
  int stages_, stage_, cfg_, branch_, sequence_;
  int64_t tokens_;
  Plan plan_;
  std::vector<int> sending_;
  bool gathered_ = false;
};

}  // namespace

BlockRange stage_blocks(int blocks, int stages, int index, double ends) {
  CHECK(stages >= 1 && blocks >= stages && index >= 0 && index < stages, "blocks", blocks, "stages",
        stages, "index", index);
  std::vector<int> count(stages, blocks / stages);
  const auto load = [&](int stage) {
    return count[stage] + (stage == 0 ? ends : 0) + (stage == stages - 1 ? ends : 0);
  };
  for (int extra = blocks % stages; extra > 0; --extra) {
    int best = 0;
    for (int stage = 1; stage < stages; ++stage)
      if (load(stage) < load(best)) best = stage;
    ++count[best];
  }
  int begin = 0;
  for (int stage = 0; stage < index; ++stage) begin += count[stage];
  return {begin, begin + count[index], blocks};
}

std::vector<Plan> plan_denoise(const DenoisePlanConfig& config) {
  CHECK(config.layout[Axis::kData] == 1, "a replica's layout has no data axis");
  CHECK(config.tokens.empty() || static_cast<int>(config.tokens.size()) == config.layout.sequence(),
        "tokens of", config.tokens.size(), "of", config.layout.sequence());
  CHECK(!config.tokens.empty() || config.layout.ranks() == 1, "tokens of every sequence index");
  CHECK(config.first_step >= 0 && config.first_step <= static_cast<int>(config.steps.size()),
        "first step", config.first_step, "of", config.steps.size());
  for (const auto& step : config.steps)
    CHECK(step.model >= 0 && step.model < static_cast<int>(config.blocks.size()) &&
              step.branches >= 1 && step.branches <= 2,
          "model", step.model, "branches", step.branches);
  const Mesh mesh(config.layout);
  std::vector<Plan> plans;
  for (int rank = 0; rank < config.layout.ranks(); ++rank)
    plans.push_back(Writer(config, mesh, rank).write());
  return plans;
}

}  // namespace weft
