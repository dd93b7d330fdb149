#include "apps/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/json.h"
#include "kernels/check.h"

extern char** environ;

namespace weft {
namespace {

constexpr CommandSpec kCommands[] = {
    {kGenerate, "generate", "", "make a clip or an image from a prompt"},
    {kComplete, "complete", "[PROMPT...]",
     "go on from texts, or answer them, with a language model (Qwen2.5, Qwen3)"},
    {kVerify, "verify", "CASE...", "run conformance cases and compare with their expected tensors"},
    {kPlan, "plan", "", "what a job would hold, send and take under a layout; runs nothing"},
    {kInspect, "inspect", "FILE...",
     "show a model, a weights file, a config or the metadata of media"},
    {kBench, "bench", "[NAME]",
     "measure op families (ops), a forward of random weights (dit), attention alone (attention), "
     "the VAE's decoder (vae), a text encoder (text), a language model (llm), loading beside "
     "reading (load), a model's "
     "clips (pocket), or a step "
     "of "
     "two ranks under every layout (layouts)"},
    {kCompare, "compare", "A B",
     "PSNR and SSIM of two clips, pictures or folders of frames; errors of two weights files"},
    {kReplay, "replay", "FILE",
     "make a finished file again from what it says of itself, and compare the frames"},
    {kDoctor, "doctor", "",
     "check this machine and this build, with a remedy where something is off"},
    {kCompletion, "completion", "bash|zsh|fish|man",
     "print a shell's completion script (bash: source <(weft completion bash)), or the manual "
     "(weft "
     "completion man | man -l -)"},
};

using enum FlagType;

// In the order of --help. Flags that several commands share stand once.
constexpr FlagSpec kFlags[] = {
    {"model", "-m --model-path --ckpt-dir", kText, "", "diffusers folder (model_index.json)",
     kGenerate | kReplay | kPlan | kDoctor, "WEFT_MODEL_PATH"},
    {"model", "-m --model-path --ckpt-dir", kText, "",
     "a diffusers folder (bench dit, layouts, load, pocket) or a language model's (llm) in place "
     "of "
     "known "
     "extents and random weights",
     kBench},
    {"model", "-m --model-path", kText, "",
     "folder of a Qwen2.5 or Qwen3: config.json, tokenizer.json, safetensors", kComplete,
     "WEFT_LANGUAGE_MODEL"},
    {"prompt", "-p", kText, "", "what to draw; @FILE reads it, - reads standard input",
     kGenerate | kReplay | kPlan | kInspect},
    {"prompt", "-p", kText, "",
     "a text to go on from, as an operand is one; without any, standard input; @FILE reads it, - "
     "reads standard input",
     kComplete},
    {"prompt-file", "", kText, "", "one prompt per line; blank lines and # lines are skipped",
     kGenerate | kPlan | kComplete},
    {"chat", "", kSwitch, "off", "each prompt is a turn of a conversation (ChatML) to be answered",
     kComplete},
    {"system", "", kText, "", "what the assistant is told first, with --chat; @FILE reads it",
     kComplete},
    {"think", "", kSwitch, "off", "with --chat: a model that can thinks before it answers",
     kComplete},
    {"max-tokens", "-n --max-new-tokens", kInteger, "256, or what the model's positions leave",
     "new tokens of a prompt, at most", kComplete, nullptr, "1 ... 16777216", false},
    {"temperature", "--temp", kReal, "0", "of the choice of a token; 0 = always the likeliest",
     kComplete, nullptr, "0 ... 100"},
    {"top-p", "", kReal, "1", "choose among the likeliest tokens that together reach it", kComplete,
     nullptr, "0.000001 ... 1"},
    {"top-k", "", kInteger, "0", "choose among so many likeliest tokens; 0 = all", kComplete,
     nullptr, "0 ... 16777216"},
    {"ignore-eos", "", kSwitch, "off", "go on behind the token that ends a text", kComplete},
    {"context", "", kInteger, "model's",
     "tokens of a prompt and its completion together, at most; memory is taken for what the "
     "prompts need",
     kComplete, nullptr, "1 ... 16777216", false},
    {"batch", "", kInteger, "16", "prompts under way at once, at most", kComplete, nullptr,
     "1 ... 4096"},
    {"chunk", "", kInteger, "512", "tokens of a prompt per pass and rank, at most", kComplete,
     nullptr, "1 ... 1048576"},
    {"expand-prompt", "", kText, "",
     "folder of a language model (Qwen2.5, Qwen3) that makes a full caption of each prompt first; "
     "auto: the folder language of --model",
     kGenerate},
    {"expand-temperature", "", kReal, "0", "of the caption's tokens, drawn by --seed; 0 = greedy",
     kGenerate, nullptr, "0 ... 100"},
    {"negative-prompt", "-n", kText, "", "what to avoid; @FILE reads it",
     kGenerate | kReplay | kPlan},
    {"size", "", kText, "", "WxH or W*H", kGenerate | kPlan | kBench},
    {"width", "-W", kInteger, "model's", "pixels", kGenerate | kPlan, nullptr, "1 ... 16384",
     false},
    {"height", "-H", kInteger, "model's", "pixels", kGenerate | kPlan, nullptr, "1 ... 16384",
     false},
    {"num-frames", "--frame-num --video-frames", kInteger, "model's", "4k+1 frames; 1 is an image",
     kGenerate | kPlan | kBench, nullptr, "1 ... 1048576", false},
    {"seconds", "", kReal, "", "length instead of --num-frames", kGenerate | kPlan, nullptr,
     "0.001 ... 36000"},
    {"round-frames", "", kSwitch, "off", "round a frame count to the nearest legal one",
     kGenerate | kPlan},
    {"fps", "", kReal, "model's", "frames per second of the file", kGenerate | kPlan, nullptr,
     "0.1 ... 1000", false},
    {"steps", "--num-inference-steps --sample-steps", kInteger, "model's", "denoising steps",
     kGenerate | kPlan, nullptr, "1 ... 1000", false},
    {"guidance-scale", "--cfg-scale --sample-guide-scale", kReal, "model's",
     "guidance (the high-noise expert's where there are two); 1 = off", kGenerate | kPlan, nullptr,
     "0 ... 100", false},
    {"guidance-scale-2", "", kReal, "--guidance-scale", "guidance of the low-noise expert",
     kGenerate | kPlan, nullptr, "0 ... 100", false},
    {"flow-shift", "--sample-shift", kReal, "model's", "shift of the noise schedule",
     kGenerate | kPlan, nullptr, "0.001 ... 1000", false},
    {"solver", "--sample-solver --sampling-method", kText, "model's", "the update rule",
     kGenerate | kPlan, nullptr, "unipc|unipc-wan|dpm++|dpm++-wan|euler|distill-4", false},
    {"sigmas", "", kText, "", "own noise levels, descending, comma-separated", kGenerate | kPlan},
    {"seed", "-s --base-seed", kText, "random", "0 ... 2^64-1; -1 = random, always printed",
     kGenerate | kPlan | kComplete, nullptr, nullptr, false},
    {"rng", "", kText, "portable", "noise generator", kGenerate | kPlan, "WEFT_RNG",
     "portable|torch-cpu"},
    {"output", "-o --save-file --output-path", kText, "outputs/",
     ".mp4 .webm .gif a clip, .png an image, a path ending in / a folder of PNG frames; fields "
     "{seed} "
     "{model} {width} {height} {frames} {prompt:40} {idx:05} {date} {time}",
     kGenerate | kReplay | kDoctor, "WEFT_OUTPUT_DIR"},
    {"overwrite", "", kSwitch, "off", "replace an existing output", kGenerate | kReplay},
    {"overwrite", "", kSwitch, "off", "replace an existing trace", kComplete},
    {"no-clobber", "", kSwitch, "on", "never replace an existing output (the default)", kGenerate},
    {"no-metadata", "", kSwitch, "off", "write no metadata into the file and no sidecar",
     kGenerate},
    {"no-prompt-metadata", "", kSwitch, "off", "leave the prompts out of the metadata", kGenerate},
    {"keep-latents", "", kSwitch, "off", "keep the latents beside the output after success",
     kGenerate},
    {"checkpoint-every", "", kText, "60",
     "seconds between step checkpoints beside the output, 0 = after each step, none = never",
     kGenerate},
    {"resume", "", kText, "auto",
     "auto: go on from what an interrupted run of the same job has left beside the output; never: "
     "start over; or such a file, which knows every other flag",
     kGenerate},
    {"device", "", kText, "cpu",
     "cpu, cuda:N, or cuda: the first device, of several ranks each its own where there are enough",
     kGenerate | kReplay | kComplete | kPlan | kVerify | kBench | kDoctor | kInspect},
    {"dtype", "", kText, "auto", "compute precision; auto = bf16 where the device has it, else f32",
     kGenerate | kComplete | kPlan | kVerify | kBench | kInspect, nullptr, "auto|f32|bf16"},
    {"weights", "", kText, "compute",
     "of the transformer's blocks: as --dtype, or 8 bits with scales: int8 where the CPU "
     "multiplies them, fp8 (e4m3, a scale for each output) and fp8-tensor (one for each matrix) on "
     "CUDA",
     kGenerate | kComplete | kPlan | kBench | kInspect, nullptr, "compute|int8|fp8|fp8-tensor"},
    {"attention", "", kText, "compute",
     "of the transformer's tokens over tokens: as --dtype, or fp8 (e4m3) on CUDA devices of "
     "compute "
     "capability 9.0",
     kGenerate | kPlan | kBench | kInspect, nullptr, "compute|fp8"},
    {"vae-dtype", "", kText, "f32", "of the decoder; f32 is what the models were published with",
     kGenerate | kPlan, nullptr, "f32|bf16"},
    {"threads", "-t", kInteger, "all", "CPU threads",
     kGenerate | kReplay | kComplete | kPlan | kVerify | kBench, "WEFT_THREADS", "1 ... 4096",
     false},
    {"deterministic", "", kSwitch, "off", "the same bits whatever the thread count",
     kGenerate | kComplete | kVerify | kBench, "WEFT_DETERMINISTIC"},
    {"memory-limit", "--vram-limit --max-vram", kText, "what is free",
     "refuse jobs above it, e.g. 20G", kGenerate | kReplay | kComplete | kPlan, nullptr, nullptr,
     false},
    {"host-memory-limit", "", kText, "what is free",
     "with --device cuda: refuse jobs that hold more of the host's memory, e.g. 20G",
     kGenerate | kReplay | kPlan, nullptr, nullptr, false},
    {"ranks", "", kInteger, "1",
     "ranks, each a thread of this process; under mpirun, its processes",
     kGenerate | kReplay | kComplete | kPlan | kVerify | kBench | kInspect, nullptr, "1 ... 1024"},
    {"heartbeat-timeout", "", kReal, "4.5",
     "under mpirun or srun: end the job when a rank is silent for so many seconds; 0 = never",
     kGenerate | kComplete | kVerify | kBench, nullptr, "0 ... 86400"},
    {"layout", "", kText, "auto",
     "how the ranks share the work: key=n,... with data, cfg, layers, ring, token_ring, ulysses, "
     "tensor; their product is --ranks; plan takes all, too",
     kGenerate | kReplay | kComplete | kPlan | kVerify | kInspect},
    {"data", "--dp --dp-degree", kInteger, "", "short for --layout data=N: whole jobs side by side",
     kGenerate | kPlan | kVerify, nullptr, "1 ... 4096"},
    {"cfg", "--cfg-degree", kInteger, "", "short for --layout cfg=N: branches of guidance",
     kGenerate | kPlan | kVerify, nullptr, "1 ... 4096"},
    {"layers", "--pp --pp-degree --pp-size", kInteger, "",
     "short for --layout layers=N: stages of blocks", kGenerate | kComplete | kPlan | kVerify,
     nullptr, "1 ... 4096"},
    {"ring", "--ring-degree --ring-size", kInteger, "",
     "short for --layout ring=N: tokens, keys go around", kGenerate | kComplete | kPlan | kVerify,
     nullptr, "1 ... 4096"},
    {"token-ring", "", kInteger, "", "short for --layout token_ring=N: tokens, queries go around",
     kGenerate | kComplete | kPlan | kVerify, nullptr, "1 ... 4096"},
    {"ulysses", "--ulysses-degree --ulysses-size", kInteger, "",
     "short for --layout ulysses=N: tokens outside attention, heads inside",
     kGenerate | kComplete | kPlan | kVerify, nullptr, "1 ... 4096"},
    {"tensor", "--tp --tp-degree --tp-size", kInteger, "",
     "short for --layout tensor=N: heads and feed-forward columns",
     kGenerate | kComplete | kPlan | kVerify, nullptr, "1 ... 4096"},
    {"text-ranks", "", kInteger, "all",
     "how many ranks share the text encoder, from the first on; few of one host are faster on slow "
     "links",
     kGenerate | kPlan | kVerify, nullptr, "1 ... 4096", false},
    {"vae-ranks", "", kInteger, "all", "how many ranks share the VAE's rows, from the first on",
     kGenerate | kPlan | kVerify, nullptr, "1 ... 4096", false},
    {"ring-balance", "", kText, "zigzag",
     "how a causal ring shares the work: pieces from both ends, plain pieces, or plain pieces "
     "whose "
     "idle ranks help",
     kComplete, nullptr, "zigzag|contiguous|light-seq"},
    {"device-gflops", "", kReal, "measured here",
     "of products, per rank, to plan for another device", kPlan, nullptr, "0.001 ... 1000000000",
     false},
    {"device-host-gbs", "", kReal, "measured, or 55",
     "of the link between the host's memory and a device, for weights that pass through it",
     kGenerate | kPlan | kBench, nullptr, "0.001 ... 1000000", false},
    {"device-gbs", "", kReal, "measured here", "of memory, per rank", kPlan, nullptr,
     "0.001 ... 1000000000", false},
    {"link-gbit", "", kReal, "unlimited", "between any two ranks", kPlan | kBench, nullptr,
     "0.000001 ... 1000000", false},
    {"link-ms", "", kReal, "0", "latency of a message", kPlan | kBench, nullptr, "0 ... 1000000"},
    {"config", "", kText, "wan2.1-1.3b", "extents of the transformer (bench dit, layouts)", kBench,
     nullptr, "wan2.1-1.3b|wan2.1-14b"},
    {"blocks", "", kInteger, "2 of layouts, all of dit, llm, load and text", "of the transformer",
     kBench, nullptr, "1 ... 40", false},
    {"resident-layers", "", kInteger, "all",
     "of a language model in memory at once, the others read ahead of use; of a video model on a "
     "GPU at once, the others in the host's memory",
     kGenerate | kComplete | kPlan | kBench | kInspect, nullptr, "2 ... 1024", false},
    {"no-graphs", "", kSwitch, "off",
     "on a GPU, give every step's work op by op instead of as one recorded graph", kGenerate},
    {"tokens", "", kInteger, "1560",
     "of the clip (bench layouts, dit); of attention's three sizes; of the prompt (text: 60, llm: "
     "512)",
     kBench, nullptr, "2 ... 1048576"},
    {"svg", "", kText, "", "draw the ranks' time", kPlan},
    {"memory", "", kText, "",
     "FRAMESxHEIGHTxWIDTH, as 81x480x832: what such a clip of a model folder will hold, stage by "
     "stage, for --prompt or the longest one; of a language model's folder: tokens, as 4096",
     kInspect},
    {"verbose-tensors", "", kSwitch, "off", "list every tensor", kInspect},
    {"allow-other-weights", "", kSwitch, "off", "replay although the model's weights are others",
     kReplay},
    {"min-psnr", "", kReal, "", "fail where the total is below, in dB", kCompare, nullptr,
     "0 ... 1000"},
    {"min-ssim", "", kReal, "", "fail where the total is below", kCompare, nullptr, "-1 ... 1"},
    {"max-rel-l2", "", kReal, "", "fail where a tensor's relative L2 is above", kCompare, nullptr,
     "0 ... 1000000"},
    {"repeat", "", kInteger, "5", "measurements per entry, the median counts", kBench, nullptr,
     "1 ... 1000"},
    {"config", "", kText, "", "JSON file of flag names and values", kEveryCommand & ~kBench,
     "WEFT_CONFIG"},
    {"set", "", kText, "", "flag=value[,flag=value], between flags and the environment",
     kEveryCommand},
    {"print-config", "", kSwitch, "off", "print every value with its origin and stop",
     kEveryCommand},
    {"dry-run", "", kSwitch, "off", "print the plan and the memory it needs, run nothing",
     kGenerate | kReplay},
    {"profile", "", kSwitch, "off",
     "print where the time went: stages, and in them op families, on standard error (with --json, "
     "and of bench pocket, in the result; also in the sidecar)",
     kGenerate | kComplete | kVerify | kBench},
    {"trace", "", kText, "",
     "write every zone to this .json or .json.gz, as ui.perfetto.dev opens it; a file per process "
     "under mpirun",
     kGenerate | kComplete | kVerify},
    {"json", "", kSwitch, "off", "results as JSON, one object per line",
     kEveryCommand & ~kCompletion},
    {"progress", "", kText, "auto", "progress on standard error", kGenerate | kReplay, nullptr,
     "auto|bar|plain|json|none"},
    {"log-level", "", kText, "info", "what reaches standard error", kEveryCommand, "WEFT_LOG_LEVEL",
     "error|warn|info|debug"},
    {"verbose", "-v", kSwitch, "off", "--log-level debug", kEveryCommand},
    {"quiet", "-q", kSwitch, "off", "--log-level error and no progress", kEveryCommand},
};

const FlagSpec* find(Command command, std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const FlagSpec& spec : kFlags)
    if ((spec.commands & command) && name == spec.name) return &spec;
  return nullptr;
}

const CommandSpec& spec_of(Command command) {
  for (const CommandSpec& spec : kCommands)
    if (spec.command == command) return spec;
  throw Error(ErrorKind::kInternal, "no such command");
}

[[noreturn]] void unknown_flag(Command command, const std::string& word) {
  std::vector<std::string> known;
  for (const FlagSpec& spec : kFlags)
    if (spec.commands & command)
      for (const std::string& name : spellings(spec)) known.push_back(name);
  const std::string near = nearest(word.substr(0, word.find('=')), known);
  throw Error(ErrorKind::kUsage, "unknown flag " + word + " of weft " + spec_of(command).name +
                                     (near.empty() ? "" : "; did you mean " + near + "?") +
                                     " (weft " + spec_of(command).name + " --help lists them)");
}

nlohmann::json read_config(const std::string& path) {
  try {
    nlohmann::json file = read_json_file(path, JsonDialect::kStrict);
    if (file.is_object()) return file;
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, std::string("--config: ") + error.what());
  }
  throw Error(ErrorKind::kUsage, "--config: " + path + " is not one JSON object of flag: value");
}

