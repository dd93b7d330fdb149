#include "parallel/schedule/token_plan.h"

#include "kernels/check.h"
#include "parallel/schedule/denoise_plan.h"

namespace weft {

namespace {

// Writes one stage's plan, step by step.
class Writer {
 public:
  Writer(const TokenPlanConfig& config, int stage) : config_(config), stage_(stage) {
    plan_.rank = stage;
    plan_.ranks = config.stages;
  }

  Plan write() {
    const int micros = static_cast<int>(config_.micros.size());
    add({.kind = Step::Kind::kLoad, .pass = {}});
    for (int round = 0; round < config_.rounds; ++round)
      for (int micro = 0; micro < micros; ++micro) pass({.step = round, .micro = micro});
    for (int micro = 0; micro < micros; ++micro)
      receive_results({.step = config_.rounds, .micro = micro});
    while (!sending_.empty()) wait_for_send({}, sending_.front());
    return std::move(plan_);
  }

 private:
  bool last() const { return stage_ == config_.stages - 1; }
  void add(Step step) { plan_.steps.push_back(std::move(step)); }
  void send(const Pass& pass, int to, Payload payload, int64_t bytes, int slot) {
    add({.kind = Step::Kind::kSend,
         .pass = pass,
         .peer = to,
         .payload = payload,
         .bytes = bytes,
         .reads = {slot}});
    sending_.push_back(slot);
  }
  void receive(const Pass& pass, int from, Payload payload, int64_t bytes, int slot) {
    add({.kind = Step::Kind::kReceive,
         .pass = pass,
         .peer = from,
         .payload = payload,
         .bytes = bytes,
         .writes = {slot}});
  }
  // Adds a wait where the slot is still being sent, so that it may be written again.
  void wait_for_send(const Pass& pass, int slot) {
    if (std::erase(sending_, slot) > 0)
      add({.kind = Step::Kind::kWait, .pass = pass, .reads = {slot}});
  }

  // Receives the results of the round before.
  void receive_results(Pass pass) {
    if (pass.step == 0 || last()) return;
    --pass.step;
    receive(pass, config_.stages - 1, Payload::kControl,
            config_.micros[pass.micro].results * config_.result_bytes, result_slot(pass.micro));
  }

  void pass(const Pass& pass) {
    const int hidden = hidden_slot(pass.micro), result = result_slot(pass.micro);
    const auto& [rows, results] = config_.micros[pass.micro];
    receive_results(pass);
    wait_for_send(pass, hidden);
    std::vector<int> reads{pass.step == 0 ? 0 : result};
    if (stage_ > 0) {
      receive(pass, stage_ - 1, Payload::kHidden, rows * config_.hidden_bytes, hidden);
      reads.push_back(hidden);
    }
    add({.kind = Step::Kind::kCompute,
         .pass = pass,
         .blocks = stage_blocks(config_.blocks, config_.stages, stage_),
         .reads = reads,
         .writes = {hidden}});
    if (!last()) {
      send(pass, stage_ + 1, Payload::kHidden, rows * config_.hidden_bytes, hidden);
      return;
    }
    wait_for_send(pass, result);
    add({.kind = Step::Kind::kUpdate, .pass = pass, .reads = {hidden}, .writes = {result}});
    for (int stage = 0; stage < stage_; ++stage)
      send(pass, stage, Payload::kControl, results * config_.result_bytes, result);
  }

  const TokenPlanConfig& config_;
  int stage_;
  Plan plan_;
  std::vector<int> sending_;
};

}  // namespace

std::vector<Plan> plan_tokens(const TokenPlanConfig& config) {
  CHECK(config.stages >= 1 && config.rounds >= 1 && !config.micros.empty(), "stages", config.stages,
        "rounds", config.rounds, "micro-batches", config.micros.size());
  std::vector<Plan> plans;
  for (int stage = 0; stage < config.stages; ++stage)
    plans.push_back(Writer(config, stage).write());
  return plans;
}

}  // namespace weft
