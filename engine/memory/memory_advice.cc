#include "engine/memory/memory_advice.h"

#include <algorithm>

namespace weft {
namespace {

// Suggests the largest --resident-layers that fits. Where host memory is short, suggests the
// smallest one instead that leaves the host enough. Empty where no number fits.
std::string fitting_layers(const MemoryPlan& plan, const Changes& changes) {
  constexpr int kLeast = 2;
  const int last = plan.fits_host() ? changes.layers - 1 : changes.layers;
  for (int i = kLeast; i <= last; ++i) {
    const int layers = plan.fits_host() ? last + kLeast - i : i;
    const MemoryPlan changed = changes.resident(layers);
    const std::string host =
        plan.fits_host() ? "" : " and " + format_bytes(changed.host.total()) + " of the host";
    if (changed.fits())
      return "--resident-layers " + std::to_string(layers) + " (" +
             format_bytes(changed.high_water) + host + ")";
  }
  return {};
}

// "--layout tensor=4 (1.20 GiB) or layers=4 (1.31 GiB)": at most two layouts that fit, or "".
std::string fitting_layouts(const Changes& changes) {
  std::string offers;
  int offered = 0;
  for (const Layout& layout : changes.layouts) {
    uint64_t most = 0;
    bool fits = true;
    for (int rank = 0; fits && rank < layout.ranks(); ++rank) {
      const MemoryPlan plan = changes.layout(layout, rank);
      most = std::max(most, plan.high_water);
      fits = plan.fits();
    }
    if (!fits || ++offered > 2) continue;
    offers +=
        (offered == 1 ? "--layout " : " or ") + to_string(layout) + " (" + format_bytes(most) + ")";
  }
  return offers;
}

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

}  // namespace

WeightFormat smallest_weights(const GeneratorOptions& options, const Layout& layout) {
  const bool of_cpu = !options.planned && options.device.kind == Device::Kind::kCpu;
  const bool open = !options.weights_fixed && options.weights == WeightFormat::kCompute;
  if (!open || layout[Axis::kTensor] > 1 || (of_cpu && !cpu_has_int8())) return options.weights;
  return WeightFormat::kInt8;
}

std::vector<OtherMode> other_modes(const GeneratorOptions& options, const Layout& layout,
                                   const std::function<MemoryPlan(const GeneratorOptions&)>& plan) {
  std::vector<OtherMode> modes;
  if (options.mode == MemoryMode::kLayers) return modes;
  if (options.mode == MemoryMode::kSpeed)
    modes.emplace_back("--mode auto", [=] {
      GeneratorOptions other = options;
      other.mode = MemoryMode::kAuto;
      other.resident_blocks = 0;
      return plan(other);
    });
  if (options.mode != MemoryMode::kMemory || options.weights == WeightFormat::kCompute)
    modes.emplace_back("--mode memory", [=] {
      GeneratorOptions smallest = options;
      smallest.mode = MemoryMode::kMemory;
      smallest.weights = smallest_weights(smallest, layout);
      return plan(smallest);
    });
  return modes;
}

std::vector<Layout> other_layouts(const Layout& layout, const LayoutLimits& limits) {
  constexpr size_t kMost = 8;
  std::vector<Layout> layouts = legal_layouts(layout.ranks(), limits);
  std::erase_if(layouts, [&](Layout& other) {
    other.take_stages(layout);
    return other[Axis::kData] > 1 || other == layout;
  });
  std::ranges::stable_sort(layouts, std::greater(), [](const Layout& other) {
    return other[Axis::kTensor] * other[Axis::kLayers];
  });
  layouts.resize(std::min(layouts.size(), kMost));
  return layouts;
}

std::string refusal(const Request& request, const MemoryPlan& plan, const ModelLimits& limits,
                    DType dtype, const Changes& changes) {
  const std::string text = shortage(plan);
  std::vector<std::string> advice;
  if (const std::string layouts = fitting_layouts(changes); !layouts.empty())
    advice.push_back(layouts);
  for (const auto& [flag, of] : changes.modes) {
    const MemoryPlan other = of();
    if (!other.fits()) continue;
    advice.push_back(flag + " (" + format_bytes(other.high_water) + ")");
    break;
  }
  if (changes.layers > 0) {
    const std::string layers = fitting_layers(plan, changes);
    if (!layers.empty()) advice.push_back(layers);
  }
  const auto offer = [&](const Request& changed, const std::string& flag) {
    const MemoryPlan smaller = changes.request(changed);
    if (smaller.fits()) advice.push_back(flag + " (" + format_bytes(smaller.high_water) + ")");
    return smaller.fits();
  };
  Request fewer = request;  // the longest clip that fits
  for (int64_t k = (request.frames - 1) / limits.frame_multiple; k > 0;) {
    k = k * 3 / 4;
    fewer.frames = k * limits.frame_multiple + 1;
    if (offer(fewer, "--num-frames " + std::to_string(fewer.frames))) break;
  }
  Request smaller = request;  // the largest picture of about this shape that fits
  for (int eighths = 7; eighths > 0 && advice.size() < 2; --eighths) {
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
  if (advice.size() < 2 && dtype == DType::kF32) advice.push_back("--dtype bf16");
  if (advice.size() < 2) advice.push_back("a machine with more memory free");
  if (advice.size() < 2)
    advice.push_back(plan.fits_host() ? "a higher --memory-limit" : "a higher --host-memory-limit");
  return text + advice[0] + " or " + advice[1];
}

}  // namespace weft
