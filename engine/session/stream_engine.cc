#include "engine/session/stream_engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/decoding/stream_decoder.h"
#include "io/media/video.h"
#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "parallel/transport/local.h"

namespace weft {
namespace {

constexpr int64_t kMostFrames = int64_t{1} << 32;
constexpr int kComputingGroup = 254;  // the ranks before one that only decodes
constexpr size_t kMostPrompts = 64;

// Keeps the pictures of a block.
struct Pictures final : FrameSink {
  std::vector<Frame> frames;
  void push(const Frame& frame) override { frames.push_back(frame); }
  std::string finish() override { return ""; }
};

[[noreturn]] void refuse(const std::string& name, int64_t value, const std::string& legal) {
  throw Error(ErrorKind::kUsage, name + " is " + std::to_string(value) +
                                     "; legal for a stream of " + "this model: " + legal);
}

}  // namespace

struct StreamEngine::Rank {
  Rank(const StreamEngine& engine, int index)
      : stream(stream_on(engine.device(index), engine.settings_.threads)),
        parts(engine.model_, {.dtype = engine.settings_.dtype}, engine.settings_.vae_dtype,
              placement) {}

  Stream stream;
  Arena arena{size_t{256} << 30, stream.device()};
  RankPlacement placement;  // of the present stream
  Components parts;
};

StreamEngine::StreamEngine(std::shared_ptr<const OpenModel> model, const StreamSettings& settings)
    : model_(std::move(model)), settings_(settings) {
  if (const auto& stream = model_->directory.defaults.stream; stream && stream->clean_pass)
    throw Error(ErrorKind::kModel,
                "weft.json says stream.clean_pass of this model: its blocks see the keys of a pass "
                "over the finished block ahead, which no stream here makes; legal: models whose "
                "blocks see the keys of the same step");
  if (model_->directory.pictures.least > 0)
    throw Error(ErrorKind::kModel, model_->directory.defaults.name +
                                       " makes a video from a picture, and a stream gives it none; "
                                       "legal: models that draw from text alone");
  const TransformerTraits& traits = model_->directory.expert(0).traits();
  const int64_t scale = model_->directory.vae_model->traits().spatial_factor;
  const int64_t whole = traits.patch[0];
  for (const auto& [name, value, patch] :
       {std::tuple{"--width", settings.width, traits.patch[2]},
        std::tuple{"--height", settings.height, traits.patch[1]}})
    if (value <= 0 || value % (scale * patch) != 0)
      refuse(name, value, "multiples of " + std::to_string(scale * patch));
  if (settings.block_frames <= 0 || settings.block_frames % whole != 0)
    refuse("the number of latent frames of a block", settings.block_frames,
           "multiples of " + std::to_string(whole));
  if (settings.window_frames < settings.block_frames || settings.window_frames % whole != 0)
    refuse("the number of latent frames of the window", settings.window_frames,
           "multiples of " + std::to_string(whole) + " from a block's " +
               std::to_string(settings.block_frames) + " on");
  const Layout& layout = settings.layout;
  const int ulysses = layout[Axis::kUlysses], layers = layout[Axis::kLayers];
  if (layout.ranks() != layout[Axis::kStep] * layers * ulysses ||
      layout[Axis::kStep] > settings.steps || layers > traits.blocks || ulysses > traits.heads ||
      (ulysses > 1 && layers > 1))
    throw Error(ErrorKind::kUsage, "--layout is " + to_string(layout) +
                                       "; legal for this stream: step=1 ... " +
                                       std::to_string(settings.steps) + " and layers=1 ... " +
                                       std::to_string(traits.blocks) + " or ulysses=1 ... " +
                                       std::to_string(traits.heads));
  sampler();
  ranks_.resize(ranks());
}

StreamEngine::~StreamEngine() = default;

Device StreamEngine::device(int rank) const {
  return settings_.devices.empty() ? Device() : settings_.devices[rank % settings_.devices.size()];
}

Sampler StreamEngine::sampler() const {
  SamplerConfig config = model_->sampler();
  if (!settings_.solver.empty()) config.kind = solver_from_name(settings_.solver);
  config.even_sigmas = model_->directory.family->even_sigmas;
  return {config, settings_.steps};
}

std::array<int64_t, 4> StreamEngine::shape() const {
  const int64_t scale = model_->directory.vae_model->traits().spatial_factor;
  return {model_->directory.expert(0).traits().out_channels, settings_.block_frames,
          settings_.height / scale, settings_.width / scale};
}

StreamJob StreamEngine::job(const Sampler& sampler) const {
  return {.sampler = sampler,
          .shape = shape(),
          .window_frames = settings_.window_frames,
          .prompt = {},
          .sink = settings_.sink,
          .sink_position = settings_.sink_position,
          .kept = settings_.kept,
          .noise = {},
          .decode = {}};
}

StreamPlanConfig StreamEngine::plan() const {
  StreamPlanConfig config =
      stream_config(RankPlacement(settings_.layout, 0), model_->directory.expert(0).traits(),
                    settings_.dtype, job(sampler()));
  config.blocks = StreamPlanConfig::kEndless;
  config.swap_block = settings_.swap_block;
  config.credits = settings_.credits;
  config.decodes_apart = settings_.decodes_apart;
  return config;
}

// The caption's rows [length, d] f32, in host memory.
const Tensor& StreamEngine::encoded(const std::string& caption) {
  if (const auto found = prompts_.find(caption); found != prompts_.end()) return found->second;
  if (prompts_.size() == kMostPrompts) prompts_.clear();
  RankPlacement placement;
  Stream stream = stream_on(device(0), settings_.threads);
  Arena arena{size_t{256} << 30, stream.device()};
  Components parts(model_, {.dtype = settings_.dtype}, settings_.vae_dtype, placement);
  const std::vector<int32_t>& ids = model_->tokens(caption)->ids;
  const TextEncoderTraits& traits = parts.text_model().traits();
  Tensor rows(DType::kF32, {model_->prompt_rows(caption), traits.columns}, stream.device());
  Context context = placement.text_context(stream, arena, {}, traits, std::ssize(ids));
  parts.text_encoder(stream).encode(context, ids, rows);
  if (first_non_finite(stream, rows) >= 0)
    throw Error(ErrorKind::kNonFinite,
                "NaN or infinity in encode_text. Try --dtype f32, or check the weights with weft "
                "inspect");
  return prompts_[caption] = on_host(stream, std::move(rows));
}

void StreamEngine::warm_up(const std::string& caption) {
  const int64_t rows = settings_.block_frames / model_->directory.expert(0).traits().patch[0];
  run(
      caption,
      [&](int64_t) {
        return StreamSignal{.frames = settings_.block_frames,
                            .rows = std::vector<float>(rows * signal_columns()),
                            .last = true};
      },
      [](StreamPictures&&) {});
}

void StreamEngine::run(const std::string& caption,
                       const std::function<StreamSignal(int64_t number)>& next,
                       const std::function<void(StreamPictures&&)>& take) {
  signals_.clear();
  const Tensor& prompt = encoded(caption);
  if (ranks() == 1) return rank(nullptr, prompt, next, take);
  run_ranks(ranks(), [&](Communicator& world) { rank(&world, prompt, next, take); });
}

// The placement of a rank that computes; the decoder's is that of a single one.
RankPlacement StreamEngine::placement(Communicator* world) const {
  const int count = settings_.layout.ranks();
  if (count == 1 || world->rank() == count) return {};
  if (!settings_.decodes_apart) return RankPlacement::of(*world, settings_.layout);
  std::vector<int> computing(count);
  std::iota(computing.begin(), computing.end(), 0);
  return {world->group(computing, kComputingGroup), settings_.layout};
}

// One rank of the stream.
void StreamEngine::rank(Communicator* world, const Tensor& prompt,
                        const std::function<StreamSignal(int64_t)>& next,
                        const std::function<void(StreamPictures&&)>& take) {
  const int index = world ? world->rank() : 0;
  if (!ranks_[index]) ranks_[index] = std::make_unique<Rank>(*this, index);
  auto& [stream, arena, placement, parts] = *ranks_[index];
  placement = this->placement(world);
  RankPlacement alone;
  const StreamPlanConfig config = plan();

  Pictures pictures;
  std::optional<FrameWriter> writer;
  std::optional<StreamDecoder> decoder;
  const VaeTraits& vae = parts.vae_model().traits();
  if (index == config.decoder()) {
    writer.emplace(&pictures);
    decoder.emplace(stream, arena, alone,
                    DecoderSettings{.traits = vae,
                                    .vae = &parts.vae(stream),
                                    .latent = {shape()[0], shape()[2], shape()[3]},
                                    .writer = &*writer});
  }
  const auto on_own_device = [&](const TensorView& host) {
    Tensor out;
    if (!host) return out;
    out = Tensor(DType::kF32, host.shape(), stream.device());
    copy(stream, host, out);
    return out;
  };
  const Tensor text = on_own_device(prompt), sink = on_own_device(settings_.sink);
  // Noise belongs to a frame, so that it does not depend on how the blocks are cut.
  const auto [channels, frames, height, width] = shape();
  const NoiseField noise(Rng::kPortable, settings_.seed, {channels, kMostFrames, height, width});
  const Sampler sampler = this->sampler();
  StreamJob job = this->job(sampler);
  job.prompt = text;
  job.sink = sink;
  job.next = [&](int64_t number) { return enter(number, next(number)); };
  job.noise = [&](const StreamBlock& block, const TensorView& to) {
    noise.fill(to, block.frames.begin);
  };
  job.signal = [&](const StreamBlock& block, const TensorView& to) { take_signal(block, to); };
  job.decode = [&](const StreamBlock& block, const TensorView& latent) {
    const auto begun = std::chrono::steady_clock::now();
    const int64_t first = decoder->pictures();
    decoder->push(HostCopy(stream, latent));
    decoder->finish();
    writer->keep();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    take({block, first, block.epoch != epoch_, took.count(), std::exchange(pictures.frames, {})});
  };
  StreamDenoiser(stream, arena, parts, placement, settings_.dtype,
                 settings_.decodes_apart ? world : nullptr)
      .run(config, job);
}

NextBlock StreamEngine::enter(int64_t number, StreamSignal signal) {
  // An interruption that comes from here on mutes the block.
  const NextBlock next{.frames = signal.frames, .epoch = epoch_, .last = signal.last};
  const int64_t columns = signal_columns();
  if (columns == 0 || signal.frames <= 0) return next;
  const int64_t rows = signal.frames / model_->directory.expert(0).traits().patch[0];
  if (std::ssize(signal.rows) != rows * columns)
    refuse("the signal of block " + std::to_string(number) + ", in values,",
           std::ssize(signal.rows), std::to_string(rows) + " rows of " + std::to_string(columns));
  const std::scoped_lock lock(mutex_);
  signals_[number] = {std::move(signal.rows), settings_.layout.ranks()};
  return next;
}

void StreamEngine::take_signal(const StreamBlock& block, const TensorView& to) {
  const std::scoped_lock lock(mutex_);
  const auto found = signals_.find(block.number);
  CHECK(found != signals_.end(), "block", block.number, "has no signal");
  std::ranges::copy(found->second.rows, to.as<float>());
  if (--found->second.takers == 0) signals_.erase(found);
}

}  // namespace weft
