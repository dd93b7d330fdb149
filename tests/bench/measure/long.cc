#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/bench/bench_limits.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/inspect/memory.h"
#include "apps/model_folder.h"
#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "engine/planning/machine.h"
#include "io/media/frame_metrics.h"
#include "tests/bench/measure/cases.h"
#include "tests/bench/measure/drawn_video.h"
#include "tests/bench/measure/frame_drift.h"
#include "tests/bench/measure/measure.h"
#include "tests/bench/pocket/clip_reader.h"

namespace weft {
namespace {

using pocket::Colour, pocket::Shape, pocket::Motion, pocket::Ground;

constexpr int64_t kFrames = 129, kQuickFrames = 65, kStretch = 25;
constexpr int kSteps = 12, kQuickSteps = 9;

// The clips take turns. None grows, because a shape that did would leave the picture.
constexpr pocket::ClipSpec kClips[] = {
    {Colour::kRed, Shape::kBall, Motion::kCircling, Ground::kNavy},
    {Colour::kYellow, Shape::kSquare, Motion::kRight, Ground::kBrown},
    {Colour::kWhite, Shape::kTriangle, Motion::kStill, Ground::kGray},
    {Colour::kCyan, Shape::kBall, Motion::kUp, Ground::kBlack},
    {Colour::kOrange, Shape::kSquare, Motion::kCircling, Ground::kGray},
    {Colour::kGreen, Shape::kRing, Motion::kLeft, Ground::kBlack},
    {Colour::kPurple, Shape::kStar, Motion::kStill, Ground::kBrown}};
const pocket::ClipSpec& clip(int index) { return kClips[index % std::size(kClips)]; }

// The measures of the frames of one video.
struct Quality {
  std::optional<double> error, similarity;  // against full attention: mean squared error, SSIM
  Seams seams;
  ChannelStatistics drift;
  std::vector<pocket::ClipReading> readings;  // of every stretch
  std::vector<pocket::ClipScore> scores;
};

// The first frames of the segments of a queue but block 0, and the frames of a latent frame.
struct Borders {
  std::vector<int64_t> frames;
  int64_t latent_frames;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(std::max<size_t>(values.size(), 1));
}

double worst_overlap(const pocket::ClipReading& reading) {
  double worst = reading.views.empty() ? 0 : 1;
  for (const pocket::View& view : reading.views) worst = std::min(worst, view.overlap);
  return worst;
}

bool right(const pocket::ClipScore& score) {
  return score.colour && score.shape && score.motion && score.ground;
}

Quality quality_of(const std::vector<Frame>& frames, const std::vector<Frame>& reference,
                   const Borders& borders, const pocket::ClipSpec& asked) {
  Quality quality;
  if (!reference.empty()) {
    std::vector<double> errors, similarities;
    for (size_t i = 0; i < frames.size(); ++i) {
      errors.push_back(mean_squared_error(frames[i], reference[i]));
      similarities.push_back(ssim(frames[i], reference[i]));
    }
    quality.error = mean(errors);
    quality.similarity = mean(similarities);
  }
  quality.seams = seams_of(frame_changes(frames), borders.frames, borders.latent_frames);
  quality.drift = drift_of(frames, borders.frames);
  for (size_t at = 0; at + kStretch <= frames.size(); at += kStretch) {
    quality.readings.push_back(
        pocket::read_clip({frames.begin() + at, frames.begin() + at + kStretch}));
    quality.scores.push_back(pocket::score(
        quality.readings.back(), {asked.colour, asked.shape, asked.motion, asked.ground, {}}));
  }
  return quality;
}

// One line of the table.
struct Row {
  std::string name;
  Request request;  // resolved
  Layout layout;
  MemoryPlan plan{};                 // of the first rank
  std::vector<DrawnVideo> videos{};  // one per clip, without their frames
  std::vector<Quality> qualities{};  // likewise
  bool as_one_rank = true;           // the frames are those of one rank
  nlohmann::json curve{};            // clip 0 over time, in the first row of a method

