// Reads the weft.json of a model directory.
#include <filesystem>

#include "models/config_reader.h"
#include "models/registry.h"

namespace weft {

namespace {

StreamDefaults read_stream(ConfigReader fields, const DefaultSettings& model) {
  constexpr IntRange kFrames{1, 1 << 16};
  StreamDefaults out;
  out.width = model.width;
  out.height = model.height;
  out.fps = model.fps;
  out.steps = model.steps;
  fields.required("caption", out.caption);
  fields.optional("moods", out.moods);
  fields.required("block_frames", out.segment_frames, kFrames);
  fields.required("window_frames", out.window_frames, kFrames);
  fields.optional("clean_pass", out.clean_pass);
  fields.finish("the settings of streams");
  if (out.moods.empty() != (out.caption.find("{mood}") == std::string::npos))
    refuse_model(fields.path(), "caption = '", out.caption, "', and ", out.moods.size(),
                 " moods (legal: moods and a caption with {mood}, or neither)");
  return out;
}

}  // namespace

DefaultSettings read_weft_json(const std::string& path) {
  constexpr IntRange kCounts{1, 1 << 20};
  ConfigReader fields(path);
  DefaultSettings out;
  out.origin = "weft.json";
  out.name = std::filesystem::path(path).parent_path().filename().string();
  fields.optional("name", out.name);
  fields.optional("negative_prompt", out.negative_prompt);
  fields.optional("width", out.width, kCounts);
  fields.optional("height", out.height, kCounts);
  fields.optional("num_frames", out.frames, kCounts);
  fields.optional("trained_frames", out.trained_frames, kCounts);
  fields.optional("fps", out.fps, kPositive);
  fields.optional("steps", out.steps, kCounts);
  fields.optional("guidance_scale", out.guidance_scale, kFinite);
  fields.optional("guidance_scale_2", out.guidance_scale_2, kFinite);
  fields.optional("flow_shift", out.flow_shift, kFinite);
  fields.optional("teacache", out.teacache, kFinite);
  fields.ignored({"stream"});
  fields.finish("a file of default settings");
  if (fields.has("stream")) out.stream = read_stream(fields.part("stream"), out);
  return out;
}

DefaultSettings default_settings(const ModelDirectory& model) {
  const std::string file = model.path + "/weft.json";
  return std::filesystem::exists(file) ? read_weft_json(file) : model.family->defaults(model);
}

}  // namespace weft
