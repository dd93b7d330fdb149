#include "engine/memory/memory_mode.h"

#include <array>
#include <map>

#include "kernels/check.h"
#include "models/offload/layer_window.h"

namespace weft {

namespace {

constexpr std::array<std::string_view, 4> kModes = {"speed", "layers", "auto", "memory"};

// Plans of one job by the number of its layers in memory. Each needs a dry run.
class Plans {
 public:
  explicit Plans(const MemoryChoices& choices) : choices_(choices) {}

  // The plan with so many layers in memory.
  MemoryPlan under(Residency residency, int resident) {
    MemoryPlan plan =
        memory_under(residency, bytes(resident), choices_.available, choices_.host_available);
    plan.resident_layers = resident;
    return plan;
  }
  // The residency with the lowest high-water mark. Forwards between decoded frames need every
  // expert.
  MemoryPlan smallest(int resident) {
    return under(bytes(resident).decodes_meanwhile ? Residency::kStaged : Residency::kSequential,
                 resident);
  }
  // The fastest residency whose plan suits, else the smallest.
  MemoryPlan fastest(int resident, const std::function<bool(const MemoryPlan&)>& suits) {
    MemoryPlan last = smallest(resident);
    for (int k = 0; k < static_cast<int>(last.residency); ++k)
      if (MemoryPlan plan = under(static_cast<Residency>(k), resident); suits(plan)) return plan;
    return last;
  }

 private:
  const ComponentBytes& bytes(int resident) {
    const auto [found, fresh] = bytes_.try_emplace(resident);
    if (fresh) found->second = choices_.bytes(resident);
    return found->second;
  }

  const MemoryChoices& choices_;
  std::map<int, ComponentBytes> bytes_;
};

// The most layers below all for which `suits` is true; 0 where there is none. Memory grows with the
// layers, so the numbers that suit begin at the fewest.
int most_layers(int layers, const std::function<bool(int)>& suits) {
  int least = kWindowSlots, most = layers - 1;
  if (least > most || !suits(least)) return 0;
  while (least < most) {
    const int middle = (least + most + 1) / 2;
    (suits(middle) ? least : most) = suits(middle) ? middle : middle - 1;
  }
  return least;
}

std::string in_memory(const MemoryPlan& plan, int layers) {
  std::string text(to_string(plan.residency));
  if (plan.resident_layers > 0)
    text += ", " + std::to_string(plan.resident_layers) + " of " + std::to_string(layers) +
            " layers in memory";
  return text;
}

// "all resident would take 31.20 GiB of 22.00 GiB"
std::string too_large(const MemoryPlan& all) {
  if (all.fits_device())
    return "all resident would take " + format_bytes(all.host.total()) + " of the host's " +
           format_bytes(all.host_available);
  return "all resident would take " + format_bytes(all.high_water) + " of " +
         format_bytes(all.available);
}

}  // namespace

std::string_view to_string(MemoryMode mode) { return kModes[static_cast<size_t>(mode)]; }

MemoryPlan choose_plan(const MemoryChoices& choices) {
  const int layers = choices.layers, given = choices.resident;
  Plans plans(choices);
  const auto because = [&](MemoryPlan plan, const std::string& reason) {
    plan.reason = reason + ": " + in_memory(plan, layers);
    return plan;
  };
  if (choices.mode == MemoryMode::kSpeed) {
    CHECK(given == 0, "resident", given);
    return because(plans.under(Residency::kAll, 0), "as asked");
  }
  if (choices.mode == MemoryMode::kMemory) {
    const uint64_t least = plans.smallest(given                   ? given
                                          : layers > kWindowSlots ? kWindowSlots
                                                                  : 0)
                               .high_water;
    const auto suits = [&](int resident) { return plans.smallest(resident).high_water <= least; };
    const int resident = given ? given : suits(0) ? 0 : most_layers(layers, suits);
    const auto low = [&](const MemoryPlan& plan) { return plan.high_water <= least; };
    return because(plans.fastest(resident, low), "no way takes less than " + format_bytes(least));
  }
  const auto fitting = [&](int resident) { return plans.fastest(resident, &MemoryPlan::fits); };
  const MemoryPlan plan = fitting(given);
  const MemoryPlan all = plans.under(Residency::kAll, given);
  if (plan.residency == Residency::kAll) return because(plan, "it fits");
  if (plan.fits() || given > 0 || choices.mode == MemoryMode::kLayers)
    return because(plan, too_large(all));
  const int resident = most_layers(layers, [&](int k) { return fitting(k).fits_device(); });
  if (resident == 0 && layers <= kWindowSlots) return because(plan, too_large(all));
  return because(fitting(resident ? resident : kWindowSlots), too_large(all));
}

}  // namespace weft
