// weft completion: a shell's completion script, the manual or the guide of all flags, made from the
// one table of flags.
#include <cstdio>
#include <map>

#include "apps/command_line/cli_guide.h"
#include "apps/command_line/help.h"
#include "apps/commands.h"
#include "kernels/check.h"

namespace weft {
namespace {

// The values that a shell offers after a flag: its legal set; "" where it takes any.
std::string value_choices(const FlagSpec& spec) {
  if (!spec.legal || spec.type != FlagType::kText) return "";
  std::string words;
  for (const std::string& word : split(spec.legal, '|')) words += (words.empty() ? "" : " ") + word;
  return words;
}

// The operands that a shell offers, where they are words and not files: "bash zsh fish".
std::string operand_choices(const CommandSpec& command) {
  const std::string operands = command.operands;
  if (operands.find('|') == std::string::npos) return "";
  std::string words;
  for (const std::string& word : split(operands, '|')) words += (words.empty() ? "" : " ") + word;
  return words;
}

std::string names_of_commands() {
  std::string names;
  for (const CommandSpec& command : command_table())
    names += (names.empty() ? "" : " ") + std::string(command.name);
  return names;
}

// The text in single quotes, which all three shells read alike.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("’") : std::string(1, c);
  return "'" + out + "'";
}

std::string bash_script() {
  std::string out =
      "# weft completion for bash: source <(weft completion bash)\n"
      "_weft() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags= values=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '" +
      names_of_commands() +
      " help version --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const CommandSpec& command : command_table()) {
    std::string flags = "--help --help-all", values;
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      std::string pattern;
      for (const std::string& name : spellings(spec)) {
        flags += " " + name;
        pattern += (pattern.empty() ? "" : "|") + name;
      }
      if (const std::string words = value_choices(spec); !words.empty())
        values += "        " + pattern + ") values='" + words + "' ;;\n";
    }
    out += std::string("    ") + command.name + ")\n      flags='" + flags + "'\n";
    if (!values.empty()) out += "      case $before in\n" + values + "      esac\n";
    if (const std::string words = operand_choices(command); !words.empty())
      out += "      case $word in -*) ;; *) values='" + words + "' ;; esac\n";
    out += "      ;;\n";
  }
  return out +
         "  esac\n"
         "  if [ -n \"$values\" ]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
         "  elif [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o default -F _weft weft\n";
}

std::string zsh_script() {
  std::string out =
      "#compdef weft\n"
      "# weft completion for zsh: source <(weft completion zsh)\n"
      "_weft() {\n"
      "  local -a commands=(";
  for (const CommandSpec& command : command_table())
    out += "\n    " + quoted(std::string(command.name) + ":" + command.summary);
  out +=
      ")\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n";
  const auto plain = [](const std::string& help) {  // brackets and colons are _arguments' own
    std::string text;
    for (const char c : help) text += c == '[' ? '(' : c == ']' ? ')' : c == ':' ? ';' : c;
    return text;
  };
  for (const CommandSpec& command : command_table()) {
    out += std::string("    ") + command.name + ")\n      _arguments";
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      const std::string words = value_choices(spec);
      const std::string value = spec.type == FlagType::kSwitch ? ""
                                : !words.empty()               ? ":value:(" + words + ")"
                                : spec.type == FlagType::kText ? ":text:_files"
                                                               : ":number: ";
      for (const std::string& name : spellings(spec))
        out += " \\\n        " + quoted(name + "[" + plain(spec.help) + "]" + value);
    }
    const std::string words = operand_choices(command);
    out += " \\\n        " + quoted(words.empty() ? "*:file:_files" : "1:word:(" + words + ")") +
           "\n      ;;\n";
  }
  return out +
         "  esac\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _weft ]; then _weft; else compdef _weft weft; fi\n";
}

std::string fish_script() {
  std::string out =
      "# weft completion for fish: weft completion fish | source\n"
      "complete -c weft -f -n __fish_use_subcommand -a " +
      quoted(names_of_commands()) + "\n";
  for (const CommandSpec& command : command_table()) {
    const std::string here =
        std::string("complete -c weft -n '__fish_seen_subcommand_from ") + command.name + "'";
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      const std::string words = value_choices(spec);
      const std::string value = spec.type == FlagType::kSwitch ? ""
                                : words.empty()                ? " -r"
                                                               : " -x -a " + quoted(words);
      for (const std::string& name : spellings(spec))
        out += here + (name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1)) +
               value + " -d " + quoted(spec.help) + "\n";
    }
    if (const std::string words = operand_choices(command); !words.empty())
      out += here + " -f -a " + quoted(words) + "\n";
  }
  return out;
}

// Text for troff: hyphens become ones that can be searched for, and no line reads as a request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string(1, c);
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string manual() {
  std::string out =
      ".TH WEFT 1 \"\" \"" + roff(version_text()) +
      "\" \"User Commands\"\n.SH NAME\nweft \\- video and images from text with diffusion "
      "transformers\n.SH SYNOPSIS\n.B weft\n.I COMMAND\n[\\fIFLAGS\\fR] [\\fIOPERANDS\\fR]\n.SH "
      "COMMANDS\n";
  for (const CommandSpec& command : command_table()) {
    out += std::string(".SS weft ") + command.name + " " + roff(command.operands) + "\n" +
           roff(command.summary) + "\n";
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      out += ".TP\n";
      std::string names = "--" + std::string(spec.name);
      for (const std::string& alias : split(spec.aliases, ' '))
        if (alias.size() == 2) names += ", " + alias;
      const std::string value = value_name(spec);
      out += "\\fB" + roff(names) + "\\fR" + (value.empty() ? "" : " \\fI" + roff(value) + "\\fR") +
             "\n" + roff(full_description(spec)) + "\n";
    }
  }
  out += ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : environment_table())
    out += std::string(".TP\n\\fB") + name + "\\fR\n" + roff(meaning) + "\n";
  out += ".SH EXIT STATUS\n";
  for (const ExitCode& exit : exit_code_table())
    out += ".TP\n\\fB" + std::to_string(exit.code) + "\\fR\n" + roff(exit.meaning) + "\n";
  return out;
}

}  // namespace

int run_completion(const Flags& flags) {
  const std::map<std::string, std::string (*)()> forms{{"bash", bash_script},
                                                       {"zsh", zsh_script},
                                                       {"fish", fish_script},
                                                       {"man", manual},
                                                       {"markdown", cli_guide}};
  const std::string form = flags.operands().size() == 1 ? flags.operands().front() : "";
  const auto found = forms.find(form);
  if (found == forms.end())
    throw Error(ErrorKind::kUsage,
                "weft completion takes one operand, legal: bash, zsh, fish, man, markdown" +
                    (form.empty() ? "" : "; got '" + form + "'"));
  std::fputs(found->second().c_str(), stdout);
  return 0;
}

}  // namespace weft
