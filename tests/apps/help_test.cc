// Help texts stay short enough to read, and the guide of all flags is the generator's output.
#include "apps/command_line/help.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "apps/command_line/cli_guide.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using test::Outcome, test::run;

// A help text fits a page of a terminal.
constexpr size_t kMostLines = 75, kMostColumns = 100;

size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(Help, HasFewLinesAndColumns) {
  EXPECT_LE(widest_line(help_text()), kMostColumns);
  EXPECT_LE(test::lines(help_text()), kMostLines);
  for (const CommandSpec& command : command_table()) {
    const std::string basic = help_text(command.command, FlagLevel::kBasic);
    const std::string all = help_text(command.command, FlagLevel::kAdvanced);
    EXPECT_LE(test::lines(basic), kMostLines) << command.name;
    EXPECT_LE(widest_line(basic), kMostColumns) << command.name;
    EXPECT_LE(widest_line(all), kMostColumns) << command.name;
    EXPECT_GT(test::lines(all), test::lines(basic)) << command.name;
    for (const std::string& help : {basic, all})
      EXPECT_NE(help.find("--help-all"), std::string::npos) << command.name;
  }
}

TEST(Help, GroupsTheFlagsOfGenerate) {
  const std::string help = help_text(kGenerate, FlagLevel::kBasic);
  size_t before = 0;
  for (const char* title : {"\nwhat to draw\n", "\nmodel and number formats\n",
                            "\ndevice and memory\n", "\nranks: several GPUs, threads or machines\n",
                            "\noutput\n", "\nsettings and messages\n"}) {
    const size_t at = help.find(title);
    ASSERT_NE(at, std::string::npos) << title;
    EXPECT_GT(at, before);
    before = at;
  }
  // The flags of the first five minutes are basic, those of experts are not.
  for (const char* flag : {"--prompt", "--model", "--size", "--seed", "--output", "--gpus",
                           "--device", "--weights", "--ulysses", "--cfg", "--memory-limit"})
    EXPECT_NE(help.find("\n  " + std::string(flag)), std::string::npos) << flag;
  for (const char* flag : {"--sigmas", "--flow-shift", "--rng", "--token-ring", "--no-graphs"})
    EXPECT_EQ(help.find("\n  " + std::string(flag)), std::string::npos) << flag;
}

// A help text is a phrase about the flag that needs no other text to be understood.
TEST(Help, TextsAreComplete) {
  for (const FlagSpec& spec : flag_table()) {
    const std::string help = spec.help;
    EXPECT_GE(help.size(), 15u) << spec.name;
    EXPECT_FALSE(help.ends_with('.')) << spec.name;
    for (const char* fragment : {"of ", "what is", "behind ", "between ", "beside "})
      EXPECT_FALSE(help.starts_with(fragment)) << spec.name << ": " << help;
  }
}

TEST(Help, WordsWorkBesideFlags) {
  EXPECT_EQ(run("help generate").out, run("generate --help").out);
  EXPECT_EQ(run("help plan --help-all").out, run("plan --help-all").out);
  EXPECT_EQ(run("help").out, run("--help").out);
  EXPECT_EQ(run("version").out, run("--version").out);
  const Outcome unknown = run("help generat");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("did you mean generate?"), std::string::npos) << unknown.err;
}

TEST(Help, TheGuideIsTheGeneratorsOutput) {
  std::ifstream file("apps/guide/cli.md");
  const std::string guide{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(guide == cli_guide())
      << "apps/guide/cli.md differs from the tables of flags; make it again with\n"
         "  build/weft completion markdown > apps/guide/cli.md";
  EXPECT_EQ(run("completion markdown").out, cli_guide());
}

TEST(Help, TheGuideNamesEveryFlagSpellingAndExitCode) {
  const std::string guide = cli_guide();
  for (const FlagSpec& spec : flag_table()) {
    for (const std::string& alias : split(spec.aliases, ' '))
      EXPECT_NE(guide.find("`" + alias + "`"), std::string::npos) << alias;
    EXPECT_NE(guide.find("`--" + std::string(spec.name) + "`"), std::string::npos) << spec.name;
  }
  for (const EnvironmentVariable& variable : environment_table())
    EXPECT_NE(guide.find("| `" + std::string(variable.name) + "` | "), std::string::npos);
  for (const ExitCode& exit : exit_code_table())
    EXPECT_NE(guide.find("| " + std::to_string(exit.code) + " | "), std::string::npos);
}

}  // namespace
}  // namespace weft
