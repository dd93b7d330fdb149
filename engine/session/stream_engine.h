#pragma once
// StreamEngine: an endless stream of a model directory, from the signal of each segment to its
// pictures. It has one rank, groups of steps (step), stages of transformer blocks (layers), ranks
// that split tokens and heads (ulysses), and where asked for one after them that only decodes. The
// pictures are the same bits for all of these. The ranks are threads of this process, or processes,
// of which the first one draws streams, and the others follow it. Both exchange the same messages:
// an order before each run (stream_order.h), the prompt's rows and the picture's latents where they
// are new, what the plan says (parallel/schedule/stream_plan.h), and the pictures
// (picture_messages.h).
//
// An interruption begins a new epoch. Segments that were begun in an earlier one are computed to
// their end, so that the keys that later segments see are whole, and their pictures are muted: at
// most StreamPlanConfig::under_way() segments for each interruption.
//
// The weights are loaded by the first stream and serve all that follow, one at a time.
#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/conditions/stream_hearing.h"
#include "engine/job/given_picture.h"
#include "engine/memory/memory_plan.h"
#include "engine/parts/components.h"
#include "engine/planning/forecast.h"
#include "engine/sampling/noise.h"
#include "engine/schedules/stream_denoiser.h"
#include "engine/session/stream_order.h"
#include "engine/session/stream_picture.h"
#include "engine/session/stream_pictures.h"
#include "kernels/dry_run.h"

namespace weft {

struct StreamSettings {
  int64_t width = 0, height = 0;  // pixels
  int steps = 4;
  std::string solver{};  // empty: the model's
  // Latent frames of a segment, and that a segment sees.
  int64_t segment_frames = 3, window_frames = 12;
  uint64_t seed = 0;
  GivenPicture picture{};  // that the stream shows, for models whose streams do
  PictureFit picture_fit{};
  KeptRows kept = KeptRows::kCompute;  // keys and values of earlier segments
  int credits = 2;
  Layout layout{};  // its axes are step and layers
  bool decodes_apart = false;
  // Devices of the ranks, by turns; empty: the CPU. In a process that is a rank it is that rank's.
  std::vector<Device> devices{};
  // The most that a stream may take of the ranks' devices, by turns; empty: what is free.
  std::vector<uint64_t> memory_limits{};
  // A device of each rank, which need not be present, for memory() and simulated() alone.
  std::optional<DeviceTraits> planned{};
  DType dtype = DType::kF32, vae_dtype = DType::kF32;
  // Formats of the matrices of the transformer and of the text encoder.
  WeightFormat weights = WeightFormat::kCompute, text_weights = WeightFormat::kCompute;
  int threads = 0;  // of each rank; 0: all
};

// The next segment, as the caller gives it.
struct StreamSignal {
  int64_t frames = 0;         // latent frames; 0: a hollow segment, which keeps the pipeline moving
  std::vector<float> rows{};  // [frames, signal_columns], if the model follows a signal
  // The sound of the segment's pictures, in place of the rows, for a model that takes_sound().
  std::vector<float> sound{};
  bool last = false;  // no segment follows
};

// Width and height of a model's streams are multiples of these, in pixels.
std::array<int64_t, 2> stream_size_multiples(const ModelDirectory& model);

// When a segment was done, and how long decoding it took.
struct StreamSegmentTime {
  double done_s = 0, decode_s = 0;
  int64_t pictures = 0;
};

class StreamEngine {
 public:
  // Throws Error(kUsage) where a setting is not legal for the model. Loads no weights. The ranks
  // are the first ones of `world`, which are processes; null: they are threads that run() starts.
  StreamEngine(std::shared_ptr<const OpenModel> model, const StreamSettings& settings,
               Communicator* world = nullptr);
  ~StreamEngine();

  // A segment of so many latent frames without a sound.
  StreamSignal silence(int64_t frames) const;

  // Loads the weights, encodes the caption, and draws one segment that nobody sees.
  void warm_up(const std::string& caption);

