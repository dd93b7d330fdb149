// The one table of commands and flags. It feeds parsing, help, completion, the manual and
// apps/guide/cli.md.
#include <algorithm>

#include "apps/flag_rows.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr CommandSpec kCommands[] = {
    {kGenerate, "generate", "", "draw a clip or a picture from a prompt"},
    {kComplete, "complete", "[PROMPT...]",
     "continue texts, or answer them, with a language model (Qwen2.5, Qwen3)"},
    {kVerify, "verify", "CASE...", "run conformance cases and compare with their expected tensors"},
    {kPlan, "plan", "", "predict the memory, messages and time of a job; runs nothing"},
    {kInspect, "inspect", "FILE...",
     "show what a model folder, weights file, config or finished clip holds"},
    {kBench, "bench", "[NAME]",
     "measure this machine: ops, attention, dit, vae, text, llm, load, pocket or layouts"},
    {kCompare, "compare", "A B",
     "PSNR and SSIM of two clips, pictures or folders of frames; errors of two weights files"},
    {kReplay, "replay", "FILE",
     "make a finished file again from its metadata, and compare the frames"},
    {kDoctor, "doctor", "", "check this machine and this build, and say how to mend what is off"},
    {kCompletion, "completion", "bash|zsh|fish|man|markdown",
     "print a shell's completion script, the manual, or the guide of all flags"},
};

using enum FlagType;
using enum FlagLevel;

// Help texts show the flags of a group in the order of its rows. A name that means different things
// to different commands stands once for each meaning.
constexpr FlagSpec kModel[] = {
    {.name = "model",
     .aliases = "-m --model-path --ckpt-dir",
     .value = "FOLDER",
     .help =
         "folder in the diffusers layout (it has a model_index.json), or an installed model's name",
     .commands = kGenerate | kReplay | kPlan | kDoctor,
     .environment = "WEFT_MODEL_PATH"},
    {.name = "model",
     .aliases = "-m --model-path --ckpt-dir",
     .value = "FOLDER",
     .help = "measure this model folder in place of random weights (bench dit, layouts, load, "
             "pocket; llm: a language model's folder)",
     .commands = kBench},
    {.name = "model",
     .aliases = "-m --model-path",
     .value = "FOLDER",
     .help = "folder of a Qwen2.5 or Qwen3: config.json, tokenizer.json, safetensors",
     .commands = kComplete,
     .environment = "WEFT_LANGUAGE_MODEL"},
    {.name = "dtype",
     .fallback = "auto",
     .legal = "auto|f32|bf16",
     .help = "number format of the computation; auto is bf16 where the hardware has it, else f32",
     .commands = kGenerate | kComplete | kPlan | kVerify | kBench | kInspect},
    {.name = "weights",
     .fallback = "compute",
     .legal = "compute|int8|fp8|fp8-tensor",
     .help = "number format of the transformer's weights: that of --dtype (compute), int8 for CPUs "
             "with 8-bit products, fp8 (a scale per output) and fp8-tensor (a scale per matrix) "
             "for GPUs",
     .commands = kGenerate | kComplete | kPlan | kBench | kInspect},
    {.name = "attention",
     .fallback = "compute",
     .legal = "compute|fp8",
     .help = "number format inside self-attention: compute is that of --dtype; fp8 (e4m3) needs a "
             "GPU of compute capability 9.0 (Hopper)",
     .commands = kGenerate | kPlan | kBench | kInspect,
     .level = kAdvanced},
    {.name = "vae-dtype",
     .fallback = "f32",
     .legal = "f32|bf16",
     .help = "number format of the VAE decoder; the models were published with f32",
     .commands = kGenerate | kPlan,
     .level = kAdvanced},
    {.name = "allow-other-weights",
     .type = kSwitch,
     .fallback = "off",
     .help = "replay although the model folder holds other weights than the file was made with",
     .commands = kReplay},
};

