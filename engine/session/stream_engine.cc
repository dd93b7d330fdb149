#include "engine/session/stream_engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/conditions/prompt_rows.h"
#include "engine/memory/estimate.h"
#include "engine/session/picture_messages.h"
#include "engine/session/segment_decoder.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"
#include "parallel/schedule/simulate.h"
#include "parallel/transport/local.h"
#include "parallel/transport/silent.h"

namespace weft {
namespace {

constexpr int64_t kMostFrames = int64_t{1} << 32;
constexpr size_t kMostPrompts = 64;

[[noreturn]] void refuse(const std::string& name, int64_t value, const std::string& legal) {
  throw Error(ErrorKind::kUsage, name + " is " + std::to_string(value) +
                                     "; legal for a stream of " + "this model: " + legal);
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

constexpr Tag kStreamPrompt{.kind = Payload::kText, .topic = Topic::kText},
    kStreamPicture{.kind = Payload::kLatent, .topic = Topic::kPictures};

std::atomic<int64_t> g_engines = 0;

}  // namespace

std::array<int64_t, 2> stream_size_multiples(const ModelDirectory& model) {
  const auto& patch = model.expert(0).traits().patch;
  const int64_t scale = model.vae_model->traits.spatial_factor;
  return {std::lcm(scale * patch[2], model.chunks.size_multiple),
          std::lcm(scale * patch[1], model.chunks.size_multiple)};
}

struct StreamEngine::KeptRank {
  KeptRank(const StreamEngine& engine, int index)
      : KeptRank(engine, stream_on(engine.device(index), engine.settings_.threads), {}) {}
  KeptRank(const StreamEngine& engine, Stream on, RankPlacement at)
      : stream(std::move(on)), parts(engine.components(std::move(at))) {}

  // Among the stream's ranks, where there are several.
  Rank equipment(Communicator* ranks = nullptr) {
    Rank rank(stream, arena, parts);
    rank.world = ranks;
    return rank;
  }

