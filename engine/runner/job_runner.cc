#include "engine/runner/job_runner.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <thread>
#include <tuple>

#include "engine/job/speech_chunks.h"
#include "engine/planning/remembered.h"
#include "engine/runner/job_errors.h"
#include "engine/runner/result_files.h"
#include "io/media/segments.h"
#include "io/media_time.h"
#include "io/sound/sounded_sink.h"
#include "io/text/utf8.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

VideoSettings video_settings(const GeneratorOptions& options, const Request& request) {
  VideoSettings settings;
  settings.width = static_cast<int>(request.width);
  settings.height = static_cast<int>(request.height);
  const MediaRate rate = media_rate(request.fps);
  settings.fps_num = static_cast<int>(rate.num);
  settings.fps_den = static_cast<int>(rate.den);
  // The encoder's own choice of threads depends on the machine, and files depend on the threads.
  settings.threads = options.threads;
  settings.deterministic = options.determinism == Determinism::kFixed;
  return settings;
}

// Predicts the time that weights take which are copied or read for every forward.
UploadForecast upload_of(std::optional<double> given_gbs, const GeneratorOptions& options,
                         const OpenModel& model, const MemoryPlan& plan) {
  const std::vector<uint64_t>& streamed = plan.parts.streamed;
  const auto most = std::ranges::max_element(streamed);
  if (most == streamed.end() || *most == 0) return {};
  const auto bytes = static_cast<int64_t>(*most);
  if (plan.parts.streams_from_file) {
    const auto expert = most - streamed.begin();
    return read_forecast(given_gbs, bytes, model.directory.expert(static_cast<int>(expert)),
                         *model.expert_files[expert],
                         {.dtype = options.dtype, .weights = options.weights});
  }
  if (!plan.fits()) return upload_forecast(given_gbs, bytes, nullptr);
  Stream stream = stream_on(options.device);
  return upload_forecast(given_gbs, bytes, &stream);
}

// The sound of a movie. Where the first pictures of a video are not shown, it begins with what is
// heard at the next one.
Sound heard_in(const Generator& generator, const Request& request) {
  constexpr int kMovieRate = 48000;
  const std::unique_ptr<SoundSource> source = open_sound(request.audio.path, kMovieRate);
  Sound sound = read_all(*source);
  const double before =
      static_cast<double>(generator.model()->directory.chunks.dropped_frames) / request.fps;
  const auto unheard =
      std::min(sound.samples.size(), static_cast<size_t>(std::lround(before * kMovieRate)));
  sound.samples.erase(sound.samples.begin(),
                      sound.samples.begin() + static_cast<ptrdiff_t>(unheard));
  return sound;
}

// Refuses to keep the latents of a job that decodes them as they are done.
void check_kept_latents(const Request& request) {
  const std::string given = "--keep-latents is given, but ";
  if (request.method->in_segments())
    throw Error(ErrorKind::kUsage, given + "the method " + to_string(request.method) +
                                       " decodes latents as they are done and keeps none; legal "
                                       "with it: full, clips");
  if (request.audio.given())
    throw Error(ErrorKind::kUsage, given +
                                       "a video that follows a sound is decoded clip by clip, and "
                                       "its latents are not kept; legal without --audio");
}

GeneratorOptions metered(GeneratorOptions options, const Ops* ops) {
  options.ops = ops;
  return options;
}

}  // namespace

std::string Finished::output() const {
  return segments > 0 ? segment_path(drawing.path, 0) : drawing.path;
}

struct JobRunner::Work {
  const Drawings& drawings;
  const ResultListener& on_result;
  const FailureListener& on_failure;
  int pass;                      // numbers the passes, from which replicas take drawings
  std::vector<size_t> pending;   // the drawings of a pass; later passes leave out what is over
  std::vector<char> over;        // drawn or failed; each is written by its replica's root
  std::mutex mutex;              // guards the member below
  std::optional<size_t> failed;  // the drawing whose error ended the pass

  // The first rank that fails tells on which drawing. The others fail because of it.
  void fail(size_t index) {
    const std::lock_guard lock(mutex);
    if (!failed) failed = index;
  }
};