// The ends of a number's legal set, "1 ... 1000".
std::pair<double, double> range_of(const FlagSpec& spec) {
  if (!spec.legal) return {-HUGE_VAL, HUGE_VAL};
  return {std::strtod(spec.legal, nullptr),
          std::strtod(std::strstr(spec.legal, "...") + 3, nullptr)};
}

[[noreturn]] void out_of_range(const FlagSpec& spec, const std::string& value, bool below) {
  const std::string legal = spec.legal ? spec.legal : "a 64-bit whole number";
  const size_t dots = legal.find(" ... ");
  throw Error(
      ErrorKind::kUsage,
      std::string("--") + spec.name + " is " + value + ", legal: " + legal +
          (spec.legal ? "; nearest: " + (below ? legal.substr(0, dots) : legal.substr(dots + 5))
                      : ""));
}

[[noreturn]] void no_number(const FlagSpec& spec, const std::string& value) {
  throw Error(ErrorKind::kUsage,
              std::string("--") + spec.name + " is '" + value +
                  "', legal: " + (spec.type == kInteger ? "a whole number" : "a finite number") +
                  (spec.legal ? std::string(", ") + spec.legal : ""));
}

std::string value_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::span<const CommandSpec> command_table() { return kCommands; }
std::span<const FlagSpec> flag_table() { return kFlags; }

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::vector<std::string> spellings(const FlagSpec& spec) {
  std::vector<std::string> names{std::string("--") + spec.name};
  for (const std::string& alias : split(spec.aliases, ' ')) names.push_back(alias);
  for (size_t i = 0, n = names.size(); i < n; ++i) {
    std::string other = names[i];
    if (other.size() < 3) continue;
    std::replace(other.begin() + 2, other.end(), '-', '_');
    if (other != names[i]) names.push_back(other);
  }
  return names;
}

