// Runs plans on ranks that are threads: what arrives, in which order the program is called, stops,
// upper bounds, and sends that wait for their receivers.
#include "parallel/schedule/interpreter.h"

#include <gtest/gtest.h>

#include <functional>

#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/token_plan.h"
#include "parallel/transport/local.h"

namespace weft {
namespace {

constexpr int kColumns = 4;

// Computes with single numbers: every row of a slot holds one. A block adds 1 to hidden rows and
// branch b adds 100 b more at the last block; an update adds the velocities to the latent.
struct Arithmetic final : Program {
  Arithmetic(const DenoisePlanConfig& job, int own_rank) : config(job), rank(own_rank) {
    for (const int64_t tokens : config.tokens) total += tokens;
    fill(kLatentSlot, own(), 1);
  }

  Range own() const {
    const int index = Mesh(config.layout).sequence_index(rank);
    int64_t begin = 0;
    for (int before = 0; before < index; ++before) begin += config.tokens[before];
    return {begin, begin + config.tokens[index]};
  }
  float value(const SlotId& slot) const { return slots[slot].as<float>()[0]; }
  void fill(const SlotId& slot, const Range& rows, float with) {
    const TensorView& view = slots.make(slot, DType::kF32, rows.size(), kColumns);
    for (int64_t i = 0; i < view.count(); ++i) view.as<float>()[i] = with;
  }

  bool begin_turn(int turn) override {
    turns.push_back(turn);
    return turn != stop_at;
  }
  void prepare(const Step& message) override {
    for (const SlotVersion& version : message.writes)
      slots.make(version.slot, DType::kF32, message.tokens.size(), kColumns);
  }
  void compute(const Step& step) override {
    const auto blocks = static_cast<float>(step.blocks.end - step.blocks.begin);
    const float extra = step.blocks.last() ? 100 * static_cast<float>(step.pass.branch) : 0;
    fill(step.writes[0].slot, own(), value(step.reads[0].slot) + blocks + extra);
  }
  void update(const Step& step) override {
    float sum = 0;
    for (const SlotVersion& version : step.reads) sum += value(version.slot);
    fill(kLatentSlot, own(), sum);
  }
  void decode(const Step& step) override {
    for (const SlotVersion& version : step.reads) {
      rows += slots[version.slot][0];
      for (int64_t i = 0; i < slots[version.slot].count(); ++i)
        EXPECT_EQ(slots[version.slot].as<float>()[i], value(step.reads[0].slot));
    }
    result = value(step.reads[0].slot);
  }

