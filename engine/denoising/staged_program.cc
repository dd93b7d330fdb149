#include "engine/denoising/staged_program.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "models/blocks.h"

namespace weft {

DenoisePlanConfig staged_config(const RankPlacement& placement, const TransformerTraits& traits,
                                DType dtype, const Sequence& all, const StalePatches& patches) {
  DenoisePlanConfig config;
  config.layout = placement.layout();
  config.tokens = placement.token_counts(all, patches);
  config.frames = all.frames;
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(dtype));
  if (patches.pipefusion) config.patches = patches.pipefusion->patches;
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  return config;
}

StagedProgram::StagedProgram(Stream& stream, Arena& arena, const RankPlacement& placement,
                             const TransformerTraits& traits, DType dtype)
    : stream_(stream), arena_(arena), placement_(placement), traits_(traits), dtype_(dtype) {}

bool StagedProgram::last_stage() const {
  const Mesh& mesh = placement_.mesh();
  return mesh.at(Axis::kLayers, placement_.rank()) == mesh.layout()[Axis::kLayers] - 1;
}

Range StagedProgram::own_rows() const {
  const SequenceMap map = placement_.token_map(sequence(), patches_);
  const int index = placement_.mesh().sequence_index(placement_.rank());
  const int64_t first = index ? map.slice(0, index).rows() : 0;
  return {first, first + map.rows(index)};
}

void StagedProgram::cut(const TensorView& latent, const TensorView& rows) const {
  const Range frames = placement_.clip_of(placement_.rank(), grid_[0]);
  const int64_t size = sequence().frame_tokens();
  CHECK(latent[1] == frames.size() * traits_.patch[0], latent.to_string_shape());
  TokenRanges held{{}, frames.size() * size};
  for (const Range& range : own().ranges)
    held.append({range.begin - frames.begin * size, range.end - frames.begin * size});
  patchify(stream_, latent, traits_.patch, held, rows);
}

void StagedProgram::enter(const Step& step) {
  const int64_t first = own().ranges[0].begin;
  slots.lend(step.writes[0].slot,
             slots[kLatentSlot].slice(0, step.tokens.begin - first, step.tokens.size()));
}

bool StagedProgram::run_from(Tensor latent, const DenoisePlanConfig& config,
                             const StalePatches& patches) {
  patches_ = patches;
  const TensorView whole = latent;
  std::copy_n(whole.shape().begin(), shape_.size(), shape_.begin());
  if (placement_.has_clips()) shape_[1] = config.frames * traits_.patch[0];
  grid_ = traits_.grid(shape_[1], shape_[2], shape_[3]);
  slots.clear();
  if (first_stage() || last_stage())
    cut(whole, slots.make(kLatentSlot, DType::kF32, own().size(), traits_.row(), whole.device));
  stream_.sync();
  latent = {};
  begun();
  Interpreter interpreter(stream_, placement_.alone() ? nullptr : &placement_.communicator());
  if (config.first_block_bytes == 0)
    return interpreter.run(plan_denoise(config), placement_.rank(), denoise_rules(config), *this);
  if (placement_.root()) {
    DenoisePlanConfig fewest = config;  // all steps are skipped that may be
    for (size_t step = 0; step < fewest.steps.size(); ++step)
      fewest.steps[step].skipped |= config.runs_ahead(static_cast<int>(step));
    for (const DenoisePlanConfig* each : {&config, &std::as_const(fewest)})
      require_sound(plan_denoise(*each), denoise_rules(*each));
  }
  Range turn{config.first_step, config.first_step};
  const auto next = [&]() -> std::optional<Plan> {
    if (turn.end == denoise_turns(config).end) return std::nullopt;
    turn = {turn.end, turn.end + 1};
    decide(static_cast<int>(turn.begin));
    return plan_denoise(config, turn)[placement_.rank()];
  };
  return interpreter.run(next, *this);
}

void StagedProgram::prepare(const Step& message) {
  if (message.kind == Step::Kind::kSend) return;
  const SlotId& slot = message.writes[0].slot;
  const int64_t rows = message_rows(message);
  const Device device = stream_.device();
  if (message.payload == Payload::kControl) {
    slots.make(slot, DType::kI64, 1, 1);
  } else if (message.payload == Payload::kHidden) {
    slots.make(slot, dtype_, rows, traits_.width, device);
  } else if (message.payload == Payload::kFirstBlock) {
    slots.make(slot, DType::kF32, rows, traits_.width, device);
  } else if (slot.kind != SlotKind::kPatch) {  // its rows are lent
    slots.make(slot, DType::kF32, rows, traits_.row(), device);
  }
}

