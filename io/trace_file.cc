#include "io/trace_file.h"

#include <cstdio>

#include "io/atomic_file.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

// Escapes metadata, which may hold any text. The names of zones and ops need no escapes.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : shown_bytes(text)) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += c;
  }
  return out;
}

template <class... Values>
void add(std::string& out, const char* format, Values... values) {
  char text[320];
  const int length = std::snprintf(text, sizeof text, format, values...);
  CHECK(length > 0 && length < static_cast<int>(sizeof text), format, length);
  out += text;
}

void add_name(std::string& out, const char* what, int pid, int tid, const std::string& name) {
  add(out,
      "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n"
      "{\"ph\":\"M\",\"name\":\"%.*s_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":"
      "%d}},\n",
      what, pid, tid, name.c_str(), static_cast<int>(std::string(what).find('_')), what, pid, tid,
      tid ? tid : pid);
}

// Names an event: an op by its own name, a message by its payload, a step by its number from 1.
std::string name_of(const Recorder::Event& event) {
  if (event.zone == Zone::kCommunication) return std::string("communication ") + event.what;
  if (*event.what) return event.what;
  std::string name = to_string(event.zone);
  if (event.index >= 0)
    name += " " + std::to_string(event.index + (event.zone == Zone::kStep ? 1 : 0));
  return name;
}

void add_thread(std::string& out, const Recorder& recorder, int pid, int tid) {
  for (const Recorder::Event& event : recorder.events()) {
    add(out, "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f",
        name_of(event).c_str(), to_string(event.zone), pid, tid,
        static_cast<double>(event.begin_ns) * 1e-3);
    add(out, ",\"dur\":%.3f", static_cast<double>(event.end_ns - event.begin_ns) * 1e-3);
    if (event.flop > 0 || event.bytes > 0)
      add(out, ",\"args\":{\"flop\":%.0f,\"bytes\":%.0f}", event.flop, event.bytes);
    out += "},\n";
  }
  for (const Recorder::Sample& sample : recorder.samples())
    add(out,
        "{\"ph\":\"C\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"args\":{\"value\":%.0f}}"
        ",\n",
        sample.name, pid, tid, static_cast<double>(sample.at_ns) * 1e-3, sample.value);
}

}  // namespace

std::string trace_json(const RankRecords& ranks,
                       const std::map<std::string, std::string>& metadata) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
  for (const auto& [key, value] : metadata) {
    if (out.back() != '{') out += ',';
    out += '"' + escaped(key) + "\":\"" + escaped(value) + '"';
  }
  out += "},\"traceEvents\":[\n";
  for (const auto& [rank, recorder] : ranks) {
    add_name(out, "process_name", rank, 0, "rank " + std::to_string(rank));
    add_name(out, "thread_name", rank, 0, "compute");
    add_thread(out, *recorder, rank, 0);
    int tid = 0;
    for (const auto& [name, helper] : recorder->helpers()) {
      add_name(out, "thread_name", rank, ++tid, name);
      add_thread(out, *helper, rank, tid);
    }
  }
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  return out + "]}\n";
}

void check_trace_name(const std::string& path) {
  if (!path.ends_with(".json") && !path.ends_with(".json.gz"))
    throw Error(ErrorKind::kUsage, "--trace is '" + path +
                                       "', legal: a name ending in .json or "
                                       ".json.gz");
  if (path.ends_with(".gz")) gzip("");
}

void write_trace(const std::string& path, const RankRecords& ranks,
                 const std::map<std::string, std::string>& metadata, Overwrite overwrite) {
  const std::string text = trace_json(ranks, metadata);
  write_file(path, path.ends_with(".gz") ? gzip(text) : text, overwrite);
}

}  // namespace weft
