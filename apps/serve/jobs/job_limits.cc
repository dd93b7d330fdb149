#include "apps/serve/jobs/job_limits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

#include "io/input_file.h"

namespace weft {
namespace {

[[noreturn]] void refuse_field(const std::string& where, const std::string& field,
                               const std::string& value, const std::string& legal,
                               const char* flag) {
  throw Error(ErrorKind::kUsage, where + ": " + field + " is " + value + ", legal: " + legal +
                                     ", which --" + flag + " of this server allows");
}

std::string cost_text(double cost) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", cost);
  return text;
}

// A setting that could be smaller: the part of it that is left, and the words that ask for it.
struct Change {
  double left = 0;
  std::string words{};
};

// The largest of the values, which descend, under which the job is cheap enough.
std::optional<Change> smaller(const Generator& generator, const Request& resolved, double limit,
                              const std::vector<int64_t>& values,
                              const std::function<Change(Request&, int64_t)>& apply) {
  for (const int64_t value : values) {
    Request changed = resolved;
    Change change = apply(changed, value);
    try {
      if (job_cost(generator, generator.resolve(changed)) <= limit) return change;
    } catch (const Error&) {  // the model does not draw it
    }
  }
  return std::nullopt;
}

std::vector<int64_t> descending(int64_t from, int64_t step, int64_t least) {
  std::vector<int64_t> values;
  for (int64_t value = from - step; value >= least; value -= step) values.push_back(value);
  return values;
}

std::vector<std::string> cheaper(const Generator& generator, const Request& resolved,
                                 double limit) {
  const ModelLimits& model = generator.limits();
  std::vector<Change> changes;
  const auto add = [&](const std::vector<int64_t>& values,
                       const std::function<Change(Request&, int64_t)>& apply) {
    if (auto change = smaller(generator, resolved, limit, values, apply))
      changes.push_back(std::move(*change));
  };
  const double per_step = job_cost(generator, resolved) / resolved.steps;
  if (const auto steps = static_cast<int64_t>(limit / per_step); steps >= 1)
    add({steps}, [&](Request& request, int64_t value) {
      request.steps = static_cast<int>(value);
      return Change{static_cast<double>(value) / resolved.steps, "steps " + std::to_string(value)};
    });
  add(descending(resolved.frames, model.frame_multiple, 1), [&](Request& request, int64_t value) {
    request.frames = value;
    return Change{static_cast<double>(value) / static_cast<double>(resolved.frames),
                  "num_frames " + std::to_string(value)};
  });
  const double ratio = static_cast<double>(resolved.height) / static_cast<double>(resolved.width);
  const int64_t unit = model.size_multiple;
  add(descending(resolved.width, unit, unit), [&](Request& request, int64_t width) {
    const auto rows = static_cast<int64_t>(
        std::floor(static_cast<double>(width) * ratio / static_cast<double>(unit)));
    request.width = width;
    request.height = std::max(rows, int64_t{1}) * unit;
    const double part = static_cast<double>(width) / static_cast<double>(resolved.width);
    return Change{part * part,
                  "size " + std::to_string(width) + "x" + std::to_string(request.height)};
  });
  std::ranges::stable_sort(changes, std::greater{}, &Change::left);
  std::vector<std::string> words;
  for (Change& change : changes) words.push_back(std::move(change.words));
  return words;
}

}  // namespace

JobLimits job_limits(const Flags& flags) {
  JobLimits limits;
  limits.steps = *flags.integer("max-steps");
  limits.frames = flags.given("max-frames") ? *flags.integer("max-frames") : 0;
  limits.pixels = *flags.integer("max-pixels");
  limits.picture_pixels = *flags.integer("max-picture-pixels");
  limits.prompt_bytes = flags.bytes("max-prompt-bytes");
  limits.cost = flags.given("max-job-cost") ? *flags.real("max-job-cost") : 0;
  return limits;
}

void check_prompts(const JobSpec& sent, const JobLimits& limits, const std::string& where) {
  const auto check = [&](const std::string& field, const std::string& text) {
    if (text.size() > limits.prompt_bytes)
      refuse_field(where, field, std::to_string(text.size()) + " bytes",
                   "at most " + std::to_string(limits.prompt_bytes) + " bytes", "max-prompt-bytes");
  };
  check("prompt", sent.request.prompt);
  check("negative_prompt", sent.request.negative_prompt.value_or(""));
  for (const ScheduledPrompt& later : sent.request.schedule) check("prompt_schedule", later.prompt);
}

void check_pictures(const JobSpec& saved, const JobLimits& limits, const std::string& where) {
  const Request& request = saved.request;
  std::vector<std::pair<std::string, const GivenPicture*>> sent{
      {"image", &request.image}, {"last_image", &request.last_image}};
  for (size_t i = 0; i < request.references.size(); ++i)
    sent.emplace_back("reference_" + std::to_string(i + 1), &request.references[i]);
  int64_t sum = 0;
  for (const auto& [field, picture] : sent) {
    if (picture->path.empty()) continue;
    const std::string bytes = read_input_file(picture->path, kMaxPictureBytes, ErrorKind::kMedia);
    const PictureHeader header = read_picture_header(picture->path, bytes);
    const int64_t pixels = int64_t{header.width} * header.height;
    sum += pixels;
    if (sum > limits.picture_pixels)
      refuse_field(
          where, field,
          std::to_string(header.width) + "x" + std::to_string(header.height) +
              (sum == pixels ? ""
                             : ", with the pictures before it " + std::to_string(sum) + " pixels"),
          "at most " + std::to_string(limits.picture_pixels) +
              " pixels of all pictures of a request",
          "max-picture-pixels");
  }
}

void check_work(const Generator& generator, const Request& resolved, const JobLimits& limits,
                const std::string& where) {
  const auto check = [&](const char* field, int64_t value, int64_t most, const char* flag) {
    if (most > 0 && value > most)
      refuse_field(where, field, std::to_string(value), "1 ... " + std::to_string(most), flag);
  };
  check("steps", resolved.steps, limits.steps, "max-steps");
  check("num_frames", resolved.frames, limits.frames, "max-frames");
  if (resolved.width * resolved.height > limits.pixels)
    refuse_field(where, "size",
                 std::to_string(resolved.width) + "x" + std::to_string(resolved.height),
                 "at most " + std::to_string(limits.pixels) + " pixels", "max-pixels");
  if (limits.cost == 0) return;
  const double cost = job_cost(generator, resolved);
  if (cost <= limits.cost) return;
  throw TooDear(
      where + " costs " + cost_text(cost) +
          " (steps times the square of the tokens), but --max-job-cost of this server is " +
          cost_text(limits.cost) + ".",
      cheaper(generator, resolved, limits.cost));
}

double job_cost(const Generator& generator, const Request& resolved) {
  const JobFacts facts = generator.facts(resolved);
  const std::array<int64_t, 3>& grid = facts.grid;
  const double tokens = static_cast<double>(grid[0] * grid[1] * grid[2] + facts.reference_rows);
  return static_cast<double>(resolved.steps) * facts.chunks * tokens * tokens;
}

}  // namespace weft
