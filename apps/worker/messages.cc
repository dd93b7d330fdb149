#include "apps/worker/messages.h"

#include <nlohmann/json.hpp>

namespace weft {
namespace {

constexpr const char* kWhat = "the message";
constexpr int64_t kMostPixels = 1 << 20;

// Calls visit(name, member) for all members of a progress.
template <class Heard, class Visit>
void for_each_member(Heard& progress, Visit&& visit) {
  visit("stage", progress.stage);
  visit("step", progress.step);
  visit("total", progress.total);
  visit("sigma", progress.sigma);
  visit("seconds_per_step", progress.seconds_per_step);
  visit("elapsed_seconds", progress.elapsed_seconds);
  visit("eta_seconds", progress.eta_seconds);
  visit("memory_bytes", progress.memory_bytes);
  visit("kept", progress.kept);
  visit("pictures", progress.pictures);
  visit("turn", progress.turn);
  visit("finished_segments", progress.finished_segments);
  visit("segments", progress.segments);
  visit("first_frame_seconds", progress.first_frame_seconds);
  visit("chunk", progress.chunk);
  visit("chunks", progress.chunks);
}

}  // namespace

std::string worker_message(const char* type, Json fields) {
  fields["type"] = type;
  return fields.dump();
}

nlohmann::json read_worker_message(std::string_view text) {
  nlohmann::json message = parse_json(text, kWhat);
  if (!message.is_object()) throw Error(ErrorKind::kModel, "the message is no JSON object");
  json_string(message, "type", kWhat);
  return message;
}

Json to_json(const Progress& progress) {
  Json object;
  for_each_member(progress, [&](const char* name, const auto& member) { object[name] = member; });
  return object;
}

Progress read_progress(const nlohmann::json& object) {
  Progress progress;
  for_each_member(progress, [&](const char* name, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, std::string>)
      member = json_string(object, name, kWhat);
    else if constexpr (std::is_floating_point_v<Member>)
      member = json_number(object, name, kWhat);
    else
      member = static_cast<Member>(json_int(object, name, kWhat));
  });
  return progress;
}

std::string preview_message(const Preview& preview) {
  const Frame& frame = preview.frames.at(preview.frames.size() / 2);
  std::string message = Json{{"step", preview.step},
                             {"total", preview.total},
                             {"fps", preview.fps},
                             {"width", frame.width},
                             {"height", frame.height}}
                            .dump() +
                        "\n";
  return message.append(frame.rgb.begin(), frame.rgb.end());
}

Preview read_preview_message(std::string_view bytes) {
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  const nlohmann::json about = parse_json(bytes.substr(0, line), kWhat);
  const std::string_view rgb = bytes.substr(std::min(line + 1, bytes.size()));
  const IntRange side{1, kMostPixels};
  const int64_t width = json_int(about, "width", kWhat, side),
                height = json_int(about, "height", kWhat, side);
  if (width * height > kMostPixels || rgb.size() != static_cast<size_t>(3 * width * height))
    throw Error(ErrorKind::kModel, "the message is no preview");
  Preview preview{.step = static_cast<int>(json_int(about, "step", kWhat)),
                  .total = static_cast<int>(json_int(about, "total", kWhat)),
                  .fps = json_number(about, "fps", kWhat)};
  Frame& frame = preview.frames.emplace_back(static_cast<int>(width), static_cast<int>(height));
  frame.rgb.assign(rgb.begin(), rgb.end());
  return preview;
}

Json to_json(const Error& error) {
  return {{"kind", static_cast<int>(error.kind())}, {"message", error.what()}};
}

Error read_error(const nlohmann::json& object) {
  const int64_t kind = json_int(object, "kind", kWhat);
  const bool known = (kind >= static_cast<int>(ErrorKind::kInternal) &&
                      kind <= static_cast<int>(ErrorKind::kMedia)) ||
                     kind == static_cast<int>(ErrorKind::kStopped);
  return {known ? static_cast<ErrorKind>(kind) : ErrorKind::kInternal,
          json_string(object, "message", kWhat)};
}

}  // namespace weft
