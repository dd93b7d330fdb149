#include "apps/generate/profile.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/command_line/printable.h"
#include "engine/parts/rank_placement.h"
#include "io/trace_file.h"

namespace weft {
namespace {

// trace.json -> trace-rank3.json; trace.json.gz -> trace-rank3.json.gz
std::string name_of_rank(const std::string& path, int rank) {
  const size_t dot = path.rfind(path.ends_with(".gz") ? ".json.gz" : ".json");
  return path.substr(0, dot) + "-rank" + std::to_string(rank) + path.substr(dot);
}

Recorder* current() { return static_cast<Recorder*>(thread_meter()); }

Json family_json(const Profile::Total& total, double stage_seconds) {
  Json object{{"calls", total.calls},
              {"seconds", total.seconds},
              {"share", total.seconds / stage_seconds},
              {"bytes", total.bytes}};
  if (total.seconds > 0) object["gbs"] = total.bytes / total.seconds * 1e-9;
  if (total.flop > 0) {
    object["flop"] = total.flop;
    object["gflops"] = total.flop / total.seconds * 1e-9;
  }
  return object;
}

double all_seconds(const Profile& profile) {
  double seconds = 0;
  for (int zone = 0; zone < kZones; ++zone)
    if (is_stage(static_cast<Zone>(zone)))
      seconds += profile.of(static_cast<Zone>(zone), static_cast<Zone>(zone)).seconds;
  return seconds;
}

// The order in which a job passes through the stages.
constexpr Zone kStages[] = {Zone::kLoad,        Zone::kEncodeText, Zone::kEncodeAudio,
                            Zone::kEncodeImage, Zone::kDenoise,    Zone::kDecode,
                            Zone::kEncodeVideo, Zone::kWrite};

void print_line(const std::string& name, double seconds, double share, const Json& f) {
  std::fprintf(stderr, "%-18s %10.4f %6.1f %%", name.c_str(), seconds, 100 * share);
  if (f.contains("bytes")) {
    std::fprintf(stderr, " %9.0f %9.3g", f.number("calls"), f.number("bytes") * 1e-9);
    std::fprintf(stderr, " %8.2f", f.contains("gbs") ? f.number("gbs") : 0);
    if (f.contains("gflops"))
      std::fprintf(stderr, " %10.2f %8.1f", f.number("flop") * 1e-9, f.number("gflops"));
  }
  std::fputc('\n', stderr);
}

}  // namespace

Json profile_json(const Recorder& recorder, int rank) {
  const Profile& profile = recorder.profile();
  const double all = all_seconds(profile);
  Json stages = Json::array();
  for (const Zone stage : kStages) {
    const Profile::Total& own = profile.of(stage, stage);
    if (own.calls == 0) continue;
    Json families = Json::object();
    for (int zone = 0; zone < kZones; ++zone) {
      const Profile::Total& total = profile.of(stage, static_cast<Zone>(zone));
      if (is_family(static_cast<Zone>(zone)) && total.calls > 0)
        families[to_string(static_cast<Zone>(zone))] = family_json(total, own.seconds);
    }
    stages.push_back({{"stage", to_string(stage)},
                      {"seconds", own.seconds},
                      {"share", own.seconds / all},
                      {"families", families},
                      {"between_ops", own.seconds - profile.family_seconds(stage)}});
  }
  Json helpers = Json::object();
  for (const auto& [name, helper] : recorder.helpers())
    helpers[name] = all_seconds(helper->profile());
  return {{"rank", rank}, {"seconds", all}, {"stages", stages}, {"helpers", helpers}};
}

void print_profile(const Json& profile) {
  std::fprintf(stderr, "\n%-18s %10s %8s %9s %9s %8s %10s %8s\n", "stage, op family", "seconds",
               "share", "calls", "GB moved", "GB/s", "GFLOP", "GFLOP/s");
  for (const Json& stage : profile.at("stages").items()) {
    const double seconds = stage.number("seconds"), between = stage.number("between_ops");
    print_line(stage.text("stage"), seconds, stage.number("share"), {});
    const Json& families = stage.at("families");
    std::vector<std::pair<double, std::string>> order;
    for (const std::string& name : families.keys())
      order.emplace_back(-families.at(name).number("seconds"), name);
    std::sort(order.begin(), order.end());
    for (const auto& [minus, name] : order)
      print_line("  " + name, -minus, families.at(name).number("share"), families.at(name));
    print_line("  between ops", between, between / seconds, {});
  }
  for (const std::string& name : profile.at("helpers").keys())
    std::fprintf(stderr, "%-18s %10.4f  at the same time as the stages, on another thread\n",
                 (name + " thread").c_str(), profile.at("helpers").number(name));
}

Profiling::Profiling(const Flags& flags, const Ranks& ranks)
    : profile_(flags.on("profile")),
      processes_(ranks.processes),
      json_(flags.on("json")),
      trace_(flags.text("trace")),
      overwrite_(flags.on("overwrite") ? Overwrite::kReplace : Overwrite::kRefuse) {
  if (!trace_.empty()) {
    check_trace_name(trace_);
    const std::string first = processes_ ? name_of_rank(trace_, 0) : trace_;
    if (overwrite_ == Overwrite::kRefuse && std::filesystem::exists(first))
      throw Error(ErrorKind::kOutput, first + " exists; --overwrite replaces it");
  }
  if (!profile_ && trace_.empty()) return;
  const auto keep = trace_.empty() ? Recorder::Keep::kTotals : Recorder::Keep::kEvents;
  for (int rank = 0; rank < ranks.count; ++rank)
    recorders_[rank] = std::make_unique<Recorder>(keep);
}

std::unique_ptr<MeterScope> Profiling::record(int rank) {
  if (recorders_.empty()) return nullptr;
  return std::make_unique<MeterScope>(*recorders_.at(rank));
}

void Profiling::restart() {
  if (!recorders_.empty()) current()->restart();
}

Json Profiling::result() {
  if (!profile_) return nullptr;
  for (const auto& [rank, recorder] : recorders_)
    if (recorder.get() == current()) {
      told_ = true;
      return profile_json(*recorder, rank);
    }
  return nullptr;
}

Profiling::RankLine Profiling::line_of(const Recorder& recorder) {
  const Profile& profile = recorder.profile();
  // A language model's passes are in these two stages.
  std::vector<Zone> stages{Zone::kDenoise};
  if (profile.of(Zone::kDenoise, Zone::kDenoise).calls == 0)
    stages = {Zone::kEncodeText, Zone::kDecode};
  RankLine line{};
  for (const Zone stage : stages) {
    const Profile::Total& messages = profile.of(stage, Zone::kCommunication);
    line.seconds += profile.of(stage, stage).seconds;
    line.messages += messages.seconds;
    line.bytes += messages.bytes;
  }
  return line;
}

void Profiling::gather(Communicator& world) {
  if (!profile_ || !processes_) return;
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kJob};
  Stream stream = Stream::cpu(1);
  RankLine line = line_of(*current());
  const auto view = [](RankLine& of) { return TensorView(&of, DType::kF64, {3}); };
  if (world.rank() != 0) return world.send(stream, 0, tag, view(line));
  lines_ = {line};
  for (int rank = 1; rank < world.size(); ++rank)
    world.receive(stream, rank, tag, view(lines_.emplace_back()));
}

