#include "parallel/schedule/denoise_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/check.h"
#include "parallel/schedule/plan_writer.h"

namespace weft {

namespace {

class DenoiseWriter final : public PlanWriter {
 public:
  DenoiseWriter(const DenoisePlanConfig& config, const Mesh& mesh, int rank)
      : PlanWriter(rank, mesh.layout().ranks()),
        config_(config),
        mesh_(mesh),
        stages_(mesh.layout()[Axis::kLayers]),
        stage_(mesh.at(Axis::kLayers, rank)),
        cfg_(mesh.layout()[Axis::kCfg]),
        branch_(mesh.at(Axis::kCfg, rank)),
        tokens_(tokens_of(mesh.sequence_index(rank))) {}

 private:
  using Kind = Step::Kind;

  bool clips() const { return mesh_.layout()[Axis::kClip] > 1; }
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  bool computes(int branch) const { return cfg_ == 1 || branch == branch_; }
  bool computes_in(int step) const { return computes(0) || config_.steps[step].branches == 2; }
  // The first stage needs the latent of a step whose blocks run.
  bool begins(int step) const {
    const auto& next = config_.steps[step];
    bool any = false;
    for (int branch = 0; branch < next.branches; ++branch)
      any |= computes(branch) && next.runs_blocks(branch);
    return any;
  }
  int steps() const { return static_cast<int>(config_.steps.size()); }

  // A rank keeps the expert that it used last, also where it is idle in between.
  bool loads(int step) const {
    if (!computes_in(step)) return false;
    for (int before = step - 1; before >= config_.first_step; --before)
      if (computes_in(before)) return config_.steps[before].model != config_.steps[step].model;
    return true;
  }

  // The tokens of a sequence index.
  Range tokens_of(int index) const {
    if (config_.tokens.empty()) return {};
    int64_t begin = 0;
    for (int before = 0; before < index; ++before) begin += config_.tokens[before];
    return {begin, begin + config_.tokens[index]};
  }
  // The rank that stands elsewhere along two axes and as this one along the others.
  int peer(int branch, int stage) const {
    std::array<int, kAxes> at{};
    for (int axis = 0; axis < kAxes; ++axis) at[axis] = mesh_.at(static_cast<Axis>(axis), rank());
    at[static_cast<int>(Axis::kCfg)] = branch;
    at[static_cast<int>(Axis::kLayers)] = stage;
    return mesh_.rank_at(at);
  }
  Step message(const Pass& pass, int peer, Payload payload, const Range& tokens) const {
    Step step{.pass = pass, .tokens = tokens, .peer = peer, .payload = payload};
    step.bytes = message_bytes(config_, step);
    return step;
  }

  std::vector<SlotVersion> begins() const override {
    if (!first() && !last()) return {};
    return {{kLatentSlot, config_.first_step}};
  }
  std::vector<SlotVersion> ends() const override {
    return {{kFramesSlot, steps(), 0, clips() ? static_cast<int>(config_.frames) - 1 : 0}};
  }

  void write_turn(int turn) override {
    if (turn == steps()) {
      const Pass pass{.step = std::max(0, turn - 1)};
      return clips() ? decode_frames(pass, turn) : decode(pass, turn);
    }
    const Pass pass{.model = config_.steps[turn].model, .step = turn};
    if (loads(turn)) add({.kind = Kind::kLoad, .pass = pass});
    denoise(pass, config_.steps[turn].branches);
  }

  void denoise(const Pass& pass, int branches) {
    post(pass, branches);
    for (int branch = 0; branch < branches; ++branch)
      if (computes(branch)) forward(pass, branch);
    const bool returns = stages_ > 1 && pass.step + 1 < steps() && begins(pass.step + 1);
    const SlotVersion next{kLatentSlot, pass.step + 1};
    if (last()) {
      exchange_velocities(pass, branches);
      wait_for_send(pass, kLatentSlot);
      std::vector<SlotVersion> reads{{kLatentSlot, pass.step}};
      for (int branch = 0; branch < branches; ++branch) reads.push_back(velocity(pass, branch));
      add({.kind = Kind::kUpdate,
           .pass = pass,
           .tokens = tokens_,
           .reads = reads,
           .writes = {next}});
      if (returns) send(message(pass, peer(branch_, 0), Payload::kLatent, tokens_), next);
    }
    if (first() && returns)
      receive(Kind::kReceive, message(pass, peer(branch_, stages_ - 1), Payload::kLatent, tokens_),
              next);
  }