constexpr FlagSpec kDevice[] = {
    {.name = "device",
     .value = "DEVICE",
     .fallback = "auto",
     .help = "cpu, cuda (a GPU for each rank, in turns where there are fewer), cuda:N (one GPU), "
             "or auto: cuda where the build and the machine have it, else cpu",
     .commands = kGenerate | kReplay | kComplete | kPlan | kVerify | kBench | kDoctor | kInspect},
    {.name = "gpus",
     .aliases = "--num-gpus",
     .type = kInteger,
     .legal = "1 ... 1024",
     .help = "short for --device cuda --ranks N",
     .commands = kGenerate | kReplay | kComplete | kPlan | kVerify | kBench | kInspect},
    {.name = "threads",
     .aliases = "-t",
     .type = kInteger,
     .fallback = "all",
     .is_default = false,
     .legal = "1 ... 4096",
     .help = "CPU threads of each rank",
     .commands = kGenerate | kReplay | kComplete | kPlan | kVerify | kBench,
     .environment = "WEFT_THREADS"},
    {.name = "deterministic",
     .type = kSwitch,
     .fallback = "off",
     .help = "give the same bits for every number of threads; somewhat slower",
     .commands = kGenerate | kComplete | kVerify | kBench,
     .level = kAdvanced,
     .environment = "WEFT_DETERMINISTIC"},
    {.name = "memory-limit",
     .aliases = "--vram-limit --max-vram",
     .type = kBytes,
     .fallback = "what is free",
     .is_default = false,
     .help = "refuse jobs that need more memory of the device, as 20G",
     .commands = kGenerate | kReplay | kComplete | kPlan},
    {.name = "host-memory-limit",
     .type = kBytes,
     .fallback = "what is free",
     .is_default = false,
     .help = "on a GPU: refuse jobs that need more of the host's memory, as 64G",
     .commands = kGenerate | kReplay | kPlan,
     .level = kAdvanced},
    {.name = "resident-layers",
     .type = kInteger,
     .fallback = "all",
     .is_default = false,
     .legal = "2 ... 1024",
     .help = "layers kept in memory; the others are copied in ahead of use, for a video model on a "
             "GPU from the host, for a language model from disk",
     .commands = kGenerate | kComplete | kPlan | kBench | kInspect},
    {.name = "no-graphs",
     .type = kSwitch,
     .fallback = "off",
     .help = "on a GPU: launch every op by itself instead of one CUDA graph per step",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "device-gflops",
     .type = kReal,
     .fallback = "measured here",
     .is_default = false,
     .legal = "0.001 ... 1000000000",
     .help = "plan for a device of this many GFLOP/s in matrix products; needs --device-gbs",
     .commands = kPlan},
    {.name = "device-gbs",
     .type = kReal,
     .fallback = "measured here",
     .is_default = false,
     .legal = "0.001 ... 1000000000",
     .help = "plan for a device of this memory bandwidth in GB/s; needs --device-gflops",
     .commands = kPlan},
    {.name = "device-host-gbs",
     .type = kReal,
     .fallback = "measured, or 55",
     .is_default = false,
     .legal = "0.001 ... 1000000",
     .help = "GB/s between the host's memory and the GPU, to predict what --resident-layers costs",
     .commands = kGenerate | kPlan | kBench,
     .level = kAdvanced},
};

