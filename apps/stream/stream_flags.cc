#include "apps/stream/stream_flags.h"

#include <algorithm>
#include <cstdio>

#include "apps/command_line/placement.h"
#include "apps/command_line/printable.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/model_folder.h"
#include "engine/planning/machine.h"
#include "io/nearest.h"

namespace weft {
namespace {

// The split of a stream.
struct Split {
  Layout layout{};
  bool decodes_apart = false;

  int ranks() const { return layout.ranks() + decodes_apart; }
};

// Reads --layout, whose decode_rank is one of its ranks or one more, after them. nullopt: auto.
std::optional<Split> split_of(const Flags& flags, const LayoutLimits& limits) {
  constexpr std::string_view kDecode = "decode_rank=";
  const std::string text = layout_text(flags);
  if (chooses_layout(text) && text.find(kDecode) == std::string::npos) return std::nullopt;
  std::string axes;
  std::optional<int64_t> decoder;
  for (const std::string& part : weft::split(text, ',')) {
    if (part.starts_with(kDecode))
      decoder = std::strtoll(part.c_str() + kDecode.size(), nullptr, 10);
    else if (part != "auto")
      axes += (axes.empty() ? "" : ",") + part;
  }
  int64_t computing = 1;
  for (const std::string& part : weft::split(axes, ','))
    computing *= std::max<int64_t>(std::strtoll(part.c_str() + part.find('=') + 1, nullptr, 10), 1);
  computing = std::min<int64_t>(computing, 4096);
  Split out{.layout = axes.empty() ? Layout() : parse_layout(axes, computing, limits)};
  if (decoder && *decoder != computing && *decoder != computing - 1)
    throw Error(ErrorKind::kUsage, "the decode rank is " + std::to_string(*decoder) +
                                       "; legal for a stream of layout " + to_string(out.layout) +
                                       ": " + std::to_string(computing - 1) +
                                       ", which also computes, or " + std::to_string(computing) +
                                       ", a rank that only decodes");
  out.decodes_apart = decoder == computing;
  // In a plan, --ranks may be what the axes say (resolve_placement).
  const int64_t ranks = flags.integer("ranks").value_or(out.ranks());
  if (ranks != out.ranks() && !(flags.command() == kPlan && ranks == computing))
    throw Error(ErrorKind::kUsage, flags.label("ranks") + " is " + flags.text("ranks") +
                                       "; legal for the layout '" + text +
                                       "': " + std::to_string(out.ranks()));
  return out;
}

KeptRows kept_rows(const std::string& name) {
  return name == "fp8" ? KeptRows::kFp8 : name == "int8" ? KeptRows::kInt8 : KeptRows::kCompute;
}

void warn(const OpenModel& model) {
  const auto say = [](const std::string& note) {
    std::fprintf(stderr, "weft: warning: %s\n", printable(note).c_str());
  };
  for (const std::string& note : model.notes) say(note);
  const DefaultSettings& defaults = model.directory.defaults;
  if (!defaults.stream->needs_lora.empty() && model.loras.empty())
    say(defaults.name + " draws streams with the LoRA of " + defaults.stream->needs_lora +
        ", and --lora is not given; without it the pictures are poor");
}

// The job of the flags. The first process reads --image where the streams show a picture.
Request stream_request(const Flags& flags, const Ranks& ranks, const StreamDefaults& model) {
  GivenJob job = job_of(flags);
  if (model.picture) take_facts(job, ranks);
  return job.spec.request;
}

// The size that is given, or that of the model's streams with the shape of the picture.
std::array<int64_t, 2> size_of(const Request& given, const ModelDirectory& model) {
  const StreamDefaults& stream = *model.defaults.stream;
  const GivenPicture& picture = given.image;
  std::array<int64_t, 2> size{stream.width, stream.height};
  const auto [of_width, of_height] = stream_size_multiples(model);
  if (stream.picture && picture.width > 0 && model.pictures.clip_size)
    size = model.pictures.clip_size(picture.width, picture.height, stream.width * stream.height,
                                    std::max(of_width, of_height));
  return {given.width ? given.width : size[0], given.height ? given.height : size[1]};
}

// --first-block. Error(kUsage).
int64_t first_block_of(const Flags& flags, const StreamDefaults& model) {
  const int64_t first = flags.integer("first-block").value_or(model.segment_frames);
  if (first > model.segment_frames)
    throw Error(ErrorKind::kUsage, flags.label("first-block") + " is " + std::to_string(first) +
                                       "; legal for this model: 1 ... " +
                                       std::to_string(model.segment_frames));
  return first;
}

}  // namespace

std::shared_ptr<const OpenModel> stream_model(const Flags& flags, bool speaks) {
  auto model = open_model(flags);
  const ModelDirectory& directory = model->directory;
  const std::string& folder = directory.path;
  const int64_t columns = directory.expert(0).traits().signal_columns;
  const int64_t wanted =
      directory.vae_model->traits.temporal_factor * int64_t{Session::kSignalColumns};
  if (!directory.defaults.stream)
    throw Error(ErrorKind::kModel,
                flags.label("model") + " is '" + folder +
                    "', which draws no streams; legal: a model whose weft.json has \"stream\", as "
                    "models/pocket_avatar, or Wan2.2-S2V-14B");
  if (columns != wanted && !directory.chunks.any())
    throw Error(ErrorKind::kModel, flags.label("model") + " is '" + folder +
                                       "', which follows a signal of " + std::to_string(columns) +
                                       " columns; legal: " + std::to_string(wanted) +
                                       ", those of a sound");
  if (speaks && informative(flags)) warn(*model);
  return model;
}

std::string stream_caption(const StreamDefaults& model, const std::optional<std::string>& caption,
                           const std::optional<std::string>& mood, const CaptionLabels& labels) {
  constexpr std::string_view kField = "{mood}";
  std::string text = caption.value_or(model.caption);
  if (mood && std::ranges::find(model.moods, *mood) == model.moods.end())
    throw Error(ErrorKind::kUsage,
                labels.mood + " is '" + *mood + "'; legal for this model: " +
                    (model.moods.empty() ? "none, it has no moods" : listed(model.moods)));
  const size_t field = text.find(kField);
  if (mood && field == std::string::npos)
    throw Error(ErrorKind::kUsage, labels.mood + " is '" + *mood + "', but " + labels.caption +
                                       " is '" + text +
                                       "' and says nothing of where it belongs; legal: a caption "
                                       "with {mood}");
  const std::string shown = mood.value_or(model.moods.empty() ? "" : model.moods.front());
  if (field != std::string::npos) text.replace(field, kField.size(), shown);
  return text;
}

std::string caption_of(const Flags& flags, const StreamDefaults& model) {
  std::optional<std::string> caption, mood;
  if (flags.given("caption")) caption = text_argument(flags, "caption");
  if (flags.given("mood")) mood = flags.text("mood");
  return stream_caption(model, caption, mood, {flags.label("caption"), flags.label("mood")});
}

Ranks stream_threads(const Flags& flags) {
  Ranks ranks = ranks_of(flags);
  if (ranks.processes)
    throw Error(ErrorKind::kUsage,
                "the ranks are " + ranks.description +
                    ", and a stream is measured with ranks that are threads; legal: --ranks " +
                    std::to_string(ranks.count) + " in one process");
  return ranks;
}

StreamSettings stream_settings(const Flags& flags, Ranks& ranks, const OpenModel& model) {
  const DefaultSettings& defaults = model.directory.defaults;
  const StreamDefaults& stream = *defaults.stream;
  const TransformerTraits& traits = model.directory.expert(0).traits();
  const int64_t scale = model.directory.vae_model->traits.spatial_factor;
  const Request request = stream_request(flags, ranks, stream);
  const auto [width, height] = size_of(request, model.directory);
  StreamSettings settings{.width = width,
                          .height = height,
                          .steps = request.steps ? request.steps : stream.steps,
                          .solver = stream.solver,
                          .segment_frames = stream.segment_frames,
                          .window_frames = stream.window_frames,
                          .seed = seed_of(flags),
                          .picture = request.image,
                          .picture_fit = request.image_fit,
                          .kept = kept_rows(flags.text("kv-dtype")),
                          .dtype = compute_dtype(flags),
                          .vae_dtype = vae_dtype(flags),
                          .weights = weight_format(flags),
                          .text_weights = text_weight_format(flags)};
  const std::array<int64_t, 3> grid =
      traits.grid(traits.patch[0], settings.height / scale, settings.width / scale);
  const LayoutLimits limits{.heads = traits.heads,
                            .layers = traits.blocks,
                            .tokens = grid[1] * grid[2],
                            .method = {SplitRule::kStream, settings.steps},
                            .guided = false,
                            .whole_width = true};
  if (const std::optional<Split> split = split_of(flags, limits)) {
    settings.layout = split->layout;
    settings.decodes_apart = split->decodes_apart;
    if (ranks.processes && ranks.count != split->ranks())
      throw Error(ErrorKind::kUsage, flags.label("layout") + " is '" + layout_text(flags) +
                                         "', which has " + std::to_string(split->ranks()) +
                                         " ranks; legal for " + ranks.description +
                                         ": a layout of " + std::to_string(ranks.count));
    ranks.count = split->ranks();
  }
  settings.threads = threads_per_rank(flags, ranks);
  return settings;
}

void take_devices(const Flags& flags, const Ranks& ranks, StreamSettings& settings) {
  const uint64_t limit = flags.bytes("memory-limit");
  const auto sharing = static_cast<uint64_t>(ranks.processes ? ranks_per_device(flags, ranks) : 1);
  const auto take = [&](int rank) {
    settings.devices.push_back(device_of(flags, ranks, rank));
    const uint64_t free = available_memory(settings.devices.back());
    return (limit ? std::min(free, limit) : free) / sharing;
  };
  if (!ranks.processes)
    for (int rank = 0; rank < ranks.count; ++rank) settings.memory_limits.push_back(take(rank));
  else
    for (const std::string& share : gathered_texts(ranks, std::to_string(take(ranks.first))))
      settings.memory_limits.push_back(std::strtoull(share.c_str(), nullptr, 10));
}

PlannedStream planned_stream(const Flags& flags, Ranks ranks) {
  PlannedStream out{.model = stream_model(flags, ranks.speaks), .settings = {}};
  out.caption = caption_of(flags, *out.model->directory.defaults.stream);
  first_block_of(flags, *out.model->directory.defaults.stream);  // refuses it before loading
  out.settings = stream_settings(flags, ranks, *out.model);
  out.settings.seed = broadcast_from_root(ranks, out.settings.seed);
  take_devices(flags, ranks, out.settings);
  out.ranks = ranks.count;
  return out;
}

int lead_streams(const Ranks& ranks, PlannedStream stream,
                 const std::function<int(const PlannedStream&)>& work) {
  if (!ranks.processes) return work(stream);
  int code = 0;
  std::optional<Error> failed;
  on_ranks(ranks, [&](Communicator& world) {
    if (!ranks.speaks) {
      failed = follow_streams(stream.model, stream.settings, world);
      return;
    }
    stream.world = &world;
    try {
      code = work(stream);
    } catch (const Error& error) {
      failed = error;
    }
    try {
      dismiss_streams(world, failed ? &*failed : nullptr);
    } catch (const Error&) {  // the other ranks have failed, or this one has ended them
      if (failed) throw *failed;
      throw;
    }
  });
  if (failed) throw AgreedError(failed->kind(), failed->what());
  return code;
}

SessionConfig session_config(const Flags& flags, const StreamEngine& engine) {
  SessionConfig config;
  config.segment_frames = static_cast<int>(engine.settings().segment_frames);
  config.first_segment =
      static_cast<int>(first_block_of(flags, *engine.model().directory.defaults.stream));
  config.pictures = static_cast<int>(engine.model().directory.vae_model->traits.temporal_factor);
  config.first_pictures = 1;
  config.in_engine = engine.plan().under_way();
  config.seed = engine.settings().seed;
  config.live = flags.on("live");
  return config;
}

}  // namespace weft