  const DenoisePlanConfig& config;
  int rank, stop_at = -1;
  std::vector<int> turns{};
  int64_t rows = 0, total = 0;
  float result = 0;
};

DenoisePlanConfig interpreted_job(const Layout& layout) {
  DenoisePlanConfig config{.steps = {{0, 2}, {0, 2}, {1, 1}},
                           .blocks = {7, 5},
                           .layout = layout,
                           .hidden_bytes = kColumns * sizeof(float),
                           .latent_bytes = kColumns * sizeof(float)};
  for (int i = 0; i < layout.sequence(); ++i) config.tokens.push_back(3 + i);
  return config;
}

// The same by hand: x += (x + blocks) + (x + blocks + 100).
float expected() {
  float x = 1;
  for (int step = 0; step < 2; ++step) x += (x + 7) + (x + 107);
  return x + (x + 5);
}

void run_on_ranks(const DenoisePlanConfig& config, const LocalOptions& options, int stop_at = -1) {
  const std::vector<Plan> plans = plan_denoise(config);
  run_ranks(
      config.layout.ranks(),
      [&](Communicator& world) {
        Stream stream = Stream::cpu(1);
        Arithmetic program(config, world.rank());
        program.stop_at = stop_at;
        const PlanRules rules{
            .bytes = [&](const Step& message) { return message_bytes(config, message); }};
        EXPECT_EQ(Interpreter(stream, &world).run(plans, world.rank(), rules, program),
                  stop_at < 0);
        if (stop_at >= 0) {
          EXPECT_EQ(program.turns.back(), stop_at);
          return;
        }
        EXPECT_EQ(program.turns, (std::vector<int>{0, 1, 2, 3}));
        EXPECT_EQ(program.rows, program.total);
        EXPECT_EQ(program.result, expected()) << to_string(config.layout);
      },
      options);
}

TEST(Interpreter, GivesTheSameUnderEveryLayout) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (const Layout& layout :
         legal_layouts(ranks, {.heads = 6, .layers = 5, .tokens = 12, .ffn = 64}))
      for (const bool rendezvous : {false, true})
        run_on_ranks(interpreted_job(layout), {.rendezvous = rendezvous, .delay_seed = 7});
}

TEST(Interpreter, StopsEveryRankBetweenTurns) {
  Layout layout;
  layout[Axis::kCfg] = layout[Axis::kLayers] = 2;
  for (int turn = 0; turn <= 3; ++turn)
    run_on_ranks(interpreted_job(layout), {.rendezvous = true, .delay_seed = 3}, turn);
}

// A program that releases a slot while its rows are under way.
TEST(InterpreterDeathTest, RefusesToReleaseWhatIsBeingSent) {
  struct Hasty final : Program {
    void prepare(const Step&) override { slots.make(kLatentSlot, DType::kF32, 1, 1); }
    void compute(const Step&) override { slots.clear(); }
  };
  const Step load{.kind = Step::Kind::kLoad},
      wait{.kind = Step::Kind::kWait, .reads = {{kLatentSlot, 0}}},
      send{.kind = Step::Kind::kSend, .peer = 1, .bytes = 4, .reads = {{kLatentSlot, 0}}},
      receive{.kind = Step::Kind::kReceive, .peer = 0, .bytes = 4, .writes = {{kLatentSlot, 0}}},
      compute{
          .blocks = {0, 1, 1}, .reads = {{kLatentSlot, 0}}, .writes = {{velocity_slot(0), 0, 1}}};
  const std::vector<Plan> plans{
      {.rank = 0,
       .ranks = 2,
       .begins = {{kLatentSlot, 0}},
       .ends = {{velocity_slot(0), 0, 1}},
       .steps = {load, send, compute, wait}},
      {.rank = 1, .ranks = 2, .ends = {{kLatentSlot, 0}}, .steps = {receive}}};
  EXPECT_DEATH(run_ranks(2,
                         [&](Communicator& world) {
                           Stream stream = Stream::cpu(1);
                           Hasty program;
                           Interpreter(stream, &world).run(plans, world.rank(), {}, program);
                         }),
               "is pending");
}

// Stages that pass ids on. A micro-batch has fewer rows in every round, at last none.
struct Shrinking final : Program {
  Shrinking(int own_stage, int of) : stage(own_stage), stages(of) {}
  int64_t rows_of(const Step& step) const {
    return std::max(0, 3 - step.pass.step - step.pass.micro);
  }
  void prepare(const Step& message) override {
    const SlotId slot = (message.reads.empty() ? message.writes : message.reads)[0].slot;
    if (message.kind != Step::Kind::kSend || rows_of(message) == 0)
      slots.make(slot, DType::kI32, rows_of(message), 1);
  }
  void compute(const Step& step) override {
    const int64_t n = rows_of(step);
    const SlotId slot = hidden_slot(step.pass.micro);
    const TensorView& rows = slots.make(slot, DType::kI32, n, 1);
    for (int64_t i = 0; i < n; ++i) {
      if (stage == 0) rows.as<int32_t>()[i] = 10 * step.pass.step;
      ++rows.as<int32_t>()[i];
    }
  }
  void update(const Step& step) override {
    const int64_t n = rows_of(step);
    const TensorView& to = slots.make(result_slot(step.pass.micro), DType::kI32, n, 1);
    for (int64_t i = 0; i < n; ++i)
      to.as<int32_t>()[i] = slots[hidden_slot(step.pass.micro)].as<int32_t>()[i];
    learn(step);
  }
  void received(const Step& message) override {
    if (message.payload == Payload::kControl) learn(message);
  }
  void learn(const Step& step) {
    const TensorView& rows = slots[result_slot(step.pass.micro)];
    EXPECT_EQ(rows.count(), rows_of(step));
    for (int64_t i = 0; i < rows.count(); ++i)
      EXPECT_EQ(rows.as<int32_t>()[i], 10 * step.pass.step + stages);
    ++learned;
  }
  int stage, stages, learned = 0;
};

TEST(Interpreter, SendsFewerRowsWhereThePlanIsAnUpperBound) {
  constexpr int kStages = 3, kRounds = 4, kMicros = 2;
  const TokenPlanConfig config{.blocks = kStages,
                               .stages = kStages,
                               .rounds = kRounds,
                               .micros = {{3, 3}, {3, 3}},
                               .hidden_bytes = 4,
                               .result_bytes = 4};
  const std::vector<Plan> plans = plan_tokens(config);
  // Stages are ranks in reverse order.
  run_ranks(kStages, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    const int stage = kStages - 1 - world.rank();
    Shrinking program(stage, kStages);
    EXPECT_TRUE(Interpreter(stream, &world, {2, 1, 0}).run(plans, stage, {}, program));
    EXPECT_EQ(program.learned, kRounds * kMicros);
    int64_t rows = 0;
    for (int round = 0; round < kRounds; ++round)
      for (int micro = 0; micro < kMicros; ++micro) rows += std::max(0, 3 - round - micro);
    EXPECT_EQ(world.counters().total_sent().bytes, rows * 4 * (stage == 2 ? 2 : 1));
  });
}

}  // namespace
}  // namespace weft
