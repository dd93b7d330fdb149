// The choice of a layout: its axes, and the ranks of the stages that are no axes.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "engine/planning/forecast.h"

namespace weft {
namespace {

constexpr size_t kShown = 3;

double seconds_of_one(const Forecast& out) {
  double seconds = 0;
  for (const auto& [stage, took] : out.stages) seconds += took;
  return seconds;
}

// Takes layouts in the order of their times. A layout is simulated when it may be the next. The
// ranks of stages that are no axes are chosen after the axes, each stage for itself: no other time
// depends on them, but the memory does. So they do not multiply what is simulated.
class ByTime {
 public:
  ByTime(const PlannedJob& job, std::span<const Layout> layouts) : job_(job), forecast_(job) {
    for (const Layout& layout : layouts)
      left_.push_back({&layout, forecast_.at_least(staged(layout, choices_by_time(layout)[0]))});
  }
  // Takes the fastest layout that is left, or `only` that one, if it takes at most so many seconds.
  std::optional<Forecast> take(double within_s = INFINITY, const Layout* only = nullptr) {
    const auto rank = [&](const Candidate& one) {
      return std::tuple(only && one.given != only, one.forecast.seconds, one.simulated);
    };
    for (;;) {
      const auto least = std::ranges::min_element(left_, {}, rank);
      if (least == left_.end() || std::get<0>(rank(*least)) || least->forecast.seconds > within_s)
        return std::nullopt;
      Forecast& out = least->forecast;
      if (!least->simulated) {
        out = with_stages(*least->given);
        least->simulated = true;
        ++simulated;
      } else if (out.memory.empty()) {
        out = fitting(*least->given, std::move(out));  // which may be slower
      } else {
        Forecast taken = std::move(out);
        left_.erase(least);
        return taken;
      }
    }
  }
  int simulated = 0;

 private:
  struct Candidate {
    const Layout* given;  // one of `layouts`
    Forecast forecast;    // at least, unless it is simulated
    bool simulated = false;
  };
  using Staged = QuickForecast::StagedLayout;

  static Layout staged(Layout layout, const Staged& choice) {
    layout.take_stages(choice.replica);
    return layout;
  }
  std::vector<Staged> choices_by_time(const Layout& layout) {
    std::vector<Staged> choices = forecast_.stage_choices(layout);
    std::ranges::stable_sort(choices, {}, &Staged::seconds);
    return choices;
  }

  // The first choice of the stages' ranks with which the job is about as fast as with the fastest.
  Forecast with_stages(const Layout& layout) {
    const Staged best = choices_by_time(layout)[0];
    Forecast fastest = forecast_(staged(layout, best));
    const double more_s = (kStageGain - 1) * seconds_of_one(fastest);
    for (const Staged& choice : forecast_.stage_choices(layout)) {
      if (choice.replica == best.replica) break;
      if (choice.seconds <= best.seconds + more_s) return forecast_(staged(layout, choice));
    }
    return fastest;
  }

  // Adds the memory. Where it is too little, the fastest choice of the stages' ranks that fits
  // replaces this one. Stages that most ranks share take the least of each: where they do not fit,
  // none does.
  Forecast fitting(const Layout& layout, Forecast out) {
    out.memory = memory_of(job_, out.layout);
    const auto with = [&](const Staged& choice) {
      Forecast other = forecast_(staged(layout, choice));
      other.memory = memory_of(job_, other.layout);
      return other;
    };
    const Staged& widest = forecast_.stage_choices(layout).front();
    if (out.fits() || out.layout == staged(layout, widest)) return out;
    Forecast shared = with(widest);
    if (!shared.fits()) return shared.high_water() < out.high_water() ? shared : out;
    for (const Staged& choice : choices_by_time(layout)) {
      if (choice.replica == widest.replica) break;
      if (Forecast other = with(choice); other.fits()) return other;
    }
    return shared;
  }

  const PlannedJob& job_;
  QuickForecast forecast_;
  std::vector<Candidate> left_;
};

}  // namespace

LayoutChoice choose_layout(const PlannedJob& given, std::span<const Layout> layouts) {
  CHECK(!layouts.empty(), "no layouts");
  // Layouts are compared with all layers in memory. One that has to read them is the last resort.
  const MemoryMode mode = given.options.mode;
  PlannedJob job = given;
  if (mode != MemoryMode::kSpeed) job.options.mode = MemoryMode::kLayers;
  ByTime by_time(job, layouts);
  LayoutChoice choice;
  std::vector<Forecast>& best = choice.best;
  std::optional<Forecast> smallest;  // of those that do not fit
  while (best.size() < kShown) {
    std::optional<Forecast> one = by_time.take();
    if (!one) break;
    if (one->fits()) {
      best.push_back(*std::move(one));
      continue;
    }
    ++choice.too_large;
    if (!smallest || one->high_water() < smallest->high_water()) smallest = std::move(one);
  }
  if (best.empty()) best = {*smallest};
  // The first of `layouts` that is about as fast as the fastest one.
  const double alike = kAlike * best.front().seconds;
  for (const Layout& layout : layouts) {
    const auto chosen =
        std::ranges::find(best, layout.parts, [](const Forecast& one) { return one.layout.parts; });
    if (chosen != best.end() && chosen->seconds <= alike) {
      std::rotate(best.begin(), chosen, chosen + 1);
      break;
    }
    std::optional<Forecast> one = by_time.take(alike, &layout);
    if (!one || !one->fits()) continue;
    best.insert(best.begin(), *std::move(one));
    best.resize(kShown);
    break;
  }
  choice.simulated = by_time.simulated;
  Forecast& first = best.front();
  if (mode == MemoryMode::kMemory || (mode == MemoryMode::kAuto && !first.fits())) {
    std::vector<MemoryPlan> memory = memory_of(given, first.layout);
    PlannedJob chosen = given;  // with the layers in memory that its mode chooses
    chosen.options.resident_blocks = memory.front().resident_layers;
    first = QuickForecast(chosen)(first.layout);
    first.memory = std::move(memory);
  }
  return choice;
}

}  // namespace weft
