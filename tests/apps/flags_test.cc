#include "apps/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
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
  for (const CommandSpec& command : command_table())
    for (const FlagSpec& spec : flag_table())
      EXPECT_EQ(contains(help_text(command.command), std::string("  --") + spec.name),
                (spec.commands & command.command) != 0)
          << spec.name;
}

TEST(Flags, EveryFlagAndAliasParses) {
  for (const FlagSpec& spec : flag_table()) {
    if (!(spec.commands & kGenerate) || std::string(spec.name) == "config" ||
        std::string(spec.name) == "set")
      continue;
    std::istringstream aliases(std::string("--") + spec.name + " " + spec.aliases);
    const std::string legal = spec.legal ? spec.legal : "3";
    const std::string value = legal.substr(0, legal.find('|'));
    for (std::string alias; aliases >> alias;) {
      const Flags flags = spec.type == FlagType::kSwitch ? parse({alias}) : parse({alias, value});
      EXPECT_TRUE(flags.given(spec.name)) << alias;
      EXPECT_EQ(flags.text(spec.name), spec.type == FlagType::kSwitch ? "on" : value) << alias;
    }
  }
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

TEST(Flags, RangesAreChecked) {
  const Flags flags = parse({"--steps", "0"});
  EXPECT_THROW(flags.integer("steps", 1, 10), Error);
  EXPECT_EQ(flags.integer("steps", 0, 10), 0);
  EXPECT_EQ(flags.integer("width", 1, 10), std::nullopt);
}

}  // namespace
}  // namespace weft