  // Runs a stream until `next` says that no segment follows, and its last picture has been taken.
  // `next` is called on the first rank's thread with the number of the next segment that has
  // frames; it may wait, and then the pipeline stands still. `take` is called in order, on the same
  // thread where the first rank decodes, else on another one. Throws what they throw. Only one
  // stream runs at a time. Of several engines over one world, the newest that has run draws.
  using Next = std::function<StreamSignal(int64_t number)>;
  using Take = TakePictures;
  void run(const std::string& caption, const Next& next, const Take& take);
  // Takes part in a run of the first rank's, in another process.
  void follow(const StreamOrder& order);
  // Throws what has ended a run over processes, after which there are no others.
  void check_ranks() const {
    if (is_broken_) std::rethrow_exception(broken_);
  }

  // Mutes the segments that have begun. Any thread may call it.
  void interrupt() { ++epoch_; }
  uint32_t epoch() const { return epoch_; }

  StreamPlanConfig plan() const;  // of the stream, without its end
  int ranks() const { return settings_.layout.ranks() + settings_.decodes_apart; }
  Device device(int rank) const;
  // The plans of the devices, each for all of its ranks together, by dry runs. Loads nothing.
  std::vector<MemoryPlan> memory(const std::string& caption);
  // Draws so many segments of no sound on a simulated machine, up to their pictures on the rank
  // that decodes. Loads nothing.
  std::vector<StreamSegmentTime> simulated(const std::string& caption, const Machine& machine,
                                           int segments);
  size_t arena_high_water() const;  // of all ranks so far, and of hearing
  const StreamSettings& settings() const { return settings_; }
  const OpenModel& model() const { return *model_; }
  int64_t signal_columns() const { return traits().signal_columns; }
  // Its signal comes from a sound by the model's audio encoder.
  bool takes_sound() const { return model_->directory.chunks.any(); }

 private:
  struct KeptRank;  // what a rank keeps from one stream to the next
  const TransformerTraits& traits() const { return model_->directory.expert(0).traits(); }
  const StreamPicture* shown() const;  // null: streams show no picture
  void check_picture() const;
  Components components(RankPlacement placement,
                        const std::optional<DeviceTraits>& device = {}) const;
  RankPlacement placement(Communicator* ranks) const;
  Sampler sampler() const;
  std::array<int64_t, 4> shape() const;
  const Tensor& encoded(const std::string& caption);
  void encode_picture();
  JobFacts facts() const;
  StreamSource source() const;
  // A rank, and what it draws from, in host memory.
  struct Part {
    Rank rank;
    int index;  // among all ranks of the stream
    TensorView prompt;
    const StillLatents& still;
    Communicator* ranks = nullptr;  // where the decoder sends the pictures
  };
  // Without `next` the first rank draws segments of no sound.
  void draw(const Part& part, const StreamPlanConfig& config, const Next& next, const Take& take);
  class Host;
  void draw_blank(const Rank& on, int rank, const std::string& caption, int segments,
                  const Take& take);
  void add_encoding(DryRun& dry, Components& parts, const std::string& caption,
                    ComponentBytes& to) const;
  void add_bytes(const std::string& caption, int rank, ComponentBytes& to);
  uint64_t available(int rank) const;
  KeptRank& kept(int index);
  void lead(Communicator* world, const std::string& caption, const Next& next, const Take& take);
  void follow(Communicator& world, const StreamOrder& order);
  static void share(Communicator& ranks, const StreamOrder& order, const TensorView& prompt,
                    const StillLatents& still);
  NextSegment enter(int64_t number, StreamSignal signal);

  const std::shared_ptr<const OpenModel> model_;
  const StreamSettings settings_;
  Communicator* const world_;                     // of processes, or null
  const int64_t number_;                          // counts engines
  std::vector<std::unique_ptr<KeptRank>> ranks_;  // each is made by its thread
  std::atomic<uint32_t> epoch_ = 0;
  // The rest is used by the first rank's thread.
  std::map<std::string, Tensor> prompts_;      // encoded captions
  StillLatents still_;                         // of the picture, in host memory
  std::optional<std::string> shared_caption_;  // whose rows all ranks have
  std::optional<StreamHearing> hearing_;
  std::vector<float> signal_;  // of the segment that enters
  std::exception_ptr broken_;
  std::atomic<bool> is_broken_ = false;  // `broken_` is set
};

// Follows the engines that the first rank of `world` makes, with the same model and settings but
// for the split, until it dismisses the others. Returns the error that ended its work, if any.
std::optional<Error> follow_streams(const std::shared_ptr<const OpenModel>& model,
                                    const StreamSettings& settings, Communicator& world);

}  // namespace weft