  // The mean of a figure of every clip.
  template <class Figure>
  double average(Figure&& figure) const {
    std::vector<double> values;
    for (const Quality& quality : qualities) values.push_back(figure(quality));
    return mean(values);
  }
  template <class Figure>
  double typical(Figure&& figure) const {
    std::vector<double> values;
    for (const DrawnVideo& video : videos) values.push_back(figure(video));
    return median(values);
  }
  double frames_per_second() const {
    return static_cast<double>(request.frames) /
           typical([](const DrawnVideo& v) { return v.seconds; });
  }
  double bytes_per_frame() const {
    return static_cast<double>(videos.front().sent_bytes) / static_cast<double>(request.frames);
  }
  // Ranks are threads, which share their counters, so that several have the plan's figure.
  bool counted() const { return layout.ranks() == 1; }
  uint64_t peak_bytes() const { return counted() ? videos.front().peak_bytes : plan.high_water; }
  // The share of stretches in which the reader finds what was asked for.
  double share(bool (*found)(const pocket::ClipScore&)) const {
    std::vector<double> values;
    for (const Quality& quality : qualities)
      for (const pocket::ClipScore& score : quality.scores) values.push_back(found(score));
    return mean(values);
  }
};

class LongBench {
 public:
  LongBench(const Flags& flags, DType dtype)
      : flags_(flags),
        link_(given_rates(flags).link()),
        model_(std::make_shared<OpenModel>(flags.given("model") ? model_folder(flags)
                                                                : find_model("pocket"))) {
    options_.dtype = dtype;
    options_.device = device_of(flags);
    options_.threads = static_cast<int>(flags.integer("threads").value_or(1));
    options_.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;
    const bool quick = flags.on("quick");
    asked_ = sizes_of(flags);
    if (asked_.frames == 0) asked_.frames = quick ? kQuickFrames : kFrames;
    if (asked_.steps == 0) asked_.steps = quick ? kQuickSteps : kSteps;
  }

  // The rows of all cases on 1 to `most` ranks, those of a method one after the other, full
  // attention first. Every method has a row of one rank.
  std::vector<Row> rows(int most) const {
    std::vector<Row> rows;
    const std::vector<MeasuredCase> all = cases();
    for (auto one = all.begin(); one != all.end(); ++one) {
      const bool again = one != all.begin() && one->way.method == (one - 1)->way.method;
      const bool whole = one->axis.find('=') != std::string::npos;
      for (int ranks = 1; ranks <= most; ++ranks) {
        if (ranks == 1 ? again : whole && ranks < most) continue;
        Row row = row_of(*one, ranks);
        if (row.plan.fits())
          rows.push_back(std::move(row));
        else
          std::fprintf(stderr, "weft: %s is left out: it needs %s\n", row.name.c_str(),
                       format_bytes(row.plan.high_water).c_str());
      }
    }
    return rows;
  }
  // The borders of a queue; any other method is measured by those of the default queue.
  Borders borders(const Request& measured) const {
    const Request request =
        std::holds_alternative<Queue>(measured.method) ? measured : resolved(Queue());
    const Queue& queue = std::get<Queue>(request.method);
    const VaeTraits& vae = model_->directory.vae_model->traits;
    Borders borders{.frames = {}, .latent_frames = vae.temporal_factor};
    for (int block = 1; block < queue.segments(vae.latent_frames(request.frames)); ++block)
      borders.frames.push_back(vae.frames(queue.frames().first(block)));
    return borders;
  }

  DrawnVideo draw(const Row& row, int index) const {
    Request request = row.request;
    request.prompt = pocket::prompt_of(clip(index));
    request.seed = static_cast<uint64_t>(index);
    const bool slow = link_.latency_s > 0 || link_.bytes_per_s > 0;
    return draw_video(flags_, model_, options_, row.layout, request, slow ? &link_ : nullptr);
  }

  const GeneratorOptions& options() const { return options_; }
  const Link& link() const { return link_; }
  std::string model_name() const { return Generator(model_, options_).model_name(); }

