#include "engine/language/token_program.h"

#include "kernels/copy.h"
#include "parallel/schedule/token_plan.h"

namespace weft {

void TokenProgram::run_rounds(int micros, int rounds) {
  const RankPlacement& placement = rank_.placement();
  const int stages = placement.layout()[Axis::kLayers];
  TokenPlanConfig config{
      .blocks = rank_.config().layers,
      .stages = stages,
      .rounds = rounds,
      .hidden_bytes = rank_.config().hidden * static_cast<int64_t>(size_of(rank_.options().dtype)),
      .result_bytes = sizeof(int32_t)};
  for (int index = 0; index < micros; ++index) {
    const Micro& each = micro(index);
    config.micros.push_back(
        {rank_.rows_of(each.parts, each.split), static_cast<int64_t>(each.parts.size())});
  }
  const int stage = placement.mesh().at(Axis::kLayers, placement.rank());
  std::vector<int> ranks;
  for (int other = 0; other < stages; ++other) ranks.push_back(placement.stage_peer(other - stage));
  const PlanRules rules{
      .bytes = [&](const Step& message) { return message_bytes(config, message); }};
  Interpreter interpreter(rank_.stream(), placement.alone() ? nullptr : &placement.communicator(),
                          std::move(ranks));
  interpreter.run(plan_tokens(config), stage, rules, *this);
  slots.clear();
}

// Prepares the parts of a pass, once per round and micro-batch.
TokenProgram::Micro& TokenProgram::begin_round(const Pass& pass) {
  Micro& each = micro(pass.micro);
  if (pass.step != each.round && pass.step > 0) next_parts(pass.micro);
  each.round = pass.step;
  return each;
}

std::span<int32_t> TokenProgram::ids(int micro) {
  const TensorView& rows = slots[result_slot(micro)];
  return {static_cast<int32_t*>(rows.data), static_cast<size_t>(rows.count())};
}

void TokenProgram::prepare(const Step& message) {
  if (message.payload != Payload::kHidden) {
    const auto parts = static_cast<int64_t>(micro(message.pass.micro).parts.size());
    slots.make(result_slot(message.pass.micro), DType::kI32, parts, 1);
    return;
  }
  // The share is not known yet: it depends on the micro-batches before, which may hold an earlier
  // part of the same prompt.
  const Micro& each = begin_round(message.pass);
  slots.make(hidden_slot(message.pass.micro), rank_.options().dtype,
             each.parts.empty() ? 0 : rank_.rows_of(each.parts, each.split), rank_.config().hidden,
             rank_.stream().device());
}

void TokenProgram::received(const Step& message) {
  const int index = message.pass.micro;
  if (message.payload == Payload::kHidden || ids(index).empty()) return;
  learn(index, ids(index));
}

void TokenProgram::compute(const Step& step) {
  Micro& each = begin_round(step.pass);
  if (each.parts.empty()) return;
  const SlotId slot = hidden_slot(step.pass.micro);
  Stream& stream = rank_.stream();
  each.share = rank_.share(each.parts, each.split);
  if (!each.hidden || each.hidden.view()[0] != each.share.rows)
    each.hidden = Tensor(DType::kF32, {each.share.rows, rank_.config().hidden}, stream.device());
  if (!step.blocks.first()) copy(stream, slots[slot], each.hidden);
  rank_.forward(step.pass, each.parts, each.share, each.hidden, observer());
  if (!step.blocks.last())
    copy(stream, each.hidden,
         slots.make(slot, rank_.options().dtype, each.share.rows, rank_.config().hidden,
                    stream.device()));
}

void TokenProgram::update(const Step& step) {
  const int index = step.pass.micro;
  const auto parts = static_cast<int64_t>(micro(index).parts.size());
  slots.make(result_slot(index), DType::kI32, parts, 1);
  if (parts == 0) return;
  choose(step.pass, ids(index));
  learn(index, ids(index));
}

}  // namespace weft
