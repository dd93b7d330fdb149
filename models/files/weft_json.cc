// Reads the weft.json of a model directory.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"
#include "models/registry.h"

namespace weft {

namespace {

StreamDefaults read_stream(const nlohmann::json& json, const std::string& file,
                           const DefaultSettings& model) {
  const std::string what = file + ": stream";
  if (!json.is_object())
    throw Error(ErrorKind::kModel, what + " = " + json.dump() + " (legal: an object)");
  ConfigCheck check(json, what);
  check.keys({"caption", "block_frames", "window_frames"}, {"moods", "clean_pass"});
  check.finish("the settings of streams");
  constexpr IntRange kFrames{1, 1 << 16};
  StreamDefaults out{.caption = json_string(json, "caption", what),
                     .moods = {},
                     .width = model.width,
                     .height = model.height,
                     .fps = model.fps,
                     .steps = model.steps,
                     .solver = {},
                     .segment_frames = json_int(json, "block_frames", what, kFrames),
                     .window_frames = json_int(json, "window_frames", what, kFrames),
                     .clean_pass = json_bool_or(json, "clean_pass", what, false),
                     .picture = {},
                     .needs_lora = {}};
  if (json_has(json, "moods")) out.moods = json_strings(json, "moods", what);
  if (out.moods.empty() != (out.caption.find("{mood}") == std::string::npos))
    throw Error(ErrorKind::kModel,
                what + ": caption = '" + out.caption + "', and " +
                    std::to_string(out.moods.size()) +
                    " moods (legal: moods and a caption with {mood}, or neither)");
  return out;
}

}  // namespace

DefaultSettings read_weft_json(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ConfigCheck check(json, path);
  check.keys({},
             {"name", "negative_prompt", "width", "height", "num_frames", "trained_frames", "fps",
              "steps", "guidance_scale", "guidance_scale_2", "flow_shift", "teacache", "stream"});
  check.finish("a file of default settings");
  constexpr IntRange kPositive{1, 1 << 20};
  DefaultSettings out;
  out.origin = "weft.json";
  out.name = json_string_or(json, "name", path,
                            std::filesystem::path(path).parent_path().filename().string());
  out.negative_prompt = json_string_or(json, "negative_prompt", path, "");
  out.width = json_int_or(json, "width", path, out.width, kPositive);
  out.height = json_int_or(json, "height", path, out.height, kPositive);
  out.frames = json_int_or(json, "num_frames", path, out.frames, kPositive);
  if (json_has(json, "trained_frames"))
    out.trained_frames = json_int_or(json, "trained_frames", path, out.frames, kPositive);
  out.fps = json_number_or(json, "fps", path, out.fps);
  out.steps = static_cast<int>(json_int_or(json, "steps", path, out.steps, kPositive));
  out.guidance_scale = json_number_or(json, "guidance_scale", path, out.guidance_scale);
  if (json_has(json, "guidance_scale_2"))
    out.guidance_scale_2 = json_number(json, "guidance_scale_2", path);
  if (json_has(json, "flow_shift")) out.flow_shift = json_number(json, "flow_shift", path);
  if (json_has(json, "teacache")) out.teacache = json_numbers(json, "teacache", path);
  if (json_has(json, "stream"))
    out.stream = read_stream(json_field(json, "stream", path), path, out);
  if (out.fps <= 0)
    throw Error(ErrorKind::kModel,
                path + ": fps = " + std::to_string(out.fps) + " (legal: above 0)");
  return out;
}

DefaultSettings default_settings(const ModelDirectory& model) {
  const std::string file = model.path + "/weft.json";
  return std::filesystem::exists(file) ? read_weft_json(file) : model.family->defaults(model);
}

}  // namespace weft
