#include "parallel/schedule/token_plan.h"

#include "kernels/check.h"
#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/plan_writer.h"

namespace weft {

namespace {

class TokenWriter final : public PlanWriter {
 public:
  TokenWriter(const TokenPlanConfig& config, int stage)
      : PlanWriter(stage, config.stages),
        config_(config),
        blocks_(stage_blocks(config.blocks, config.stages, stage)) {}

 private:
  using Kind = Step::Kind;

  bool first() const { return rank() == 0; }
  bool last() const { return rank() == ranks() - 1; }
  int micros() const { return static_cast<int>(config_.micros.size()); }

  std::vector<SlotVersion> begins() const override { return {{kPromptSlot}}; }
  std::vector<SlotVersion> ends() const override {
    std::vector<SlotVersion> results;
    for (int micro = 0; micro < micros(); ++micro)
      results.push_back({result_slot(micro), config_.rounds});
    return results;
  }

  // The turn after the last round only receives results.
  void write_turn(int turn) override {
    if (turn == 0) {
      add({.kind = Kind::kLoad});
      receive_hidden(Kind::kPost, {});
    }
    for (int micro = 0; micro < micros(); ++micro) {
      const Pass pass{.step = turn, .micro = micro};
      if (turn > 0) receive_results(pass);
      if (turn < config_.rounds) this->pass(pass);
    }
    if (turn == config_.rounds) wait_for_sends({.step = turn});
  }

  Step message(const Pass& pass, int peer, Payload payload) const {
    const TokenPlanConfig::Micro& micro = config_.micros[pass.micro];
    Step step{.pass = pass,
              .tokens = {0, payload == Payload::kHidden ? micro.rows : micro.results},
              .peer = peer,
              .payload = payload};
    step.bytes = message_bytes(config_, step);
    return step;
  }

  // Receives the results of the round before.
  void receive_results(Pass pass) {
    if (last()) return;
    const SlotVersion results{result_slot(pass.micro), pass.step};
    --pass.step;
    receive(Kind::kReceive, message(pass, ranks() - 1, Payload::kControl), results);
  }

  void receive_hidden(Step::Kind kind, const Pass& pass) {
    if (first() || pass.micro == micros()) return;
    receive(kind, message(pass, rank() - 1, Payload::kHidden),
            {hidden_slot(pass.micro), pass.step, blocks_.begin});
  }

  void pass(const Pass& pass) {
    const SlotId slot = hidden_slot(pass.micro);
    const SlotVersion out{slot, pass.step, blocks_.end};
    const SlotVersion results{result_slot(pass.micro), pass.step + 1};
    wait_for_send(pass, slot);
    std::vector<SlotVersion> reads{
        {pass.step == 0 ? kPromptSlot : result_slot(pass.micro), pass.step}};
    if (!first()) reads.push_back({slot, pass.step, blocks_.begin});
    // Later rounds cannot post receives: the size of a pass follows from the results before it.
    if (pass.step == 0) {
      receive_hidden(Kind::kPost, {.micro = pass.micro + 1});
      receive_hidden(Kind::kAwait, pass);
    } else {
      receive_hidden(Kind::kReceive, pass);
    }
    add({.kind = Kind::kCompute,
         .pass = pass,
         .blocks = blocks_,
         .tokens = {0, config_.micros[pass.micro].rows},
         .reads = reads,
         .writes = {out}});
    if (!last()) {
      send(message(pass, rank() + 1, Payload::kHidden), out);
      return;
    }
    wait_for_send(pass, results.slot);
    add({.kind = Kind::kUpdate,
         .pass = pass,
         .tokens = {0, config_.micros[pass.micro].results},
         .reads = {out},
         .writes = {results}});
    for (int stage = 0; stage < rank(); ++stage)
      send(message(pass, stage, Payload::kControl), results);
  }

  const TokenPlanConfig& config_;
  const BlockRange blocks_;
};

}  // namespace

int64_t message_bytes(const TokenPlanConfig& config, const Step& message) {
  return message.tokens.size() *
         (message.payload == Payload::kHidden ? config.hidden_bytes : config.result_bytes);
}

std::vector<Plan> plan_tokens(const TokenPlanConfig& config) {
  return plan_tokens(config, {0, config.rounds + 1});
}

std::vector<Plan> plan_tokens(const TokenPlanConfig& config, const Range& turns) {
  CHECK(config.stages >= 1 && config.rounds >= 1 && !config.micros.empty(), "stages", config.stages,
        "rounds", config.rounds, "micro-batches", config.micros.size());
  CHECK(turns.begin >= 0 && turns.begin < turns.end && turns.end <= config.rounds + 1, "turns",
        to_string(turns), "of", config.rounds + 1);
  std::vector<Plan> plans;
  for (int stage = 0; stage < config.stages; ++stage) {
    plans.push_back(TokenWriter(config, stage).write(turns, {0, config.rounds + 1}));
    plans.back().upper_bounds = true;
  }
  return plans;
}

}  // namespace weft