// Threads that are the ranks in one call of draw() after another, so that each keeps its generator.
// All ranks, or that of this process. They end when one of them fails.
class JobRunner::Team {
 public:
  explicit Team(JobRunner& runner)
      : ranks_here_(runner.ranks().processes ? 1 : runner.ranks().count) {
    host_ = std::thread([this, &runner] {
      try {
        on_ranks(runner.ranks(), [&](Communicator& world) { serve(runner, world); });
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      have_ended_ = shall_end_ = true;
      changed_.notify_all();
    });
  }
  ~Team() {
    end();
    host_.join();
  }

  // False where the ranks have ended.
  bool waits() {
    const std::lock_guard lock(mutex_);
    return !shall_end_;
  }
  // Returns when all ranks are done; throws what one of them threw.
  void run(Work& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    left_ = ranks_here_;
    ++turn_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_ == 0 || have_ended_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void serve(JobRunner& runner, Communicator& world) {
    try {
      runner.on_rank(world, [&](Generator& mine, const NextDrawing& next) {
        Layout layout = runner.layout_;
        for (uint64_t turn = 1; Work* work = await(turn); ++turn) {
          if (runner.layout_ != layout) mine.place(world, layout = runner.layout_);
          runner.run_jobs(*work, mine, next);
          const std::lock_guard lock(mutex_);
          if (--left_ == 0) changed_.notify_all();
        }
      });
    } catch (...) {
      end();
      throw;
    }
  }
  Work* await(uint64_t turn) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return shall_end_ || turn_ >= turn; });
    return shall_end_ ? nullptr : work_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    shall_end_ = true;
    changed_.notify_all();
  }

  const int ranks_here_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Work* work_ = nullptr;
  uint64_t turn_ = 0;  // counts the works
  int left_ = 0;       // ranks that are not done with the present work
  bool shall_end_ = false, have_ended_ = false;
  std::exception_ptr error_;
  std::thread host_;
};

JobRunner::JobRunner(RunnerSettings settings, std::shared_ptr<const OpenModel> model)
    : settings_(std::move(settings)),
      options_(metered(settings_.options, settings_.recorder->ops())),
      model_(std::move(model)),
      generator_(model_, options_) {
  tell_notes(*model_);
}

// Tells each note once, as variants of the model have most of them in common.
void JobRunner::tell_notes(const OpenModel& model) {
  for (const std::string& note : model.notes)
    if (told_.insert(note).second && ranks().speaks) settings_.reporter.inform("warning: " + note);
}

JobRunner::~JobRunner() = default;

void JobRunner::keep_ranks() { planned_ = planned_options(); }

void JobRunner::arrange(const std::vector<Drawing>& drawings) {
  layout_text_ = settings_.layout;  // not what was chosen for other drawings
  records_ = settings_.records;
  choice_.reset();
  const Drawing& first = drawings.front();
  LayoutLimits limits = generator_.layout_limits(first.spec.request);
  for (const Drawing& drawing : drawings) {
    tell_notes(*generator_.model_of(drawing.spec.request));
    const LayoutLimits other = generator_.layout_limits(drawing.spec.request);
    limits.tokens = std::min(limits.tokens, other.tokens);
    limits.guided &= other.guided;
    MethodLimit& method = limits.method;
    const bool each = other.method.rule == SplitRule::kPatchEach;
    if (ranks().count > 1 &&
        (method.rule != other.method.rule || (each && method.count != other.method.count)))
      throw Error(ErrorKind::kUsage,
                  "the jobs have different methods (--method), which need other layouts; legal for "
                  "several ranks: one method for all of a batch");
    // Several ranks split jobs of one method. One rank splits none, and holds all patches of each.
    if (ranks().count > 1)
      method.count = std::min(method.count, other.method.count);
    else if (each && method.patches() < other.method.count)
      method = other.method;
    if (drawing.spec.request.endless && drawings.size() > 1)
      throw Error(ErrorKind::kUsage,
                  "one of " + std::to_string(drawings.size()) +
                      " jobs is endless, so that those after it would never begin; legal: one "
                      "endless job alone");
  }
  limits.requests = static_cast<int64_t>(drawings.size());
  const std::string facts = forecast_facts(generator_, first.spec.request);
  layout_ = layout_for(first, facts, limits);
  std::tie(plan_, upload_) = remembered(plans_, facts + to_string(layout_), [&] {
    const MemoryPlan plan = generator_.planning_rank(layout_)->plan(first.spec.request);
    const auto model = generator_.model_of(first.spec.request);
    return std::pair(plan, upload_of(settings_.machine.given.host_gbs, options_, *model, plan));
  });
}

