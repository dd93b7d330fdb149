#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/bench/bench_limits.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "apps/model_folder.h"
#include "engine/planning/machine.h"
#include "io/media/frame_metrics.h"
#include "tests/bench/measure/cases.h"
#include "tests/bench/measure/drawn_video.h"
#include "tests/bench/measure/measure.h"
#include "tests/bench/pocket/clip_reader.h"

namespace weft {
namespace {

constexpr uint64_t kSeed = 11;  // of the prompts
constexpr int kRanks = 2, kSimulatedRanks = 8;
constexpr int kTimed = 3;  // timed runs of every case; the median counts

constexpr const char* kQuickCases[] = {"full@ulysses",         "distrifusion:patches=2@patch",
                                       "pcpp:patches=2@patch", "pipefusion:patches=4@layers",
                                       "teacache:0.1@ulysses", "clips@clip"};
constexpr const char* kCases[] = {"full@ulysses",
                                  "full@ring",
                                  "full@token_ring",
                                  "distrifusion:patches=2,warmup=1@patch",
                                  "distrifusion:patches=2,warmup=4@patch",
                                  "distrifusion:patches=2,warmup=4,code=fp8@patch",
                                  "distrifusion:patches=2,warmup=4,code=residual-fp8@patch",
                                  "distrifusion:patches=4,warmup=1@patch",
                                  "distrifusion:patches=4,warmup=4@patch",
                                  "distrifusion:patches=4,warmup=4,split=frames@patch",
                                  "distrifusion:patches=8,warmup=4@patch",
                                  "pcpp:patches=4,window=0.1,warmup=4@patch",
                                  "pcpp:patches=4,window=0.3,warmup=1@patch",
                                  "pcpp:patches=4,window=0.3,warmup=4@patch",
                                  "pcpp:patches=4,window=0.3,warmup=8@patch",
                                  "pcpp:patches=4,window=1,warmup=4@patch",
                                  "pcpp:patches=4,window=1,last_window=0.1,warmup=4@patch",
                                  "pcpp:patches=4,window=0.3,warmup=4,split=frames@patch",
                                  "pipefusion:patches=4,warmup=1@layers",
                                  "pipefusion:patches=8,warmup=1@layers",
                                  "pipefusion:patches=8,warmup=4@layers",
                                  "teacache:0.03@ulysses",
                                  "teacache:0.05@ulysses",
                                  "teacache:0.1@ulysses",
                                  "teacache:0.2@ulysses",
                                  "clips@clip"};
constexpr const char* kSimulatedCases[] = {
    "full@ulysses", "full@ring", "distrifusion:patches=8@patch", "pcpp:patches=8,window=0.3@patch",
    "pipefusion:patches=16@layers"};

// The cases that the command line names, else these. All of them have an axis.
std::vector<MeasuredCase> cases_of(const Flags& flags, std::span<const char* const> otherwise) {
  const std::string label = "a case of weft_measure truth";
  std::vector<MeasuredCase> cases = given_cases(flags, label);
  if (cases.empty())
    for (const char* text : otherwise) cases.push_back(parse_case(text, label));
  for (const MeasuredCase& one : cases)
    if (one.axis.empty())
      throw Error(ErrorKind::kUsage, label + " is '" + one.text +
                                         "', legal: METHOD@AXIS or CACHE@AXIS, as full@ulysses");
  return cases;
}

// The clips in which the reader finds what their prompts ask for.
struct Found {
  int clips = 0, colour = 0, shape = 0, motion = 0, ground = 0, all = 0, torn = 0;

  void add(const pocket::ClipScore& score) {
    ++clips;
    colour += score.colour;
    shape += score.shape;
    motion += score.motion;
    ground += score.ground;
    all += score.colour && score.shape && score.motion && score.ground;
    torn += score.torn;
  }
  double percent(int Found::*part) const { return 100.0 * (this->*part) / std::max(clips, 1); }
};
constexpr std::pair<const char*, int Found::*> kParts[] = {
    {"colour", &Found::colour}, {"shape", &Found::shape}, {"motion", &Found::motion},
    {"ground", &Found::ground}, {"all", &Found::all},     {"torn", &Found::torn}};

// All clips that one approximation drew.
struct TruthQuality {
  double error = 0, similarity = 0;  // means against full attention
  double skipped = 0;                // steps of a clip, in the mean
  Found trained, held_out;
  std::string first_hash;

