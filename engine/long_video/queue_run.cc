#include "engine/long_video/queue_run.h"

#include <optional>

#include "engine/decoding/video_output.h"
#include "engine/denoising/denoiser.h"
#include "engine/long_video/queue_denoiser.h"
#include "engine/long_video/queue_video.h"
#include "engine/memory/estimate.h"
#include "io/sha256.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

// The frames of one job's blocks, on one rank.
class BlockOutput {
 public:
  BlockOutput(const QueueRun& run, const QueueVideo& video, const VideoReceivers& receivers)
      : run_(run), video_(video), latent_(latent_shape(run.parts, run.request)) {
    decodes_ = run.placement.band(latent_[2]).size() > 0;
    if (!decodes_ && !run.placement.root()) return;
    output_.emplace(run.stream, run.arena, run.placement,
                    DecoderSettings{.traits = run.parts.vae_model().traits(),
                                    .vae = decodes_ ? &run.parts.vae(run.stream) : nullptr,
                                    .latent = {latent_[0], latent_[2], latent_[3]},
                                    .total = latent_[1]},
                    receivers);
  }

  // Decodes the frames of a block that belong to the video.
  void decode(int block, const TensorView& latent) {
    const HostCopy copied(run_.stream, latent);
    Stream host = host_stream(run_.stream);
    const int64_t frames = video_.frames(block).size();
    const Tensor kept(DType::kF32, {latent_[0], frames, latent_[2], latent_[3]});
    copy(host, copied.view().slice(1, 0, frames), kept);
    signature_.update(kept.view().data, kept.view().bytes());
    output_->push(kept);
  }
  // A root that does not decode expects the pictures of the block that is decoded in this turn.
  void expect(int turn) {
    const int block = turn - run_.sampler.steps();
    if (decodes_ || !output_ || block < 0) return;
    output_->push(TensorView(nullptr, DType::kF32,
                             {latent_[0], video_.frames(block).size(), latent_[2], latent_[3]}));
  }
  void finish(RunResult& result, std::chrono::steady_clock::time_point started) {
    if (output_) output_->finish(result, started);
    if (decodes_) result.signature = signature_.hex();
  }

 private:
  const QueueRun& run_;
  const QueueVideo& video_;
  const std::array<int64_t, 4> latent_;
  bool decodes_ = false;
  std::optional<VideoOutput> output_;
  Sha256 signature_;
};

}  // namespace

QueuePlanConfig queue_plan(const Request& request, const Sampler& sampler, const Components& parts,
                           const RankPlacement& placement) {
  const QueueVideo video(request, latent_shape(parts, request), parts.vae_model().traits());
  QueuePlanConfig config =
      queue_config(placement, parts.traits(), parts.wire_dtype(), video.window(),
                   queue_settings(request.method).frames.block);
  const double guidance[] = {guidance_of(request, 0), guidance_of(request, 1)};
  config.steps = steps_of(sampler, parts.directory().boundary_ratio.value_or(0),
                          std::span(guidance).first(parts.experts()));
  config.blocks = video.blocks();
  for (int block = 0; block < config.blocks; ++block) config.prompts.push_back(video.prompt(block));
  for (int model = 0; model < parts.experts(); ++model)
    config.layers.push_back(parts.expert_model(model).traits().blocks);
  config.decoder = std::max(0, placement.layout().decode_rank);
  return config;
}

JobSchedule queue_schedule(const Request& request, const Sampler& sampler, const Components& parts,
                           const RankPlacement& placement) {
  const auto config =
      std::make_shared<QueuePlanConfig>(queue_plan(request, sampler, parts, placement));
  PlanRules rules = queue_rules(*config);
  rules.bytes = [config, bytes = rules.bytes](const Step& message) { return bytes(message); };
  return {plan_queue(*config), std::move(rules)};
}

namespace {

// The root reports what is legal but slow, or outside of the model's training.
void warn(const QueueRun& run, const QueueVideo& video, ProgressListener& listener) {
  const DefaultSettings& model = run.parts.directory().defaults;
  const VaeTraits& vae = run.parts.vae_model().traits();
  const QueueFacts facts{
      .steps = run.request.steps,
      .blocks = video.blocks(),
      .stages = run.placement.layout()[Axis::kLayers],
      .trained_frames = vae.latent_frames(model.trained_frames.value_or(model.frames))};
  for (const std::string& line : queue_warnings(queue_settings(run.request.method), facts))
    listener.warning(line);
}

}  // namespace

void run_queue(const QueueRun& run, FrameSink* sink, const RunOptions& options, StageClock& clock,
               RunResult& result, std::chrono::steady_clock::time_point started) {
  const Request& request = run.request;
  const QueueVideo video(request, latent_shape(run.parts, request), run.parts.vae_model().traits());
  if (run.placement.bands(video.window()[2]) > 1)
    throw Error(ErrorKind::kUsage, "--method queue: the layout " +
                                       to_string(run.placement.layout()) +
                                       " lets several ranks decode, legal: decode_rank=N");
  if (run.placement.root() && options.listener) warn(run, video, *options.listener);
  QueuePlanConfig config = queue_plan(request, run.sampler, run.parts, run.placement);
  config.control = options.stop != nullptr;
  BlockOutput output(run, video, {sink, options.tap, clock});
  clock.enter(Zone::kDenoise, static_cast<int>(config.turns().size()));
  QueueJob job{.sampler = run.sampler,
               .shape = video.window(),
               .guidance = {guidance_of(request, 0), guidance_of(request, 1)},
               .prompts = run.prompts,
               .negative = run.negative,
               .noise = [&](int block, const TensorView& noise) { video.fill_noise(block, noise); },
               .decode = [&](int block, const TensorView& latent) { output.decode(block, latent); },
               .decide = [&](int) { return int64_t{options.stop->load()}; },
               .before_turn =
                   [&](int turn, int64_t stop) {
                     clock.step(turn);
                     output.expect(turn);
                     return stop == 0;
                   }};
  QueueDenoiser denoiser(run.stream, run.arena, run.parts, run.placement, run.parts.wire_dtype());
  denoiser.run(config, job);
  result.streaming = denoiser.streaming();
  clock.step(static_cast<int>(config.turns().size()));
  output.finish(result, started);
}

}  // namespace weft
