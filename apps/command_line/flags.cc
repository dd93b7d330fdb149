#include "apps/command_line/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/command_line/byte_size.h"
#include "apps/command_line/placement.h"
#include "apps/command_line/suggest.h"
#include "io/json.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

extern char** environ;

namespace weft {
namespace {

using enum FlagType;

constexpr EnvironmentVariable kEnvironment[] = {
    {"WEFT_CPU", "the highest instruction set that is used: ref, avx2, avx512 or amx"},
    {"WEFT_MODEL_DIRS", "folders, separated by colons, in which --model finds models by name"},
    {"WEFT_WORKER_KEY", "the key that a server hands to the workers which it starts"},
    {"WEFT_RANKS", "the number of pods of a Kubernetes indexed Job, each of which is a rank"},
};

[[noreturn]] void unknown_flag(Command command, const std::string& word) {
  const std::string name = command_spec(command).name;
  throw Error(ErrorKind::kUsage, "unknown flag " + word + " of weft " + name +
                                     did_you_mean(suggested_flag(command, word)) + " (weft " +
                                     name + " --help-all lists them)");
}

nlohmann::json read_config(const std::string& path) {
  try {
    const std::string bytes = read_text_file(path, JsonLimits{}.bytes);
    nlohmann::json file = parse_json(user_text(bytes, path), path);
    if (file.is_object()) return file;
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, std::string("--config: ") + error.what());
  }
  throw Error(ErrorKind::kUsage, "--config: " + path + " is not one JSON object of flag: value");
}

// The legal values of a flag, for messages.
std::string legal_values(const FlagSpec& spec) {
  switch (spec.type) {
    case kSwitch:
      return "on|off";
    case kBytes:
      return kByteSizeRule;
    case kInteger:
      return std::string("a whole number, ") + spec.legal;
    case kReal:
      return std::string("a finite number, ") + spec.legal;
    case kRate:
      return std::string("a number or a fraction as 30000/1001, ") + spec.legal;
    case kText:
      break;
  }
  return spec.legal ? spec.legal : spec.help;
}

std::string value_text(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool is_path(const FlagSpec* spec) {
  const std::string value = spec && spec->value ? spec->value : "";
  return value.ends_with("FILE") || value.starts_with("FOLDER") || value == "PATH";
}

// The words of the command line, sorted by flag.
struct Words {
  std::map<const FlagSpec*, std::vector<std::string>> values;
  std::vector<std::string> operands;
};

// The flag whose value is missing at the end of the line.
[[noreturn]] void missing_value(Command command, const std::string& word) {
  const FlagSpec* spec = nullptr;
  for (const FlagSpec& each : flag_table()) {
    if ((each.commands & command) && std::ranges::count(spellings(each), word) > 0) spec = &each;
  }
  throw Error(ErrorKind::kUsage,
              word + " needs a value" + (spec ? ", legal: " + legal_values(*spec) : ""));
}

Words read_words(Command command, std::span<const std::string> arguments) {
  Words words;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras(false);
  app.prefix_command(false);
  for (const FlagSpec& spec : flag_table()) {
    if (!(spec.commands & command)) continue;
    std::string names;
    for (const std::string& name : spellings(spec)) names += (names.empty() ? "" : ",") + name;
    if (spec.type == kSwitch)
      app.add_flag(names, words.values[&spec]);
    else
      app.add_option(names, words.values[&spec])
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->allow_extra_args(false);
  }
  const CommandSpec& about = command_spec(command);
  if (*about.operands) app.add_option("operands", words.operands);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> rest = app.remaining();
    const std::string word = rest.empty() ? "" : rest.front();
    if (word.starts_with("-") && word.size() > 1) unknown_flag(command, word);
    throw Error(ErrorKind::kUsage, "weft " + std::string(about.name) + " takes no operand '" +
                                       word + "'; legal: flags alone (weft " + about.name +
                                       " --help lists them)");
  } catch (const CLI::ArgumentMismatch&) {
    missing_value(command, arguments.back());
  } catch (const CLI::ParseError&) {
    std::string line;
    for (const std::string& argument : arguments) line += " " + argument;
    throw Error(ErrorKind::kUsage, "weft " + std::string(about.name) + line +
                                       " is no command line; legal: weft " + about.name +
                                       " [FLAGS] " + about.operands);
  }
  return words;
}

// The spelling of `spec` that stands on the command line.
std::string spelling_used(const FlagSpec& spec, std::span<const std::string> arguments) {
  for (const std::string& argument : arguments)
    for (const std::string& name : spellings(spec)) {
      const bool is_short = name.size() == 2;
      if (argument == name || argument.starts_with(name + "=") ||
          (is_short && argument.starts_with(name) && !argument.starts_with("--")))
        return name;
    }
  return std::string("--") + spec.name;
}

}  // namespace

