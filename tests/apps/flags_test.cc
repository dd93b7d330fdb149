#include "apps/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "kernels/check.h"

namespace weft {
namespace {

Flags parse(std::vector<std::string> arguments, Command command = kGenerate) {
  return Flags::parse(command, arguments);
}

std::string usage_error(std::vector<std::string> arguments, Command command = kGenerate) {
  try {
    parse(std::move(arguments), command);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Flags, TableNamesAreUniquePerCommand) {
  for (const CommandSpec& command : command_table()) {
    std::set<std::string> seen;
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      EXPECT_TRUE(seen.insert(std::string("--") + spec.name).second) << spec.name;
      std::istringstream aliases(spec.aliases);
      for (std::string alias; aliases >> alias;) EXPECT_TRUE(seen.insert(alias).second) << alias;
    }
  }
}

TEST(Flags, EveryFlagStandsInTheHelpOfItsCommands) {
  std::map<std::string, unsigned> commands;  // a name may stand for different things in two
  for (const FlagSpec& spec : flag_table()) {
    EXPECT_EQ(commands[spec.name] & spec.commands, 0u) << spec.name;
    commands[spec.name] |= spec.commands;
  }
  for (const CommandSpec& command : command_table())
    for (const auto& [name, takes] : commands) {
      const std::string help = help_text(command.command), flag = "  --" + name;
      // Not the beginning of a longer name.
      EXPECT_EQ(contains(help, flag + " ") || contains(help, flag + ","),
                (takes & command.command) != 0)
          << name;
    }
}

// The first value of the legal set; of a number's, its lower end.
std::string legal_value(const FlagSpec& spec) {
  const std::string legal = spec.legal ? spec.legal : "3";
  return legal.substr(0, legal.find_first_of("| "));
}

TEST(Flags, EveryFlagParsesUnderEverySpelling) {
  for (const CommandSpec& command : command_table())
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command) || std::string(spec.name) == "config" ||
          std::string(spec.name) == "set")
        continue;
      const bool is_switch = spec.type == FlagType::kSwitch;
      for (const std::string& spelling : spellings(spec)) {
        const std::string value = legal_value(spec);
        const Flags flags = is_switch ? parse({spelling}, command.command)
                                      : parse({spelling, value}, command.command);
        EXPECT_TRUE(flags.given(spec.name)) << spelling;
        EXPECT_EQ(flags.text(spec.name), is_switch ? "on" : value) << spelling;
      }
    }
}

// Every flag with a legal set refuses what is outside, naming itself, the value, the set and the
// nearest legal value.
TEST(Flags, EveryLegalSetIsHeld) {
  for (const CommandSpec& command : command_table())
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      const std::string flag = std::string("--") + spec.name;
      const bool number = spec.type == FlagType::kInteger || spec.type == FlagType::kReal;
      if (number) {
        const std::string words = usage_error({flag, "1x"}, command.command);
        EXPECT_TRUE(contains(words, flag + " is '1x', legal: a ")) << words;
        EXPECT_TRUE(contains(words, "number")) << words;
        EXPECT_TRUE(contains(usage_error({"--set", std::string(spec.name) + "="}, command.command),
                             "is ''"))
            << flag;
        ASSERT_NE(spec.legal, nullptr) << flag << ": a number without a range";
        const std::string legal = spec.legal, low = legal.substr(0, legal.find(' ')),
                          high = legal.substr(legal.rfind(' ') + 1);
        for (const auto& [value, nearest] :
             {std::pair{std::string("-2000000000"), low}, {std::string("2000000000000"), high}}) {
          const std::string error = usage_error({flag, value}, command.command);
          EXPECT_EQ(error, flag + " is " + value + ", legal: " + legal + "; nearest: " + nearest);
        }
      } else if (spec.type == FlagType::kSwitch) {
        const std::string error =
            usage_error({"--set", std::string(spec.name) + "=maybe"}, command.command);
        EXPECT_TRUE(contains(error, flag + " is 'maybe', legal: on|off")) << error;
      } else if (spec.legal) {
        const std::string near = legal_value(spec) + "x";
        const std::string error = usage_error({flag, near}, command.command);
        EXPECT_TRUE(contains(error, flag + " is '" + near + "', legal: " + spec.legal)) << error;
        EXPECT_TRUE(contains(error, "did you mean ")) << error;
      }
    }
}