  Stream stream;
  Arena arena{size_t{256} << 30, stream.device()};
  Components parts;    // at the placement of the present stream
  Tensor prompt;       // of the present stream, in host memory; the first rank has it elsewhere
  StillLatents still;  // the same of the picture
};

StreamEngine::StreamEngine(std::shared_ptr<const OpenModel> model, const StreamSettings& settings,
                           Communicator* world)
    : model_(std::move(model)), settings_(settings), world_(world), number_(++g_engines) {
  if (const auto& stream = model_->directory.defaults.stream; stream && stream->clean_pass)
    throw Error(ErrorKind::kModel,
                "weft.json says stream.clean_pass of this model: its blocks see the keys of a pass "
                "over the finished block ahead, which no stream here makes; legal: models whose "
                "blocks see the keys of the same step");
  check_picture();
  const TransformerTraits& traits = this->traits();
  const int64_t whole = traits.patch[0];
  const auto [of_width, of_height] = stream_size_multiples(model_->directory);
  for (const auto& [name, value, multiple] : {std::tuple{"--width", settings.width, of_width},
                                              std::tuple{"--height", settings.height, of_height}})
    if (value <= 0 || value % multiple != 0)
      refuse(name, value, "multiples of " + std::to_string(multiple));
  if (settings.segment_frames <= 0 || settings.segment_frames % whole != 0)
    refuse("the number of latent frames of a block", settings.segment_frames,
           "multiples of " + std::to_string(whole));
  if (settings.window_frames < settings.segment_frames || settings.window_frames % whole != 0)
    refuse("the number of latent frames of the window", settings.window_frames,
           "multiples of " + std::to_string(whole) + " from a block's " +
               std::to_string(settings.segment_frames) + " on");
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
  if (takes_sound())
    hearing_.emplace(model_, device(0), settings_.dtype, settings_.threads,
                     std::lround(model_->directory.defaults.stream->fps));
}

StreamEngine::~StreamEngine() = default;

void StreamEngine::check_picture() const {
  const ModelDirectory& directory = model_->directory;
  const std::string& name = directory.defaults.name;
  if (directory.pictures.least > 0 && !shown())
    throw Error(ErrorKind::kModel, name +
                                       " makes a video from a picture, and its streams show none; "
                                       "legal: models that draw from text alone, or whose streams "
                                       "show a picture");
  if (shown() && !settings_.picture.given())
    throw Error(ErrorKind::kUsage, "a stream of " + name + " shows a picture; legal: --image FILE");
  if (!shown() && settings_.picture.given())
    throw Error(ErrorKind::kUsage, "--image is '" + settings_.picture.path + "', but " + name +
                                       " draws its streams from text alone; legal: no picture");
}

const StreamPicture* StreamEngine::shown() const {
  const auto& stream = model_->directory.defaults.stream;
  return stream && stream->picture ? &*stream->picture : nullptr;
}

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
  const int64_t scale = model_->directory.vae_model->traits.spatial_factor;
  return {traits().out_channels, settings_.segment_frames, settings_.height / scale,
          settings_.width / scale};
}

JobFacts StreamEngine::facts() const {
  return {.request = {}, .sampler = sampler(), .latent = shape(), .window = shape()};
}

StreamSource StreamEngine::source() const {
  StreamSource source{.window_frames = settings_.window_frames, .kept = settings_.kept};
  if (!shown()) return source;
  source.sink_position = {shown()->sink_frame, shown()->sink_distance, settings_.seed};
  const TransformerModel& model = model_->directory.expert(0);
  const auto [channels, frames, height, width] = shape();
  source.motion_rows =
      model.motion_rows(model.traits().grid(model.traits().patch[0], height, width));
  return source;
}

StreamPlanConfig StreamEngine::plan() const {
  const JobFacts facts = this->facts();
  StreamPlanConfig config =
      stream_config(RankPlacement(settings_.layout, 0), traits(), settings_.dtype, facts, source());
  config.segments = StreamPlanConfig::kEndless;
  if (shown()) {
    config.sink_frames = traits().reference_frames / traits().patch[0];
    config.swap_segment = shown()->swap_segment;
  }
  config.credits = settings_.credits;
  config.decodes_apart = settings_.decodes_apart;
  return config;
}

// The caption's rows [length, d] f32, in host memory.
const Tensor& StreamEngine::encoded(const std::string& caption) {
  if (const auto found = prompts_.find(caption); found != prompts_.end()) return found->second;
  if (prompts_.size() == kMostPrompts) prompts_.clear();
  KeptRank alone(*this, 0);
  Prompt prompt{.ids = model_->tokens(caption)->ids};
  PromptEncoder(alone.equipment(), "")
      .encode(
          {&prompt, 1}, [] {}, [](int) {});
  return prompts_[caption] = on_host(alone.stream, std::move(prompt.embeds));
}

// Encodes the picture.
void StreamEngine::encode_picture() {
  if (!shown() || still_.video) return;
  KeptRank alone(*this, 0);
  still_ = still_latents(alone.stream, alone.arena, alone.parts, settings_.picture,
                         settings_.picture_fit, shape());
}

StreamSignal StreamEngine::silence(int64_t frames) const {
  StreamSignal out{.frames = frames};
  if (hearing_)
    out.sound.resize(frames * hearing_->samples_of_frame());
  else
    out.rows.resize(frames / traits().patch[0] * signal_columns());
  return out;
}

void StreamEngine::warm_up(const std::string& caption) {
  run(
      caption,
      [&](int64_t) {
        StreamSignal only = silence(settings_.segment_frames);
        only.last = true;
        return only;
      },
      [](StreamPictures&&) {});
}

void StreamEngine::run(const std::string& caption, const Next& next, const Take& take) {
  check_ranks();
  std::exception_ptr thrown;  // by `take`, which ends the other ranks
  const Take watched = [&](StreamPictures&& pictures) {
    pictures.muted = pictures.segment.epoch != epoch_;
    try {
      take(std::move(pictures));
    } catch (...) {
      thrown = std::current_exception();
      throw;
    }
  };
  try {
    if (ranks() == 1) return lead(nullptr, caption, next, watched);
    if (world_) return lead(world_, caption, next, watched);
    run_ranks(ranks(), [&](Communicator& world) {
      if (world.rank() == 0)
        lead(&world, caption, next, watched);
      else
        follow(world, StreamOrder::heard(world));
    });
  } catch (...) {
    shared_caption_.reset();
    if (!thrown) thrown = std::current_exception();
    if (world_ && ranks() > 1) {
      broken_ = thrown;
      is_broken_ = true;
    }
    std::rethrow_exception(thrown);
  }
}

Components StreamEngine::components(RankPlacement placement,
                                    const std::optional<DeviceTraits>& device) const {
  return {model_,
          {.dtype = settings_.dtype, .weights = settings_.weights},
          settings_.vae_dtype,
          std::move(placement),
          device,
          settings_.text_weights};
}

size_t StreamEngine::arena_high_water() const {
  size_t sum = hearing_ ? hearing_->arena_high_water() : 0;
  for (const auto& rank : ranks_)
    if (rank) sum += rank->arena.high_water();
  return sum;
}

// The placement of a rank that computes; the decoder's is that of a single one.
RankPlacement StreamEngine::placement(Communicator* ranks) const {
  const int count = settings_.layout.ranks();
  if (count == 1 || ranks->rank() == count) return {};
  if (!settings_.decodes_apart) return RankPlacement::of(*ranks, settings_.layout);
  return {ranks->group(first_ranks(count), kComputingGroup), settings_.layout};
}

StreamEngine::KeptRank& StreamEngine::kept(int index) {
  if (!ranks_[index]) ranks_[index] = std::make_unique<KeptRank>(*this, index);
  return *ranks_[index];
}

// The first rank of a run.
void StreamEngine::lead(Communicator* world, const std::string& caption, const Next& next,
                        const Take& take) {
  if (hearing_) hearing_->begin_stream();
  encode_picture();
  const Tensor& prompt = encoded(caption);
  KeptRank& own = kept(0);
  if (!world) {
    draw({own.equipment(), 0, prompt, still_}, plan(), next, take);
    return;
  }
  Communicator ranks = world->group(first_ranks(this->ranks()), kStreamGroup);
  const StreamOrder order{.engine = number_,
                          .layout = settings_.layout,
                          .decodes_apart = settings_.decodes_apart,
                          .prompt_rows = caption == shared_caption_ ? 0 : prompt.view()[0],
                          .shows_anew = shown() && !shared_caption_};
  order.tell(*world);
  share(ranks, order, prompt, still_);
  shared_caption_ = caption;
  own.parts.place(placement(&ranks));
  const Part part{own.equipment(settings_.decodes_apart ? &ranks : nullptr), 0, prompt, still_,
                  &ranks};
  std::optional<PictureReceiver> receiver;
  if (const int decoder = plan().decoder(); decoder != 0)
    receiver.emplace(ranks, decoder, static_cast<int>(settings_.width),
                     static_cast<int>(settings_.height), take);
  try {
    draw(part, plan(), next, take);
  } catch (const std::exception& error) {
    ranks.abort("rank 0 failed: " + std::string(error.what()));
    throw;
  }
  if (receiver) receiver->finish();
}

// Another rank of a run.
void StreamEngine::follow(Communicator& world, const StreamOrder& order) {
  if (world.rank() >= this->ranks()) return;
  Communicator ranks = world.group(first_ranks(this->ranks()), kStreamGroup);
  KeptRank& own = kept(ranks.rank());
  const auto [channels, frames, height, width] = shape();
  if (order.prompt_rows > 0)
    own.prompt = Tensor(DType::kF32, {order.prompt_rows, own.parts.text_model().traits().columns});
  if (order.shows_anew)
    own.still = {.picture = Tensor(DType::kF32, {channels, 1, height, width}),
                 .video = Tensor(DType::kF32, {channels, traits().motion_frames, height, width})};
  CHECK(own.prompt, "rank", ranks.rank(), "has no prompt");
  share(ranks, order, own.prompt, own.still);
  own.parts.place(placement(&ranks));
  draw({own.equipment(settings_.decodes_apart ? &ranks : nullptr), ranks.rank(), own.prompt,
        own.still, &ranks},
       plan(), {}, {});
}

void StreamEngine::follow(const StreamOrder& order) { follow(*world_, order); }

// Gives the other ranks what the first one has encoded, where it is new.
void StreamEngine::share(Communicator& ranks, const StreamOrder& order, const TensorView& prompt,
                         const StillLatents& still) {
  Stream host = Stream::cpu(1);
  if (order.prompt_rows > 0) ranks.broadcast(host, kStreamPrompt, prompt, 0);
  if (!order.shows_anew) return;
  ranks.broadcast(host, kStreamPicture, still.picture, 0);
  ranks.broadcast(host, kStreamPicture, still.video, 0);
}

// The segments of one rank: segments that `next` gives, and pictures that `take` gets.
class StreamEngine::Host final : public JobHost {
 public:
  Host(StreamEngine& engine, const Part& part, const StreamPlanConfig& config, const Next& next,
       const Take& take)
      : engine_(engine),
        next_(next),
        take_(take),
        // Noise belongs to a frame, so that it does not depend on how the segments are cut.
        noise_(Rng::kPortable, engine.settings_.seed, with_frames(engine.shape(), kMostFrames)) {
    if (part.index != config.decoder()) return;
    decoder_.emplace(part.rank.stream, part.rank.arena, part.rank.parts(), engine.shape(),
                     engine.shown() ? *engine.shown() : StreamPicture(), part.still.video);
    if (part.index > 0 && part.ranks) sender_.emplace(*part.ranks, part.rank.stream);
  }
  NextSegment next(int64_t number, int64_t most) override {
    return next_ ? engine_.enter(number, next_(number)) : JobHost::next(number, most);
  }
  void signal(const Segment&, const TensorView& to) override {
    std::ranges::copy(engine_.signal_, to.as<float>());
  }
  void noise(const Segment& segment, const TensorView& to) override {
    noise_.fill(to, segment.frames.begin);
  }
  void take(const Segment& segment, const TensorView& latent) override {
    StreamPictures pictures = decoder_->decode(segment, latent);
    if (sender_)
      sender_->send(std::move(pictures));
    else
      take_(std::move(pictures));
  }
  void finish() {
    if (sender_) sender_->finish();
  }