void Flags::set(const FlagSpec& spec, const std::string& value, const std::string& origin) {
  if (value.find('\0') != std::string::npos)
    throw Error(ErrorKind::kUsage, std::string("--") + spec.name + " has a NUL byte (" + origin +
                                       "); legal: text without one");
  if (spec.legal && spec.type == kText) {
    const std::vector<std::string> legal = split(spec.legal, '|');
    if (std::find(legal.begin(), legal.end(), value) == legal.end()) {
      const std::string near = nearest(value, legal);
      throw Error(ErrorKind::kUsage, std::string("--") + spec.name + " is '" + value +
                                         "', legal: " + spec.legal +
                                         (near.empty() ? "" : "; did you mean " + near + "?"));
    }
  }
  if (spec.type == kSwitch && value != "on" && value != "off" && value != "true" &&
      value != "false" && value != "1" && value != "0")
    throw Error(ErrorKind::kUsage, std::string("--") + spec.name + " is '" + value +
                                       "', legal: on|off (" + origin + ")");
  values_[spec.name] = {value, origin};
}

Flags Flags::parse(Command command, std::span<const std::string> arguments) {
  Flags flags;
  flags.command_ = command;

  CLI::App app;
  app.set_help_flag();
  app.allow_extras(false);
  app.prefix_command(false);
  std::map<const FlagSpec*, std::vector<std::string>> texts;
  std::map<const FlagSpec*, int> switches;
  for (const FlagSpec& spec : kFlags) {
    if (!(spec.commands & command)) continue;
    std::string names;
    for (const std::string& name : spellings(spec)) names += (names.empty() ? "" : ",") + name;
    if (spec.type == kSwitch)
      app.add_flag(names, switches[&spec]);
    else
      app.add_option(names, texts[&spec])
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
          ->allow_extra_args(false);
  }
  if (*spec_of(command).operands) app.add_option("operands", flags.operands_);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> rest = app.remaining();
    const std::string word = rest.empty() ? "" : rest.front();
    if (word.starts_with("-") && word.size() > 1) unknown_flag(command, word);
    throw Error(ErrorKind::kUsage,
                "weft " + std::string(spec_of(command).name) + " takes no operand '" + word + "'");
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::kUsage, error.what());
  }

  // Lowest precedence first.
  for (const FlagSpec& spec : kFlags)
    if ((spec.commands & command) && spec.is_default && *spec.fallback)
      flags.values_[spec.name] = {spec.fallback, "default"};

  auto given_text = [&](const char* name) -> std::string {
    const FlagSpec* spec = find(command, name);
    if (spec && !texts[spec].empty()) return texts[spec].front();
    const char* value = spec && spec->environment ? std::getenv(spec->environment) : nullptr;
    return value ? value : "";
  };
  if (const std::string path = given_text("config"); !path.empty() && command != kBench) {
    const nlohmann::json file = read_config(path);
    for (const auto& [key, value] : file.items()) {
      const FlagSpec* spec = find(command, key);
      if (!spec) unknown_flag(command, "--" + key);
      const std::string text = value_text(value);
      flags.set(*spec, spec->type == kSwitch ? (text == "true" ? "on" : "off") : text,
                "config " + path);
    }
  }
  for (const FlagSpec& spec : kFlags)
    if ((spec.commands & command) && spec.environment)
      if (const char* value = std::getenv(spec.environment); value && *value)
        flags.set(spec, value, std::string("environment ") + spec.environment);
  for (const std::string& pair : split(given_text("set"), ',')) {
    const size_t equal = pair.find('=');
    const FlagSpec* spec = find(command, pair.substr(0, equal));
    if (!spec) unknown_flag(command, "--" + pair.substr(0, equal));
    if (equal == std::string::npos)
      throw Error(ErrorKind::kUsage, "--set takes flag=value, got '" + pair + "'");
    flags.set(*spec, pair.substr(equal + 1), "--set");
  }
  for (const auto& [spec, values] : texts)
    if (!values.empty()) flags.set(*spec, values.front(), "flag");
  for (const auto& [spec, count] : switches)
    if (count > 0) flags.set(*spec, "on", "flag");

  for (const FlagSpec& spec : kFlags) {  // wrong numbers are refused before anything is loaded
    if (!(spec.commands & command) || !flags.given(spec.name)) continue;
    if (spec.type == kInteger) flags.integer(spec.name);
    if (spec.type == kReal) flags.real(spec.name);
  }
  return flags;
}