std::optional<Layout> JobRunner::given_layout(const LayoutLimits& limits) const {
  const std::string& asked = settings_.layout;
  if (chooses_layout(asked, parse_layouts(asked, ranks().count, limits))) return std::nullopt;
  return parse_layout(asked, ranks().count, limits);
}

// A chosen layout is kept as a given of the job. All ranks receive the same.
Layout JobRunner::layout_for(const Drawing& first, const std::string& facts,
                             const LayoutLimits& limits) {
  if (const std::optional<Layout> given = given_layout(limits)) return *given;
  const std::vector<Layout> layouts = parse_layouts(settings_.layout, ranks().count, limits);
  const std::string left =
      agreed_texts(ranks(), [&]() -> std::vector<std::string> {
        return {layout_left(settings_.resume, output_names(first.path), layouts)};
      }).front();
  const Layout layout = parse_layout(
      left.empty() ? simulated_layout(first, facts, limits, layouts) : left, ranks().count, limits);
  Layout recorded = layout;  // without what has a setting of its own
  if (settings_.fixed.text_ranks) recorded.text_ranks = 0;
  if (settings_.fixed.vae_ranks) recorded.vae_ranks = 0;
  if (settings_.fixed.decode_rank >= 0) recorded.decode_rank = -1;
  layout_text_ = to_string(layout);
  records_.given["layout"] = {{"value", to_string(recorded)}, {"origin", "auto"}};
  return layout;
}

std::string JobRunner::simulated_layout(const Drawing& first, const std::string& facts,
                                        const LayoutLimits& limits,
                                        std::span<const Layout> layouts) {
  const RankMachine& here = settings_.machine;
  if (!measured_) measured_ = measured_ranks(here, ranks(), *model_);
  return agreed_texts(ranks(),
                      [&]() -> std::vector<std::string> {
                        if (!machine_)
                          machine_ = simulated_machine(here, ranks(), *measured_, *model_);
                        std::string key = facts + std::to_string(limits.requests);
                        for (const Layout& layout : layouts) key += " " + to_string(layout);
                        choice_ = remembered(choices_, key, [&] {
                          PlannedJob job = planned_job(generator_, planned_options(),
                                                       first.spec.request, *machine_);
                          job.requests = limits.requests;
                          return choose_layout(job, layouts);
                        });
                        return {to_string(choice_->best.front().layout)};
                      })
      .front();
}

// The options of the ranks, with the memory that is free now as the limit.
GeneratorOptions JobRunner::planned_options() const {
  if (planned_) return *planned_;
  GeneratorOptions options = options_;
  const auto limited = [](uint64_t& limit, uint64_t free) {
    limit = limit ? std::min(limit, free) : free;
  };
  limited(options.memory_limit, available_memory(options.device));
  limited(options.host_memory_limit, available_memory());
  return options;
}

void JobRunner::warn_of_cut(const std::string& text, const PromptCut& cut) const {
  settings_.reporter.tell("warning: " + cut_warning(text, cut));
}

std::optional<PromptCut> JobRunner::checked_prompt(const Request& request) const {
  const std::optional<PromptCut> cut = generator_.prompt_cut(request.prompt);
  if (cut) warn_of_cut("prompt", *cut);
  for (const ScheduledPrompt& later : request.schedule)
    if (const auto later_cut = generator_.prompt_cut(later.prompt))
      warn_of_cut("prompt at " + shown(later.seconds) + " s", *later_cut);
  if (generator_.layout_limits(request).guided)
    if (const auto negative = generator_.prompt_cut(request.negative_prompt.value_or("")))
      warn_of_cut("negative prompt", *negative);
  return cut;
}

