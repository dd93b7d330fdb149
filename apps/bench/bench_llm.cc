// weft bench llm: a language model of random weights, or --model's: a prompt's prefill beside the
// library's rate at its shapes, decoding beside the rate at which memory is read (a device's:
// copied), and, with part of the blocks resident, beside the file they come from.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "apps/model_folder.h"
#include "apps/scratch_folder.h"
#include "engine/language/language.h"
#include "io/json.h"
#include "kernels/dry_run.h"
#include "kernels/read_limit.h"
#include "kernels/transfer.h"
#include "models/random_weights/random_weights.h"

namespace weft {
namespace {

using Part = LanguageRank::Part;

constexpr int kDecodeTokens = 8;  // between two samples of the limits

// The model that is measured: a folder, or random weights in the sizes of a known model.
struct Subject {
  std::string name, folder;
  DecoderConfig config;

  TensorFile weights() const {
    return folder.empty() ? random_tensors(decoder_tensors(config)) : TensorFile::open(folder);
  }
};

Subject subject_of(const Flags& flags) {
  Subject subject{"qwen3-0.6b", "", qwen3_0_6b()};
  if (flags.given("model")) {
    subject.folder = model_folder(flags);
    subject.config = LanguageModel::read_config(subject.folder);
    subject.name = std::filesystem::canonical(subject.folder).filename().string();
  }
  subject.config.layers = blocks_of(flags, subject.config.layers, 1, subject.config.layers);
  return subject;
}

// Runs one pass and takes the likeliest next token of each part, as LanguageModel does.
struct Passes {
  LanguageRank& rank;
  int step = 0;
  Tensor hidden{};

  void run(std::vector<Part>& parts) {
    const Pass pass{.step = step++ % 1000};
    const auto share = rank.share(parts);
    if (!hidden || hidden.view()[0] != share.rows)
      hidden = Tensor(DType::kF32, {share.rows, rank.config().hidden}, rank.stream().device());
    rank.forward(pass, parts, share, hidden);
    const HostCopy logits(rank.stream(),
                          rank.logits(pass, rank.wanted_rows(pass, parts, share, hidden,
                                                             LanguageRank::Tokens::kLast)));
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t vocab = rank.config().vocab;
      const float* row = logits.view().as<float>() + static_cast<int64_t>(i) * vocab;
      parts[i].ids = {choose_token({row, static_cast<size_t>(vocab)}, {}, 0, 0)};
    }
  }
};

std::vector<Part> prompts(const DecoderConfig& config, int sequences, int64_t tokens) {
  std::vector<Part> parts;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    Part part{sequence, {}};
    for (int64_t i = 0; i < tokens; ++i)
      part.ids.push_back(static_cast<int32_t>((i * 7919 + sequence * 31) % config.vocab));
    parts.push_back(std::move(part));
  }
  return parts;
}

// The memory bandwidth that decoding is compared with: on a host that of reading alone, on a device
// that of a copy, whose bytes count as read and as written.
class Reading {
 public:
  Reading(Stream& stream, MachineLimits& limits) : limits_(limits) {
    if (!stream.queue()) host_.emplace(stream);
  }
  double seconds() {
    return host_ ? seconds_of([&] { host_->run(); }) : limits_.sample_copy();
  }
  double bytes() const { return host_ ? host_->bytes() : limits_.copied_bytes(); }
  const char* how() const { return host_ ? "read" : "copy"; }

 private:
  MachineLimits& limits_;
  std::optional<ReadLimit> host_;
};

struct Decode {
  int batch = 1;
  std::vector<double> seconds{};  // per pass
  std::vector<double> read{};     // measured right before each pass

  // The share of the reading rate at which weights are read. Each pass is compared with the reading
  // measured beside it, because the machine changes over a run.
  double share(double weights, double read_bytes) const {
    std::vector<double> shares;
    for (size_t i = 0; i < seconds.size(); ++i)
      shares.push_back(weights / seconds[i] / (read_bytes / read[i]));
    return median(shares);
  }
};

// Returns the seconds of a token of one sequence whose model must be read from its files again, and
// appends the tokens to `ids`.
double decode_from_files(LanguageRank& rank, const TensorFile& file, int64_t tokens,
                         std::vector<int32_t>& ids) {
  Passes passes{rank};
  std::vector<Part> parts = prompts(rank.config(), 1, tokens);
  rank.open(0);
  passes.run(parts);
  double seconds = 0;
  for (int i = 0; i < kDecodeTokens; ++i) {
    ids.push_back(parts[0].ids[0]);
    // A model larger than memory finds nothing of itself there.
    forget_pages(file);
    seconds += seconds_of([&] { passes.run(parts); });
  }
  return seconds / kDecodeTokens;
}