bool Flags::given(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() && found->second.second != "default";
}

bool Flags::on(const std::string& name) const {
  const std::string value = text(name);
  return value == "on" || value == "true" || value == "1";
}

std::string Flags::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second.first;
}

std::string Flags::origin(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "model" : found->second.second;
}

std::optional<int64_t> Flags::integer(const std::string& name) const {
  const std::string value = text(name);
  if (value.empty() && !given(name)) return std::nullopt;
  const FlagSpec& spec = *find(command_, name);
  errno = 0;
  char* end = nullptr;
  const long long parsed = std::strtoll(value.c_str(), &end, 10);
  if (*end || end == value.c_str()) no_number(spec, value);
  const auto [low, high] = range_of(spec);
  if (errno || static_cast<double>(parsed) < low || static_cast<double>(parsed) > high)
    out_of_range(spec, value, parsed < 0 || static_cast<double>(parsed) < low);
  return parsed;
}

std::optional<double> Flags::real(const std::string& name) const {
  const std::string value = text(name);
  if (value.empty() && !given(name)) return std::nullopt;
  const FlagSpec& spec = *find(command_, name);
  char* end = nullptr;
  const double parsed = std::strtod(value.c_str(), &end);
  if (*end || end == value.c_str() || !std::isfinite(parsed)) no_number(spec, value);
  const auto [low, high] = range_of(spec);
  if (parsed < low || parsed > high) out_of_range(spec, value, parsed < low);
  return parsed;
}

