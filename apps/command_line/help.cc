#include "apps/command_line/help.h"

#include <algorithm>
#include <sstream>

namespace weft {
namespace {

constexpr size_t kColumns = 98, kTextColumn = 29;

constexpr ExitCode kExitCodes[] = {
    {0, "ok"},
    {1,
     "an internal error, a check that failed (verify, compare, replay, doctor), or a job of a "
     "batch"},
    {2, "wrong usage: a flag, its value, or flags that contradict each other"},
    {3, "the model or its weights were refused"},
    {4, "the job does not fit into memory"},
    {5, "the results hold NaN or infinity"},
    {6, "ranks could not communicate, or one died"},
    {7, "the output could not be written, or exists"},
    {8, "an input clip or picture could not be read"},
    {75, "stopped early by SIGUSR1; the job can be resumed"},
    {130, "interrupted (Ctrl-C); the job can be resumed"},
    {143, "terminated (SIGTERM); the job can be resumed"},
};

// Appends `text` in lines of at most kColumns, starting at `column` of the last line and indenting
// the others by `indent`. A range, "1 ... 9", is not broken.
void append_wrapped(std::string& out, const std::string& text, size_t column, size_t indent) {
  constexpr char kTied = '\x1f';  // stands for a space that no line may end at
  std::string tied = text;
  for (size_t at = 0; (at = tied.find(" ... ", at)) != std::string::npos;)
    tied[at] = tied[at + 4] = kTied;
  std::istringstream words(tied);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    // A list of legal values that is wider than the column ends its lines at bars.
    while (indent + word.size() > kColumns && word.find('|') < kColumns - indent) {
      const size_t cut = word.rfind('|', kColumns - indent - 1) + 1;
      out += (first ? "" : "\n" + std::string(indent, ' ')) + word.substr(0, cut);
      word.erase(0, cut);
      column = kColumns;  // the rest begins a line
      first = false;
    }
    if (!first && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    std::replace(word.begin(), word.end(), kTied, ' ');
    out += word;
    column += word.size();
  }
  out += '\n';
}

// "  --seed, -s N" and its text, in two columns.
void append_row(std::string& out, const std::string& left, const std::string& text) {
  out += left;
  if (left.size() + 1 > kTextColumn)
    out += "\n" + std::string(kTextColumn, ' ');
  else
    out += std::string(kTextColumn - left.size(), ' ');
  append_wrapped(out, text, kTextColumn, kTextColumn);
}

std::string names_of(const FlagSpec& spec) {
  std::string names = std::string("  --") + spec.name;
  for (const std::string& alias : split(spec.aliases, ' '))
    if (alias.size() == 2) names += ", " + alias;
  const std::string value = value_name(spec);
  return value.empty() || value.find('|') != std::string::npos ? names : names + " " + value;
}

// The help and the legal words.
std::string meaning(const FlagSpec& spec) {
  const std::string value = value_name(spec);
  return value.find('|') == std::string::npos ? spec.help : spec.help + (": " + value);
}

std::string description(const FlagSpec& spec, FlagLevel most) {
  if (most == FlagLevel::kAdvanced) return full_description(spec);
  const bool shows_default = *spec.fallback && spec.type != FlagType::kSwitch;
  return meaning(spec) + (shows_default ? std::string(" [") + spec.fallback + "]" : "");
}

}  // namespace

std::string full_description(const FlagSpec& spec) {
  std::string text = meaning(spec);
  if (const std::string more = default_and_range(spec); !more.empty()) text += " " + more;
  std::string longer;
  for (const std::string& alias : split(spec.aliases, ' '))
    if (alias.size() > 2) longer += " " + alias;
  return longer.empty() ? text : text + " (also" + longer + ")";
}

std::span<const ExitCode> exit_code_table() { return kExitCodes; }

std::string group_title(Command command, FlagGroup group) {
  switch (group) {
    case FlagGroup::kInput:
      return command == kComplete  ? "what to write"
             : command == kBench   ? "what to measure"
             : command == kInspect ? "what to show"
             : command == kCompare ? "when to fail"
                                   : "what to draw";
    case FlagGroup::kModel:
      return "model and number formats";
    case FlagGroup::kDevice:
      return "device and memory";
    case FlagGroup::kRanks:
      return "ranks: several GPUs, threads or machines";
    case FlagGroup::kOutput:
      return "output";
    case FlagGroup::kListen:
      return "clients: browsers and programs";
    default:
      return "settings and messages";
  }
}

std::vector<const FlagSpec*> flags_of(Command command, FlagGroup group, FlagLevel most) {
  std::vector<const FlagSpec*> flags;
  for (const FlagSpec& spec : flag_table())
    if ((spec.commands & command) && spec.group == group && spec.level <= most)
      flags.push_back(&spec);
  return flags;
}

std::string value_name(const FlagSpec& spec) {
  if (spec.value) return spec.value;
  switch (spec.type) {
    case FlagType::kInteger:
      return "N";
    case FlagType::kReal:
    case FlagType::kRate:
      return "X";
    case FlagType::kBytes:
      return "SIZE";
    case FlagType::kText:
      return spec.legal ? spec.legal : "TEXT";
    default:
      return "";
  }
}

std::string default_and_range(const FlagSpec& spec) {
  if (spec.type == FlagType::kSwitch) return "";
  std::string text = spec.fallback;
  if (spec.legal && spec.type != FlagType::kText)
    text += (text.empty() ? "" : "; ") + std::string(spec.legal);
  return text.empty() ? "" : "[" + text + "]";
}

std::string help_text() {
  std::string out =
      "weft: video and pictures from text with diffusion transformers\n\nusage: weft COMMAND "
      "[FLAGS]\n\ncommands:\n";
  for (const CommandSpec& spec : command_table()) {
    const std::string left = "  " + std::string(spec.name);
    out += left + std::string(14 - left.size(), ' ');
    append_wrapped(out, spec.summary, 14, 14);
  }
  out +=
      "\nweft COMMAND --help, or weft help COMMAND, lists a command's flags; --help-all lists all "
      "of "
      "them.\nweft --version, or weft version, prints the version.\n"
      "example: weft generate --model models/pocket --prompt \"a big red ball, moving left\" "
      "-o ball.mp4\n\nexit codes:\n";
  for (const ExitCode& exit : kExitCodes) {
    const std::string left = "  " + std::to_string(exit.code);
    out += left + std::string(7 - left.size(), ' ') + exit.meaning + "\n";
  }
  return out;
}

std::string help_text(Command command, FlagLevel most) {
  const CommandSpec& about = command_spec(command);
  std::string out;
  append_wrapped(out, std::string("weft ") + about.name + ": " + about.summary, 0, 2);
  out += std::string("usage: weft ") + about.name + " [FLAGS]" + (*about.operands ? " " : "") +
         about.operands + "\n";
  bool more = false;
  for (int i = 0; i < static_cast<int>(FlagGroup::kCount); ++i) {
    const FlagGroup group = static_cast<FlagGroup>(i);
    const std::vector<const FlagSpec*> flags = flags_of(command, group, most);
    more |= flags.size() < flags_of(command, group, FlagLevel::kAdvanced).size();
    if (flags.empty()) continue;
    out += "\n" + group_title(command, group) + "\n";
    for (const FlagSpec* spec : flags) append_row(out, names_of(*spec), description(*spec, most));
  }
  out += "\n";
  append_row(out, "  --help, -h", "this text");
  append_row(
      out, "  --help-all",
      more ? "the advanced flags too, with ranges and other names" : "ranges and other names");
  return out;
}

}  // namespace weft
