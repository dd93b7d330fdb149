// The one table of commands and flags. It feeds parsing, help, completion, the manual and
// apps/guide/cli.md.
#include <algorithm>

#include "apps/command_line/flag_rows.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr CommandSpec kCommands[] = {
    {kGenerate, "generate", "", "draw a clip or a picture from a prompt"},
    {kBatch, "batch", "FILE", "draw the jobs of a file, each once; a rerun goes on where it was"},
    {kServe, "serve", "", "draw the jobs that browsers and programs send, one after the other"},
    {kWorker, "worker", "", "draw the jobs of a server in a process of its own"},
    {kStream, "stream", "", "draw a face that speaks a sound, as a file or live"},
    {kComplete, "complete", "[PROMPT...]",
     "continue texts, or answer them, with a language model (Qwen2.5, Qwen3)"},
    {kVerify, "verify", "CASE...", "run conformance cases and compare with their expected tensors"},
    {kPlan, "plan", "", "predict the memory, messages and time of a job; runs nothing"},
    {kInspect, "inspect", "FILE...",
     "show what a model folder, weights file, config or finished clip holds"},
    {kBench, "bench", "[NAME]",
     "measure this machine: ops, attention, dit, vae, text, llm, load or stream"},
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

// The commands whose model may consist of single files.
constexpr unsigned kFileCommands = kGenerate | kStream | kBatch | kServe | kPlan | kInspect;

