// The flags that say how ranks share the work.
#include "apps/command_line/flag_rows.h"

namespace weft {
namespace {

using enum FlagType;
using enum FlagLevel;

constexpr FlagSpec kRanks[] = {
    {.name = "ranks",
     .type = kInteger,
     .fallback = "1, or the layout's product",
     .is_default = false,
     .legal = "1 ... 1024",
     .help = "parallel workers, each a thread of this process; under mpirun its processes are the "
             "ranks",
     .commands =
         kGenerate | kBatch | kServe | kReplay | kComplete | kPlan | kVerify | kBench | kInspect},
    {.name = "layout",
     .value = "KEY=N,...",
     .fallback = "auto",
     .help =
         "how the ranks share the work: data, cfg, step, layers, clip, patch, ring, token_ring, "
         "ulysses, tensor, as cfg=2,ulysses=2; auto: the fastest by simulation; plan also "
         "takes all",
     .commands = kGenerate | kBatch | kServe | kReplay | kComplete | kPlan | kVerify | kInspect},
    {.name = "ranks",
     .type = kInteger,
     .fallback = "1, or the layout's product",
     .is_default = false,
     .legal = "1 ... 1024",
     .help = "parallel workers, each a thread of this process",
     .commands = kStream},
    {.name = "layout",
     .value = "KEY=N,...",
     .fallback = "auto",
     .help =
         "how the ranks share the stream: step=4 gives each denoising step a rank, layers=2 "
         "each half of the layers, ulysses=2 each half of the heads, decode_rank=4 one more that "
         "decodes; auto: the fastest by what a block takes here",
     .commands = kStream},
    {.name = "text-ranks",
     .type = kInteger,
     .fallback = "all",
     .is_default = false,
     .legal = "1 ... 4096",
     .help = "how many ranks share the text encoder, from the first on; on slow links few ranks of "
             "one machine are faster",
     .commands = kGenerate | kBatch | kServe | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "vae-ranks",
     .type = kInteger,
     .fallback = "all",
     .is_default = false,
     .legal = "1 ... 4096",
     .help = "how many ranks share the rows of the VAE, from the first on",
     .commands = kGenerate | kBatch | kServe | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "decode-rank",
     .type = kInteger,
     .fallback = "as --vae-ranks says",
     .is_default = false,
     .legal = "0 ... 4095",
     .help =
         "the one rank, counted from 0, that decodes the pictures; the VAE is loaded there alone",
     .commands = kGenerate | kBatch | kServe | kPlan | kVerify,
     .level = kAdvanced},
    {.name = "decode-rank",
     .type = kInteger,
     .fallback = "the last one",
     .is_default = false,
     .legal = "0 ... 4095",
     .help = "the rank that decodes: the last one of --layout, or one more, which only decodes",
     .commands = kStream,
     .level = kAdvanced},
    {.name = "heartbeat-timeout",
     .type = kReal,
     .value = "SECONDS",
     .fallback = "4.5",
     .legal = "0 ... 86400",
     .help = "under mpirun or srun: end the job when a rank is silent for so many seconds; 0 is "
             "never, else at least 2",
     .commands = kGenerate | kBatch | kComplete | kVerify | kBench,
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
     .help = "simulated bandwidth in Gbit/s: plan gives each rank one link to all others, bench "
             "one to each",
     .commands = kPlan | kBench},
    {.name = "link-ms",
     .type = kReal,
     .fallback = "0",
     .legal = "0 ... 1000000",
     .help = "simulated latency of a message, in milliseconds",
     .commands = kPlan | kBench},
    {.name = "link-gbit",
     .type = kReal,
     .fallback = "measured, or unlimited",
     .is_default = false,
     .legal = "0.000001 ... 1000000",
     .help = "bandwidth of a rank's link in Gbit/s, from which --layout auto chooses; processes "
             "measure theirs, threads have none",
     .commands = kGenerate,
     .level = kAdvanced},
    {.name = "link-ms",
     .type = kReal,
     .fallback = "measured, or 0",
     .is_default = false,
     .legal = "0 ... 1000000",
     .help = "latency of a message in milliseconds, for --layout auto",
     .commands = kGenerate,
     .level = kAdvanced},
};

}  // namespace

std::span<const FlagSpec> rank_flags() { return kRanks; }

}  // namespace weft
