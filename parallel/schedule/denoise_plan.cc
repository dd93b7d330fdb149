#include "parallel/schedule/denoise_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

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
        index_(mesh.sequence_index(rank)),
        tokens_(config.rows_of(index_)) {}

 private:
  using Kind = Step::Kind;

  bool clips() const { return mesh_.layout()[Axis::kClip] > 1; }
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  bool computes(int branch) const { return cfg_ == 1 || branch == branch_; }
  bool computes_in(int step) const { return computes(0) || config_.steps[step].branches == 2; }
  bool runs_blocks(int step, int branch) const {
    return computes(branch) && branch < config_.steps[step].branches &&
           config_.steps[step].runs_blocks(branch);
  }
  int steps() const { return static_cast<int>(config_.steps.size()); }

  // A rank keeps the expert that it used last, also where it is idle in between.
  bool loads(int step) const {
    if (!computes_in(step)) return false;
    for (int before = step - 1; before >= config_.first_step; --before)
      if (computes_in(before)) return config_.steps[before].model != config_.steps[step].model;
    return true;
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
    if (!displaced(turn) && displaced(turn - 1)) join_latent(turn);
    if (turn == steps()) {
      const Pass pass{.step = std::max(0, turn - 1)};
      return clips() ? decode_frames(pass, turn) : decode(pass, turn);
    }
    const Pass pass{.model = config_.steps[turn].model, .step = turn};
    if (loads(turn)) add({.kind = Kind::kLoad, .pass = pass});
    if (config_.first_block_bytes && !config_.runs_ahead(turn)) run_first_blocks(pass);
    if (displaced(turn))
      denoise_patches(pass);
    else
      denoise(pass);
    if (config_.runs_ahead(turn + 1)) run_first_blocks({.model = pass.model, .step = turn + 1});
  }

  void denoise(const Pass& pass) {
    const int branches = config_.steps[pass.step].branches;
    for (int branch = 0; branch < branches; ++branch)
      if (runs_blocks(pass.step, branch)) post_hidden(of_branch(pass, branch));
    post_velocity(pass);
    for (int branch = 0; branch < branches; ++branch)
      if (computes(branch)) forward(of_branch(pass, branch), {});
    if (last()) update(pass);
    if (first() && stages_ > 1 && returns(pass.step))
      receive(Kind::kReceive, latent_message(pass, stages_ - 1), latent(pass, 1));
  }

  bool displaced(int step) const {
    return step >= config_.first_step && step < steps() && config_.steps[step].displaced;
  }
  // Returns whether the first stage needs the latent that a step makes: it runs blocks of the next.
  bool returns(int step) const {
    if (step + 1 >= steps()) return false;
    if (config_.first_block_bytes) return computes_in(step + 1);
    return runs_blocks(step + 1, 0) || runs_blocks(step + 1, 1);
  }

  // Runs the first blocks of a step, in its own turn or in the one before, and sends their rows to
  // the last stage. A run can stop between two turns, so what is sent in one is taken in it.
  void run_first_blocks(const Pass& step) {
    for (int branch = 0; branch < config_.steps[step.step].branches; ++branch) {
      if (!computes(branch)) continue;
      const Pass pass = of_branch(step, branch);
      const SlotVersion made = behind_first_block(pass);
      Step message = first_block_message(pass, first() ? stages_ - 1 : 0);
      message.ahead = config_.runs_ahead(pass.step);
      if (first()) {
        wait_for_send(pass, made.slot);
        add({.kind = Kind::kCompute,
             .pass = pass,
             .blocks = {0, 1, config_.blocks[pass.model]},
             .tokens = tokens_,
             .ahead = message.ahead,
             .reads = {latent(pass)},
             .writes = {made}});
        if (!last()) send(message, made);
      } else if (last()) {
        receive(Kind::kReceive, message, made);
      }
    }
  }

  // The forwards of a displaced step, in order.
  std::vector<Pass> patch_forwards(int step) const {
    std::vector<Pass> made;
    for (int patch = 1; patch <= patches(); ++patch)
      for (int branch = 0; branch < config_.steps[step].branches; ++branch)
        if (computes(branch))
          made.push_back(
              {.model = config_.steps[step].model, .branch = branch, .step = step, .micro = patch});
    return made;
  }

  void denoise_patches(const Pass& step) {
    const bool begins = !displaced(step.step - 1);
    number_ = 0;
    for (int before = config_.first_step; before < step.step; ++before)
      if (displaced(before)) number_ += std::ssize(patch_forwards(before));
    std::vector<Pass> todo = patch_forwards(step.step);
    if (begins) split_latent(step);
    if (begins && !todo.empty()) post_hidden(todo.front());
    if (displaced(step.step + 1))
      for (const Pass& pass : patch_forwards(step.step + 1)) todo.push_back(pass);
    auto next = todo.begin();
    const bool from_last = first() && !last();
    for (Pass pass = step; pass.micro++ < patches();) {
      post_velocity(pass);
      if (from_last && !begins && computes_in(pass.step)) await_latent(pass);
      for (int branch = 0; branch < config_.steps[pass.step].branches; ++branch) {
        if (!computes(branch)) continue;
        ++next;
        forward(of_branch(pass, branch), next == todo.end() ? std::nullopt : std::optional(*next));
      }
      if (last()) update(pass);
      if (from_last && returns(pass.step))
        receive(Kind::kPost, latent_message(pass, stages_ - 1), latent(pass, 1));
    }
  }

  // Awaits the rows of a patch that the step before has made.
  void await_latent(Pass pass) {
    --pass.step;
    receive(Kind::kAwait, latent_message(pass, stages_ - 1), latent(pass, 1));
  }
  // Between other steps and displaced ones the rows of the latent change their slot, but not their
  // memory.
  void split_latent(const Pass& pass) {
    if (!last() && !(first() && computes_in(pass.step))) return;
    wait_for_send(pass, kLatentSlot);
    Step split{.kind = Kind::kEnter, .pass = pass, .tokens = tokens_, .reads = {latent(pass)}};
    for (int patch = 1; patch <= patches(); ++patch)
      split.writes.push_back(latent(of_patch(pass, patch)));
    add(std::move(split));
  }
  void join_latent(int turn) {
    if (!last() && !(first() && returns(turn - 1))) return;
    const Pass pass{.model = config_.steps[turn - 1].model, .step = turn};
    Step join{.kind = Kind::kEnter, .pass = pass, .tokens = tokens_, .writes = {latent(pass)}};
    for (int patch = 1; patch <= patches(); ++patch) {
      join.reads.push_back(latent(of_patch(pass, patch)));
      wait_for_send(pass, join.reads.back().slot);
      if (!last()) await_latent(of_patch(pass, patch));
    }
    add(std::move(join));
  }

  int patches() const { return static_cast<int>(config_.patches.size()); }
  BlockRange blocks(const Pass& pass) const {
    return stage_blocks(config_.blocks[pass.model], stages_, stage_);
  }
  static Pass of_branch(Pass pass, int branch) {
    pass.branch = branch;
    return pass;
  }
  static Pass of_patch(Pass pass, int patch) {
    pass.micro = patch;
    return pass;
  }
  // This rank's rows of a pass, and their versions.
  Range rows(const Pass& pass) const {
    return pass.micro ? config_.rows_of(index_, pass.micro) : tokens_;
  }
  SlotVersion latent(const Pass& pass, int later = 0) const {
    return {pass.micro ? patch_slot(pass.micro) : kLatentSlot, pass.step + later};
  }
  SlotVersion velocity(const Pass& pass) const {
    return {velocity_slot(pass.branch), pass.step, config_.blocks[pass.model], pass.micro};
  }
  // A stage sends the buffer that it has received, because hidden rows change in place; so in
  // displaced steps a third one can be filled while the second one is in use.
  SlotVersion hidden(const Pass& pass, int blocks) const {
    const int buffers = 1 + !first() + !last();
    const SlotId slot = pass.micro ? buffer_slot(number_ % buffers) : hidden_slot(pass.branch);
    return {slot, pass.step, blocks, pass.micro ? 2 * pass.micro + pass.branch : 0};
  }
  Step hidden_message(const Pass& pass, int stage) const {
    return message(pass, peer(branch_, stage), Payload::kHidden, rows(pass));
  }
  SlotVersion behind_first_block(const Pass& pass) const {
    return {first_block_slot(pass.branch), pass.step, 1};
  }
  Step first_block_message(const Pass& pass, int stage) const {
    return message(pass, peer(branch_, stage), Payload::kFirstBlock, tokens_);
  }
  Step velocity_message(const Pass& pass) const {
    return message(pass, peer(1 - branch_, stage_), Payload::kVelocity, rows(pass));
  }
  Step latent_message(const Pass& pass, int stage) const {
    return message(pass, peer(branch_, stage), Payload::kLatent, rows(pass));
  }

  // Messages arrive while the rank computes: receives are posted before.
  void post_hidden(const Pass& pass) {
    if (first()) return;
    const SlotVersion in = hidden(pass, blocks(pass).begin);
    wait_for_send(pass, in.slot);
    receive(Kind::kPost, hidden_message(pass, stage_ - 1), in);
  }
  bool takes_velocity(const Pass& pass) const {
    return last() && cfg_ == 2 && 1 - branch_ < config_.steps[pass.step].branches;
  }
  void post_velocity(const Pass& pass) {
    const Pass other = of_branch(pass, 1 - branch_);
    if (takes_velocity(pass)) receive(Kind::kPost, velocity_message(other), velocity(other));
  }

  // Posts the receive of the displaced forward that comes next before it computes.
  void forward(const Pass& pass, const std::optional<Pass>& next) {
    if (!config_.steps[pass.step].runs_blocks(pass.branch)) return reuse(pass);
    BlockRange blocks = this->blocks(pass);
    const bool began = first() && config_.first_block_bytes > 0;  // run_first_blocks()
    if (began) blocks.begin = 1;
    const SlotVersion in = began     ? behind_first_block(pass)
                           : first() ? latent(pass)
                                     : hidden(pass, blocks.begin);
    const SlotVersion out = last() ? velocity(pass) : hidden(pass, blocks.end);
    Step step{.kind = Kind::kCompute,
              .pass = pass,
              .blocks = blocks,
              .tokens = rows(pass),
              .reads = {in},
              .writes = {out}};
    if (!first()) receive(Kind::kAwait, hidden_message(pass, stage_ - 1), in);
    number_ += pass.micro > 0;
    if (next) post_hidden(*next);
    use_keys(step);
    if (last() && !first() && config_.first_block_bytes)
      step.reads.push_back(behind_first_block(pass));
    if (blocks.begin == blocks.end) step.kind = Kind::kEnter;
    wait_for_send(pass, out.slot);
    add(std::move(step));
    if (!last()) send(hidden_message(pass, stage_ + 1), out);
  }

  // A patch reads the present keys of the patches before it, and those of the step before of the
  // patches after it.
  void use_keys(Step& step) const {
    const Pass& pass = step.pass;
    const auto keys = [&](int patch, int turn) {
      return SlotVersion{keys_slot(patch, pass.branch), turn, step.blocks.end};
    };
    const bool again = displaced(pass.step + 1);
    step.stale = pass.micro > 0;
    for (int patch = 1; patch <= patches(); ++patch) {
      const bool own = pass.micro == 0 || pass.micro == patch;
      const bool read_later = (pass.micro > 0 && patch < patches()) || (again && patch > 1);
      if (own && read_later) step.writes.push_back(keys(patch, pass.step));
      if (!own) step.reads.push_back(keys(patch, pass.step - (patch > pass.micro)));
    }
  }

  void reuse(const Pass& pass) {
    if (!last()) return;
    const SlotVersion out = velocity(pass);
    wait_for_send(pass, out.slot);
    Step step{.kind = Kind::kCompute,
              .pass = pass,
              .blocks = BlockRange::all(config_.blocks[pass.model]),
              .tokens = tokens_,
              .reuses = true,
              .reads = {latent(pass)},
              .writes = {out}};
    if (config_.first_block_bytes) step.reads.push_back(behind_first_block(pass));
    add(std::move(step));
  }

  // Every branch's last stage needs both velocities for its update.
  void update(const Pass& pass) {
    const int branches = config_.steps[pass.step].branches;
    const Pass own = of_branch(pass, branch_), other = of_branch(pass, 1 - branch_);
    if (cfg_ == 2 && branch_ < branches) send(velocity_message(own), velocity(own));
    if (takes_velocity(pass)) receive(Kind::kAwait, velocity_message(other), velocity(other));
    const SlotVersion made = latent(pass, 1);
    wait_for_send(pass, made.slot);
    Step step{.kind = Kind::kUpdate,
              .pass = pass,
              .tokens = rows(pass),
              .reads = {latent(pass)},
              .writes = {made}};
    for (int branch = 0; branch < branches; ++branch)
      step.reads.push_back(velocity(of_branch(pass, branch)));
    add(std::move(step));
    if (stages_ > 1 && returns(pass.step)) send(latent_message(pass, 0), made);
  }

  // Sends each last stage's tokens to every rank of its branch and width, once, and decodes.
  void decode(const Pass& pass, int turn) {
    std::vector<SlotVersion> reads;
    if (last()) reads.push_back({kLatentSlot, turn});
    const auto gather = [&](Kind kind) {
      for (int from : group_) {
        if (from == rank() || mesh_.at(Axis::kLayers, from) != stages_ - 1) continue;
        const int index = mesh_.sequence_index(from);
        const SlotVersion part{{.kind = SlotKind::kWhole, .part = index}, turn};
        receive(kind, message(pass, from, Payload::kLatent, config_.rows_of(index)), part);
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
      const Range part = intersection(config_.rows_of(index), frame_tokens(to.order));
      if (part.size() == 0) continue;
      to.slot = {.kind = SlotKind::kFramePart, .segment = to.order % 2, .part = index};
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
    const auto version = [&](const SlotId& slot, int64_t frame) {
      return SlotVersion{slot, turn, 0, static_cast<int>(frame)};
    };
    const auto start = [&](int64_t frame) {
      receive_frame(Kind::kPost, pass, version({}, frame), nullptr);
      send_frame(pass, version(kSentFrameSlot, frame));
    };
    wait_for_sends(pass);
    start(0);
    for (int64_t frame = 0; frame < config_.frames; ++frame) {
      if (frame + 1 < config_.frames) start(frame + 1);
      std::vector<SlotVersion> reads;
      if (last()) reads.push_back({kLatentSlot, turn});
      if (frame > 0) reads.push_back(version(kFramesSlot, frame - 1));
      receive_frame(Kind::kAwait, pass, version({}, frame), &reads);
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
  const int stages_, stage_, cfg_, branch_, index_;
  // The ranks of this one's branch and width.
  const std::vector<int> group_ = mesh_.along(sequence_axes({Axis::kLayers}), rank());
  const Range tokens_;
  int64_t number_ = 0;  // of the next forward of a displaced step
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
  int64_t rows = tokens + config.joint_rows[message.pass.branch];
  for (size_t index = 0; index < config.beside.size(); ++index)
    if (config.rows_of(static_cast<int>(index)) == message.tokens) {  // no two are equal or empty
      rows += config.beside[index];
      break;
    }
  if (message.payload == Payload::kHidden) return rows * config.hidden_bytes;
  if (message.payload == Payload::kFirstBlock) return rows * config.first_block_bytes;
  return tokens * config.latent_bytes;
}

PlanRules denoise_rules(const DenoisePlanConfig& config) {
  return {.bytes = [config](const Step& message) { return message_bytes(config, message); },
          .stale = config.patches.empty() ? 0 : 1};
}

void displace_steps(std::vector<DenoisePlanConfig::DenoiseStep>& steps, int warmup, int resync) {
  for (size_t step = std::max(1, warmup); step < steps.size(); ++step)
    steps[step].displaced =
        steps[step].model == steps[step - 1].model && (resync == 0 || step % resync != 0);
}

bool DenoisePlanConfig::runs_ahead(int step) const {
  return first_block_bytes > 0 && step > first_step && step + 1 < std::ssize(steps) &&
         steps[step].model == steps[step - 1].model;
}

Range DenoisePlanConfig::rows_of(int index) const {
  if (tokens.empty()) return {};
  const int64_t begin = std::accumulate(tokens.begin(), tokens.begin() + index, int64_t{0});
  return {begin, begin + tokens[index]};
}

Range DenoisePlanConfig::rows_of(int index, int patch) const {
  Range rows{rows_of(index).begin, rows_of(index).begin};
  for (int each = 0; each < patch; ++each)
    rows = {rows.end, rows.end + partition(patches[each], layout.sequence(), index).size()};
  return rows;
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
  for (int step = config.first_step; step < static_cast<int>(config.steps.size()); ++step)
    CHECK(
        !config.steps[step].displaced || (!config.patches.empty() && step > config.first_step &&
                                          config.steps[step].model == config.steps[step - 1].model),
        "step", step, "of", config.patches.size(), "patches is displaced");
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