// Measures decoding where some blocks are resident and the others are read from a file for every
// token.
Json bench_streamed(const Subject& subject, const LanguageOptions& options, int64_t tokens,
                    int resident) {
  const DecoderConfig& config = subject.config;
  const ScratchFolder folder;
  std::string path = subject.folder;
  if (path.empty()) {
    path = folder.file("model.safetensors");
    write_random(path, subject.weights());
  }
  const TensorFile file = TensorFile::open(path);
  LanguageOptions streamed = options;
  streamed.resident = resident;
  std::vector<int32_t> of_part, of_all;
  double part_s = 0, all_s = 0;
  size_t part_bytes = 0, all_bytes = 0;
  WindowCounts before, after;
  {
    LanguageRank rank(file, config, streamed);
    before = rank.window();
    forget_pages(file);
    part_s = decode_from_files(rank, file, tokens, of_part);
    after = rank.window();
    part_bytes = rank.weights_bytes();
  }
  {
    LanguageRank rank(file, config, options);
    all_s = decode_from_files(rank, file, tokens, of_all);
    all_bytes = rank.weights_bytes();
  }
  DryRun run;
  const double layer_bytes = static_cast<double>(
      CausalDecoder::load(file, config, run.stream(),
                          {.dtype = DType::kBF16, .blocks = {0, 1, config.layers}})
          .bytes());
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

// The measurements of one run.
struct Figures {
  int64_t tokens = 0;  // of the prompt
  int repeat = 0;
  std::vector<double> prefill{};  // seconds
  std::vector<Decode> decodes{{1}, {4}, {16}};
  TimingMeter prefill_meter{}, decode_meter{};  // with one sequence
  double prefill_seconds = 0, decode_seconds = 0;

  double gflops() const { return executed_flop(prefill_meter) / repeat / median(prefill) * 1e-9; }
  double read_gbs(const Reading& reading) const {
    return reading.bytes() / median(decodes.front().read) * 1e-9;
  }
};

// The first round prepares primitives and scratch memory and does not count. Sequence 0 has the
// prompt before it; the others begin anew. A meter waits for a device after every op, so a device's
// passes are timed without one, and its op families are measured in passes of their own.
class Measurement {
 public:
  Measurement(LanguageRank& rank, MachineLimits& limits, Reading& reading, int64_t tokens)
      : rank_(rank),
        limits_(limits),
        reading_(reading),
        passes_{rank},
        figures_{.tokens = tokens} {}

  Figures run(int repeat) {
    figures_.repeat = repeat;
    for (counts_ = false;; counts_ = true) {
      limits_.sample();
      for (int sequence = 0; sequence < most(); ++sequence) rank_.open(sequence);
      prefill();
      for (Decode& decode : figures_.decodes) this->decode(decode);
      for (int sequence = 0; sequence < most(); ++sequence) rank_.close(sequence);
      if (repeat-- == 0) return std::move(figures_);
    }
  }

 private:
  int most() const { return figures_.decodes.back().batch; }
  bool on_device() const { return rank_.stream().queue() != nullptr; }

  void prefill() {
    if (on_device()) {
      std::vector<Part> prompt = prompts(rank_.config(), 1, figures_.tokens);
      const double seconds = seconds_of([&] { passes_.run(prompt); });
      if (counts_) figures_.prefill.push_back(seconds);
      rank_.close(0);
      rank_.open(0);
    }
    std::vector<Part> prompt = prompts(rank_.config(), 1, figures_.tokens);
    const double seconds = metered(prompt, figures_.prefill_meter, figures_.prefill_seconds);
    if (counts_ && !on_device()) figures_.prefill.push_back(seconds);
  }

  void decode(Decode& decode) {
    std::vector<Part> batch = prompts(rank_.config(), decode.batch, 1);
    const bool seen = decode.batch == 1;
    for (int i = 0; i < kDecodeTokens; ++i) {
      const double read = reading_.seconds();
      const double seconds = seen && !on_device()
                                 ? metered(batch, figures_.decode_meter, figures_.decode_seconds)
                                 : seconds_of([&] { passes_.run(batch); });
      if (counts_) decode.read.push_back(read);
      if (counts_) decode.seconds.push_back(seconds);
      if (seen && on_device()) metered(batch, figures_.decode_meter, figures_.decode_seconds);
    }
  }

  // The seconds of a pass with the meter, where those count.
  double metered(std::vector<Part>& parts, TimingMeter& meter, double& all) {
    TimingMeter unused;
    const MeterScope scope(counts_ ? meter : unused);
    const double seconds = seconds_of([&] { passes_.run(parts); });
    if (counts_) all += seconds;
    return seconds;
  }

  LanguageRank& rank_;
  MachineLimits& limits_;
  Reading& reading_;
  Passes passes_;
  Figures figures_;
  bool counts_ = false;
};

void print_json(const Subject& subject, LanguageRank& rank, const MachineLimits& limits,
                const Reading& read, const Figures& figures) {
  const LanguageOptions& options = rank.options();
  const double prefill = median(figures.prefill), gflops = figures.gflops();
  const auto weights = static_cast<double>(rank.weights_bytes());
  Json object{{"bench", "llm"},
              {"config", subject.name},
              {"layers", rank.config().layers},
              {"tokens", figures.tokens},
              {"dtype", to_string(options.dtype)},
              {"weights", to_string(options.weights)},
              {"threads", options.threads},
              {"isa", cpu_isa()},
              {"weights_bytes", rank.weights_bytes()},
              {"prefill_seconds", prefill},
              {"prefill_tokens_per_s", static_cast<double>(figures.tokens) / prefill},
              {"gflops", gflops},
              {"share", gflops / limits.gemm_gflops()},
              {"read_gbs", figures.read_gbs(read)},
              {"read_by", read.how()}};
  if (options.device != Device{}) object["device"] = to_string(options.device);
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

void print_table(const Subject& subject, LanguageRank& rank, const MachineLimits& limits,
                 const Reading& read, const Figures& figures) {
  const double gflops = figures.gflops();
  const auto weights = static_cast<double>(rank.weights_bytes());
  std::printf("%s, %d layers, %s, %s; weights %.2f GiB\n", subject.name.c_str(),
              rank.config().layers, std::string(to_string(rank.options().dtype)).c_str(),
              rank.options().device == Device{}
                  ? (std::to_string(rank.options().threads) + " threads, " + cpu_isa()).c_str()
                  : device_description(rank.options().device).c_str(),
              weights * 0x1p-30);
  print_families(figures.prefill_meter, figures.prefill_seconds, limits);
  std::printf("prefill %lld tokens %.3f s, %.1f GFLOP/s of %.1f (%s): share %.3f\n",
              static_cast<long long>(figures.tokens), median(figures.prefill), gflops,
              limits.gemm_gflops(), limits.gemm_description().c_str(),
              gflops / limits.gemm_gflops());
  print_families(figures.decode_meter, figures.decode_seconds, limits);
  for (const Decode& decode : figures.decodes) {
    const double seconds = median(decode.seconds);
    std::printf(
        "decode %2d at once %.4f s a pass, %.1f tokens/s; weights %.1f GB/s of %.1f (%s): "
        "share %.3f\n",
        decode.batch, seconds, decode.batch / seconds, weights / seconds * 1e-9,
        figures.read_gbs(read), read.how(), decode.share(weights, read.bytes()));
  }
}

}  // namespace

int bench_llm(const Flags& flags, DType dtype, int repeat) {
  const Subject subject = subject_of(flags);
  const DecoderConfig& config = subject.config;
  const int64_t tokens = flags.given("tokens") ? *flags.integer("tokens") : 512;
  Stream bare = stream_of(flags);
  const int64_t positions = std::min<int64_t>(tokens + 4096, config.max_positions);
  LanguageOptions options{.device = bare.device(),
                          .dtype = dtype,
                          .weights = weight_format(flags),
                          .threads = bare.threads(),
                          .ops = &metered_ops(),
                          .positions = positions,
                          .cache_tokens = 16 * positions};
  if (const auto resident = flags.integer("resident-layers")) {
    if (*resident < 2 || *resident >= config.layers)
      throw Error(ErrorKind::kUsage,
                  flags.label("resident-layers") + " is " + std::to_string(*resident) + " of " +
                      std::to_string(config.layers) + " blocks, legal: at least 2, less than all");
    const Json result = bench_streamed(subject, options, tokens, static_cast<int>(*resident));
    std::printf("%s\n", result.dump(flags.on("json") ? -1 : 1).c_str());
    return result.boolean("same_tokens") ? 0 : 1;
  }

  const TensorFile file = subject.weights();
  LanguageRank rank(file, config, options);
  const int64_t d = config.hidden, q = config.inner(), kv = config.kv_inner();
  MachineLimits limits(bare, dtype,
                       {{tokens, d, q, 1},
                        {tokens, d, kv, 2},
                        {tokens, q, d, 1},
                        {tokens, d, config.ffn, 2},
                        {tokens, config.ffn, d, 1}});
  Reading reading(bare, limits);
  const Figures figures = Measurement(rank, limits, reading, tokens).run(repeat);
  (flags.on("json") ? print_json : print_table)(subject, rank, limits, reading, figures);
  return 0;
}

}  // namespace weft