std::string recorded_value(const FlagSpec* spec, const std::string& value) {
  return is_path(spec) ? path_text(value) : value;
}

std::string value_of_record(const FlagSpec* spec, const std::string& recorded) {
  return is_path(spec) ? path_of_text(recorded) : recorded;
}

std::vector<std::string> spellings(const FlagSpec& spec) {
  std::vector<std::string> names{std::string("--") + spec.name};
  for (const std::string& alias : split(spec.aliases, ' ')) names.push_back(alias);
  for (size_t i = 0, n = names.size(); i < n; ++i) {
    std::string other = names[i];
    if (other.size() < 3) continue;
    std::replace(other.begin() + 2, other.end(), '-', '_');
    if (other != names[i]) names.push_back(other);
  }
  return names;
}

void Flags::set(const FlagSpec& spec, const std::string& value, const std::string& origin) {
  values_[spec.name] = {value, origin};
  if (value.find('\0') != std::string::npos)
    throw Error(ErrorKind::kUsage, label(spec.name) + " has a NUL byte; legal: text without one");
  const bool names_file = is_path(&spec) || value.starts_with('@');
  if (!names_file) user_text(value, label(spec.name));
}

// Wrong values are refused before anything is loaded.
void Flags::check(const FlagSpec& spec) const {
  const GivenText value{.text = text(spec.name), .label = label(spec.name), .legal = spec.legal};
  switch (spec.type) {
    case kText:
      if (std::string(spec.name) == "frames" && !value.text.empty() &&
          value.text.find_first_not_of("0123456789") == std::string::npos)
        value.refuse(spec.legal + did_you_mean("--num-frames " + value.text));
      if (spec.legal) value.one_of();
      break;
    case kSwitch:
      if (!std::ranges::count(split("on|off|true|false|1|0", '|'), value.text))
        value.refuse(legal_values(spec));
      break;
    case kInteger:
      integer(spec.name);
      break;
    case kReal:
      real(spec.name);
      break;
    case kRate:
      value.rate();
      break;
    case kBytes:
      bytes(spec.name);
      break;
  }
}

void Flags::read_config_file(const std::string& path) {
  const nlohmann::json file = read_config(path);
  for (const auto& [key, value] : file.items()) {
    const FlagSpec* spec = find_flag(command_, key);
    if (!spec) unknown_flag(command_, "--" + key);
    if (key == "config")
      throw Error(ErrorKind::kUsage, path + " sets config; legal: every flag but --config");
    set(*spec, value_of_record(spec, value_text(value)), "config " + path);
  }
}