constexpr FlagSpec kRanks[] = {
    {.name = "ranks",
     .type = kInteger,
     .fallback = "1, or the layout's product",
     .is_default = false,
     .legal = "1 ... 1024",
     .help = "parallel workers, each a thread of this process; under mpirun its processes are the "
             "ranks",
     .commands = kGenerate | kReplay | kComplete | kPlan | kVerify | kBench | kInspect},
    {.name = "heartbeat-timeout",
     .type = kReal,
     .value = "SECONDS",
     .fallback = "4.5",
     .legal = "0 ... 86400",
     .help =
         "under mpirun or srun: end the job when a rank is silent for so many seconds; 0 is never",
     .commands = kGenerate | kComplete | kVerify | kBench,
     .level = kAdvanced},
    {.name = "layout",
     .value = "KEY=N,...",
     .fallback = "auto",
     .help = "how the ranks share the work: data, cfg, layers, ring, token_ring, ulysses, tensor, "
             "as cfg=2,ulysses=2; plan also takes all",
     .commands = kGenerate | kReplay | kComplete | kPlan | kVerify | kInspect},
    {.name = "ulysses",
     .aliases = "--ulysses-degree --ulysses-size",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout ulysses=N: splits the tokens, and the heads inside attention",
     .commands = kGenerate | kComplete | kPlan | kVerify},
    {.name = "cfg",
     .aliases = "--cfg-degree",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout cfg=N: computes the two branches of guidance side by side",
     .commands = kGenerate | kPlan | kVerify},
    {.name = "ring",
     .aliases = "--ring-degree --ring-size",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout ring=N: splits the tokens; keys and values travel around a ring",
     .commands = kGenerate | kComplete | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "token-ring",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout token_ring=N: splits the tokens; queries travel around a ring",
     .commands = kGenerate | kComplete | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "tp",
     .aliases = "--tp-degree --tp-size",
     .former = "--tensor",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout tensor=N: tensor parallelism, splits heads and feed-forward columns",
     .commands = kGenerate | kComplete | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "pp",
     .aliases = "--pp-degree --pp-size --pipeline-stages",
     .former = "--layers",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout layers=N: pipeline parallelism, gives each stage a part of the layers",
     .commands = kGenerate | kComplete | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "dp",
     .aliases = "--dp-degree",
     .former = "--data",
     .type = kInteger,
     .legal = "1 ... 4096",
     .help = "--layout data=N: data parallelism, runs whole jobs side by side",
     .commands = kGenerate | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "ring-balance",
     .fallback = "zigzag",
     .legal = "zigzag|contiguous|light-seq",
     .help = "how a ring shares causal attention: zigzag gives each rank tokens from both ends, "
             "contiguous one piece, light-seq one piece with idle ranks helping",
     .commands = kComplete,
     .level = kAdvanced},
    {.name = "link-gbit",
     .type = kReal,
     .fallback = "unlimited",
     .is_default = false,
     .legal = "0.000001 ... 1000000",
     .help = "simulated bandwidth between any two ranks, in Gbit/s",
     .commands = kPlan | kBench},
    {.name = "link-ms",
     .type = kReal,
     .fallback = "0",
     .legal = "0 ... 1000000",
     .help = "simulated latency of a message, in milliseconds",
     .commands = kPlan | kBench},
};

constexpr FlagSpec kOutput[] = {
    {.name = "output",
     .aliases = "-o --save-file --output-path",
     .value = "PATH",
     .fallback = "outputs/",
     .help = "a file (.mp4, .webm, .gif for a clip, .png for a picture), or a folder that ends in "
             "/ and receives one file per prompt; names take {seed} {model} {width} {height} "
             "{frames} {prompt:40} {idx:05} {date} {time}",
     .commands = kGenerate | kReplay | kDoctor,
     .environment = "WEFT_OUTPUT_DIR"},
    {.name = "frames",
     .fallback = "file",
     .legal = "file|png",
     .help = "file writes a clip as one file; png writes its frames as PNG pictures into a folder: "
             "the one that --output names, or one per prompt inside it where it ends in /",
     .commands = kGenerate},
    {.name = "overwrite",
     .type = kSwitch,
     .fallback = "off",
     .help = "replace an existing output",
     .commands = kGenerate | kReplay},
    {.name = "overwrite",
     .type = kSwitch,
     .fallback = "off",
     .help = "replace an existing trace",
     .commands = kComplete},
    {.name = "no-clobber",
     .type = kSwitch,
     .fallback = "on",
     .help = "never replace an existing output (the default)",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "resume",
     .value = "auto|never|FILE",
     .fallback = "auto",
     .help = "auto continues what an interrupted run of the same job left beside the output; never "
             "starts over; a checkpoint file continues that job with its flags",
     .commands = kGenerate},
    {.name = "checkpoint-every",
     .value = "SECONDS",
     .fallback = "60",
     .help = "seconds between checkpoints beside the output; 0 is after every step, none is never",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "keep-latents",
     .type = kSwitch,
     .fallback = "off",
     .help = "keep the latents beside the output",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "no-metadata",
     .type = kSwitch,
     .fallback = "off",
     .help = "write no metadata into the file and no JSON sidecar beside it",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "no-prompt-metadata",
     .type = kSwitch,
     .fallback = "off",
     .help = "leave the prompts out of the metadata and the sidecar",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "svg",
     .value = "FILE",
     .help = "draw what each rank does over time",
     .commands = kPlan},
    {.name = "trace",
     .value = "FILE",
     .help = "write every step, op and message to this .json or .json.gz, which ui.perfetto.dev "
             "opens; under mpirun one file per process",
     .commands = kGenerate | kComplete | kVerify,
     .level = kAdvanced},
};