void JobRunner::draw(const Drawings& drawings, const ResultListener& on_result,
                     const FailureListener& on_failure) {
  const std::map<std::string, std::string> about{{"model", generator_.model_name()},
                                                 {"layout", to_string(layout_)},
                                                 {"weft", records_.version}};
  Work work{.drawings = drawings,
            .on_result = on_result,
            .on_failure = on_failure,
            .pass = 0,
            .pending = {},
            .over = std::vector<char>(drawings.all.size()),
            .mutex = {},
            .failed = {}};
  const auto pass = [&] {
    if (ranks().alone()) {
      const auto recorded = settings_.recorder->record(0);
      run_jobs(work, generator_, [taken = int64_t{0}](int) mutable { return taken++; });
    } else if (planned_) {
      run_on_team(work);
    } else {
      on_ranks(ranks(), [&](Communicator& world) {
        on_rank(world,
                [&](Generator& mine, const NextDrawing& next) { run_jobs(work, mine, next); });
      });
    }
  };
  settings_.recorder->around(about, [&] {
    do {
      work.failed.reset();
      work.pass = ++passes_;
      work.pending.clear();
      for (size_t i = 0; i < work.over.size(); ++i)
        if (!work.over[i]) work.pending.push_back(i);
      try {
        pass();
      } catch (...) {
        const Error error = current_error();
        if (!on_failure || !work.failed || error.kind() == ErrorKind::kStopped) throw;
        work.over[*work.failed] = true;
        if (ranks().speaks) on_failure(*work.failed, error);
        if (ranks().processes) throw;
      }
    } while (work.failed);
  });
}

bool JobRunner::fits_beside(uint64_t bytes) const {
  const bool have_begun = ranks().alone() || (team_ && team_->waits());
  return planned_ && have_begun && plan_.high_water + rank_share(bytes) <= plan_.available;
}

// The part of so many bytes on a device that each of its ranks leaves free.
uint64_t JobRunner::rank_share(uint64_t bytes) const {
  const auto ranks = static_cast<uint64_t>(options_.ranks_per_device);
  return (bytes + ranks - 1) / ranks;
}

void JobRunner::run_on_team(Work& work) {
  if (team_ && !team_->waits()) team_.reset();
  if (!team_) team_ = std::make_unique<Team>(*this);
  team_->run(work);
}

// Makes the generator of a rank and runs it as a part of its replica.
void JobRunner::on_rank(Communicator& world, const OnRank& run) {
  const auto recorded = settings_.recorder->record(world.rank());
  GeneratorOptions own = options_;
  CHECK(settings_.machine.device(ranks().first) == options_.device, "the machine of the ranks");
  own.device = settings_.machine.device(world.rank());
  Generator mine(model_, own, RankPlacement::of(world, layout_));
  const auto next = [&world](int pass) {
    const std::optional<int64_t> number = world.transport().take_number(pass);
    CHECK(number, "the transport has no counter");
    return *number;
  };
  run(mine, next);
  settings_.recorder->gather(world);
}

// Draws as a part of a replica until nothing is left.
void JobRunner::run_jobs(Work& work, Generator& mine, const NextDrawing& next) {
  const bool root = mine.placement().root();
  for (;;) {
    const int64_t number = mine.broadcast_from_root(root ? next(work.pass) : 0);
    if (number >= std::ssize(work.pending)) return;
    const size_t index = work.pending[number];
    try {
      run_job(work, mine, index);
    } catch (...) {
      const Error error = current_error();
      const bool ends_all = error.kind() == ErrorKind::kStopped || error.kind() == ErrorKind::kComm;
      if (!work.on_failure || !mine.placement().alone() || ends_all) {
        work.fail(index);
        throw;
      }
      work.on_failure(index, error);
    }
    if (root) work.over[index] = true;
  }
}