  double psnr() const { return error > 0 ? psnr_db(error) : INFINITY; }
};

struct ClipResult {
  double error = 0, similarity = 0, skipped = 0;
  pocket::ClipScore score{};
  std::string hash;
};

struct Timed {
  std::vector<double> step_s{};  // one per run
  double bytes_per_step = 0;
  bool same = true;  // as the frames of one rank
};

struct TruthRow {
  MeasuredCase of;
  TruthQuality quality{};
  Timed fast{}, slow{};
};

class TruthBench {
 public:
  TruthBench(const Flags& flags, DType dtype, int clips)
      : flags_(flags),
        model_(std::make_shared<OpenModel>(flags.given("model") ? model_folder(flags)
                                                                : find_model("pocket"))),
        clips_(pocket::clips_in_turn(clips, kSeed)) {
    options_.dtype = dtype;
    options_.device = device_of(flags);
    options_.threads = 1;
  }

  // Draws all clips with full attention and with every approximation, several clips at a time.
  std::map<std::string, TruthQuality> qualities(const std::vector<MeasuredCase>& cases) const {
    std::map<std::string, Approximation> ways;
    for (const MeasuredCase& one : cases) ways[one.way.name()] = one.way;
    std::map<std::string, std::vector<ClipResult>> results;
    for (const auto& [name, way] : ways) results[name].resize(clips_.size());
    const std::string exact = Approximation{}.name();
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t clip = next++; clip < clips_.size(); clip = next++) {
        const DrawnVideo full = drawn({}, clip);
        for (const auto& [name, way] : ways)
          results.at(name)[clip] =
              compared(name == exact ? full : drawn(way, clip), full, clips_[clip]);
      }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < threads_per_rank(flags_); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    std::map<std::string, TruthQuality> qualities;
    for (const auto& [name, of] : results) qualities[name] = summary(of);
    return qualities;
  }

  // Draws the first clip on two ranks. `hash` is that of one rank.
  void time(const MeasuredCase& one, const Link* link, const std::string& hash,
            Timed& timed) const {
    const Generator generator(model_, options_);
    const Request request = generator.resolve(request_of(one.way, 0));
    const Layout layout = one.layout(kRanks, generator, request);
    const DrawnVideo video = draw_video(flags_, model_, options_, layout, request, link);
    timed.step_s.push_back(video.denoise_s / request.steps);
    timed.bytes_per_step = static_cast<double>(video.sent_bytes) / request.steps;
    timed.same &= video.hash == hash;
  }
  double time_alone() const { return drawn({}, 0).denoise_s / resolved().steps; }

  Request resolved() const { return Generator(model_, options_).resolve(request_of({}, 0)); }
  const GeneratorOptions& options() const { return options_; }
  std::string model_name() const { return Generator(model_, options_).model_name(); }
  size_t clips() const { return clips_.size(); }

 private:
  Request request_of(const Approximation& way, size_t clip) const {
    Request request = sizes_of(flags_);
    request.method = way.method;
    request.cache = way.cache;
    request.prompt = pocket::prompt_of(clips_[clip]);
    request.seed = clip;
    return request;
  }
  // On one rank, or on one for every patch where each patch has text rows of its own.
  DrawnVideo drawn(const Approximation& way, size_t clip) const {
    const Request request = request_of(way, clip);
    const Generator generator(model_, options_);
    const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
    Layout layout;
    if (!refuse(layout, limits).empty()) {
      layout[Axis::kPatch] = static_cast<int>(limits.method.patches());
      layout.text_ranks = 1;
      layout.decode_rank = 0;
    }
    return draw_video(flags_, model_, options_, layout, request);
  }
  static ClipResult compared(const DrawnVideo& video, const DrawnVideo& full,
                             const pocket::ClipSpec& asked) {
    ClipResult result{.skipped = static_cast<double>(video.skipped_steps), .hash = video.hash};
    const auto frames = static_cast<double>(full.frames.size());
    for (size_t i = 0; i < full.frames.size(); ++i) {
      result.error += mean_squared_error(video.frames[i], full.frames[i]) / frames;
      result.similarity += ssim(video.frames[i], full.frames[i]) / frames;
    }
    result.score = pocket::score(pocket::read_clip(video.frames),
                                 {asked.colour, asked.shape, asked.motion, asked.ground, {}});
    return result;
  }
  TruthQuality summary(const std::vector<ClipResult>& results) const {
    TruthQuality quality;
    quality.first_hash = results.front().hash;
    for (size_t clip = 0; clip < results.size(); ++clip) {
      const ClipResult& result = results[clip];
      quality.error += result.error / static_cast<double>(results.size());
      quality.similarity += result.similarity / static_cast<double>(results.size());
      quality.skipped += result.skipped / static_cast<double>(results.size());
      (pocket::held_out(clips_[clip]) ? quality.held_out : quality.trained).add(result.score);
    }
    return quality;
  }

