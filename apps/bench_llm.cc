#include "apps/bench_llm.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench_limits.h"
#include "apps/device.h"
#include "apps/scratch_folder.h"
#include "engine/language.h"
#include "kernels/ops.h"
#include "kernels/read_limit.h"
#include "models/random_weights.h"

namespace weft {
namespace {

using Part = LanguageRank::Part;

constexpr int kDecodeTokens = 8;  // between two samples of the limits

// One pass and, where asked, the likeliest next token of each part.
struct Passes {
  LanguageRank& rank;
  int step = 0;

  void run(std::vector<Part>& parts) {
    const Pass pass{.step = step++ % 1000};
    const auto share = rank.share(parts);
    Tensor hidden(DType::kF32, {share.rows, rank.config().hidden});
    rank.forward(pass, parts, share, hidden);
    const TensorView logits = rank.logits(
        pass, rank.wanted_rows(pass, parts, share, hidden, LanguageRank::Tokens::kLast));
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t vocab = rank.config().vocab;
      const float* row = logits.as<float>() + static_cast<int64_t>(i) * vocab;
      parts[i].ids = {choose_token({row, static_cast<size_t>(vocab)}, {}, 0, 0)};
    }
  }
};

std::vector<Part> prompts(const QwenConfig& config, int sequences, int64_t tokens) {
  std::vector<Part> parts;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    Part part{sequence, {}};
    for (int64_t i = 0; i < tokens; ++i)
      part.ids.push_back(static_cast<int32_t>((i * 7919 + sequence * 31) % config.vocab));
    parts.push_back(std::move(part));
  }
  return parts;
}

struct Decode {
  int batch = 1;
  std::vector<double> seconds{};  // per pass
  std::vector<double> read{};     // of ReadLimit::run() right before it

  // Bytes of weights per second, as a share of the rate of reading: of pass and neighbour, since
  // the machine changes over a run.
  double share(double weights, double read_bytes) const {
    std::vector<double> shares;
    for (size_t i = 0; i < seconds.size(); ++i)
      shares.push_back(weights / seconds[i] / (read_bytes / read[i]));
    return median(shares);
  }
};

// The pages of a file leave the system's cache.
void forget(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0) return;
  fdatasync(file);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

// Decoding with part of the blocks resident and the others read from a file again and again.
nlohmann::json bench_streamed(const QwenConfig& config, const LanguageOptions& options,
                              int64_t tokens, int resident) {
  const ScratchFolder folder;
  const std::string path = folder.file("model.safetensors");
  write_random(path, random_tensors(qwen_tensors(config)));
  forget(path);
  const TensorFile file = TensorFile::open(path);
  LanguageOptions streamed = options;
  streamed.resident = resident;
  const auto decode = [&](LanguageRank& rank, std::vector<int32_t>& ids) {
    Passes passes{rank};
    std::vector<Part> parts = prompts(config, 1, tokens);
    rank.open(0);
    passes.run(parts);
    double seconds = 0;
    for (int i = 0; i < kDecodeTokens; ++i) {
      ids.push_back(parts[0].ids[0]);
      forget(path);  // a model larger than memory finds nothing of itself there
      seconds += seconds_of([&] { passes.run(parts); });
    }
    return seconds / kDecodeTokens;
  };
  std::vector<int32_t> of_part, of_all;
  double part_s = 0, all_s = 0;
  size_t part_bytes = 0, all_bytes = 0;
  WindowCounts before, after;
  {
    LanguageRank rank(file, config, streamed);
    before = rank.window();
    forget(path);
    part_s = decode(rank, of_part);
    after = rank.window();
    part_bytes = rank.weights_bytes();
  }
  {
    LanguageRank rank(file, config, options);
    all_s = decode(rank, of_all);
    all_bytes = rank.weights_bytes();
  }
  const double layer_bytes = static_cast<double>(
      qwen_weights_bytes(config, {.dtype = DType::kBF16, .blocks = {0, 1, config.layers}}));
  const double reads = static_cast<double>(after.reads - before.reads);
  const double reading = after.reading_s - before.reading_s;
  const double waited = after.waited_s - before.waited_s;
  return {{"resident", resident},
          {"layers", config.layers},
          {"resident_bytes", part_bytes},
          {"all_bytes", all_bytes},
          {"same_tokens", of_part == of_all},
          {"seconds_per_token", part_s},
          {"seconds_per_token_resident", all_s},
          {"read_bytes", reads * layer_bytes},
          {"read_gbs", reads * layer_bytes / reading * 1e-9},
          {"reading_s", reading},
          {"waited_s", waited},
          {"overlap", 1 - waited / reading}};
}

