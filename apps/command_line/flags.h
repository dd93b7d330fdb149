#pragma once
// The command line as values: the table of flags (flag_table.cc) and the parser that reads it.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/legal.h"

namespace weft {

// Commands are bits, so that a flag can belong to several.
enum Command : unsigned {
  kGenerate = 1,
  kVerify = 2,
  kInspect = 4,
  kBench = 8,
  kPlan = 16,
  kCompare = 32,
  kCompletion = 64,
  kReplay = 128,
  kDoctor = 256,
  kComplete = 512,
  kBatch = 1024,
  kStream = 2048,
  kServe = 4096,
  kWorker = 8192,
  kEveryCommand = 16383,
};

struct CommandSpec {
  Command command;
  const char* name;
  const char* operands;  // "CASE...", or ""
  const char* summary;
};
std::span<const CommandSpec> command_table();
const CommandSpec& command_spec(Command command);

enum class FlagType : uint8_t { kText, kInteger, kReal, kRate, kBytes, kSwitch };
enum class FlagGroup : uint8_t {
  kInput,
  kModel,
  kDevice,
  kRanks,
  kOutput,
  kListen,
  kSettings,
  kCount
};
// --help lists the basic flags, --help-all the advanced ones too.
enum class FlagLevel : uint8_t { kBasic, kAdvanced };

struct FlagSpec {
  const char* name;  // the canonical long name, without dashes
  // Separated by spaces, with their dashes; '-' and '_' inside names are interchangeable.
  const char* aliases = "";
  FlagType type = FlagType::kText;
  const char* value = nullptr;  // stands for the value in help texts, as "FOLDER"
  const char* fallback = "";    // the default; help texts show it
  bool is_default = true;       // false: `fallback` describes the default ("model's")
  // Parsing refuses values outside: "a|b|c" of a text, "1 ... 1000" of a number.
  const char* legal = nullptr;
  const char* help;
  unsigned commands;
  FlagGroup group = FlagGroup::kInput;  // set by flag_table()
  FlagLevel level = FlagLevel::kBasic;
  bool is_list = false;  // true: it may be repeated, which joins the values with commas
};
std::span<const FlagSpec> flag_table();
// The value of a flag as records and config files state it. A value that is a path, or a list of
// paths, may have any bytes, and is path_text() (io/text/utf8.h) there. Other values are UTF-8.
std::string recorded_value(const FlagSpec* spec, const std::string& value);
std::string value_of_record(const FlagSpec* spec, const std::string& recorded);
// The command's flag of this name or alias, without dashes; null where it has none.
const FlagSpec* find_flag(Command command, const std::string& name);

// Flags by name that a checkpoint or a sidecar states, and its name for messages.
struct StoredFlags {
  std::map<std::string, std::string> values;
  std::string origin;
};

// Parsed values with their origins: flag > stored > --config file > built-in default.
class Flags {
 public:
  // Throws Error(kUsage). `arguments` excludes the program and command names. Values that follow
  // from others (placement.h) are filled in.
  static Flags parse(Command command, std::span<const std::string> arguments,
                     const StoredFlags& stored = {});

  Command command() const { return command_; }
  const std::vector<std::string>& operands() const { return operands_; }

  bool given(const std::string& name) const;        // by the user: no default, not chosen by auto
  bool on(const std::string& name) const;           // a switch
  bool typed(const std::string& name) const;        // it, or one that sets it, is an argument
  std::string text(const std::string& name) const;  // "" where there is no value
  // A number within the flag's legal set; nullopt where there is no value.
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> real(const std::string& name) const;
  uint64_t bytes(const std::string& name) const;  // 0 where there is no value
  std::string origin(const std::string& name) const;
  // The flag as the user gave it, for messages: "--vram-limit", "--threads (config short.json)".
  std::string label(const std::string& name) const;

  // Gives a flag the value that follows from another one; `origin` names that one.
  void imply(const std::string& name, const std::string& value, const std::string& origin);

  // One line per flag of the command: "name = value   (origin)".
  std::string to_string() const;
  std::string to_json() const;  // {"name": {"value", "origin"}} in one line
  // name -> {value, origin} of everything that has a value, for the sidecar.
  const std::map<std::string, std::pair<std::string, std::string>>& values() const {
    return values_;
  }

 private:
  void set(const FlagSpec& spec, const std::string& value, const std::string& origin);
  void read_config_file(const std::string& path);
  void check(const FlagSpec& spec) const;
  std::optional<GivenText> value_of(const std::string& name) const;  // nullopt: there is none

  Command command_ = kGenerate;
  std::vector<std::string> operands_;
  std::map<std::string, std::pair<std::string, std::string>> values_;
  std::map<std::string, std::string> typed_;  // name -> the spelling on the command line
};

// Every name and alias with its dashes, and their forms with underscores; the name comes first.
std::vector<std::string> spellings(const FlagSpec& spec);

// A variable of the environment that Weft reads, and what it does.
struct EnvironmentVariable {
  const char *name, *meaning;
};
std::span<const EnvironmentVariable> environment_table();
// Warnings for WEFT_* environment names that nothing reads, one line each.
std::vector<std::string> unknown_environment();

}  // namespace weft
