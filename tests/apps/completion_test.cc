// Shells, the manual and the help offer exactly the flags of the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

#include "apps/command_line/flags.h"
#include "apps/command_line/help.h"

namespace weft {
namespace {

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.append(buffer.data(), n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return out;
}

std::string script(const std::string& shell) {
  return output_of(std::string(WEFT_BINARY) + " completion " + shell);
}

// Cuts the part from `begin` to the next `end` out of a script.
std::string part(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t at = text.find(begin);
  return at == std::string::npos ? "" : text.substr(at, text.find(end, at) - at);
}

bool has_word(const std::string& text, const std::string& word) {
  const auto inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !inside(text[at - 1])) && (end == text.size() || !inside(text[end])))
      return true;
  }
  return false;
}

TEST(Completion, EveryFlagOfEveryCommandInHelpManualAndThreeShells) {
  const std::string bash = script("bash"), zsh = script("zsh"), fish = script("fish");
  std::string man = script("man");
  for (const char* escape : {"\\fB", "\\fR", "\\"})
    for (size_t at; (at = man.find(escape)) != std::string::npos;)
      man.erase(at, std::string(escape).size());
  for (const CommandSpec& command : command_table()) {
    const std::string name = command.name;
    EXPECT_TRUE(has_word(help_text(), name)) << name;
    const std::string help = help_text(command.command, FlagLevel::kAdvanced);
    const std::string in_bash = part(bash, "\n    " + name + ")", "\n      ;;");
    const std::string in_zsh = part(zsh, "\n    " + name + ")", "\n      ;;");
    const std::string in_man = part(man, ".SS weft " + name + " ", "\n.S");
    std::string in_fish;
    std::istringstream lines(fish);
    for (std::string line; std::getline(lines, line);)
      if (line.find("subcommand_from " + name + "'") != std::string::npos) in_fish += line + "\n";
    for (const FlagSpec& spec : flag_table()) {
      const bool has = spec.commands & command.command;
      const bool named = std::ranges::any_of(flag_table(), [&](const FlagSpec& other) {
        return (other.commands & command.command) && std::string(other.name) == spec.name;
      });
      for (const std::string& spelling : spellings(spec)) {
        if (!has) continue;
        const std::string fish_form =
            spelling.starts_with("--") ? "-l " + spelling.substr(2) : "-s " + spelling.substr(1);
        EXPECT_TRUE(has_word(help, spelling)) << name << " " << spelling;
        EXPECT_TRUE(has_word(in_man, spelling)) << name << " " << spelling;
        EXPECT_TRUE(has_word(in_bash, spelling)) << name << " " << spelling;
        EXPECT_NE(in_zsh.find("'" + spelling + "["), std::string::npos) << name << " " << spelling;
        EXPECT_TRUE(has_word(in_fish, fish_form)) << name << " " << spelling;
      }
      if (!named) {
        EXPECT_FALSE(has_word(in_bash, spellings(spec).front())) << name << " " << spec.name;
        EXPECT_FALSE(has_word(in_man, spellings(spec).front())) << name << " " << spec.name;
      }
    }
  }
}

// troff reads a line that begins with a dot as a request; the manual has only its own.
TEST(Completion, TheManualHasNoStrayRequest) {
  std::istringstream lines(script("man"));
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    commands += line.starts_with(".SS ");
    if (!line.starts_with('.') && !line.starts_with('\'')) continue;
    const std::string request = line.substr(0, line.find(' '));
    EXPECT_TRUE(request == ".TH" || request == ".SH" || request == ".SS" || request == ".TP" ||
                request == ".B" || request == ".I")
        << line;
  }
  EXPECT_EQ(commands, static_cast<int>(command_table().size()));
}

TEST(Completion, BashOffersCommandsFlagsAndLegalValues) {
  const auto offered = [](const std::string& words, int at) {
    return output_of("bash -c 'source <(" + std::string(WEFT_BINARY) +
                     " completion bash); COMP_WORDS=(" + words +
                     "); COMP_CWORD=" + std::to_string(at) + "; _weft; echo ${COMPREPLY[@]}'");
  };
  EXPECT_EQ(offered("weft gen", 1), "generate\n");
  EXPECT_EQ(offered("weft generate --guidance-s", 2), "--guidance-scale --guidance-scale-2\n");
  EXPECT_EQ(offered("weft verify --dtype b", 3), "bf16\n");
  EXPECT_EQ(offered("weft completion f", 2), "fish\n");
  EXPECT_EQ(offered("weft generate file", 2), "\n");  // the shell's own: files
}

}  // namespace
}  // namespace weft