void Profiling::around(const std::map<std::string, std::string>& metadata,
                       const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    try {
      write(metadata);
    } catch (const Error& error) {  // the first error is the one that is reported
      std::fprintf(stderr, "weft: warning: %s\n", printable(error.what()).c_str());
    }
    throw;
  }
  write(metadata);
  if (profile_) print();
}

void Profiling::write(const std::map<std::string, std::string>& metadata) const {
  if (trace_.empty()) return;
  RankRecords ranks;
  for (const auto& [rank, recorder] : recorders_)
    if (!processes_ || !recorder->events().empty()) ranks.emplace_back(rank, recorder.get());
  write_trace(processes_ && !ranks.empty() ? name_of_rank(trace_, ranks[0].first) : trace_, ranks,
              metadata, overwrite_);
}

void Profiling::print() const {
  const auto of_first = [&](const Recorder& recorder) {
    return all_seconds(recorder.profile()) > 0;
  };
  const auto first = recorders_.find(0);
  if (!told_ && first != recorders_.end() && of_first(*first->second)) {
    const Json table = profile_json(*first->second, 0);
    if (json_)
      std::printf("%s\n", Json{{"profile", table}}.dump().c_str());
    else
      print_profile(table);
  }
  std::vector<RankLine> lines = lines_;
  if (!processes_)
    for (const auto& [rank, recorder] : recorders_) lines.push_back(line_of(*recorder));
  if (json_ || lines.size() < 2) return;
  std::fprintf(stderr, "\n%-18s %10s %12s %14s %12s\n", "rank, last result", "in passes",
               "in messages", "GB in messages", "share");
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const auto& [seconds, messages, bytes] = lines[rank];
    std::fprintf(stderr, "%-18zu %10.4f %12.4f %14.4f %10.1f %%\n", rank, seconds, messages,
                 bytes * 1e-9, seconds > 0 ? 100 * messages / seconds : 0.0);
  }
}

}  // namespace weft
