#include "apps/worker/job_team.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/command_line/placement.h"
#include "apps/generate/expand.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/runner_flags.h"
#include "apps/serve/jobs/sent_files.h"
#include "engine/job/job_spec.h"
#include "engine/job/speech_chunks.h"
#include "engine/runner/job_errors.h"
#include "io/atomic_file.h"
#include "io/media/image.h"
#include "io/sha256.h"

namespace weft {
namespace {

struct SilentListener final : ProgressListener {
  void progress(const Progress&) override {}
};

std::string plain_label(const std::string& field) { return field; }

// An Error as a text that other processes can read: its kind, a space, its message.
std::string error_text(const Error& error) {
  return std::to_string(static_cast<int>(error.kind())) + " " + error.what();
}
[[noreturn]] void throw_agreed(const std::string& text) {
  const size_t space = text.find(' ');
  throw AgreedError(static_cast<ErrorKind>(std::stoi(text.substr(0, space))),
                    text.substr(space + 1));
}

}  // namespace

std::string result_text(const std::string& path, const std::string& framehash, int64_t frames,
                        const std::string& caption) {
  Json result{{"path", path},
              {"content_type", path.ends_with(".png") ? "image/png" : "video/mp4"},
              {"framehash", framehash},
              {"frames", frames},
              {"bytes", std::filesystem::file_size(path)},
              {"sha256", file_hash(path)}};
  if (!caption.empty()) result["prompt"] = caption;
  return result.dump();
}

std::string program_of(const Generator& generator) {
  return earlier_program_of(generator, {});  // each job states its own
}

std::string earlier_program_of(const Generator& generator, const std::vector<Lora>& loras) {
  JobSpec job;
  job.request.prompt = "-";
  job.request.loras = loras;
  const Request open = request_of(job, generator.defaults(), generator.limits(), plain_label);
  return job_hash(
      generator.job_record(generator.resolve(with_any_inputs(open, generator.model()->directory))));
}

JobTeam::JobTeam(const Flags& flags, std::shared_ptr<PromptExpander> expander,
                 std::shared_ptr<const OpenModel> model)
    : flags_(flags), expander_(std::move(expander)), runner_(job_runner(flags, std::move(model))) {
  const Ranks& ranks = runner_.ranks();
  if (ranks.processes) {
    if (const auto replicas = parts_along(Axis::kData, flags); replicas && *replicas > 1)
      throw AgreedError(ErrorKind::kUsage,
                        "the layout has data=" + std::to_string(*replicas) +
                            ", but the processes of " + ranks.description +
                            " draw one job together; legal: a layout without data. Teams side by "
                            "side are --replicas of a server that is one process");
    if (!ranks.alone()) world_.emplace(ranks.transport);
  }
  runner_.keep_ranks();
}

JobTeam::~JobTeam() {
  without_throwing([&] { end(); });
}

void JobTeam::end() {
  if (world_ && leads() && !broken_ && !std::exchange(ended_, true)) tell(Order::kEnd);
}

void JobTeam::tell(Order order) {
  Stream stream = Stream::cpu(1);
  for (int rank = 1; rank < world_->size(); ++rank)
    world_->send(stream, rank, {.topic = Topic::kJob}, TensorView(&order, DType::kI64, {1}));
}

JobTeam::Order JobTeam::await_order() {
  constexpr Tag kTag{.topic = Topic::kJob};
  Stream stream = Stream::cpu(1);
  Order order{};
  world_->await(0, kTag);
  world_->receive(stream, 0, kTag, TensorView(&order, DType::kI64, {1}));
  return order;
}

std::string JobTeam::draw(const TeamJob& job, ProgressListener& listener,
                          const std::atomic<bool>& stop) {
  if (world_) tell(Order::kDraw);
  return draw_together(job, listener, stop);
}

void JobTeam::follow() {
  SilentListener listener;
  const std::atomic<bool> never{false};  // the first process decides
  while (await_order() == Order::kDraw) {
    try {
      draw_together({}, listener, never);
    } catch (const AgreedError&) {  // the first process tells it
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kStopped) throw;
    }
  }
}