  const Flags& flags_;
  const std::shared_ptr<const OpenModel> model_;
  const std::vector<pocket::ClipSpec> clips_;
  GeneratorOptions options_;
};

nlohmann::json to_json(const Found& found) {
  nlohmann::json object{{"clips", found.clips}};
  for (const auto& [name, part] : kParts) object[name] = found.*part;
  return object;
}

nlohmann::json to_json(const TruthRow& row, const TruthBench& bench, double alone_s) {
  nlohmann::json object{{"bench", "truth"},
                        {"model", bench.model_name()},
                        {"case", row.of.text},
                        {"ranks", kRanks},
                        {"steps", bench.resolved().steps},
                        {"dtype", to_string(bench.options().dtype)},
                        {"isa", cpu_isa()},
                        {"psnr", nullptr},
                        {"ssim", row.quality.similarity},
                        {"skipped_steps", row.quality.skipped},
                        {"trained", to_json(row.quality.trained)},
                        {"held_out", to_json(row.quality.held_out)},
                        {"bytes_per_step", row.fast.bytes_per_step},
                        {"one_rank_step_seconds", alone_s},
                        {"fast_step_seconds", median(row.fast.step_s)},
                        {"slow_step_seconds", median(row.slow.step_s)},
                        {"same_frames_as_one_rank", row.fast.same && row.slow.same}};
  if (row.quality.error > 0) object["psnr"] = row.quality.psnr();
  return object;
}

void print_header(const TruthBench& bench, const Link& slow) {
  std::printf(
      "%s, %zu clips, %d steps, %s; %d ranks of one thread; the slow link has %g Gbit/s and %g "
      "ms\n%-82s%-42s%-44s%s\n%-58s %7s %6s %7s",
      printable(bench.model_name()).c_str(), bench.clips(), bench.resolved().steps,
      std::string(to_string(bench.options().dtype)).c_str(), kRanks, slow.bytes_per_s * 8e-9,
      slow.latency_s * 1e3, "", "trained combinations", "held-out combinations",
      "      speed-up of a step", "case", "PSNR", "SSIM", "skipped");
  for (int group = 0; group < 2; ++group)
    for (const auto& [name, part] : kParts) std::printf(" %6s", name);
  std::printf(" %9s %8s %8s\n", "kB/step", "fast", "slow");
}

void print_truth(const TruthRow& row, double alone_s) {
  std::printf("%-58s", row.of.text.c_str());
  if (row.quality.error > 0)
    std::printf(" %7.2f %6.3f", row.quality.psnr(), row.quality.similarity);
  else
    std::printf(" %7s %6d", "same", 1);
  std::printf(" %7.1f", row.quality.skipped);
  for (const Found* found : {&row.quality.trained, &row.quality.held_out})
    for (const auto& [name, part] : kParts) std::printf(" %5.0f%%", found->percent(part));
  std::printf(" %9.1f %7.2fx %7.2fx%s\n", row.fast.bytes_per_step / 1024,
              alone_s / median(row.fast.step_s), alone_s / median(row.slow.step_s),
              row.fast.same && row.slow.same ? "" : "  not bit for bit as on one rank");
}

int measure_case(const Flags& flags, DType dtype, int clips) {
  const TruthBench bench(flags, dtype, clips);
  Link slow = given_rates(flags).link();
  if (!flags.given("link-gbit") && !flags.given("link-ms")) slow = {10e-3, 1e9 / 8};
  std::vector<TruthRow> rows;
  for (const MeasuredCase& one :
       flags.on("quick") ? cases_of(flags, kQuickCases) : cases_of(flags, kCases))
    rows.push_back({.of = one});
  std::vector<double> alone;
  const auto qualities = [&] {
    std::vector<MeasuredCase> cases;
    for (const TruthRow& row : rows) cases.push_back(row.of);
    return bench.qualities(cases);
  }();
  for (TruthRow& row : rows) row.quality = qualities.at(row.of.way.name());
  for (int round = 0; round < kTimed; ++round) {
    alone.push_back(bench.time_alone());
    for (TruthRow& row : rows) {
      bench.time(row.of, nullptr, row.quality.first_hash, row.fast);
      bench.time(row.of, &slow, row.quality.first_hash, row.slow);
    }
  }
  if (!flags.on("json")) print_header(bench, slow);
  for (const TruthRow& row : rows) {
    if (flags.on("json"))
      std::printf("%s\n", to_json(row, bench, median(alone)).dump().c_str());
    else
      print_truth(row, median(alone));
  }
  return 0;
}

// The links between the described devices.
struct NamedLink {
  const char* name;
  Link link;
};
constexpr NamedLink kLinks[] = {{"NVLink, 2400 Gbit/s", {5e-6, 300e9}},
                                {"PCIe 4, 200 Gbit/s", {20e-6, 25e9}},
                                {"Ethernet, 10 Gbit/s", {50e-6, 1.25e9}}};

void print_truth(const MeasuredCase& one, const NamedLink& link, const Forecast& out,
                 const PlannedJob& job, double alone_s, bool json) {
  const double step = out.stage("denoise") / job.request.steps;
  if (json) {
    const nlohmann::json object{
        {"bench", "truth"},
        {"simulated", true},
        {"model", folder_name(job.model->directory.path)},
        {"size", {job.request.frames, job.request.height, job.request.width}},
        {"case", one.text},
        {"layout", to_string(out.layout)},
        {"link", link.name},
        {"step_seconds", step},
        {"speed_up", alone_s / step},
        {"high_water_bytes", out.high_water()},
        {"fits", out.fits()}};
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%-54s %-22s %10.4g %8.2fx %12s%s\n", one.text.c_str(), link.name, step,
                alone_s / step, format_bytes(out.high_water()).c_str(),
                out.fits() ? "" : "  does not fit");
  }
}

