#include "apps/stream/stream_report.h"

#include <cstdio>

#include "apps/command_line/printable.h"

namespace weft {

void StreamWatch::add(const SessionSlot& slot) {
  if (report_.pictures == 0) report_.first_frame_s = elapsed();
  report_.misplaced += slot.index != report_.pictures;
  if (slot.source >= 0 && !slot.frozen) report_.misplaced += slot.source != next_source_++;
  ++report_.pictures;
  report_.samples += std::ssize(slot.sound);
}

StreamReport StreamWatch::report(const Session& session) const {
  StreamReport out = report_;
  out.seconds = elapsed();
  out.media_s = static_cast<double>(out.pictures) * static_cast<double>(fps_.den) /
                static_cast<double>(fps_.num);
  out.counts = session.counts();
  return out;
}

std::string to_string(const StreamReport& report) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%lld pictures, %.1f s in %.1f s (%.1f pictures/s, %.2f times real time), the "
                "first after %.2f s",
                static_cast<long long>(report.pictures), report.media_s, report.seconds,
                report.fps(), report.realtime(), report.first_frame_s);
  std::string out = text;
  const SessionCounts& counts = report.counts;
  if (counts.missing + counts.doubled + report.misplaced > 0)
    out += "; " + std::to_string(counts.missing) + " missing, " + std::to_string(counts.doubled) +
           " doubled, " + std::to_string(report.misplaced) + " out of order";
  if (counts.clock.frozen + counts.clock.late > 0)
    out += "; " + std::to_string(counts.clock.frozen) + " frozen, " +
           std::to_string(counts.clock.late) + " late";
  return out;
}

Json to_json(const StreamReport& report) {
  const SessionCounts& counts = report.counts;
  return {{"frames", report.pictures},
          {"samples", report.samples},
          {"media_seconds", report.media_s},
          {"seconds", report.seconds},
          {"fps", report.fps()},
          {"realtime_factor", report.realtime()},
          {"first_frame_seconds", report.first_frame_s},
          {"out_of_order", report.misplaced},
          {"missing", counts.missing},
          {"doubled", counts.doubled},
          {"frozen", counts.clock.frozen},
          {"late", counts.clock.late},
          {"max_lateness_seconds", static_cast<double>(counts.clock.max_lateness.count()) * 1e-9},
          {"max_skew_seconds", counts.max_skew},
          {"blocks", counts.segments},
          {"max_blocks_in_engine", counts.max_in_engine}};
}

void print_stream(FILE* out, const PlannedStream& stream, const StreamSplit& split,
                  const std::string& device) {
  const StreamSettings& settings = split.engine->settings();
  std::fprintf(out, "model   %s (%s)    stream %lldx%lld, %g pictures/s, %d steps\n",
               printable(stream.model->directory.defaults.name).c_str(),
               std::string(to_string(settings.dtype)).c_str(),
               static_cast<long long>(settings.width), static_cast<long long>(settings.height),
               stream.fps(), settings.steps);
  if (settings.picture.given())
    std::fprintf(out, "picture %s\n", printable(settings.picture.path).c_str());
  std::fprintf(out, "caption %s\ndevice  %s\nlayout  %s%s\n", printable(stream.caption).c_str(),
               printable(device).c_str(), to_string(settings.layout).c_str(),
               settings.decodes_apart ? " and a rank that decodes" : "");
  for (const MemoryPlan& plan : split.memory)
    std::fprintf(out, "memory  %s\n", plan.to_string().c_str());
  if (split.forecast) std::fprintf(out, "speed   %s\n", to_string(*split.forecast).c_str());
}

Json to_json(const StreamForecast& forecast) {
  return {{"layout", to_string(forecast.layout)}, {"decodes_apart", forecast.decodes_apart},
          {"devices", forecast.devices()},        {"fps", forecast.fps},
          {"period_seconds", forecast.period_s},  {"first_frame_seconds", forecast.first_frame_s}};
}

Json to_json(const StreamSplit& split) {
  Json object = split.forecast ? to_json(*split.forecast) : Json::object();
  object["threads"] = split.engine->settings().threads;
  for (const MemoryPlan& plan : split.memory) {
    Json device{{"weights_bytes", plan.weights},
                {"high_water_bytes", plan.high_water},
                {"fits", plan.fits()}};
    if (plan.available != UINT64_MAX) device["available_bytes"] = plan.available;
    object["memory"].push_back(std::move(device));
  }
  return object;
}

}  // namespace weft
