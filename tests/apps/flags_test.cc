#include "apps/command_line/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "apps/command_line/help.h"
#include "apps/command_line/suggest.h"
#include "apps/device.h"
#include "kernels/check.h"
#include "kernels/ops.h"

namespace weft {
namespace {

Flags parse_flags(std::vector<std::string> arguments, Command command = kGenerate) {
  return Flags::parse(command, arguments);
}

std::string usage_error(std::vector<std::string> arguments, Command command = kGenerate) {
  try {
    parse_flags(std::move(arguments), command);
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
      for (const std::string& name : spellings(spec)) EXPECT_TRUE(seen.insert(name).second) << name;
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
      const std::string help = help_text(command.command, FlagLevel::kAdvanced);
      const std::string flag = "\n  --" + name;
      // The next character excludes longer names that begin alike.
      EXPECT_EQ(
          contains(help, flag + " ") || contains(help, flag + ",") || contains(help, flag + "\n"),
          (takes & command.command) != 0)
          << command.name << " " << name;
    }
}

// Writes a file of --config that gives the flag this value, and returns its path.
std::string config_with(const FlagSpec& spec, const std::string& value) {
  const std::string path = testing::TempDir() + "/weft_value.json";
  std::ofstream(path) << "{\"" << spec.name << "\": \"" << value << "\"}";
  return path;
}

// Returns the first value of the legal set; for a number the lower end.
std::string legal_value(const FlagSpec& spec) {
  const std::string legal = spec.legal ? spec.legal : "3";
  return legal.substr(0, legal.find_first_of("| "));
}

TEST(Flags, EveryFlagParsesUnderEverySpelling) {
  for (const CommandSpec& command : command_table())
    for (const FlagSpec& spec : flag_table()) {
      const std::string name = spec.name;  // these two mean more than their own value
      if (!(spec.commands & command.command) || name == "config" || name == "gpus") continue;
      const bool is_switch = spec.type == FlagType::kSwitch;
      for (const std::string& spelling : spellings(spec)) {
        const std::string value = legal_value(spec);
        const Flags flags = is_switch ? parse_flags({spelling}, command.command)
                                      : parse_flags({spelling, value}, command.command);
        EXPECT_TRUE(flags.given(spec.name)) << spelling;
        EXPECT_EQ(flags.text(spec.name), is_switch ? "on" : value) << spelling;
      }
    }
}

// Every flag with a legal set refuses values outside; the message names the flag, the value, the
// set and the nearest legal value.
TEST(Flags, EveryLegalSetIsHeld) {
  for (const CommandSpec& command : command_table())
    for (const FlagSpec& spec : flag_table()) {
      if (!(spec.commands & command.command)) continue;
      const std::string flag = std::string("--") + spec.name;
      const bool number = spec.type == FlagType::kInteger || spec.type == FlagType::kReal ||
                          spec.type == FlagType::kRate;
      if (number) {
        const std::string words = usage_error({flag, "1x"}, command.command);
        EXPECT_TRUE(contains(words, flag + " is '1x', legal: a ")) << words;
        EXPECT_TRUE(contains(words, "number")) << words;
        EXPECT_TRUE(
            contains(usage_error({"--config", config_with(spec, "")}, command.command), "is ''"))
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
        const std::string path = config_with(spec, "maybe"),
                          error = usage_error({"--config", path}, command.command);
        EXPECT_TRUE(contains(error, flag + " (config " + path + ") is 'maybe', legal: on|off"))
            << error;
      } else if (spec.type == FlagType::kBytes) {
        const std::string error = usage_error({flag, "20X"}, command.command);
        EXPECT_TRUE(contains(error, flag + " is '20X', legal: a size above 0 in B, K, M, G"))
            << error;
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
  EXPECT_TRUE(
      contains(usage_error({"--config", path}), "--output (config " + path + ") has a NUL byte"));
}

TEST(Flags, UnderscoreAndDashAreTheSame) {
  EXPECT_EQ(parse_flags({"--guidance_scale", "3.5"}).text("guidance-scale"), "3.5");
  EXPECT_EQ(parse_flags({"--model_path=m"}).text("model"), "m");
  EXPECT_EQ(parse_flags({"--ckpt_dir", "m"}).text("model"), "m");
  EXPECT_EQ(parse_flags({"--base_seed", "-1"}).text("seed"), "-1");
}

TEST(Flags, ValuesThatLookLikeFlagsAreKept) {
  EXPECT_EQ(parse_flags({"--prompt", "--a_b"}).text("prompt"), "--a_b");
  EXPECT_EQ(parse_flags({"-p", "-5"}).text("prompt"), "-5");
}

TEST(Flags, WrongInputNamesFlagValueAndLegalSet) {
  EXPECT_TRUE(contains(usage_error({"--stepz", "3"}), "did you mean --steps"));
  EXPECT_TRUE(contains(usage_error({"--steps", "ten"}), "--steps is 'ten'"));
  EXPECT_TRUE(contains(usage_error({"--steps", "1e3"}), "whole number"));
  EXPECT_TRUE(contains(usage_error({"--fps", "nan"}), "finite"));
  EXPECT_TRUE(contains(usage_error({"--rng", "mt"}), "portable|torch-cpu"));
  EXPECT_TRUE(contains(usage_error({"--dtype", "fp32"}), "did you mean f32"));
  EXPECT_TRUE(contains(usage_error({"stray"}), "no operand 'stray'"));
}

TEST(Flags, AFlagIsStrongerThanTheFile) {
  const std::string path = testing::TempDir() + "/weft_flags.json";
  std::ofstream(path) << R"({"threads": 1, "steps": 4, "overwrite": true})";
  EXPECT_EQ(parse_flags({"--config", path}).text("threads"), "1");
  EXPECT_TRUE(parse_flags({"--config", path}).on("overwrite"));
  const Flags flags = parse_flags({"--config", path, "--threads", "4"});
  EXPECT_EQ(flags.text("threads"), "4");
  EXPECT_EQ(flags.origin("threads"), "flag");
  EXPECT_TRUE(contains(flags.origin("steps"), "config"));
  EXPECT_TRUE(contains(usage_error({"--config", path + ".none"}), "--config"));
}

// No text of the parsing library ("1 required TEXT missing") reaches users.
TEST(Flags, MissingDoubledAndMisplacedValuesAreSentences) {
  EXPECT_EQ(usage_error({"--steps"}), "--steps needs a value, legal: a whole number, 1 ... 1000");
  EXPECT_EQ(usage_error({"--quiet", "--rng"}), "--rng needs a value, legal: portable|torch-cpu");
  EXPECT_EQ(usage_error({"--seed", "1", "-s"}).substr(0, 17), "-s needs a value,");
  EXPECT_EQ(usage_error({"--steps", "3", "--num-inference-steps", "4"}),
            "--steps is given 2 times, as '3' and '4'; give it once");
  EXPECT_EQ(usage_error({"--overwrite=perhaps"}), "--overwrite is 'perhaps', legal: on|off");
  EXPECT_FALSE(parse_flags({"--overwrite=off"}).on("overwrite"));
  EXPECT_TRUE(parse_flags({"--overwrite", "--overwrite"}).on("overwrite"));
  EXPECT_EQ(
      usage_error({"stray"}),
      "weft generate takes no operand 'stray'; legal: flags alone (weft generate --help lists "
      "them)");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--steps="},
                                                    {"--"},
                                                    {"--", "x"},
                                                    {"-"},
                                                    {"--=3"},
                                                    {"-o"},
                                                    {"-qz"}}) {
    const std::string error = usage_error(arguments);
    for (const char* raw :
         {"required", "TEXT missing", "ArgumentMismatch", "Extras", "not expected"})
      EXPECT_FALSE(contains(error, raw)) << error;
  }
}

// Messages name a flag as the user typed it.
TEST(Flags, ErrorsUseTheSpellingOfTheUser) {
  EXPECT_TRUE(usage_error({"--vram-limit", "much"}).starts_with("--vram-limit is 'much'"));
  EXPECT_TRUE(usage_error({"--vram_limit=much"}).starts_with("--vram_limit is 'much'"));
  EXPECT_TRUE(usage_error({"-W", "x"}).starts_with("-W is 'x'"));
  EXPECT_TRUE(usage_error({"-W0"}).starts_with("-W is 0"));
  const std::string path = testing::TempDir() + "/weft_alias.json";
  std::ofstream(path) << R"({"vram_limit": "x"})";
  EXPECT_TRUE(
      usage_error({"--config", path}).starts_with("--memory-limit (config " + path + ") is 'x'"));
}

TEST(Flags, SuggestionsAreSensible) {
  for (const auto& [word, suggestion] : {std::pair{"--fp8", "--weights fp8"},
                                         {"--int8", "--weights int8"},
                                         {"--bf16", "--dtype bf16"},
                                         {"--fp16", "--dtype bf16"},
                                         {"--cuda", "--device cuda"},
                                         {"--gpu", "--device cuda"},
                                         {"--gpuz", "--gpus"},
                                         {"--stepz", "--steps"},
                                         {"--step=3", "--steps"},
                                         {"--promt", "--prompt"},
                                         {"--negative", "--negative-prompt"},
                                         {"--fsp", "--fps"},
                                         {"--euler", "--solver euler"},
                                         {"--quantization", "--weights"},
                                         {"--num_frame", "--num-frames"},
                                         {"--help-al", "--help-all"},
                                         {"--xyz", ""},
                                         {"--tea-cache", ""}})
    EXPECT_EQ(suggested_flag(kGenerate, word), suggestion) << word;
  EXPECT_TRUE(contains(usage_error({"--fp8"}), "did you mean --weights fp8?"));
  EXPECT_TRUE(contains(usage_error({"--frames", "81"}), "did you mean --num-frames 81?"));
}

TEST(Flags, UnknownEnvironmentIsNamedWithTheNearestKnown) {
  setenv("WEFT_CPUS", "2", 1);
  const std::vector<std::string> warnings = unknown_environment();
  unsetenv("WEFT_CPUS");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "did you mean WEFT_CPU?")) << warnings[0];
}

TEST(Flags, TheVaeTakesBf16WhereTheHardwareMultipliesIt) {
  const auto format = [](const std::string& dtype, const std::string& vae) {
    return vae_dtype(parse_flags({"--device", "cpu", "--dtype", dtype, "--vae-dtype", vae}));
  };
  const DType fast = cpu_has_bf16() ? DType::kBF16 : DType::kF32;
  EXPECT_EQ(format("auto", "auto"), fast);
  EXPECT_EQ(format("bf16", "auto"), fast);
  EXPECT_EQ(format("f32", "auto"), DType::kF32);
  EXPECT_EQ(format("f32", "bf16"), DType::kBF16);
  EXPECT_EQ(format("bf16", "f32"), DType::kF32);
}

TEST(Flags, NumbersAreReadAsTyped) {
  EXPECT_EQ(parse_flags({"--steps", "7"}).integer("steps"), 7);
  EXPECT_EQ(parse_flags({"--guidance-scale", "2.5"}).real("guidance-scale"), 2.5);
  EXPECT_EQ(parse_flags({}).integer("width"), std::nullopt);
  EXPECT_TRUE(contains(usage_error({"--steps", "99999999999999999999"}), "nearest: 1000"));
}

}  // namespace
}  // namespace weft
