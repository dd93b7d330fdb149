#include "engine/runner/earlier_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/job/job_spec.h"
#include "io/json.h"

namespace weft {
namespace {

// Warns of differences that may change the last bits of a result although the job is the same.
void warn_of_changes(const Reporter& reporter, const std::string& version, const Checkpoint& left,
                     const std::string& record) {
  const auto facts = [](const std::string& of, const std::string& version) {
    nlohmann::json engine = parse_json(of, "the record of a job").at("engine");
    engine["engine"] = version;
    return engine;
  };
  const auto made = left.notes.find("engine");
  const nlohmann::json here = facts(record, version),
                       there = facts(left.job, made == left.notes.end() ? "" : made->second);
  for (const char* name : {"engine", "isa", "threads", "layout"}) {
    const auto before = there.find(name);
    if (before == there.end() || *before == here.at(name) || *before == "") continue;
    if (std::string(name) == "threads" && here.value("deterministic", false)) continue;
    const auto shown = [](const nlohmann::json& value) {
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    reporter.tell(std::string("warning: resumed with ") + name + " " + shown(here.at(name)) +
                  ", begun with " + shown(*before) +
                  ": the last bits of the result may differ from those of an uninterrupted run");
  }
}

}  // namespace

std::optional<Checkpoint> checkpoint_left(const ResumeRule& rule, const OutputNames& names) {
  if (rule.never) return std::nullopt;
  for (const std::string& path : files_left(names)) {
    try {
      return read_checkpoint(path);
    } catch (const Error&) {
      continue;
    }
  }
  return std::nullopt;
}

std::shared_ptr<Checkpoint> left_by_earlier_run(const ResumeRule& rule, const Reporter& reporter,
                                                const std::string& version,
                                                const std::string& record,
                                                const OutputNames& names) {
  if (rule.never) return nullptr;
  const std::string advice = "; --resume never starts over, another --output keeps the checkpoint";
  std::string faults;
  for (const std::string& path : files_left(names)) {
    std::shared_ptr<Checkpoint> left;
    try {
      left = std::make_shared<Checkpoint>(read_checkpoint(path));
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "; ") + std::string(error.what());
      reporter.tell(std::string("warning: ") + error.what());
      continue;
    }
    const std::string differs = difference(left->job, record);
    if (differs.empty()) {
      reporter.inform("resuming after step " + std::to_string(left->step) + " of " +
                      std::to_string(left->total) + ", from " + path);
      warn_of_changes(reporter, version, *left, record);
      return left;
    }
    if (rule.overwrite && !rule.named) return nullptr;
    throw Error(ErrorKind::kUsage, path + " belongs to another job: " + differs + advice);
  }
  if (faults.empty() || rule.overwrite) return nullptr;
  throw Error(ErrorKind::kUsage, "no checkpoint of this job is whole: " + faults + advice);
}

namespace {

// A value of the record of the job that was left, by its place; null where there is none.
nlohmann::json left_value(const ResumeRule& rule, const OutputNames& names,
                          const std::string& place) {
  const std::optional<Checkpoint> left = checkpoint_left(rule, names);
  if (!left) return nullptr;
  const auto record = nlohmann::json::parse(left->job, nullptr, false);
  const nlohmann::json::json_pointer pointer(place);
  return record.is_object() && record.contains(pointer) ? record.at(pointer) : nullptr;
}

}  // namespace

std::optional<uint64_t> seed_left(const ResumeRule& rule, const OutputNames& names) {
  const nlohmann::json seed = left_value(rule, names, "/request/seed");
  return seed.is_number_unsigned() ? std::optional(seed.get<uint64_t>()) : std::nullopt;
}

std::string layout_left(const ResumeRule& rule, const OutputNames& names,
                        std::span<const Layout> legal) {
  const nlohmann::json layout = left_value(rule, names, "/engine/layout");
  const bool known = std::ranges::any_of(legal, [&](const Layout& one) {
    for (const Layout& text : with_stage_ranks(one, &Layout::text_ranks))
      for (const Layout& both : with_stage_ranks(text, &Layout::vae_ranks))
        if (to_string(both) == layout) return true;
    return false;
  });
  return known ? layout.get<std::string>() : "";
}

}  // namespace weft