// What one run of rounds measured.
struct Figures {
  std::vector<double> prefill{}, reads{};  // seconds
  std::vector<Decode> decodes{{1}, {4}, {16}};
  TimingMeter prefill_meter{}, decode_meter{};  // of one sequence
  double prefill_seconds = 0, decode_seconds = 0;

  double gflops(int repeat) const {
    return executed_flop(prefill_meter) / repeat / median(prefill) * 1e-9;
  }
};

// The first round makes primitives and scratch, and does not count. Sequence 0 has the prompt
// behind it, the others begin anew.
void measure(LanguageRank& rank, MachineLimits& limits, ReadLimit& read, int64_t tokens, int repeat,
             Figures& figures) {
  Passes passes{rank};
  const int most = figures.decodes.back().batch;
  for (int round = 0; round <= repeat; ++round) {
    TimingMeter unused;
    limits.sample();
    for (int sequence = 0; sequence < most; ++sequence) rank.open(sequence);
    std::vector<Part> prompt = prompts(rank.config(), 1, tokens);
    {
      const MeterScope scope(round ? figures.prefill_meter : unused);
      const double seconds = seconds_of([&] { passes.run(prompt); });
      if (round) figures.prefill.push_back(seconds);
      if (round) figures.prefill_seconds += seconds;
    }
    for (Decode& decode : figures.decodes) {
      const bool alone = decode.batch == 1;
      std::vector<Part> batch = prompts(rank.config(), decode.batch, 1);
      for (int i = 0; i < kDecodeTokens; ++i) {
        figures.reads.push_back(seconds_of([&] { read.run(); }));
        const MeterScope scope(round && alone ? figures.decode_meter : unused);
        const double seconds = seconds_of([&] { passes.run(batch); });
        if (!round) continue;
        decode.read.push_back(figures.reads.back());
        decode.seconds.push_back(seconds);
        if (alone) figures.decode_seconds += seconds;
      }
    }
    for (int sequence = 0; sequence < most; ++sequence) rank.close(sequence);
  }
}

void print_json(LanguageRank& rank, const MachineLimits& limits, const ReadLimit& read,
                int64_t tokens, int repeat, const Figures& figures) {
  const LanguageOptions& options = rank.options();
  const double prefill = median(figures.prefill), gflops = figures.gflops(repeat);
  const auto weights = static_cast<double>(rank.weights_bytes());
  nlohmann::json object{{"bench", "llm"},
                        {"config", "qwen3-0.6b"},
                        {"layers", rank.config().layers},
                        {"tokens", tokens},
                        {"dtype", to_string(options.dtype)},
                        {"weights", to_string(options.weights)},
                        {"threads", options.threads},
                        {"isa", cpu_isa()},
                        {"weights_bytes", rank.weights_bytes()},
                        {"prefill_seconds", prefill},
                        {"prefill_tokens_per_s", static_cast<double>(tokens) / prefill},
                        {"gflops", gflops},
                        {"share", gflops / limits.gemm_gflops()},
                        {"read_gbs", read.bytes() / median(figures.reads) * 1e-9}};
  for (const Decode& decode : figures.decodes) {
    const double seconds = median(decode.seconds);
    object["decode"].push_back({{"batch", decode.batch},
                                {"seconds", seconds},
                                {"tokens_per_s", decode.batch / seconds},
                                {"weights_gbs", weights / seconds * 1e-9},
                                {"read_share", decode.share(weights, read.bytes())}});
  }
  limits.describe(object);
  object["prefill_families"] =
      families_json(figures.prefill_meter, figures.prefill_seconds, limits);
  object["decode_families"] = families_json(figures.decode_meter, figures.decode_seconds, limits);
  std::printf("%s\n", object.dump().c_str());
}