 private:
  Request resolved(const Method& method) const {
    Request request = asked_;
    request.method = method;
    return Generator(model_, options_).resolve(request);
  }
  // The operands, those of a method one after the other, or: full attention, two queues that see as
  // many frames, and clips.
  std::vector<MeasuredCase> cases() const {
    const std::string label = "a case of weft_measure long";
    const std::vector<MeasuredCase> given = given_cases(flags_, label);
    for (const MeasuredCase& one : given)
      if (one.way.cache.kind != StepCacheKind::kNone)
        throw Error(
            ErrorKind::kUsage,
            label + " is '" + one.text + "', legal: a method; weft_measure truth has step caches");
    std::vector<MeasuredCase> cases = given;
    std::ranges::stable_sort(cases, {}, [&](const MeasuredCase& one) {
      const bool full = std::holds_alternative<Full>(one.way.method);
      const auto same = [&](const MeasuredCase& other) {
        return other.way.method == one.way.method;
      };
      return full ? -1 : std::ranges::find_if(given, same) - given.begin();
    });
    if (!cases.empty()) return cases;
    const Queue queue = std::get<Queue>(resolved(Queue()).method);
    Queue wide = queue;
    wide.context = *queue.context / 2;
    wide.segment = *queue.segment + 2 * (*queue.context - *wide.context);
    for (const Method& method : {Method(Full()), Method(queue), Method(wide), Method(Clips())})
      if (method != Method(wide) || (!flags_.on("quick") && wide != queue))
        cases.push_back({.text = to_string(method), .way = {method}, .axis = {}});
    return cases;
  }
  Row row_of(const MeasuredCase& one, int ranks) const {
    Row row{.name = to_string(one.way.method), .request = resolved(one.way.method), .layout = {}};
    if (std::holds_alternative<Queue>(row.request.method)) row.name = to_string(row.request.method);
    const bool clips = std::holds_alternative<Clips>(row.request.method);
    const Generator generator(model_, options_);
    if (ranks > 1 && !one.axis.empty()) {
      row.name += "@" + one.axis;
      row.layout = one.layout(ranks, generator, row.request);
    } else {
      row.layout = parse_layout(clips ? "clip=" + std::to_string(ranks) : "auto", ranks,
                                generator.layout_limits(row.request));
    }
    GeneratorOptions options = options_;
    options.ranks_per_device = ranks;
    row.plan = plan_of_rank(model_, options, row.layout, row.request);
    return row;
  }