int simulate_cases(const Flags& flags) {
  Ranks ranks{.count = kSimulatedRanks, .on_this_host = kSimulatedRanks};
  const auto model = std::make_shared<const OpenModel>(model_folder(flags));
  const SimulatedMachine machine = simulated_machine(rank_machine(flags, ranks), ranks, {}, *model);
  const GeneratorOptions options = planning_options(flags, ranks.count, machine.planned);
  const Generator generator(model, options);
  Request asked = sizes_of(flags);
  asked.prompt = "a planned prompt";
  if (!flags.on("json"))
    std::printf("%s, %d ranks of %s\n%-54s %-22s %10s %9s %12s\n",
                printable(generator.model_name()).c_str(), ranks.count,
                printable(machine.description).c_str(), "case", "link", "s/step", "speed-up",
                "high-water");
  std::vector<double> alone_s;  // a step of full attention on one rank, by link
  for (const NamedLink& link : kLinks) {
    asked.method = Full();
    PlannedJob job = planned_job(generator, options, generator.resolve(asked), machine);
    job.machine.link = link.link;
    alone_s.push_back(QuickForecast(job)({}).stage("denoise") / job.request.steps);
  }
  for (const MeasuredCase& one : cases_of(flags, kSimulatedCases)) {
    asked.method = one.way.method;
    asked.cache = one.way.cache;
    PlannedJob job = planned_job(generator, options, generator.resolve(asked), machine);
    const Layout layout = one.layout(ranks.count, generator, job.request);
    const std::vector<MemoryPlan> memory = memory_of(job, layout);
    for (const NamedLink& link : kLinks) {
      job.machine.link = link.link;
      Forecast out = QuickForecast(job)(layout);
      out.memory = memory;
      print_truth(one, link, out, job, alone_s[&link - kLinks], flags.on("json"));
    }
  }
  return 0;
}

}  // namespace

int measure_truth(const Flags& flags, DType dtype, int repeat) {
  if (ranks_of(flags).processes)
    throw Error(ErrorKind::kUsage,
                "weft_measure truth was started under mpirun; legal: one process, whose ranks are "
                "threads");
  return flags.on("simulate") ? simulate_cases(flags) : measure_case(flags, dtype, repeat);
}

}  // namespace weft