 private:
  static std::array<int64_t, 4> with_frames(std::array<int64_t, 4> shape, int64_t frames) {
    shape[1] = frames;
    return shape;
  }
  StreamEngine& engine_;
  const Next& next_;
  const Take& take_;
  const NoiseField noise_;
  std::optional<SegmentDecoder> decoder_;
  std::optional<PictureSender> sender_;  // to the first rank, from another one
};

void StreamEngine::draw(const Part& part, const StreamPlanConfig& config, const Next& next,
                        const Take& take) {
  const auto on_own_device = [&](const TensorView& host) {
    Tensor out;
    if (!host) return out;
    out = Tensor(DType::kF32, host.shape(), part.rank.stream.device());
    copy(part.rank.stream, host, out);
    return out;
  };
  Host host(*this, part, config, next, take);
  const Tensor text = on_own_device(part.prompt), sink = on_own_device(part.still.picture),
               motion = on_own_device(part.still.video);
  const JobFacts facts = this->facts();
  StreamSource source = this->source();
  source.sink = sink;
  Job job{.facts = facts, .host = host, .prompts = {text.view()}};
  job.conditions.motion = motion;
  StreamDenoiser(part.rank, settings_.dtype).run(config, job, source);
  host.finish();
}

// Draws segments of no sound from a prompt and a picture that are not set.
void StreamEngine::draw_blank(const Rank& on, int rank, const std::string& caption, int segments,
                              const Take& take) {
  const auto [channels, frames, height, width] = shape();
  const auto blank = [&](std::initializer_list<int64_t> extents) {
    return Tensor(DType::kF32, extents, on.stream.device());
  };
  const Tensor prompt =
      blank({model_->prompt_rows(caption), on.parts().text_model().traits().columns});
  StillLatents still;
  if (shown()) {
    still.picture = blank({channels, 1, height, width});
    still.video = blank({channels, traits().motion_frames, height, width});
  }
  StreamPlanConfig config = plan();
  config.segments = segments;
  draw({on, rank, prompt, still}, config, {}, take);
}

// Adds what the encoders of the text and of the picture take, one after the other.
void StreamEngine::add_encoding(DryRun& dry, Components& parts, const std::string& caption,
                                ComponentBytes& to) const {
  const RankPlacement alone;
  EncoderSeams seams(alone);
  const auto working = [](const Footprint& weights, const Footprint& ran) {
    return std::max(weights.passing, ran.held + ran.passing + ran.arena);
  };
  const std::array<int64_t, 1> rows{model_->prompt_rows(caption)};
  const DryEncoding text =
      dry_encode_text(dry, {dry.stream(), dry.arena(), parts}, seams, rows, {});
  to.text_encoder += text.weights.held;
  to.encode_text += working(text.weights, text.ran);
  if (!shown()) return;
  const Footprint weights = dry.measure([&] { parts.vae_encoder(dry.stream()); });
  const Footprint ran = dry.measure([&] {
    still_latents(dry.stream(), dry.arena(), parts, settings_.picture, settings_.picture_fit,
                  shape());
  });
  to.picture_encoder += weights.held;
  to.encode_image += weights.held + working(weights, ran);
}

// Adds what a rank takes.
void StreamEngine::add_bytes(const std::string& caption, int rank, ComponentBytes& to) {
  const Device own = device(rank);
  DryRun dry(settings_.planned || own == Device() ? settings_.planned
                                                  : std::optional(device_traits(own)));
  Communicator world(std::make_shared<SilentTransport>(rank, ranks()));
  Communicator* const several = ranks() > 1 ? &world : nullptr;
  Components encoders = components({}, dry.device()),
             parts = components(placement(several), dry.device());
  if (rank == 0) add_encoding(dry, encoders, caption, to);
  std::unique_ptr<AudioEncoder> hears;
  const Footprint expert = dry.measure([&] {
    if (rank < settings_.layout.ranks()) parts.expert(dry.stream(), 0);
    if (rank == 0 && hearing_) hears = encoders.audio_encoder(dry.stream());
  });
  const StreamPlanConfig config = plan();
  const Footprint vae = dry.measure([&] {
    if (rank == config.decoder()) parts.vae(dry.stream());
  });
  // So many segments fill the window; one more may take the sink's place.
  const int segments = static_cast<int>(settings_.window_frames / settings_.segment_frames) +
                       config.swap_segment + 1;
  const Footprint ran = dry.measure([&] {
    Rank on(dry.stream(), dry.arena(), parts);
    if (settings_.decodes_apart) on.world = several;
    draw_blank(on, rank, caption, segments, [](StreamPictures&&) {});
  });
  to.experts[0] += expert.held;
  to.vae += vae.held;
  to.load_expert += std::max(expert.passing, vae.passing);
  to.scratch += ran.scratch;
  to.denoise +=
      StageBytes{.tensors = ran.held + ran.passing, .arena = ran.arena, .scratch = ran.scratch}
          .held(dry.device().has_value());
  if (hears) to.denoise += hearing_->bytes(dry, *hears, settings_.segment_frames);
}

std::vector<MemoryPlan> StreamEngine::memory(const std::string& caption) {
  std::vector<std::vector<int>> ranks_of;  // of each device
  std::vector<Device> devices;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool has_own = settings_.planned || world_;
    auto at = has_own ? devices.end() : std::ranges::find(devices, device(rank));
    const auto index = static_cast<size_t>(at - devices.begin());
    if (at == devices.end()) {
      devices.push_back(device(rank));
      ranks_of.emplace_back();
    }
    ranks_of[index].push_back(rank);
  }
  std::vector<MemoryPlan> plans;
  for (const std::vector<int>& ranks : ranks_of) {
    ComponentBytes parts{.experts = {0}, .decodes_meanwhile = true};
    for (const int rank : ranks) add_bytes(caption, rank, parts);
    plans.push_back(memory_under(Residency::kStaged, parts, available(ranks.front())));
  }
  return plans;
}