int64_t StagedProgram::message_rows(const Step& message) {
  const bool hidden =
      message.payload == Payload::kHidden || message.payload == Payload::kFirstBlock;
  return message.tokens.size() + (hidden ? joint_rows(message.pass) : 0);
}

void StagedProgram::run_blocks(const Step& step, const Forward& forward) {
  const Arena::Scope scope(arena_);
  const int64_t rows = forward_rows(step) + joint_rows(step.pass);
  TensorView in;
  if (step.blocks.first()) {
    in = latent_rows(step);
  } else {
    in = arena_.alloc(DType::kF32, {rows, traits_.width});
    copy(stream_, slots[step.reads[0].slot].slice(0, 0, rows), in);
  }
  if (step.blocks.last()) {
    forward(step.blocks, in, velocity_rows(step));
    return;
  }
  const TensorView out = arena_.alloc(DType::kF32, {rows, traits_.width});
  forward(step.blocks, in, out);
  Step sent{.pass = step.pass, .tokens = step.tokens, .payload = Payload::kHidden};
  const TensorView& hidden = slots.make(step.writes[0].slot, dtype_, message_rows(sent),
                                        traits_.width, stream_.device());
  copy(stream_, out, hidden.slice(0, 0, rows));
}

TensorView StagedProgram::velocity_rows(const Step& step) {
  return slots.make(step.writes[0].slot, DType::kF32, step.tokens.size(), traits_.row(),
                    stream_.device());
}

TensorView StagedProgram::guided(const Step& update, const ModelFamily& family, double scale) {
  const TensorView& positive = slots[velocity_slot(0)];
  const TensorView velocity = arena_.alloc(DType::kF32, positive.shape());
  copy(stream_, positive, velocity);
  const bool both = update.reads.size() > 2;
  guide(stream_, arena_, family, scale, both ? slots[velocity_slot(1)] : TensorView(), velocity);
  return velocity;
}

Tensor StagedProgram::join_on_root(const Tag& tag, const TensorView& own_rows,
                                   const std::array<int64_t, 4>& shape,
                                   const std::function<TokenRanges(int rank)>& tokens) {
  const int64_t row = traits_.row() / shape_[0] * shape[0];
  TensorView own;
  if (const int64_t rows = tokens(placement_.rank()).size(); rows > 0)
    own = own_rows.reshape({rows, row});
  Tensor whole;
  if (placement_.root()) whole = Tensor(DType::kF32, shape, stream_.device());
  std::optional<Arena::Scope> scope;  // of the rows that arrive
  const auto landing = [&](int rank) {
    const int64_t rows = rank == 0 ? 0 : tokens(rank).size();
    if (rows == 0) return rank == 0 ? own : TensorView();
    scope.emplace(arena_);
    return arena_.alloc(DType::kF32, {rows, row});
  };
  const auto place = [&](int rank, const TensorView& rows) {
    if (rows) unpatchify(stream_, rows, traits_.patch, tokens(rank), whole);
    scope.reset();
  };
  if (placement_.alone())
    place(0, own);
  else
    placement_.communicator().gather_v(stream_, tag, own, landing, place);
  return whole;
}

StagedProgram::Part StagedProgram::part_of(const SlotId& slot, const Step& decode) {
  const bool is_own = slot == kLatentSlot;
  const int last = placement_.layout()[Axis::kLayers] - 1;
  const TokenRanges held =
      tokens_of(is_own ? placement_.rank() : placement_.rank_of(last, slot.part));
  if (!placement_.has_clips()) return {slots[slot], held};
  // Of one frame.
  const Range &frame = decode.tokens, &all = held.ranges[0];
  const Range tokens{std::max(all.begin, frame.begin), std::min(all.end, frame.end)};
  if (tokens.size() <= 0) return {};
  const TensorView rows = slots[slot];
  return {is_own ? rows.slice(0, tokens.begin - all.begin, tokens.size()) : rows,
          {{{tokens.begin - frame.begin, tokens.end - frame.begin}}, frame.size()}};
}

Tensor StagedProgram::joined(const Step& decode) {
  Tensor latent;
  for (const SlotVersion& version : decode.reads) {
    if (version.slot == kFramesSlot) continue;
    const auto [rows, tokens] = part_of(version.slot, decode);
    if (!rows) continue;
    const int64_t frames = tokens.total / (grid_[1] * grid_[2]) * traits_.patch[0];
    if (!latent)
      latent = Tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]}, stream_.device());
    unpatchify(stream_, rows, traits_.patch, tokens, latent);
  }
  stream_.sync();
  return latent;
}

}  // namespace weft
