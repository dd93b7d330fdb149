// Stage stream of `weft verify`: the blocks of a stream, each denoised with the keys that the same
// step of the blocks before it has left.
#include <algorithm>

#include "apps/verify/verify_run.h"
#include "engine/session/stream_denoiser.h"
#include "kernels/meter.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kMostStreamFrames = 1 << 16;

// The numbers of the case.
struct StreamCase {
  int block_frames, window_blocks, blocks, steps, swap_block = 0;
  SinkPosition sink;
  bool whole_sound = true;       // else each block hears its own features alone
  std::array<int64_t, 4> shape;  // of a block's latent

  explicit StreamCase(const Case& c) {
    const std::string what = c.file("case.json");
    block_frames = c.integer("block_frames", kMostStreamFrames);
    window_blocks = c.integer("window_blocks", kMostStreamFrames);
    blocks = c.integer("blocks", kMostStreamFrames);
    steps = c.integer("steps", kMaxSteps);
    constexpr IntRange kPositions{-kMostStreamFrames, kMostStreamFrames};
    sink.start = json_int(c.spec, "sink_start", what, kPositions);
    const int64_t distance = json_int(c.spec, "sink_distance", what, kPositions);
    sink.distance = {distance, distance + 1};
    if (json_has(c.spec, "audio_context")) {
      const std::string context = c.text("audio_context");
      if (context != "whole" && context != "block")
        throw Error(ErrorKind::kModel,
                    what + ": audio_context is '" + context + "' (legal: whole, block)");
      whole_sound = context == "whole";
    }
    if (json_has(c.spec, "swap_block")) swap_block = c.integer("swap_block", kMostStreamFrames);
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const TensorView noise = inputs.contains("noise") ? inputs.view("noise") : TensorView();
    if (noise.rank != 4 || noise[1] != int64_t{blocks} * block_frames)
      throw Error(ErrorKind::kModel, c.folder + ": noise is [C, blocks * block_frames, H, W]");
    shape = {noise[0], block_frames, noise[2], noise[3]};
  }
};

// The stream of a case on one rank.
class StreamRun {
 public:
  explicit StreamRun(Case& c)
      : case_(c),
        bench_(c),
        of_(c),
        experts_(c, bench_.stream),
        sampler_(SamplerConfig::from_json_file(c.part_file("scheduler", "scheduler_config.json")),
                 of_.steps) {}

  NamedTensors run() {
    const TensorFile inputs = TensorFile::open(case_.file("inputs.safetensors"));
    const Tensor noise = on_host(bench_.stream, bench_.load(inputs, "noise"));
    const Tensor prompt = bench_.load(inputs, "encoder_hidden_states"),
                 sink = bench_.load(inputs, "sink");
    const TransformerTraits& traits = experts_.traits();
    const Tensor motion = traits.motion_frames ? bench_.load(inputs, "motion_latents") : Tensor();
    const Tensor sound = traits.motion_frames ? whole_signal(inputs) : Tensor();
    NamedTensors out;
    const Tensor& latents = out["latents"] = Tensor(DType::kF32, noise.view().shape());
    const auto frames = [&](const Tensor& whole, const StreamBlock& block) {
      return whole.view().slice(1, block.frames.begin, block.frames.size());
    };
    StreamJob job{
        .sampler = sampler_,
        .shape = of_.shape,
        .window_frames = int64_t{of_.window_blocks} * of_.block_frames,
        .prompt = prompt,
        .sink = sink,
        .motion = motion,
        .motion_rows = motion ? experts_.model->motion_rows(
                                    traits.grid(traits.patch[0], of_.shape[2], of_.shape[3]))
                              : 0,
        .sink_position = of_.sink,
        .noise = [&](const StreamBlock& block,
                     const TensorView& to) { copy(host_, frames(noise, block), to); },
        .decode =
            [&](const StreamBlock& block, const TensorView& latent) {
              copy(host_, HostCopy(bench_.stream, latent).view(), frames(latents, block));
            },
        .on_update =
            [&](const Pass& pass, const TensorView& velocity) {
              copy(host_, HostCopy(bench_.stream, velocity).view(),
                   velocities_[{pass.clip, pass.step}] = Tensor(DType::kF32, velocity.shape()));
            }};
    if (sound)
      job.signal = [&](const StreamBlock& block, const TensorView& to) {
        copy(host_, sound.view().slice(0, block.frames.begin, block.frames.size()), to);
      };
    StreamPlanConfig config = stream_config(case_.placement, traits, case_.options.dtype, job);
    config.blocks = of_.blocks;
    config.swap_block = of_.swap_block;
    StreamDenoiser({bench_.stream, bench_.arena, experts_, case_.placement}, case_.options.dtype)
        .run(config, job);
    if (!case_.placement.alone())
      on_root(config.decoder(), {.kind = Payload::kLatent, .topic = Topic::kCheck}, latents,
              latents);
    for (int block = 0; block < of_.blocks; ++block)
      for (int step = 0; step < of_.steps; ++step)
        if (Tensor whole = root_velocity(config, block, step))
          out["velocity." + std::to_string(block) + "." + std::to_string(step)] = std::move(whole);
    return out;
  }

