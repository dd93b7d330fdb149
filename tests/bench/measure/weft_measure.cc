// weft_measure: what the people who develop weft measure and its users do not need.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "apps/command_line/flag_rows.h"
#include "apps/command_line/help.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "kernels/check.h"
#include "parallel/transport/processes/process_transport.h"
#include "tests/bench/measure/measure.h"

namespace weft {
namespace {

struct Bench {
  const char *name, *about;
  int (*run)(const Flags&, DType, int);
  int repeat;
};
constexpr Bench kBenches[] = {
    {"dit", "weft bench dit with random weights of a --stored type", measure_dit, 5},
    {"face", "a stream of the pocket avatar in all its states, as one line for plot.py",
     measure_face, 1},
    {"generate", "the seconds of each stage of clips (--model; else pocket)", measure_generate, 5},
    {"layouts", "a step of --arch or --model under every layout of two ranks", measure_layouts, 5},
    {"lips", "how well the pocket avatar's mouth follows a made-up voice", measure_lips, 1},
    {"long", "methods of long video (METHOD[@AXIS]...): speed, traffic, memory, drift",
     measure_long, 1},
    {"streams", "forecasts of streams on 1 to 5 devices, beside Live Avatar's figures",
     measure_streams, 1},
    {"truth", "approximations (METHOD@AXIS...): quality against bytes and time", measure_truth, 80},
};

// The flags that weft bench has not.
void add_own_flags() {
  std::vector<FlagSpec> rows{
      {.name = "quick",
       .type = FlagType::kSwitch,
       .fallback = "off",
       .help = "65 frames in 9 steps, with one queue (long); 8 clips of fewer methods (truth)",
       .commands = kBench},
      {.name = "stored",
       .legal = "Q8_0|Q4_0|Q4_K|f16|f8_e4m3|int8",
       .help = "the type to which the random weights are quantised (dit); with --weights file "
               "forwards in turns with --weights compute",
       .commands = kBench},
      {.name = "simulate",
       .type = FlagType::kSwitch,
       .fallback = "off",
       .help = "in place of drawing: forecast the steps of --model on eight described devices over "
               "three links (truth)",
       .commands = kBench}};
  for (const auto& [command, name] : {std::pair{kPlan, "steps"},
                                      {kPlan, "ranks"},
                                      {kPlan, "link-gbit"},
                                      {kPlan, "link-ms"},
                                      {kPlan, "device-gflops"},
                                      {kPlan, "device-gbs"},
                                      {kGenerate, "profile"}}) {
    rows.push_back(*find_flag(command, name));
    rows.back().commands = kBench;
  }
  add_flags(rows);
}

const Bench* bench_of(const std::string& name) {
  for (const Bench& bench : kBenches)
    if (name == bench.name) return &bench;
  return nullptr;
}

std::string usage() {
  std::string text =
      "weft_measure: measures what the developers of weft ask\n"
      "usage: weft_measure BENCH [FLAGS] [CASE...]\n\nbenches\n";
  for (const Bench& bench : kBenches)
    text += "  " + std::string(bench.name) + std::string(12 - std::strlen(bench.name), ' ') +
            bench.about + "\n";
  const std::string flags = help_text(kBench, FlagLevel::kBasic);
  return text + flags.substr(flags.find("\n\n") + 1);
}

int run_measure(std::span<const std::string> arguments) {
  add_own_flags();
  const auto asks = [&](const char* word) { return std::ranges::count(arguments, word) > 0; };
  if (arguments.empty() || asks("--help") || asks("-h") || asks("--help-all")) {
    std::fputs(usage().c_str(), arguments.empty() ? stderr : stdout);
    return arguments.empty() ? static_cast<int>(ErrorKind::kUsage) : 0;
  }
  const Flags flags = Flags::parse(kBench, arguments);
  if (flags.on("print-config")) {
    std::fputs((flags.on("json") ? flags.to_json() : flags.to_string()).c_str(), stdout);
    return 0;
  }
  const std::string name = flags.operands().empty() ? "" : flags.operands().front();
  const Bench* bench = bench_of(name);
  if (!bench)
    throw Error(ErrorKind::kUsage, "no bench '" + name + "'; weft_measure --help lists them");
  const bool takes_cases = bench->run == measure_long || bench->run == measure_truth;
  if (flags.operands().size() > 1 && !takes_cases)
    throw Error(ErrorKind::kUsage, "weft_measure " + name + " takes no cases, but got '" +
                                       flags.operands()[1] + "'; legal: long, truth");
  const int repeat = bench->run == measure_truth && flags.on("quick") ? 8 : bench->repeat;
  const int code = bench->run(flags, compute_dtype(flags),
                              static_cast<int>(flags.integer("repeat").value_or(repeat)));
  finish_process_transport();
  return code;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  weft::set_program_name(argv[0]);
  if (!std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY")) {
    setenv("GOMP_SPINCOUNT", "2000", 1);  // as apps/weft.cc does, and says why
    execv("/proc/self/exe", argv);
  }
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    return weft::run_measure(arguments);
  } catch (const weft::Error& error) {
    std::fprintf(stderr, "weft_measure: %s\n", weft::printable(error.what()).c_str());
    return static_cast<int>(error.kind());
  }
}