// All ranks of the replica learn whether each of them can begin the drawing, and the root has. A
// failure until then is that of the drawing alone.
void JobRunner::run_job(Work& work, Generator& mine, size_t index) {
  enum Verdict : int64_t { kComplete, kDraw, kFailed };
  const Drawing& drawing = work.drawings.all[index];
  const RankPlacement& placement = mine.placement();
  const bool root = placement.root();
  std::unique_ptr<Attempt> attempt;
  std::exception_ptr failed;
  bool is_complete = false;
  const auto on_root = [&](const std::function<void()>& act) {
    if (!root || failed || is_complete) return;
    try {
      act();
    } catch (...) {
      failed = std::current_exception();
      if (!work.on_failure) throw;
    }
  };
  on_root([&] {
    const bool may_be_there =
        work.drawings.several && !settings_.overwrite && !settings_.resume.never;
    is_complete = may_be_there && complete(mine, drawing);
  });
  if (work.on_failure && !placement.alone()) {
    const auto why = why_not_begun(placement, [&] { mine.check(drawing.spec.request); });
    if (!failed && !is_complete) failed = why;
  }
  on_root([&] { attempt = begin(work, mine, drawing); });
  const auto verdict = mine.broadcast_from_root(is_complete ? kComplete : failed ? kFailed : kDraw);
  if (verdict == kDraw) {
    if (root) return draw_one(work, mine, *attempt);
    settings_.recorder->restart();
    mine.run(drawing.spec.request, nullptr, joining(mine, work.drawings));
  } else if (root && verdict == kComplete) {
    settings_.reporter.tell(drawing.path + " is complete");
  } else if (root) {
    try {
      std::rethrow_exception(failed);
    } catch (...) {
      work.on_failure(index, current_error());
    }
  }
}

// The file of a drawing, whose names are claimed. Null where a job that was killed after its last
// frame has left a whole result.
std::unique_ptr<FrameSink> JobRunner::sink_of(const Generator& generator, const Drawing& drawing,
                                              const Checkpoint* left) const {
  const bool with_sidecar = settings_.with_sidecar;
  const Overwrite overwrite = settings_.overwrite ? Overwrite::kReplace : Overwrite::kRefuse;
  const std::optional<int64_t> length = settings_.segment_frames(drawing.spec.request.fps);
  const Request& request = drawing.spec.request;
  if (!length && left && (left->final() || request.method->in_segments()) && with_sidecar &&
      overwrite == Overwrite::kRefuse && fs::exists(drawing.path) && !fs::is_empty(drawing.path)) {
    drop_parts(drawing.path);
    return nullptr;
  }
  VideoSettings settings = video_settings(generator.options(), request);
  if (const auto* const queue = std::get_if<Queue>(&request.method)) {
    const VaeTraits& vae = generator.model()->directory.vae_model->traits;
    const SegmentFrames frames = queue->frames();
    settings.first_cut = vae.frames(frames.first(1));
    settings.cut = frames.segment * vae.temporal_factor;
  }
  if (left && left->written.contains("frames"))
    settings.kept_frames = std::stoll(left->written.at("frames"));
  if (with_sidecar) settings.metadata = embedded_metadata(records_, generator, drawing.spec);
  if (!length && request.audio.given() && file_ending(drawing.path) == ".mp4")
    return make_sounded_sink(drawing.path, settings, overwrite, heard_in(generator, request));
  if (!length) return make_sink(drawing.path, settings, overwrite);
  // An interrupted run of this job has made the segments that are there.
  return make_segmented_sink(drawing.path, settings, left ? Overwrite::kReplace : overwrite,
                             *length);
}

RunOptions JobRunner::joining(const Generator& mine, const Drawings& drawings) const {
  RunOptions options;
  options.cache_audit = settings_.cache_audit;
  options.text_cache = settings_.text_cache;
  options.stop = drawings.stop;
  if (mine.options().device == options_.device)  // of several processes, one alone holds it
    options.beside = ranks().processes ? drawings.beside : rank_share(drawings.beside);
  return options;
}