// Help texts show the flags of a group in the order of its rows. A name that means different things
// to different commands stands once for each meaning.
constexpr FlagSpec kModel[] = {
    {.name = "model",
     .aliases = "-m --model-path --ckpt-dir",
     .value = "FOLDER",
     .help =
         "folder in the diffusers layout (it has a model_index.json), or an installed model's name",
     .commands = kGenerate | kStream | kBatch | kServe | kReplay | kPlan | kDoctor},
    {.name = "model",
     .aliases = "-m --model-path --ckpt-dir",
     .value = "FOLDER",
     .help = "measure this model folder in place of random weights (bench dit, load, stream; llm: "
             "a language model's folder)",
     .commands = kBench},
    {.name = "model",
     .aliases = "-m --model-path",
     .value = "FOLDER",
     .help = "folder of a Qwen2.5 or Qwen3: config.json, tokenizer.json, safetensors",
     .commands = kComplete},
    {.name = "transformer",
     .value = "FILE",
     .help =
         "weights of the transformer (safetensors or GGUF, diffusers or original names) in "
         "place of those of the model folder; with --text-encoder and --vae no folder is needed",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "transformer-2",
     .value = "FILE",
     .help =
         "weights of the expert of low noise, where a model has two; --transformer is then that "
         "of high noise",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "text-encoder",
     .value = "FILE",
     .help = "weights of the text encoder (safetensors or GGUF), which may hold its tokenizer",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "text-encoder-2",
     .value = "FILE",
     .help = "weights of the other text encoder, where a model has two (FLUX.1: T5 and CLIP-L); "
             "what the files hold tells which is which, so either order is right",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "tokenizer",
     .value = "FILE",
     .help = "the text encoder's tokenizer, where it is in neither the model folder nor "
             "--text-encoder: "
             "spiece.model, tokenizer.json, or a folder or weights file that holds it",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "tokenizer-2",
     .value = "FILE",
     .help = "the other text encoder's tokenizer, in either order, too: CLIP's is vocab.json "
             "beside merges.txt, or tokenizer.json",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "vae",
     .value = "FILE",
     .help = "weights of the VAE, with diffusers or original names",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "image-encoder",
     .value = "FILE",
     .help = "weights of the image encoder (CLIP ViT-H), which Wan 2.1 image-to-video reads",
     .commands = kFileCommands,
     .level = kAdvanced},
    {.name = "dtype",
     .fallback = "auto",
     .legal = "auto|f32|bf16",
     .help = "number format of the computation; auto is bf16 where the hardware has it, else f32",
     .commands =
         kGenerate | kStream | kBatch | kServe | kComplete | kPlan | kVerify | kBench | kInspect},
    {.name = "weights",
     .fallback = "compute",
     .legal = "compute|file|int8|fp8|fp8-tensor",
     .help = "number format of the transformer's weights: that of --dtype (compute), that of their "
             "file (file, on a CPU: same results, less memory), or 8 bits: int8 on a CPU; fp8 (a "
             "scale per output), fp8-tensor (one per matrix) on a GPU",
     .commands = kGenerate | kStream | kBatch | kServe | kComplete | kPlan | kBench | kInspect},
    {.name = "text-encoder-weights",
     .fallback = "compute",
     .legal = "compute|file|int8",
     .help = "the same for the text encoder's matrices; one rank encodes if it is not compute",
     .commands = kGenerate | kStream | kBatch | kServe | kPlan | kInspect,
     .level = kAdvanced},
    {.name = "attention",
     .fallback = "compute",
     .legal = "compute|fp8",
     .help = "number format inside self-attention: compute is that of --dtype; fp8 (e4m3) needs a "
             "GPU of compute capability 9.0 (Hopper)",
     .commands = kGenerate | kBatch | kServe | kPlan | kBench | kInspect,
     .level = kAdvanced},
    {.name = "attention-path",
     .fallback = "auto",
     .legal = "auto|library|wgmma|mma",
     .help =
         "kernels of attention in bf16 on a GPU: cuDNN's, our own for Hopper (wgmma), or our own "
         "for any GPU (mma); auto chooses by shape; a call that they do not take goes to the next",
     .commands = kVerify | kBench,
     .level = kAdvanced},
    {.name = "vae-dtype",
     .fallback = "auto",
     .legal = "auto|f32|bf16",
     .help = "number format of the VAE; auto is bf16 on a GPU, and where --dtype is bf16 on a CPU "
             "that multiplies it in hardware, else f32, which the models were published with",
     .commands = kGenerate | kStream | kBatch | kServe | kPlan | kInspect,
     .level = kAdvanced},
    {.name = "wire-dtype",
     .fallback = "that of the computation",
     .is_default = false,
     .legal = "f32|bf16",
     .help = "number format of the hidden rows that pipeline stages send each other under the "
             "method queue; with f32 the number of stages changes no bit",
     .commands = kGenerate | kBatch | kServe | kPlan,
     .level = kAdvanced},
    {.name = "cache-text",
     .value = "FOLDER",
     .help = "keep what the text encoder makes of each prompt in this folder; a later job with the "
             "same prompt and model then loads no text encoder",
     .commands = kGenerate | kBatch | kServe | kReplay,
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
     .commands = kGenerate | kStream | kBatch | kServe | kReplay | kComplete | kPlan | kVerify |
                 kBench | kDoctor | kInspect},
    {.name = "gpus",
     .aliases = "--num-gpus",
     .type = kInteger,
     .legal = "1 ... 1024",
     .help = "short for --device cuda --ranks N",
     .commands =
         kGenerate | kStream | kBatch | kServe | kReplay | kComplete | kPlan | kVerify | kInspect},
    {.name = "threads",
     .aliases = "-t",
     .type = kInteger,
     .fallback = "its share of the job's CPUs",
     .is_default = false,
     .legal = "1 ... 4096",
     .help = "CPU threads of each rank",
     .commands =
         kGenerate | kStream | kBatch | kServe | kReplay | kComplete | kPlan | kVerify | kBench},
    {.name = "deterministic",
     .type = kSwitch,
     .fallback = "off",
     .help = "give the same bits for every number of threads; somewhat slower",
     .commands = kGenerate | kBatch | kServe | kComplete | kVerify | kBench,
     .level = kAdvanced},
    {.name = "memory-limit",
     .aliases = "--vram-limit --max-vram",
     .type = kBytes,
     .fallback = "what is free",
     .is_default = false,
     .help = "refuse jobs that need more device memory, as 20G",
     .commands = kGenerate | kStream | kBatch | kServe | kReplay | kComplete | kPlan},
    {.name = "host-memory-limit",
     .type = kBytes,
     .fallback = "what is free",
     .is_default = false,
     .help = "on a GPU: refuse jobs that need more of the host's memory, as 64G",
     .commands = kGenerate | kBatch | kServe | kReplay | kPlan,
     .level = kAdvanced},
    {.name = "mode",
     .fallback = "auto",
     .legal = "speed|auto|memory",
     .help = "weights in memory: all, or the job is refused (speed); as many as fit (auto); the "
             "fewest, in 8 bits unless their format is given, which changes the picture (memory)",
     .commands = kGenerate | kBatch | kServe | kReplay | kPlan},
    {.name = "resident-layers",
     .type = kInteger,
     .fallback = "all",
     .is_default = false,
     .legal = "2 ... 1024",
     .help = "layers kept in memory; the others are brought in ahead of use: on a GPU from the "
             "host, on a CPU from disk",
     .commands = kGenerate | kBatch | kServe | kComplete | kPlan | kBench | kInspect,
     .level = kAdvanced},
    {.name = "no-graphs",
     .type = kSwitch,
     .fallback = "off",
     .help = "on a GPU: launch every op by itself instead of one CUDA graph per step",
     .commands = kGenerate | kBatch | kServe,
     .level = kAdvanced},
    {.name = "device-name",
     .value = "NAME",
     .help =
         "plan for GPUs of this name, as \"RTX 4090\": their memory, rates and links; the flags "
         "below win, and a wrong name lists the known ones",
     .commands = kPlan},
    {.name = "device-gflops",
     .type = kReal,
     .fallback = "measured here",
     .is_default = false,
     .legal = "0.001 ... 1000000000",
     .help = "plan for a device of this many GFLOP/s in GEMMs; needs --device-gbs or --device-name",
     .commands = kPlan},
    {.name = "device-gbs",
     .type = kReal,
     .fallback = "measured here",
     .is_default = false,
     .legal = "0.001 ... 1000000000",
     .help = "plan for a device of this memory bandwidth in GB/s; needs --device-gflops or "
             "--device-name",
     .commands = kPlan},
    {.name = "device-host-gbs",
     .type = kReal,
     .fallback = "measured, or 55",
     .is_default = false,
     .legal = "0.001 ... 1000000",
     .help = "GB/s between the host's memory and the GPU, or on a CPU between disk and memory, to "
             "predict what --resident-layers costs",
     .commands = kGenerate | kBatch | kServe | kPlan | kBench,
     .level = kAdvanced},
};