// The memory of a rank's device that the stream may take.
uint64_t StreamEngine::available(int rank) const {
  const std::vector<uint64_t>& limits = settings_.memory_limits;
  if (!limits.empty()) return limits[rank % limits.size()];
  return settings_.planned ? available_memory(*settings_.planned) : available_memory(device(rank));
}

std::vector<StreamSegmentTime> StreamEngine::simulated(const std::string& caption,
                                                       const Machine& machine, int segments) {
  std::vector<StreamSegmentTime> times;
  simulate(ranks(), machine.device, machine.link, [&](Communicator& world) {
    const int index = world.rank();
    KeptRank own(*this, Stream::cpu(1, Determinism::kFast, &metered_ops()), placement(&world));
    if (index < settings_.layout.ranks()) own.parts.expert(own.stream, 0);
    if (index == plan().decoder()) own.parts.vae(own.stream);
    const Rank rank = own.equipment(settings_.decodes_apart ? &world : nullptr);
    const double begun_s = simulated_seconds();
    draw_blank(rank, index, caption, segments, [&](StreamPictures&& drawn) {
      times.push_back(
          {.done_s = simulated_seconds() - begun_s,
           .decode_s = drawn.decode_s,
           .pictures = settings_.segment_frames * own.parts.vae_model().traits.temporal_factor});
    });
  });
  return times;
}