std::string JobTeam::draw_together(const TeamJob& given, ProgressListener& listener,
                                   const std::atomic<bool>& stop) {
  const std::vector<std::string> job =
      agreed_texts(runner_.ranks(), [&]() -> std::vector<std::string> {
        return {given.spec, given.output};
      });
  const Drawing drawing = agreed_drawing({job[0], job[1]}, stop);
  std::string result;
  std::optional<Error> failed;
  try {
    runner_.draw(
        {.all = {drawing}, .listener = &listener, .stop = &stop, .beside = kept_beside(stop)},
        [&](const Finished& done) {
          const JobSpec& spec = done.drawing.spec;
          result = result_text(done.output(), done.result.framehash, done.result.frames,
                               spec.expanded_from.empty() ? "" : spec.request.prompt);
        },
        [&](size_t, const Error& error) { failed = error; });
  } catch (const Error& error) {
    broken_ = world_ && error.kind() != ErrorKind::kStopped;
    throw;
  }
  if (failed) throw Error(*failed);
  return result;
}

// Every process reads the job and arranges for it. All of them throw what the first of them finds.
Drawing JobTeam::agreed_drawing(const TeamJob& job, const std::atomic<bool>& stop) {
  Drawing drawing{.spec = {}, .path = job.output};
  std::string wrong;
  try {
    GivenJob taken{.spec = {}, .label = plain_label, .model = {}};
    nlohmann::json fields = parse_json(job.spec, "the job");
    taken.expand = take_expand_prompt(fields, taken.label);
    read_named_job(fields, taken.label, taken.spec);
    take_facts(taken, runner_.ranks());
    if (taken.expand.value_or(false)) expand(taken.spec, stop);
    drawing.spec = taken.spec;
    drawing.spec.request = runner_.generator().resolve(taken.spec.request);
    runner_.arrange({drawing});
  } catch (...) {
    const Error error = current_error();
    if (error.kind() == ErrorKind::kComm || !world_) throw;
    wrong = error_text(error);
  }
  if (world_)
    for (const std::string& text : gathered_texts(runner_.ranks(), wrong))
      if (!text.empty()) throw_agreed(text);
  return drawing;
}

// The same seed gives the same caption, so that another attempt goes on where one was stopped.
void JobTeam::expand(JobSpec& spec, const std::atomic<bool>& stop) {
  if (!expander_)
    throw Error(ErrorKind::kUsage,
                "expand_prompt is true, but who draws it was started without --expand-prompt");
  JobSpec* const job = &spec;
  write_captions({flags_, runner_.ranks(), *expander_, spec.request.seed, stop}, {&job, 1});
}

// The language model stays for later captions where the job that was arranged fits beside it.
// Returns its bytes.
uint64_t JobTeam::kept_beside(const std::atomic<bool>& stop) {
  const uint64_t held = expander_ ? expander_->held_bytes() : 0;
  if (held == 0 || runner_.fits_beside(held)) return held;
  expander_->release(&stop);
  return expander_->held_bytes();
}

void JobTeam::warm_up(const std::atomic<bool>& stop) {
  const ScratchFolder scratch;
  JobSpec job{.id = "warm_up", .request = any_request(scratch), .seeded = true};
  job.request =
      request_of(job, runner_.generator().defaults(), runner_.generator().limits(), plain_label);
  take_facts(job, plain_label);
  job.request = runner_.generator().resolve(job.request);
  SilentListener listener;
  draw({to_json(job).dump(), scratch.file(job.request.frames == 1 ? "a.png" : "a.mp4")}, listener,
       stop);
}

// A grey picture for each that the model needs, and silence for a model that follows a sound.
Request JobTeam::any_request(const ScratchFolder& scratch) const {
  const Generator& generator = runner_.generator();
  const ModelDirectory& model = generator.model()->directory;
  Request request;
  request.prompt = "a ball";
  request.frames = 1;
  request.steps = 1;
  if (model.chunks.any()) {
    request.audio.path = scratch.file("silence.wav");
    write_file(request.audio.path, silent_wav());
  }
  const int pictures = model.pictures.least;
  const std::string path = scratch.file("grey.png");
  if (pictures == 0) return request;
  constexpr int kSide = 64;
  Frame grey(kSide, kSide);
  std::ranges::fill(grey.rgb, uint8_t{128});
  write_png(path, grey, {}, Overwrite::kReplace);
  request.image.path = path;
  if (pictures < 2) return request;
  request.last_image.path = path;
  request.frames = 1 + generator.limits().frame_multiple;
  return request;
}

}  // namespace weft
