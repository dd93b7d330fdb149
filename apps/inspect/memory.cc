#include "apps/inspect/memory.h"

#include <cstdio>
#include <filesystem>
#include <tuple>
#include <vector>

#include "apps/command_line/printable.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "apps/model_folder.h"
#include "engine/job/speech_chunks.h"

namespace weft {
namespace {

Request clip_of(const Flags& flags) {
  const std::string text = flags.text("memory");
  Request request;
  long long frames = 0, height = 0, width = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%lldx%lldx%lld%n", &frames, &height, &width, &used) != 3 ||
      used != static_cast<int>(text.size()) || frames < 1 || height < 1 || width < 1 ||
      frames > 1 << 20 || height > 16384 || width > 16384)
    throw Error(ErrorKind::kUsage, flags.label("memory") + " is '" + text +
                                       "', legal: FRAMESxHEIGHTxWIDTH, as 81x480x832 (up to 16384 "
                                       "pixels a side)");
  request.frames = frames;
  request.height = height;
  request.width = width;
  return request;
}

struct Stage {
  const char* name;
  uint64_t total, activations;
  uint64_t weights() const { return total - activations; }
};

std::vector<Stage> stages_of(const MemoryPlan& plan) {
  std::vector<Stage> stages{{"encode_text", plan.encode_text, plan.parts.encode_text},
                            {"denoise", plan.denoise, plan.parts.denoise},
                            {"decode", plan.decode, plan.parts.decode}};
  if (plan.encode_image > 0)
    stages.insert(stages.begin() + 1, {"encode_image", plan.encode_image,
                                       plan.parts.encode_image - plan.parts.picture_encoder});
  if (plan.encode_audio > 0)
    stages.insert(stages.begin() + 1, {"encode_audio", plan.encode_audio,
                                       plan.encode_audio - plan.parts.audio_encoder});
  return stages;
}

Json to_json(const MemoryPlan& plan) {
  Json stages;
  for (const Stage& stage : stages_of(plan))
    stages[stage.name] = {{"weights_bytes", stage.weights()},
                          {"activations_bytes", stage.activations},
                          {"bytes", stage.total}};
  return {{"residency", to_string(plan.residency)},
          {"components",
           {{"text_encoder", plan.parts.text_encoder},
            {"transformers", plan.parts.experts},
            {"vae", plan.parts.vae}}},
          {"stages", stages},
          {"weights_bytes", plan.weights},
          {"high_water_bytes", plan.high_water},
          {"available_bytes", plan.available},
          {"fits", plan.fits()}};
}

void print_stages(const MemoryPlan& plan, const std::optional<PlannedDevice>& device) {
  std::printf("%-12s %12s %12s %12s\n", "stage", "weights", "activations", "together");
  for (const Stage& stage : stages_of(plan))
    std::printf("%-12s %12s %12s %12s\n", stage.name, format_bytes(stage.weights()).c_str(),
                format_bytes(stage.activations).c_str(), format_bytes(stage.total).c_str());
  std::printf("\nhigh-water %s of %s available: %s\n", format_bytes(plan.high_water).c_str(),
              format_bytes(plan.available).c_str(), plan.fits() ? "fits" : "does not fit");
  if (device)
    std::printf(
        "scratch of single ops %s (included); host memory %s, of which pinned %s; device %s\n",
        format_bytes(plan.parts.scratch).c_str(), format_bytes(plan.host.total()).c_str(),
        format_bytes(plan.host.pinned()).c_str(), printable(device->description()).c_str());
}

}  // namespace

void describe_device_memory(const MemoryPlan& plan, Json& object) {
  if (plan.host.total() == 0) return;
  object["scratch_bytes"] = plan.parts.scratch;
  object["host"] = {{"pinned_bytes", plan.host.pinned()}, {"bytes", plan.host.total()}};
}

std::string mode_text(const GeneratorOptions& options, const MemoryPlan& plan) {
  const bool changed = !options.weights_fixed && options.weights != WeightFormat::kCompute;
  return std::string(to_string(options.mode)) + ", " + plan.reason +
         (changed ? ", " + to_string(options.weights) + " weights, which change the picture" : "");
}

void describe_mode(const GeneratorOptions& options, const MemoryPlan& plan, Json& object) {
  object["mode"] = to_string(options.mode);
  object["mode_reason"] = plan.reason;
  object["weights"] = to_string(options.weights);
  if (plan.resident_layers > 0) object["resident_layers"] = plan.resident_layers;
}

void inspect_memory(const Flags& flags, const std::string& model) {
  const PartFiles files = part_files(flags);
  if (model.empty() ? files.transformer.empty() : !is_model_directory(model))
    throw Error(ErrorKind::kUsage,
                flags.label("memory") + " is given, but " +
                    (model.empty() ? "no model" : model + " is no model folder") +
                    "; legal: a folder with model_index.json, or --transformer FILE and the other "
                    "parts");
  Request request = clip_of(flags);
  const int ranks = static_cast<int>(flags.integer("ranks").value_or(1));
  const std::optional<PlannedDevice> device = planned_device(flags);
  const GeneratorOptions options = planning_options(flags, ranks, device);
  const auto opened = std::make_shared<const OpenModel>(model, std::vector<Lora>{}, files);
  const Generator generator(opened, options);
  const std::string clip = flags.label("memory") + " is '" + flags.text("memory") + "': its ";
  for (const auto& [name, value, grid] :
       {std::tuple{"number of frames", request.frames, frame_grid(generator.limits())},
        {"height", request.height, side_grid(generator.limits())},
        {"width", request.width, side_grid(generator.limits())}})
    check_on_grid(clip + name + " is " + std::to_string(value), value, grid);
  request.prompt = flags.text("prompt");
  if (request.prompt.empty())
    for (int64_t i = 0; i < generator.limits().text_length; ++i) request.prompt += "a ";
  request = generator.resolve(with_any_inputs(request, opened->directory));
  const Layout layout = parse_layout(flags.text("layout"), ranks, generator.layout_limits(request));
  const MemoryPlan plan = plan_of_rank(opened, options, layout, request);
  const std::string dtype(to_string(options.dtype));
  if (flags.on("json")) {
    Json object = to_json(plan);
    object["model"] = model;
    object["frames"] = request.frames;
    object["height"] = request.height;
    object["width"] = request.width;
    object["dtype"] = dtype;
    object["layout"] = to_string(layout);
    describe_device_memory(plan, object);
    if (device) object["device"] = device->description();
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s: %lld frames of %lldx%lld, %s, %s%s, %s\n\n",
              printable(generator.model_name()).c_str(), static_cast<long long>(request.frames),
              static_cast<long long>(request.width), static_cast<long long>(request.height),
              dtype.c_str(), to_string(layout).c_str(),
              layout.ranks() > 1 ? ", of the first rank" : "",
              std::string(to_string(plan.residency)).c_str());
  print_stages(plan, device);
}

}  // namespace weft