constexpr FlagSpec kOutput[] = {
    {.name = "output",
     .aliases = "-o --save-file --output-path",
     .value = "PATH",
     .fallback = "outputs/",
     .help = "a file (.mp4, .webm, .gif for a clip, .png for a picture), or a folder that ends in "
             "/ and receives one file per prompt; names take {seed} {model} {width} {height} "
             "{frames} {prompt:40} {idx:05} {date} {time}",
     .commands = kGenerate | kReplay | kDoctor},
    {.name = "output",
     .aliases = "-o --output-path",
     .value = "PATH",
     .fallback = "outputs/",
     .help = "an .mp4 file, or a folder that ends in / and receives one; --live writes to standard "
             "output instead",
     .commands = kStream},
    {.name = "output",
     .aliases = "-o --output-path",
     .value = "FOLDER/",
     .fallback = "outputs/",
     .help = "the folder of the results, {id}.mp4 or the output that a job names, and of "
             "results.jsonl, errors.jsonl and manifest.json",
     .commands = kBatch},
    {.name = "output",
     .aliases = "-o --output-path",
     .value = "FOLDER/",
     .fallback = "outputs/",
     .help = "the folder of the results, one file and its sidecar for each job",
     .commands = kServe},
    {.name = "shard",
     .value = "I/N",
     .fallback = "0/1",
     .help = "draw part I of N, counted from 0: every N-th job; each part has files of its own",
     .commands = kBatch},
    {.name = "skip-invalid",
     .type = kSwitch,
     .fallback = "off",
     .help = "go on without the lines that are faulty instead of refusing the whole file",
     .commands = kBatch},
    {.name = "frames",
     .fallback = "file",
     .legal = "file|png",
     .help = "file writes a clip as one file; png writes its frames as PNG pictures into a folder: "
             "the one that --output names, or one per prompt inside it where it ends in /",
     .commands = kGenerate},
    {.name = "segment",
     .value = "LENGTH",
     .fallback = "none",
     .help = "write an .mp4 or .webm in files of this length (60s, 2m, 1h), name.000.mp4, "
             "name.001.mp4 and so on; each appears when it is complete, while later ones are made",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "overwrite",
     .type = kSwitch,
     .fallback = "off",
     .help = "replace an existing output",
     .commands = kGenerate | kStream | kBatch | kReplay},
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
     .commands = kGenerate | kBatch | kServe,
     .level = kAdvanced},
    {.name = "preview",
     .fallback = "none",
     .legal = "none|proj",
     .help = "show while drawing what comes: proj maps the latent to colours by the VAE's "
             "preview.json, in at most 1 % of the time (the steps in between are left out)",
     .commands = kGenerate | kBatch | kServe,
     .level = kAdvanced},
    {.name = "preview-every",
     .type = kInteger,
     .fallback = "1",
     .legal = "1 ... 1000000",
     .help = "denoising steps between two previews",
     .commands = kGenerate | kBatch | kServe,
     .level = kAdvanced},
    {.name = "preview-path",
     .value = "FILE",
     .fallback = "beside the output",
     .is_default = false,
     .help = "the file of the newest preview, which replaces the one before: .gif, or .png of the "
             "middle picture",
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
     .commands = kGenerate | kBatch | kServe,
     .level = kAdvanced},
    {.name = "check",
     .type = kSwitch,
     .fallback = "off",
     .help =
         "prove that the schedule is sound: no deadlock, every message matched, every value read "
         "in the version declared",
     .commands = kPlan},
    {.name = "plan-rank",
     .type = kInteger,
     .legal = "0 ... 1023",
     .help = "print every step of this rank's schedule",
     .commands = kPlan},
    {.name = "svg",
     .value = "FILE",
     .help = "draw what each rank does over time",
     .commands = kPlan},
    {.name = "trace",
     .value = "FILE",
     .help = "write every step, op and message to this .json or .json.gz, which ui.perfetto.dev "
             "opens; each process writes a file of its own",
     .commands = kGenerate | kComplete | kVerify,
     .level = kAdvanced},
};