void print_table(LanguageRank& rank, const MachineLimits& limits, const ReadLimit& read,
                 int64_t tokens, int repeat, const Figures& figures) {
  const double gflops = figures.gflops(repeat);
  const auto weights = static_cast<double>(rank.weights_bytes());
  std::printf("Qwen3-0.6B, %d layers, %s, %d threads, %s; weights %.2f GiB\n", rank.config().layers,
              std::string(to_string(rank.options().dtype)).c_str(), rank.options().threads,
              cpu_isa().c_str(), weights * 0x1p-30);
  print_families(figures.prefill_meter, figures.prefill_seconds, limits);
  std::printf("prefill %lld tokens %.3f s, %.1f GFLOP/s of %.1f (%s): share %.3f\n",
              static_cast<long long>(tokens), median(figures.prefill), gflops, limits.gemm_gflops(),
              limits.gemm_words().c_str(), gflops / limits.gemm_gflops());
  print_families(figures.decode_meter, figures.decode_seconds, limits);
  for (const Decode& decode : figures.decodes) {
    const double seconds = median(decode.seconds);
    std::printf(
        "decode %2d at once %.4f s a pass, %.1f tokens/s; weights %.1f GB/s of %.1f read: "
        "share %.3f\n",
        decode.batch, seconds, decode.batch / seconds, weights / seconds * 1e-9,
        read.bytes() / median(figures.reads) * 1e-9, decode.share(weights, read.bytes()));
  }
}

}  // namespace

int bench_llm(const Flags& flags, DType dtype, int repeat) {
  QwenConfig config = qwen3_0_6b();
  config.layers = blocks_of(flags, config.layers, 1, config.layers);
  const int64_t tokens = flags.given("tokens") ? *flags.integer("tokens") : 512;
  Stream bare = bench_stream(flags, cpu_ops());
  LanguageOptions options{.dtype = dtype,
                          .weights = weight_format(flags),
                          .threads = bare.threads(),
                          .ops = &metered_ops(),
                          .positions = tokens + 4096,
                          .cache_tokens = 16 * (tokens + 4096)};
  if (const auto resident = flags.integer("resident-layers")) {
    if (*resident < 2 || *resident >= config.layers)
      throw Error(ErrorKind::kUsage, "--resident-layers is " + std::to_string(*resident) + " of " +
                                         std::to_string(config.layers) +
                                         " blocks, legal: at least 2, less than all");
    const nlohmann::json result =
        bench_streamed(config, options, tokens, static_cast<int>(*resident));
    std::printf("%s\n", result.dump(flags.on("json") ? -1 : 1).c_str());
    return result["same_tokens"] ? 0 : 1;
  }

  const TensorFile file = random_tensors(qwen_tensors(config));
  LanguageRank rank(file, config, options);
  const int64_t d = config.hidden, q = config.inner(), kv = config.kv_inner();
  MachineLimits limits(bare, dtype,
                       {{tokens, d, q, 1},
                        {tokens, d, kv, 2},
                        {tokens, q, d, 1},
                        {tokens, d, config.ffn, 2},
                        {tokens, config.ffn, d, 1}});
  ReadLimit read(bare);
  Figures figures;
  measure(rank, limits, read, tokens, repeat, figures);
  (flags.on("json") ? print_json : print_table)(rank, limits, read, tokens, repeat, figures);
  return 0;
}

}  // namespace weft