  SlotVersion velocity(const Pass& pass, int branch) const {
    return {kVelocitySlot + branch, pass.step, config_.blocks[pass.model]};
  }
  BlockRange blocks(const Pass& pass) const {
    return stage_blocks(config_.blocks[pass.model], stages_, stage_);
  }
  static Pass of_branch(Pass pass, int branch) {
    pass.branch = branch;
    return pass;
  }
  Step hidden_message(const Pass& pass, int stage) const {
    return message(pass, peer(branch_, stage), Payload::kHidden, tokens_);
  }
  Step velocity_message(const Pass& pass, int branch) const {
    return message(of_branch(pass, branch), peer(1 - branch_, stage_), Payload::kVelocity, tokens_);
  }

  // Posts the step's receives, so that messages arrive while the rank computes.
  void post(const Pass& pass, int branches) {
    for (int branch = 0; branch < branches && !first(); ++branch) {
      if (!computes(branch) || !config_.steps[pass.step].runs_blocks(branch)) continue;
      const int slot = kHiddenSlot + branch;
      wait_for_send(pass,
                    slot);  // a stage sends the buffer it received: hidden rows change in place
      receive(Kind::kPost, hidden_message(of_branch(pass, branch), stage_ - 1),
              {slot, pass.step, blocks(pass).begin});
    }
    const int other = 1 - branch_;
    if (last() && cfg_ == 2 && other < branches)
      receive(Kind::kPost, velocity_message(pass, other), velocity(pass, other));
  }

  void forward(const Pass& step, int branch) {
    const Pass pass = of_branch(step, branch);
    if (!config_.steps[pass.step].runs_blocks(branch)) return reuse(pass);
    const BlockRange blocks = this->blocks(pass);
    const int slot = kHiddenSlot + branch;
    SlotVersion in{slot, pass.step, blocks.begin}, out{slot, pass.step, blocks.end};
    if (first())
      in = {kLatentSlot, pass.step};
    else
      receive(Kind::kAwait, hidden_message(pass, stage_ - 1), in);
    if (last()) out = velocity(pass, branch);
    wait_for_send(pass, out.slot);
    add({.kind = Kind::kCompute,
         .pass = pass,
         .blocks = blocks,
         .tokens = tokens_,
         .reads = {in},
         .writes = {out}});
    if (!last()) send(hidden_message(pass, stage_ + 1), out);
  }

  void reuse(const Pass& pass) {
    if (!last()) return;
    const SlotVersion out = velocity(pass, pass.branch);
    wait_for_send(pass, out.slot);
    add({.kind = Kind::kCompute,
         .pass = pass,
         .blocks = BlockRange::all(config_.blocks[pass.model]),
         .tokens = tokens_,
         .reuses = true,
         .reads = {{kLatentSlot, pass.step}},
         .writes = {out}});
  }

  // Every branch's last stage needs both velocities for its update.
  void exchange_velocities(const Pass& pass, int branches) {
    if (cfg_ == 1) return;
    const int other = 1 - branch_;
    if (branch_ < branches) send(velocity_message(pass, branch_), velocity(pass, branch_));
    if (other < branches)
      receive(Kind::kAwait, velocity_message(pass, other), velocity(pass, other));
  }

  // Sends each last stage's tokens to every rank of its branch and width, once, and decodes.
  void decode(const Pass& pass, int turn) {
    std::vector<SlotVersion> reads;
    if (last()) reads.push_back({kLatentSlot, turn});
    const auto gather = [&](Kind kind) {
      for (int from : group_) {
        if (from == rank() || mesh_.at(Axis::kLayers, from) != stages_ - 1) continue;
        const int index = mesh_.sequence_index(from);
        const SlotVersion part{kWholeSlot + index, turn};
        receive(kind, message(pass, from, Payload::kLatent, tokens_of(index)), part);
        if (kind == Kind::kAwait) reads.push_back(part);
      }
    };
    gather(Kind::kPost);
    for (int to : group_)
      if (last() && to != rank())
        send(message(pass, to, Payload::kLatent, tokens_), {kLatentSlot, turn});
    gather(Kind::kAwait);
    wait_for_sends(pass);
    const int64_t total = std::accumulate(config_.tokens.begin(), config_.tokens.end(), int64_t{0});
    add({.kind = Kind::kDecode,
         .pass = pass,
         .tokens = {0, total},
         .reads = reads,
         .writes = {{kFramesSlot, turn}}});
  }

  Range frame_tokens(int64_t frame) const {
    const int64_t all = std::accumulate(config_.tokens.begin(), config_.tokens.end(), int64_t{0});
    return {frame * (all / config_.frames), (frame + 1) * (all / config_.frames)};
  }
  static Pass of_frame(Pass pass, int64_t frame) {
    pass.micro = static_cast<int>(frame % (1 << 16));
    return pass;
  }