 private:
  // Returns the rows that the latent frames hear [frames, signal_columns], on the host.
  Tensor whole_signal(const TensorFile& inputs) {
    const Tensor features = on_host(bench_.stream, bench_.load(inputs, "audio_features"));
    const int64_t frames = int64_t{of_.blocks} * of_.block_frames;
    const int64_t parts = of_.whole_sound ? 1 : of_.blocks, each = frames / parts;
    Tensor rows(DType::kF32, {frames, experts_.traits().signal_columns});
    const TensorView& all = features;
    if (all.rank != 3 || all[2] % frames != 0)
      throw Error(ErrorKind::kModel, case_.folder + ": audio_features is " + all.to_string_shape() +
                                         " (legal: [layers, columns, n], n a multiple of " +
                                         std::to_string(frames) + " frames)");
    const int64_t step = all[2] / parts;
    for (int64_t i = 0; i < parts; ++i)
      experts_.model->signal_rows(all.slice(2, i * step, step),
                                  rows.view().slice(0, i * each, each));
    return rows;
  }

  // The root takes in `to` what the rank `from` has in `own`.
  void on_root(int from, const Tag& tag, const TensorView& own, const TensorView& to) {
    const RankPlacement& placement = case_.placement;
    placement.communicator().gather_v(host_, tag, placement.rank() == from ? own : TensorView(),
                                      [&](int rank) { return rank == from ? to : TensorView(); });
  }

  // Returns the velocity of a step as [C, P, H, W] on the root, elsewhere an empty tensor. The last
  // stage of the step's group has it.
  Tensor root_velocity(const StreamPlanConfig& config, int block, int step) {
    const RankPlacement& placement = case_.placement;
    std::array<int, kAxes> at{};
    int& group = at[static_cast<int>(Axis::kStep)];
    while (step >= config.group(group).end) ++group;
    at[static_cast<int>(Axis::kLayers)] = config.layout[Axis::kLayers] - 1;
    const int from = placement.mesh().rank_at(at);
    Tensor rows;
    if (placement.root())
      rows = Tensor(DType::kF32, {config.tokens().size(), experts_.traits().row()});
    TensorView own;
    if (placement.rank() == from) own = velocities_.at({block, step});
    if (placement.alone())
      copy(host_, own, rows);
    else
      on_root(from,
              {.kind = Payload::kVelocity,
               .pass = {.clip = block, .step = step},
               .topic = Topic::kCheck},
              own, rows);
    if (!placement.root()) return {};
    Tensor velocity(DType::kF32, of_.shape);
    unpatchify(host_, rows, experts_.traits().patch, TokenRanges::all(config.tokens().size()),
               velocity);
    return velocity;
  }

  Case& case_;
  Bench bench_;
  Stream host_ = host_stream(bench_.stream);
  StreamCase of_;
  CaseTransformer experts_;
  Sampler sampler_;
  std::map<std::pair<int, int>, Tensor> velocities_;  // of this rank, by block and step
};

}  // namespace

NamedTensors run_stream(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  return StreamRun(c).run();
}

LayoutLimits stream_limits(const Case& c) {
  const StreamCase of(c);
  const TransformerTraits traits =
      open_transformer(c.part_file("transformer", "config.json"))->traits();
  // The sink has one latent frame.
  const auto frame = traits.grid(traits.patch[0], of.shape[2], of.shape[3]);
  return {.heads = traits.heads,
          .layers = traits.blocks,
          .tokens = frame[1] * frame[2],
          .ffn = traits.ffn_columns,
          .requests = 0,
          .method = {SplitRule::kStream, of.steps},
          .guided = false};
}

}  // namespace weft
