#include "engine/memory/memory_advice.h"

#include <algorithm>

namespace weft {
namespace {

// Suggests the largest --resident-layers that fits. Where host memory is short, suggests the
// smallest one instead that leaves the host enough. Empty where no number fits.
std::string fitting_layers(const RefusedJob& job, const PlanOf& plan_of) {
  constexpr int kLeast = 2;
  const bool fits_host = job.plan.fits_host();
  const int last = fits_host ? job.layers - 1 : job.layers;
  for (int i = kLeast; i <= last; ++i) {
    GeneratorOptions other = job.options;
    other.mode = MemoryMode::kLayers;
    other.resident_blocks = fits_host ? last + kLeast - i : i;
    const MemoryPlan changed = plan_of(job.request, other, job.layout, job.rank);
    const std::string host =
        fits_host ? "" : " and " + format_bytes(changed.host.total()) + " of the host";
    if (changed.fits())
      return "--resident-layers " + std::to_string(other.resident_blocks) + " (" +
             format_bytes(changed.high_water) + host + ")";
  }
  return {};
}

// "--layout tensor=4 (1.20 GiB)" and "layers=4 (1.31 GiB)": at most two layouts that fit. Those
// that split the weights most are tried.
std::vector<std::string> fitting_layouts(const RefusedJob& job, const PlanOf& plan_of) {
  constexpr size_t kMost = 8;
  std::vector<Layout> layouts = job.layouts;
  std::erase_if(layouts, [&](Layout& other) {
    other.take_stages(job.layout);
    return other[Axis::kData] > 1 || other == job.layout;
  });
  std::ranges::stable_sort(layouts, std::greater(), [](const Layout& other) {
    return other[Axis::kTensor] * other[Axis::kLayers];
  });
  layouts.resize(std::min(layouts.size(), kMost));
  std::vector<std::string> offers;
  for (const Layout& layout : layouts) {
    uint64_t most = 0;
    bool fits = true;
    for (int rank = 0; fits && rank < layout.ranks(); ++rank) {
      const MemoryPlan plan = plan_of(job.request, job.options, layout, rank);
      most = std::max(most, plan.high_water);
      fits = plan.fits();
    }
    if (!fits) continue;
    offers.push_back((offers.empty() ? "--layout " : "") + to_string(layout) + " (" +
                     format_bytes(most) + ")");
    if (offers.size() == 2) break;
  }
  return offers;
}

// "--mode memory (1.20 GiB)": a mode that may do more to fit, and does, or "".
std::string fitting_mode(const RefusedJob& job, const PlanOf& plan_of) {
  const MemoryMode own = job.options.mode;
  std::vector<MemoryMode> modes;
  if (own == MemoryMode::kSpeed) modes.push_back(MemoryMode::kAuto);
  if (own != MemoryMode::kLayers &&
      (own != MemoryMode::kMemory || job.options.weights == WeightFormat::kCompute))
    modes.push_back(MemoryMode::kMemory);
  for (const MemoryMode mode : modes) {
    GeneratorOptions other = job.options;
    other.mode = mode;
    if (mode == MemoryMode::kAuto)
      other.resident_blocks = 0;
    else
      other.weights = smallest_weights(other, job.layout);
    const MemoryPlan plan = plan_of(job.request, other, job.layout, job.rank);
    if (plan.fits())
      return "--mode " + std::string(to_string(mode)) + " (" + format_bytes(plan.high_water) + ")";
  }
  return {};
}

}  // namespace

std::string shortage(const MemoryPlan& plan) {
  if (!plan.fits_host())
    return "the job needs " + format_bytes(plan.host.total()) +
           " of host memory beside the device's (pinned: weights of streamed layers " +
           format_bytes(plan.host.streamed) + ", copies " + format_bytes(plan.host.copies) +
           "; latents and frames " + format_bytes(plan.host.buffers) + "), " +
           format_bytes(plan.host_available) + " are available. Try ";
  return "the job needs " + format_bytes(plan.high_water) + " (weights " +
         format_bytes(plan.weights) + ", encode_text " + format_bytes(plan.parts.encode_text) +
         ", denoise " + format_bytes(plan.parts.denoise) + ", decode " +
         format_bytes(plan.parts.decode) + "), " + format_bytes(plan.available) +
         " are available. Try ";
}

WeightFormat smallest_weights(const GeneratorOptions& options, const Layout& layout) {
  const bool of_cpu = !options.planned && options.device.kind == Device::Kind::kCpu;
  const bool open = !options.weights_fixed && options.weights == WeightFormat::kCompute;
  if (!open || layout[Axis::kTensor] > 1 || (of_cpu && !cpu_has_int8())) return options.weights;
  return WeightFormat::kInt8;
}

std::string refusal(const RefusedJob& job, const PlanOf& plan_of) {
  const Request& request = job.request;
  const ModelLimits& limits = job.limits;
  constexpr size_t kMost = 3, kLeast = 2;
  const std::vector<std::string> layouts = fitting_layouts(job, plan_of);
  std::vector<std::string> advice{layouts.empty() ? "" : layouts[0], fitting_mode(job, plan_of)};
  if (job.options.mode == MemoryMode::kLayers || job.options.resident_blocks > 0)
    advice.push_back(fitting_layers(job, plan_of));
  std::erase(advice, "");
  const auto offer = [&](const Request& changed, const std::string& flag) {
    const MemoryPlan smaller = plan_of(changed, job.options, job.layout, job.rank);
    if (smaller.fits()) advice.push_back(flag + " (" + format_bytes(smaller.high_water) + ")");
    return smaller.fits();
  };
  Request fewer = request;  // the longest clip that fits
  for (int64_t k = (request.frames - 1) / limits.frame_multiple; k > 0 && advice.size() < kMost;) {
    k = k * 3 / 4;
    fewer.frames = k * limits.frame_multiple + 1;
    if (offer(fewer, "--num-frames " + std::to_string(fewer.frames))) break;
  }
  Request smaller = request;  // the largest picture of about this shape that fits
  for (int eighths = 7; eighths > 0 && advice.size() < kMost; --eighths) {
    const auto scaled = [&](int64_t size) {
      return std::max<int64_t>(size * eighths / 8 / limits.size_multiple, 1) * limits.size_multiple;
    };
    smaller.width = scaled(request.width);
    smaller.height = scaled(request.height);
    if (smaller.width == request.width && smaller.height == request.height) continue;
    if (offer(smaller,
              "--size " + std::to_string(smaller.width) + "x" + std::to_string(smaller.height))) {
      break;
    }
  }
  if (advice.size() < kLeast && job.options.dtype == DType::kF32) advice.push_back("--dtype bf16");
  if (advice.size() < kLeast) advice.push_back("a machine with more memory free");
  if (advice.size() < kLeast)
    advice.push_back(job.plan.fits_host() ? "a higher --memory-limit"
                                          : "a higher --host-memory-limit");
  if (layouts.size() > 1 && advice.size() < kMost) advice.insert(advice.begin() + 1, layouts[1]);
  std::string text = shortage(job.plan) + advice[0];
  for (size_t i = 1; i < std::min(advice.size(), kMost); ++i) text += " or " + advice[i];
  return text;
}

}  // namespace weft