NextSegment StreamEngine::enter(int64_t number, StreamSignal signal) {
  // An interruption that comes from here on mutes the segment.
  const NextSegment next{.frames = signal.frames, .epoch = epoch_, .last = signal.last};
  const int64_t columns = signal_columns();
  if (columns == 0 || signal.frames <= 0) return next;
  if (hearing_ && !signal.sound.empty()) signal.rows = hearing_->rows(signal.sound);
  const int64_t rows = signal.frames / traits().patch[0];
  if (std::ssize(signal.rows) != rows * columns)
    refuse("the signal of block " + std::to_string(number) + ", in values,",
           std::ssize(signal.rows), std::to_string(rows) + " rows of " + std::to_string(columns));
  signal_ = std::move(signal.rows);
  return next;
}

std::optional<Error> follow_streams(const std::shared_ptr<const OpenModel>& model,
                                    const StreamSettings& settings, Communicator& world) {
  std::unique_ptr<StreamEngine> engine;
  int64_t number = 0;  // of the first rank's engine
  while (true) {
    const StreamOrder order = StreamOrder::heard(world);
    if (order.kind == StreamOrder::Kind::kFailed) return failure_heard(world, order);
    if (order.kind == StreamOrder::Kind::kEnd) return std::nullopt;
    if (order.engine != number) {
      engine.reset();
      StreamSettings split = settings;
      split.layout = order.layout;
      split.decodes_apart = order.decodes_apart;
      engine = std::make_unique<StreamEngine>(model, split, &world);
      number = order.engine;
    }
    engine->follow(order);
  }
}

}  // namespace weft