TEST(Flags, NulBytesAreRefused) {
  const std::string path = testing::TempDir() + "/weft_nul.json";
  std::ofstream(path) << R"({"output": "a.mp4\u0000.png"})";
  EXPECT_TRUE(contains(usage_error({"--config", path}), "--output has a NUL byte"));
}

TEST(Flags, UnderscoreAndDashAreTheSame) {
  EXPECT_EQ(parse({"--guidance_scale", "3.5"}).text("guidance-scale"), "3.5");
  EXPECT_EQ(parse({"--model_path=m"}).text("model"), "m");
  EXPECT_EQ(parse({"--ckpt_dir", "m"}).text("model"), "m");
  EXPECT_EQ(parse({"--base_seed", "-1"}).text("seed"), "-1");
}

TEST(Flags, ValuesThatLookLikeFlagsAreKept) {
  EXPECT_EQ(parse({"--prompt", "--a_b"}).text("prompt"), "--a_b");
  EXPECT_EQ(parse({"-p", "-5"}).text("prompt"), "-5");
}

TEST(Flags, WrongInputNamesFlagValueAndLegalSet) {
  EXPECT_TRUE(contains(usage_error({"--stepz", "3"}), "did you mean --steps"));
  EXPECT_TRUE(contains(usage_error({"--steps", "ten"}), "--steps is 'ten'"));
  EXPECT_TRUE(contains(usage_error({"--steps", "1e3"}), "whole number"));
  EXPECT_TRUE(contains(usage_error({"--fps", "nan"}), "finite"));
  EXPECT_TRUE(contains(usage_error({"--rng", "mt"}), "portable|torch-cpu"));
  EXPECT_TRUE(contains(usage_error({"--dtype", "fp32"}), "did you mean f32"));
  EXPECT_TRUE(contains(usage_error({"stray"}), "no operand 'stray'"));
  EXPECT_NE(usage_error({"--steps"}), "no error");
  EXPECT_NE(usage_error({"--steps", "3", "--steps", "4"}), "no error");
  EXPECT_TRUE(contains(usage_error({"--set", "stepz=3"}), "did you mean"));
}

TEST(Flags, PrecedenceIsFlagSetEnvironmentFile) {
  const std::string path = testing::TempDir() + "/weft_flags.json";
  std::ofstream(path) << R"({"threads": 1, "steps": 4, "overwrite": true})";
  EXPECT_EQ(parse({"--config", path}).text("threads"), "1");
  EXPECT_TRUE(parse({"--config", path}).on("overwrite"));
  setenv("WEFT_THREADS", "2", 1);
  EXPECT_EQ(parse({"--config", path}).text("threads"), "2");
  EXPECT_EQ(parse({"--config", path, "--set", "threads=3"}).text("threads"), "3");
  const Flags flags = parse({"--config", path, "--set", "threads=3", "--threads", "4"});
  EXPECT_EQ(flags.text("threads"), "4");
  EXPECT_EQ(flags.origin("threads"), "flag");
  EXPECT_TRUE(contains(flags.origin("steps"), "config"));
  unsetenv("WEFT_THREADS");
  EXPECT_TRUE(contains(usage_error({"--config", path + ".none"}), "--config"));
}

TEST(Flags, UnknownEnvironmentIsNamedWithTheNearestKnown) {
  setenv("WEFT_TREADS", "2", 1);
  const std::vector<std::string> warnings = unknown_environment();
  unsetenv("WEFT_TREADS");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "WEFT_THREADS")) << warnings[0];
}

TEST(Flags, NumbersAreReadAsTyped) {
  EXPECT_EQ(parse({"--steps", "7"}).integer("steps"), 7);
  EXPECT_EQ(parse({"--guidance-scale", "2.5"}).real("guidance-scale"), 2.5);
  EXPECT_EQ(parse({}).integer("width"), std::nullopt);
  EXPECT_TRUE(contains(usage_error({"--steps", "99999999999999999999"}), "nearest: 1000"));
}

}  // namespace
}  // namespace weft
