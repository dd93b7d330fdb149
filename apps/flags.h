#pragma once
// The one table of command-line flags. It feeds parsing, --help, --print-config and the run header.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft {

// Commands as bits, so that a flag can belong to several.
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
  kEveryCommand = 1023,
};

struct CommandSpec {
  Command command;
  const char* name;
  const char* operands;  // "CASE...", or ""
  const char* summary;
};
std::span<const CommandSpec> command_table();

enum class FlagType : uint8_t { kText, kInteger, kReal, kSwitch };

struct FlagSpec {
  const char* name;  // canonical long name without dashes
  const char*
      aliases;  // space-separated, with dashes; '-' and '_' inside names are interchangeable
  FlagType type;
  const char* fallback;  // what --help shows as the default; a real default only where `is_default`
  const char* help;
  unsigned commands;
  const char* environment = nullptr;  // WEFT_* name that sets it where the flag is absent
  // The legal set, checked at parsing: "a|b|c" of a text, "1 ... 1000" of a number.
  const char* legal = nullptr;
  bool is_default = true;  // false: `fallback` describes ("model's"), it is no value
};
std::span<const FlagSpec> flag_table();

// Parsed values with their origins: flag > --set > environment > --config file > built-in default.
class Flags {
 public:
  // Throws Error(kUsage). `arguments` excludes the program and command names.
  static Flags parse(Command command, std::span<const std::string> arguments);

  Command command() const { return command_; }
  const std::vector<std::string>& operands() const { return operands_; }

  bool given(const std::string& name) const;        // by the user, from wherever
  bool on(const std::string& name) const;           // a switch
  std::string text(const std::string& name) const;  // "" where there is no value
  // Within the flag's legal set; nullopt where there is no value.
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> real(const std::string& name) const;
  std::string origin(const std::string& name) const;

  // One line per flag of the command: "name = value   (origin)".
  std::string to_string() const;
  std::string to_json() const;  // {"name": {"value", "origin"}} in one line
  // name -> {value, origin} of everything that has a value, for the sidecar.
  const std::map<std::string, std::pair<std::string, std::string>>& values() const {
    return values_;
  }

 private:
  void set(const FlagSpec& spec, const std::string& value, const std::string& origin);

  Command command_ = kGenerate;
  std::vector<std::string> operands_;
  std::map<std::string, std::pair<std::string, std::string>> values_;
};

// Every name and alias with its dashes, and their forms with underscores; the name comes first.
std::vector<std::string> spellings(const FlagSpec& spec);
// "a|b|c" or "a b" in its parts, empty ones left out.
std::vector<std::string> split(const std::string& text, char separator);

// A flag's help, its legal set, default and longer aliases, and what stands for its value, as
// "N"; "" of a switch.
std::string description(const FlagSpec& spec);
std::string value_name(const FlagSpec& spec);
std::string exit_codes();  // "0 ok, 1 internal, ..."

std::string help_text();                 // weft --help
std::string help_text(Command command);  // weft generate --help

// The candidate nearest to `word` by edit distance, or "" when none is near.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// Warnings for WEFT_* environment names that nothing reads, one line each.
std::vector<std::string> unknown_environment();

}  // namespace weft