constexpr FlagSpec kSettings[] = {
    {.name = "dry-run",
     .type = kSwitch,
     .fallback = "off",
     .help = "print the plan and the memory it needs, and run nothing",
     .commands = kGenerate | kReplay},
    {.name = "dry-run",
     .type = kSwitch,
     .fallback = "off",
     .help = "measure and print how fast the stream comes, and write nothing",
     .commands = kStream},
    {.name = "json",
     .type = kSwitch,
     .fallback = "off",
     .help = "print results as JSON, one object per line",
     .commands = kEveryCommand & ~kCompletion},
    {.name = "profile",
     .type = kSwitch,
     .fallback = "off",
     .help = "print how long each stage and op family took; with --json it is in the result",
     .commands = kGenerate | kComplete | kVerify},
    {.name = "progress",
     .fallback = "auto",
     .legal = "auto|bar|plain|json|none",
     .help = "progress on standard error",
     .commands = kGenerate | kBatch | kReplay},
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
     .level = kAdvanced},
    {.name = "config",
     .value = "FILE",
     .help = "read flags from a JSON file, {\"steps\": 20, ...}",
     .commands = kEveryCommand},
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
       {std::pair<FlagGroup, std::span<const FlagSpec>>{FlagGroup::kInput, stream_flags()},
        {FlagGroup::kInput, input_flags()},
        {FlagGroup::kModel, kModel},
        {FlagGroup::kDevice, kDevice},
        {FlagGroup::kRanks, rank_flags()},
        {FlagGroup::kOutput, kOutput},
        {FlagGroup::kListen, listen_flags()},
        {FlagGroup::kSettings, kSettings}})
    for (FlagSpec row : rows) {
      row.group = group;
      // A worker computes as its server would. It gets jobs and their places from it.
      const bool of_server = group == FlagGroup::kListen || group == FlagGroup::kOutput;
      const bool keeps = std::string_view(row.name) != "output";
      if ((row.commands & kServe) && (!of_server || (group == FlagGroup::kOutput && keeps)))
        row.commands |= kWorker;
      all.push_back(row);
    }
  return all;
}

std::vector<FlagSpec>& table_rows() {
  static std::vector<FlagSpec> rows = all_rows();
  return rows;
}

}  // namespace

std::span<const CommandSpec> command_table() { return kCommands; }
std::span<const FlagSpec> flag_table() { return table_rows(); }
void add_flags(std::span<const FlagSpec> rows) {
  table_rows().insert(table_rows().end(), rows.begin(), rows.end());
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
    const std::vector<std::string> names = spellings(spec);
    if (std::find(names.begin(), names.end(), dashed) != names.end()) return &spec;
  }
  return nullptr;
}

}  // namespace weft