constexpr FlagSpec kSettings[] = {
    {.name = "dry-run",
     .type = kSwitch,
     .fallback = "off",
     .help = "print the plan and the memory it needs, and run nothing",
     .commands = kGenerate | kReplay},
    {.name = "json",
     .type = kSwitch,
     .fallback = "off",
     .help = "print results as JSON, one object per line",
     .commands = kEveryCommand & ~kCompletion},
    {.name = "profile",
     .type = kSwitch,
     .fallback = "off",
     .help = "print how long each stage and op family took; with --json it is in the result",
     .commands = kGenerate | kComplete | kVerify | kBench},
    {.name = "progress",
     .fallback = "auto",
     .legal = "auto|bar|plain|json|none",
     .help = "progress on standard error",
     .commands = kGenerate | kReplay},
    {.name = "quiet",
     .aliases = "-q",
     .type = kSwitch,
     .fallback = "off",
     .help = "print errors and warnings alone, and no progress",
     .commands = kEveryCommand},
    {.name = "verbose",
     .aliases = "-v",
     .type = kSwitch,
     .fallback = "off",
     .help = "short for --log-level debug",
     .commands = kEveryCommand,
     .level = kAdvanced},
    {.name = "log-level",
     .fallback = "info",
     .legal = "error|warn|info|debug",
     .help = "the least important messages that are printed on standard error",
     .commands = kEveryCommand,
     .level = kAdvanced,
     .environment = "WEFT_LOG_LEVEL"},
    {.name = "config",
     .value = "FILE",
     .help = "read flags from a JSON file, {\"steps\": 20, ...}",
     .commands = kEveryCommand & ~kBench,
     .environment = "WEFT_CONFIG"},
    {.name = "set",
     .value = "FLAG=VALUE",
     .help = "set one flag, as --set layout=cfg=2,ulysses=2; everything after the first = is the "
             "value; may be repeated; stronger than the environment, weaker than flags",
     .commands = kEveryCommand,
     .level = kAdvanced},
    {.name = "print-config",
     .type = kSwitch,
     .fallback = "off",
     .help = "print the value of every flag and where it comes from, and run nothing",
     .commands = kEveryCommand,
     .level = kAdvanced},
};

std::vector<FlagSpec> all_rows() {
  std::vector<FlagSpec> all;
  for (const auto& [group, rows] :
       {std::pair<FlagGroup, std::span<const FlagSpec>>{FlagGroup::kInput, input_flags()},
        {FlagGroup::kModel, kModel},
        {FlagGroup::kDevice, kDevice},
        {FlagGroup::kRanks, kRanks},
        {FlagGroup::kOutput, kOutput},
        {FlagGroup::kSettings, kSettings}})
    for (FlagSpec row : rows) {
      row.group = group;
      all.push_back(row);
    }
  return all;
}

}  // namespace

std::span<const CommandSpec> command_table() { return kCommands; }
std::span<const FlagSpec> flag_table() {
  static const std::vector<FlagSpec> table = all_rows();
  return table;
}

const CommandSpec& command_spec(Command command) {
  for (const CommandSpec& spec : kCommands)
    if (spec.command == command) return spec;
  throw Error(ErrorKind::kInternal, "no such command");
}

const FlagSpec* find_flag(Command command, const std::string& name) {
  std::string dashed = "--" + name;
  std::replace(dashed.begin() + 2, dashed.end(), '_', '-');
  for (const FlagSpec& spec : flag_table()) {
    if (!(spec.commands & command)) continue;
    const std::vector<std::string> names = accepted_spellings(spec);
    if (std::find(names.begin(), names.end(), dashed) != names.end()) return &spec;
  }
  return nullptr;
}

}  // namespace weft