  // Receives the tokens of a frame that other ranks have, where this one decodes.
  void receive_frame(Kind kind, const Pass& pass, SlotVersion to, std::vector<SlotVersion>* parts) {
    if (!receives_frames(mesh_.layout(), rank())) return;
    for (int from : group_) {
      if (from == rank() || mesh_.at(Axis::kLayers, from) != stages_ - 1) continue;
      const int index = mesh_.sequence_index(from);
      const Range part = intersection(tokens_of(index), frame_tokens(to.order));
      if (part.size() == 0) continue;
      to.slot = kFramePartSlot + to.order % 2 * mesh_.layout().sequence() + index;
      receive(kind, message(of_frame(pass, to.order), from, Payload::kLatent, part), to);
      if (parts) parts->push_back(to);
    }
  }

  // Sends the own tokens of a frame to the ranks that decode. They have taken the frame before.
  void send_frame(const Pass& pass, SlotVersion from) {
    const Range part = intersection(tokens_, frame_tokens(from.order));
    if (!last() || part.size() == 0) return;
    std::vector<int> decoders;
    for (int to : group_)
      if (to != rank() && receives_frames(mesh_.layout(), to)) decoders.push_back(to);
    if (decoders.empty()) return;
    wait_for_send(pass, from.slot);
    add({.kind = Kind::kEnter,
         .pass = pass,
         .tokens = part,
         .reads = {{kLatentSlot, from.turn}},
         .writes = {from}});
    for (int to : decoders)
      send(message(of_frame(pass, from.order), to, Payload::kLatent, part), from);
  }

  // Decodes frame by frame, in order; a frame is under way while the one before is decoded.
  void decode_frames(const Pass& pass, int turn) {
    const auto version = [&](int slot, int64_t frame) {
      return SlotVersion{slot, turn, 0, static_cast<int>(frame)};
    };
    const auto start = [&](int64_t frame) {
      receive_frame(Kind::kPost, pass, version(0, frame), nullptr);
      send_frame(pass, version(kSentFrameSlot, frame));
    };
    wait_for_sends(pass);
    start(0);
    for (int64_t frame = 0; frame < config_.frames; ++frame) {
      if (frame + 1 < config_.frames) start(frame + 1);
      std::vector<SlotVersion> reads;
      if (last()) reads.push_back({kLatentSlot, turn});
      if (frame > 0) reads.push_back(version(kFramesSlot, frame - 1));
      receive_frame(Kind::kAwait, pass, version(0, frame), &reads);
      add({.kind = Kind::kDecode,
           .pass = of_frame(pass, frame),
           .tokens = frame_tokens(frame),
           .reads = reads,
           .writes = {version(kFramesSlot, frame)}});
    }
    wait_for_sends(pass);
  }

  const DenoisePlanConfig& config_;
  const Mesh& mesh_;
  const int stages_, stage_, cfg_, branch_;
  // The ranks of this one's branch and width.
  const std::vector<int> group_ = mesh_.along(sequence_axes({Axis::kLayers}), rank());
  const Range tokens_;
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

int64_t message_bytes(const DenoisePlanConfig& config, const Step& message) {
  const int64_t tokens = message.tokens.size();
  if (message.payload != Payload::kHidden) return tokens * config.latent_bytes;
  return (tokens + config.joint_rows[message.pass.branch]) * config.hidden_bytes;
}

bool receives_frames(const Layout& layout, int rank) {
  if (layout.decode_rank >= 0) return rank == layout.decode_rank;
  return layout.vae_ranks <= 0 || rank < layout.vae_ranks;
}

Range denoise_turns(const DenoisePlanConfig& config) {
  return {config.first_step, static_cast<int64_t>(config.steps.size()) + 1};
}

std::vector<Plan> plan_denoise(const DenoisePlanConfig& config) {
  return plan_denoise(config, denoise_turns(config));
}

std::vector<Plan> plan_denoise(const DenoisePlanConfig& config, const Range& turns) {
  CHECK(config.layout[Axis::kData] == 1, "a replica's layout has no data axis");
  CHECK(config.tokens.empty() || static_cast<int>(config.tokens.size()) == config.layout.sequence(),
        "tokens of", config.tokens.size(), "of", config.layout.sequence());
  CHECK(!config.tokens.empty() || config.layout.ranks() == 1, "tokens of every sequence index");
  CHECK(config.first_step >= 0 && config.first_step <= static_cast<int>(config.steps.size()),
        "first step", config.first_step, "of", config.steps.size());
  const Range all = denoise_turns(config);
  CHECK(turns.begin >= all.begin && turns.begin < turns.end && turns.end <= all.end, "turns",
        to_string(turns), "of", to_string(all));
  for (const auto& step : config.steps)
    CHECK(step.model >= 0 && step.model < static_cast<int>(config.blocks.size()) &&
              step.branches >= 1 && step.branches <= 2,
          "model", step.model, "branches", step.branches);
  const Mesh mesh(config.layout);
  std::vector<Plan> plans;
  for (int rank = 0; rank < config.layout.ranks(); ++rank)
    plans.push_back(DenoiseWriter(config, mesh, rank).write(turns, all));
  return plans;
}

}  // namespace weft