  const Flags& flags_;
  const Link link_;  // between ranks
  const std::shared_ptr<const OpenModel> model_;
  GeneratorOptions options_;
  Request asked_;
};

// A video over time, for plot.py.
nlohmann::json curve_of(const std::vector<Frame>& frames, const Borders& borders, const Row& row,
                        int index) {
  const Quality& quality = row.qualities.back();
  nlohmann::json curve{{"name", row.name},
                       {"prompt", pocket::prompt_of(clip(index))},
                       {"changes", frame_changes(frames)},  // from the frame before
                       {"borders", borders.frames},
                       {"stretch_frames", kStretch}};
  for (const Frame& frame : frames) {
    const auto& [red, green, blue] = channel_statistics({&frame, 1}).mean;
    curve["brightness"].push_back((red + green + blue) / 3);
  }
  for (size_t i = 0; i < quality.scores.size(); ++i)
    curve["stretches"].push_back(
        {{"overlap", worst_overlap(quality.readings[i])}, {"right", right(quality.scores[i])}});
  return curve;
}

// Draws clip `index` with every row.
void draw_clip(const LongBench& bench, std::span<Row> rows, int index) {
  std::vector<Frame> reference;
  const Row* alone = nullptr;  // the row of the same method on one rank
  for (Row& row : rows) {
    DrawnVideo video = bench.draw(row, index);
    const std::vector<Frame> frames = std::move(video.frames);
    if (row.layout.ranks() == 1) alone = &row;
    if (&row == &rows.front() && std::holds_alternative<Full>(row.request.method))
      reference = frames;
    const Borders borders = bench.borders(row.request);
    if (alone != &row && video.hash == alone->videos.back().hash) {
      row.qualities.push_back(alone->qualities.back());
    } else {
      row.as_one_rank &= alone == &row;
      row.qualities.push_back(quality_of(frames, reference, borders, clip(index)));
    }
    video.frames.clear();
    row.videos.push_back(std::move(video));
    if (alone == &row && index == 0) row.curve = curve_of(frames, borders, row, index);
  }
}

struct Reader {
  const char* name;
  bool (*found)(const pocket::ClipScore&);
};
constexpr Reader kRead[] = {{"colour", [](const pocket::ClipScore& s) { return s.colour; }},
                            {"shape", [](const pocket::ClipScore& s) { return s.shape; }},
                            {"motion", [](const pocket::ClipScore& s) { return s.motion; }},
                            {"ground", [](const pocket::ClipScore& s) { return s.ground; }},
                            {"all", right}};

double overlap(const Row& row) {
  return row.average([](const Quality& quality) {
    std::vector<double> worst;
    for (const pocket::ClipReading& reading : quality.readings)
      worst.push_back(worst_overlap(reading));
    return mean(worst);
  });
}

// The drift of a channel of the mean clip: levels of its mean, or of its standard deviation.
double drift(const Row& row, std::array<double, 3> ChannelStatistics::*figure, int channel) {
  return row.average([&](const Quality& quality) { return (quality.drift.*figure)[channel]; });
}

double change(const Row& row, double Seams::*figure) {
  return row.average([&](const Quality& quality) { return quality.seams.*figure; });
}
std::optional<double> error_of(const Row& row) {
  if (!row.qualities.front().error) return std::nullopt;
  return row.average([](const Quality& quality) { return *quality.error; });
}
double similarity(const Row& row) {
  return row.average([](const Quality& quality) { return *quality.similarity; });
}
double first_frame(const Row& row) {
  return row.typical([](const DrawnVideo& video) { return video.first_frame_s; });
}

nlohmann::json to_json(const Row& row, double one, const LongBench& bench) {
  nlohmann::json object{{"bench", "long"},
                        {"model", bench.model_name()},
                        {"method", to_string(row.request.method)},
                        {"ranks", row.layout.ranks()},
                        {"layout", to_string(row.layout)},
                        {"threads", bench.options().threads},
                        {"dtype", to_string(bench.options().dtype)},
                        {"isa", cpu_isa()},
                        {"frames", row.request.frames},
                        {"steps", row.request.steps},
                        {"clips", row.videos.size()},
                        {"link_gbit", bench.link().bytes_per_s * 8e-9},  // 0: unlimited
                        {"link_ms", bench.link().latency_s * 1e3},
                        {"frames_per_second", row.frames_per_second()},
                        {"speed_up", row.frames_per_second() / one},
                        {"bytes_per_frame", row.bytes_per_frame()},
                        {"peak_bytes", row.peak_bytes()},
                        {"peak_from", row.counted() ? "counters" : "plan"},
                        {"first_frame_seconds", first_frame(row)},
                        {"same_frames_as_one_rank", row.as_one_rank},
                        {"framehash", row.videos.front().hash}};
  object["psnr"] = object["ssim"] = nullptr;
  if (const std::optional<double> error = error_of(row)) {
    if (*error > 0) object["psnr"] = psnr_db(*error);
    object["ssim"] = similarity(row);
  }
  object["change"] = {{"at_borders", change(row, &Seams::at_borders)},
                      {"at_latents", change(row, &Seams::at_latents)},
                      {"inside", change(row, &Seams::inside)}};
  for (int channel = 0; channel < 3; ++channel) {
    object["drift"]["mean"].push_back(drift(row, &ChannelStatistics::mean, channel));
    object["drift"]["deviation"].push_back(drift(row, &ChannelStatistics::deviation, channel));
  }
  object["read"]["stretches"] = row.qualities.front().scores.size();
  for (const Reader& read : kRead) object["read"][read.name] = row.share(read.found);
  object["read"]["overlap"] = overlap(row);
  if (!row.curve.is_null()) object["curve"] = row.curve;
  return object;
}

void print(const Row& row, double one) {
  std::printf("%-28s %5d %8.2f %7.2fx %9.1f %10s%c %8.2f", row.name.c_str(), row.layout.ranks(),
              row.frames_per_second(), row.frames_per_second() / one, row.bytes_per_frame() / 1024,
              format_bytes(row.peak_bytes()).c_str(), row.counted() ? ' ' : '*', first_frame(row));
  const std::optional<double> error = error_of(row);
  if (error && *error > 0)
    std::printf(" %6.2f %6.3f", psnr_db(*error), similarity(row));
  else
    std::printf(" %6s %6s", error ? "same" : "-", error ? "1" : "-");
  double mean_drift = 0, deviation_drift = 0;
  for (int channel = 0; channel < 3; ++channel) {
    mean_drift = std::max(mean_drift, drift(row, &ChannelStatistics::mean, channel));
    deviation_drift = std::max(deviation_drift, drift(row, &ChannelStatistics::deviation, channel));
  }
  std::printf(" %7.2f %7.2f %7.2f %6.2f %6.2f ", change(row, &Seams::at_borders),
              change(row, &Seams::at_latents), change(row, &Seams::inside), mean_drift,
              deviation_drift);
  for (const Reader& read : kRead) std::printf(" %5.0f%%", 100 * row.share(read.found));
  std::printf(" %7.2f%s\n", overlap(row),
              row.as_one_rank ? "" : "  not bit for bit as on one rank");
}

void print_all(std::span<const Row> rows, const LongBench& bench) {
  const Request& request = rows.front().request;
  std::printf("%s, %lld frames of %lldx%lld, %d steps, %s, threads per rank %d, clips %zu\n",
              printable(bench.model_name()).c_str(), static_cast<long long>(request.frames),
              static_cast<long long>(request.width), static_cast<long long>(request.height),
              request.steps, std::string(to_string(bench.options().dtype)).c_str(),
              bench.options().threads, rows.front().videos.size());
  std::printf(
      "%-28s %5s %8s %8s %9s %11s %8s %6s %6s %7s %7s %7s %6s %6s %6s %6s %6s %6s %6s %7s\n",
      "method", "ranks", "frames/s", "speed-up", "kB/frame", "peak", "first s", "PSNR", "SSIM",
      "border", "latent", "inside", "mean", "dev.", "colour", "shape", "motion", "ground", "all",
      "overlap");
}

void print_legend() {
  std::printf(
      "* by the memory plan, of one rank; border, latent, inside: mean change from one frame to "
      "the "
      "next, in levels, where blocks meet, where other latent frames meet, and all but the "
      "first;\nmean, dev.: the greatest distance of any "
      "block's mean and standard deviation of a channel from those of the first block;\ncolour "
      "... all: share of stretches of %lld frames that show it as asked; overlap: of the worst "
      "view of a stretch with an ideal shape\n",
      static_cast<long long>(kStretch));
}

}  // namespace

int measure_long(const Flags& flags, DType dtype, int repeat) {
  if (ranks_of(flags).processes)
    throw Error(ErrorKind::kUsage,
                "weft_measure long was started under mpirun; legal: one process, whose ranks "
                "(--ranks) are threads");
  const LongBench bench(flags, dtype);
  std::vector<Row> rows = bench.rows(static_cast<int>(flags.integer("ranks").value_or(2)));
  if (rows.empty())
    throw Error(ErrorKind::kMemory, "no method of weft_measure long fits in memory");
  for (int index = 0; index < repeat; ++index) draw_clip(bench, rows, index);
  if (!flags.on("json")) print_all(rows, bench);
  double one = 0;  // frames per second of the same method on one rank
  for (const Row& row : rows) {
    if (row.layout.ranks() == 1) one = row.frames_per_second();
    if (flags.on("json"))
      std::printf("%s\n", to_json(row, one, bench).dump().c_str());
    else
      print(row, one);
  }
  if (!flags.on("json")) print_legend();
  return 0;
}

}  // namespace weft