Flags Flags::parse(Command command, std::span<const std::string> arguments,
                   const StoredFlags& stored) {
  Flags flags;
  flags.command_ = command;
  Words words = read_words(command, arguments);
  flags.operands_ = std::move(words.operands);
  for (const auto& [spec, values] : words.values) {
    if (values.empty()) continue;
    flags.typed_[spec->name] = spelling_used(*spec, arguments);
    if (values.size() > 1 && spec->type != kSwitch && !spec->is_list)
      throw Error(ErrorKind::kUsage, flags.typed_[spec->name] + " is given " +
                                         std::to_string(values.size()) + " times, as '" +
                                         values[0] + "' and '" + values[1] + "'; give it once");
  }

  // The lowest precedence comes first.
  for (const FlagSpec& spec : flag_table())
    if ((spec.commands & command) && spec.is_default && *spec.fallback)
      flags.values_[spec.name] = {spec.fallback, "default"};
  for (const std::string& path : words.values[find_flag(command, "config")])
    flags.read_config_file(path);
  for (const auto& [name, value] : stored.values)
    if (const FlagSpec* spec = find_flag(command, name)) flags.set(*spec, value, stored.origin);
  for (const auto& [spec, values] : words.values) {
    if (values.empty()) continue;
    std::string value = spec->type == kSwitch && values.back() == "true" ? "on" : values.back();
    if (spec->is_list)
      for (size_t i = values.size() - 1; i-- > 0;) value = values[i] + "," + value;
    flags.set(*spec, value, "flag");
  }
  for (const FlagSpec& spec : flag_table())
    if ((spec.commands & command) && flags.given(spec.name)) flags.check(spec);
  resolve_placement(flags);
  return flags;
}

bool Flags::given(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() && found->second.second != "default" &&
         !found->second.second.starts_with("auto");
}

bool Flags::typed(const std::string& name) const {
  const std::string from = origin(name);
  return from == "flag" || from.starts_with("--") || from.starts_with("layout ");
}

bool Flags::on(const std::string& name) const {
  const std::string value = text(name);
  return value == "on" || value == "true" || value == "1";
}

std::string Flags::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second.first;
}

std::string Flags::origin(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "default" : found->second.second;
}

std::string Flags::label(const std::string& name) const {
  const std::string from = origin(name);
  if (const auto typed = typed_.find(name); from == "flag" && typed != typed_.end())
    return typed->second;
  return "--" + name + (from == "flag" || from == "default" ? "" : " (" + from + ")");
}

void Flags::imply(const std::string& name, const std::string& value, const std::string& origin) {
  values_[name] = {value, origin};
}

std::optional<GivenText> Flags::value_of(const std::string& name) const {
  if (text(name).empty() && !given(name)) return std::nullopt;
  const FlagSpec& spec = *find_flag(command_, name);
  return GivenText{.text = text(name), .label = label(name), .legal = spec.legal};
}

std::optional<int64_t> Flags::integer(const std::string& name) const {
  const auto value = value_of(name);
  return value ? std::optional(value->whole_number()) : std::nullopt;
}

std::optional<double> Flags::real(const std::string& name) const {
  const auto value = value_of(name);
  return value ? std::optional(value->number()) : std::nullopt;
}

uint64_t Flags::bytes(const std::string& name) const {
  const auto value = value_of(name);
  if (!value) return 0;
  const std::optional<uint64_t> size = parse_byte_size(value->text);
  if (!size) value->refuse(kByteSizeRule);
  return *size;
}

std::string Flags::to_string() const {
  std::ostringstream out;
  for (const FlagSpec& spec : flag_table()) {
    if (!(spec.commands & command_)) continue;
    const auto found = values_.find(spec.name);
    if (found == values_.end()) {
      if (!spec.is_default) out << spec.name << " = " << spec.fallback << "   (default)\n";
      continue;
    }
    out << spec.name << " = " << found->second.first << "   (" << found->second.second << ")\n";
  }
  return out.str();
}

std::string Flags::to_json() const {
  Json object = Json::object();
  for (const auto& [name, value] : values_)
    object[name] = {{"value", recorded_value(find_flag(command_, name), value.first)},
                    {"origin", value.second}};
  return object.dump() + "\n";
}

std::span<const EnvironmentVariable> environment_table() { return kEnvironment; }

std::vector<std::string> unknown_environment() {
  std::vector<std::string> known, warnings;
  for (const EnvironmentVariable& variable : kEnvironment) known.push_back(variable.name);
  for (char** entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!name.starts_with("WEFT_") || std::find(known.begin(), known.end(), name) != known.end())
      continue;
    warnings.push_back("environment variable " + name + " is not known" +
                       did_you_mean(nearest(name, known)));
  }
  return warnings;
}

}  // namespace weft