// The flags of the command, and the records of the jobs that a resume by a checkpoint's name draws.
std::map<std::string, std::string> JobRunner::notes(const Generator& generator,
                                                    std::span<const Drawing> drawings) const {
  Json given = settings_.kept_flags;
  if (layout_text_ != "auto") given["layout"] = layout_text_;
  Json jobs = Json::array();
  for (const auto& [spec, path] : drawings)
    jobs.push_back({{"request", request_record(generator, spec)},
                    {"output", path_text(fs::absolute(path).string())}});
  return {{"engine", records_.version}, {"given", given.dump()}, {"jobs", jobs.dump()}};
}

struct JobRunner::Attempt {
  const Drawing& drawing;
  const OutputNames names;
  std::string sidecar_before;
  RunOptions options;
  std::unique_ptr<FrameSink> sink;
  std::unique_ptr<DrawingWatch> watch{};  // null: nobody watches
};

// The file names are claimed before anything is computed, and nothing half-written stays.
std::unique_ptr<JobRunner::Attempt> JobRunner::begin(const Work& work, Generator& generator,
                                                     const Drawing& drawing) {
  const Request& request = drawing.spec.request;
  const Drawings& drawings = work.drawings;
  if (settings_.latents == Latents::kKeep) check_kept_latents(request);
  std::unique_ptr<Attempt> attempt(new Attempt{.drawing = drawing,
                                               .names = output_names(drawing.path),
                                               .sidecar_before = sidecar_path(drawing.path),
                                               .options = joining(generator, drawings),
                                               .sink = {}});
  const OutputNames& names = attempt->names;
  RunOptions& options = attempt->options;
  options.resume = left_by_earlier_run(settings_.resume, settings_.reporter, records_.version,
                                       generator.job_record(request), names);
  attempt->sink = sink_of(generator, drawing, options.resume.get());
  if (request.audio.given() && file_ending(drawing.path) != ".mp4")
    settings_.reporter.inform("warning: " + drawing.path +
                              " has no sound; a name that ends in .mp4 gives it one");
  const std::optional<double> seconds = settings_.checkpoint_seconds;
  if (keeps_latent(request)) options.latents_path = names.latents;
  if (seconds) options.checkpoint_path = names.checkpoint;
  options.checkpoint_seconds = seconds.value_or(0);
  options.notes =
      notes(generator, drawings.several ? std::span(drawings.all) : std::span(&drawing, 1));
  options.listener = drawings.listener;
  if (!drawings.listener && settings_.watch) {
    attempt->watch = settings_.watch(drawing, drawings.several);
    options.listener = attempt->watch.get();
  }
  return attempt;
}

void JobRunner::draw_one(const Work& work, Generator& generator, Attempt& attempt) {
  const Drawing& drawing = attempt.drawing;
  const Request& request = drawing.spec.request;
  const OutputNames& names = attempt.names;
  Finished done{.drawing = drawing,
                .result = {},
                .profile = nullptr,
                .upload = upload_,
                .cut = work.drawings.listener ? generator_.prompt_cut(request.prompt)
                                              : checked_prompt(request)};
  settings_.recorder->restart();
  try {
    done.result = generator.run(request, attempt.sink.get(), attempt.options);
  } catch (const Error& error) {
    const std::string advice = settings_.resume_advice ? settings_.resume_advice(names) : "";
    if (error.kind() == ErrorKind::kUsage || advice.empty()) throw;
    // Among several ranks, main() may print another rank's error instead of this one.
    const bool several = error.kind() == ErrorKind::kStopped && !ranks().alone();
    if (several) settings_.reporter.tell(advice);
    throw Error(error.kind(), std::string(error.what()) + (several ? "" : ". " + advice));
  }
  done.profile = settings_.recorder->result();
  if (const auto length = settings_.segment_frames(request.fps))
    done.segments = (done.result.frames + *length - 1) / *length;
  if (settings_.with_sidecar) {
    const Overwrite overwrite = settings_.overwrite ? Overwrite::kReplace : Overwrite::kRefuse;
    write_sidecar(names.sidecar, records_, generator, done, overwrite);
    if (attempt.sidecar_before != names.sidecar) fs::remove(attempt.sidecar_before);
  }
  drop_leftovers(names, settings_.latents);
  if (attempt.watch) attempt.watch->finish();
  work.on_result(done);
}

}  // namespace weft
