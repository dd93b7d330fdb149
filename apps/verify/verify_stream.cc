// Stage stream of `weft verify`: the segments of a stream, each denoised with the keys that the
// same step of the segments before it has left.
#include <algorithm>

#include "apps/verify/verify_run.h"
#include "engine/schedules/stream_denoiser.h"
#include "kernels/meter.h"

namespace weft {
namespace {

constexpr int kMostStreamFrames = 1 << 16;

// The numbers of the case.
struct StreamCase {
  int segment_frames, window_segments, segments, steps, swap_segment = 0;
  SinkPosition sink;
  bool whole_sound = true;       // else each segment hears its own features alone
  std::array<int64_t, 4> shape;  // of a segment's latent

  explicit StreamCase(const Case& c) {
    segment_frames = c.integer("block_frames", kMostStreamFrames);
    window_segments = c.integer("window_blocks", kMostStreamFrames);
    segments = c.integer("blocks", kMostStreamFrames);
    steps = c.integer("steps", kMaxSteps);
    constexpr IntRange kPositions{-kMostStreamFrames, kMostStreamFrames};
    sink.start = c.integer("sink_start", kPositions);
    const int64_t distance = c.integer("sink_distance", kPositions);
    sink.distance = {distance, distance + 1};
    if (json_has(c.spec, "audio_context")) {
      const std::string context = c.text("audio_context");
      if (context != "whole" && context != "block")
        c.refuse_spec("audio_context is '" + context + "' (legal: whole, block)");
      whole_sound = context == "whole";
    }
    if (json_has(c.spec, "swap_block")) swap_segment = c.integer("swap_block", kMostStreamFrames);
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const TensorView noise = inputs.contains("noise") ? inputs.view("noise") : TensorView();
    if (noise.rank != 4 || noise[1] != int64_t{segments} * segment_frames)
      c.refuse("noise is [C, blocks * block_frames, H, W]");
    shape = {noise[0], segment_frames, noise[2], noise[3]};
  }
};

// Returns the rows that the latent frames hear [frames, signal_columns], on the host.
Tensor whole_signal(const Case& c, Bench& bench, const StreamCase& of,
                    const TransformerModel& model) {
  const Tensor features = on_host(bench.stream, bench.load("audio_features"));
  const int64_t frames = int64_t{of.segments} * of.segment_frames;
  const int64_t parts = of.whole_sound ? 1 : of.segments, each = frames / parts;
  Tensor rows(DType::kF32, {frames, model.traits().signal_columns});
  const TensorView& all = features;
  if (all.rank != 3 || all[2] % frames != 0)
    c.refuse("audio_features is " + all.to_string_shape() +
             " (legal: [layers, columns, n], n a multiple of " + std::to_string(frames) +
             " frames)");
  const int64_t step = all[2] / parts;
  for (int64_t i = 0; i < parts; ++i)
    model.signal_rows(all.slice(2, i * step, step), rows.view().slice(0, i * each, each));
  return rows;
}

struct StreamRun final : CaseRun {
  using CaseRun::CaseRun;
  TensorView sound{};  // rows that the latent frames hear, on the host
  void signal(const Segment& segment, const TensorView& to) override {
    Stream host = Stream::cpu(1);
    copy(host, sound.slice(0, segment.frames.begin, segment.frames.size()), to);
  }
};

}  // namespace

NamedTensors run_stream(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  Bench bench(c);
  const StreamCase of(c);
  CaseExperts experts(c, bench.stream);
  const TransformerTraits& traits = experts.traits();
  const TransformerModel& model = *experts.models[0];
  const JobFacts facts{.request = {}, .sampler = sampler_of(c, of.steps), .window = of.shape};
  StreamPlanConfig config;
  // The last stage of a step's group has its velocity.
  StreamRun run(c, bench, experts, facts, [&](const Pass& pass, int rank) {
    std::array<int, kAxes> at{};
    int& group = at[static_cast<int>(Axis::kStep)];
    while (pass.step >= config.group(group).end) ++group;
    at[static_cast<int>(Axis::kLayers)] = config.layout[Axis::kLayers] - 1;
    TokenRanges tokens{{}, config.tokens().size()};
    if (c.placement.mesh().rank_at(at) == rank) tokens.append(config.tokens());
    return tokens;
  });
  const Tensor prompt = bench.load("encoder_hidden_states"), sink = bench.load("sink");
  Tensor motion, sound;
  StreamSource source{.window_frames = int64_t{of.window_segments} * of.segment_frames,
                      .sink = sink,
                      .sink_position = of.sink};
  if (traits.motion_frames) {
    motion = bench.load("motion_latents");
    sound = whole_signal(c, bench, of, model);
    source.motion_rows = model.motion_rows(traits.grid(traits.patch[0], of.shape[2], of.shape[3]));
    run.sound = sound;
  }
  run.job.prompts = {prompt.view()};
  run.job.conditions.motion = motion;
  config = stream_config(c.placement, traits, c.options.dtype, facts, source);
  config.segments = of.segments;
  config.swap_segment = of.swap_segment;
  StreamDenoiser(run.rank(), c.options.dtype).run(config, run.job, source);
  run.latents_from(config.decoder());
  return run.results(std::vector<Range>(of.segments, {0, of.segment_frames}), of.steps);
}

LayoutLimits stream_limits(const Case& c) {
  const StreamCase of(c);
  const TransformerTraits traits =
      open_transformer(c.part_file("transformer", "config.json"))->traits();
  // The sink has one latent frame.
  const auto frame = traits.grid(traits.patch[0], of.shape[2], of.shape[3]);
  LayoutLimits limits{.tokens = frame[1] * frame[2],
                      .requests = 0,
                      .method = {SplitRule::kStream, of.steps},
                      .guided = false};
  limit_by(traits, limits);
  return limits;
}

}  // namespace weft