std::string Flags::to_string() const {
  std::ostringstream out;
  for (const FlagSpec& spec : kFlags) {
    if (!(spec.commands & command_)) continue;
    const auto found = values_.find(spec.name);
    if (found == values_.end()) {
      if (!spec.is_default) out << spec.name << " = " << spec.fallback << "   (model)\n";
      continue;
    }
    out << spec.name << " = " << found->second.first << "   (" << found->second.second << ")\n";
  }
  return out.str();
}

std::string Flags::to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : values_)
    object[name] = {{"value", value.first}, {"origin", value.second}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string exit_codes() {
  return "0 ok, 1 internal or a failed check, 2 usage, 3 model or weights, 4 memory, 5 non-finite "
         "values, 6 communicator, 7 output, 8 input media, 75 stopped early, 130 interrupted, 143 "
         "terminated";
}

std::string description(const FlagSpec& flag) {
  std::string text = flag.help;
  if (flag.legal) text += std::string(": ") + flag.legal;
  if (*flag.fallback) text += std::string(" [") + flag.fallback + "]";
  std::string longer;
  for (const std::string& alias : split(flag.aliases, ' '))
    if (alias.size() > 2) longer += " " + alias;
  return longer.empty() ? text : text + " (also" + longer + ")";
}

std::string value_name(const FlagSpec& flag) {
  return flag.type == kInteger ? "N" : flag.type == kReal ? "X" : flag.type == kText ? "TEXT" : "";
}

std::string help_text() {
  std::ostringstream out;
  out << "weft: video and images from text with diffusion transformers\n\nusage: weft COMMAND "
         "[FLAGS]\n\ncommands:\n";
  for (const CommandSpec& spec : kCommands)
    out << "  " << std::string(spec.name) + std::string(12 - std::string(spec.name).size(), ' ')
        << spec.summary << '\n';
  out << "\nweft COMMAND --help lists a command's flags; weft --version prints the version.\n"
         "example: weft generate --model models/pocket --prompt \"a big red ball, moving left\" "
         "--output ball.mp4\n"
         "exit codes: ";
  size_t column = 12;
  for (const std::string& code : split(exit_codes(), ',')) {
    if (column > 80) {
      out << ",\n           ";
      column = 12;
    } else if (column > 12) {
      out << ',';
    }
    out << code;
    column += code.size() + 1;
  }
  out << '\n';
  return out.str();
}

std::string help_text(Command command) {
  const CommandSpec& spec = spec_of(command);
  std::ostringstream out;
  out << "weft " << spec.name << ": " << spec.summary << "\n\nusage: weft " << spec.name
      << " [FLAGS]" << (*spec.operands ? " " : "") << spec.operands << "\n\nflags:\n";
  constexpr size_t kColumn = 34;
  for (const FlagSpec& flag : kFlags) {
    if (!(flag.commands & command)) continue;
    std::string left = std::string("  --") + flag.name;
    if (const std::string value = value_name(flag); !value.empty()) left += " " + value;
    for (const std::string& alias : split(flag.aliases, ' '))
      if (alias.size() == 2) left += ", " + alias;
    out << left << (left.size() < kColumn ? std::string(kColumn - left.size(), ' ') : "  ")
        << description(flag) << '\n';
  }
  out << "  --help                          this text\n";
  return out.str();
}

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> unknown_environment() {
  std::vector<std::string> known{"WEFT_CPU"}, warnings;
  for (const FlagSpec& spec : kFlags)
    if (spec.environment) known.push_back(spec.environment);
  for (char** entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!name.starts_with("WEFT_") || std::find(known.begin(), known.end(), name) != known.end())
      continue;
    const std::string near = nearest(name, known);
    warnings.push_back("environment variable " + name + " is not known" +
                       (near.empty() ? "" : "; did you mean " + near + "?"));
  }
  return warnings;
}

}  // namespace weft
