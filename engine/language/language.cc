#include "engine/language/language.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/copy.h"
#include "kernels/dry_run.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/registry.h"
#include "parallel/transport/silent.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The last generated token is not fed back, so it needs no place in the cache.
int64_t tokens_of(const CompletionRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
}

// One call of complete() on one rank. All ranks see the same tokens and so make the same decisions.
class Run final : private TokenProgram {
 public:
  Run(LanguageRank& rank, std::span<const CompletionRequest> requests,
      const CompletionOptions& options, CompletionStats& stats)
      : TokenProgram(rank), requests_(requests), options_(options), stats_(stats) {
    completions_.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      check(static_cast<int>(i));
      waiting_.push_back(static_cast<int>(i));
    }
  }

  ~Run() override {
    for (int request : running_) rank_.close(request);
  }

  std::vector<Completion> run() {
    while (!waiting_.empty() || !running_.empty()) {
      if (stopped()) break;
      prefill(admit());
      decode();
      if (dry_) skip_to_last_round();
    }
    for (size_t i = 0; i < completions_.size(); ++i)
      if (!ended(static_cast<int>(i))) end(static_cast<int>(i), seconds_since(start_));
    return std::move(completions_);
  }

 private:
  struct Batch : Micro {
    std::vector<int> requests{};  // requests that have not ended
    std::vector<bool> samples{};  // per part: whether the pass samples its next token
  };

  void check(int request) const {
    const CompletionRequest& asked = requests_[request];
    const std::string what = "request " + std::to_string(request + 1) + ": ";
    asked.sampling.check();
    if (asked.prompt.empty()) throw Error(ErrorKind::kUsage, what + "the prompt has no tokens");
    if (asked.max_tokens < 1)
      throw Error(ErrorKind::kUsage,
                  what + "max tokens is " + std::to_string(asked.max_tokens) + ", legal: >= 1");
    const LanguageOptions& have = rank_.options();
    const int64_t places = std::min(have.positions, have.cache_tokens);
    const auto prompt = static_cast<int64_t>(asked.prompt.size());
    if (prompt > places || asked.max_tokens > places - prompt + 1)
      throw Error(ErrorKind::kUsage, what + std::to_string(prompt) + " prompt tokens and up to " +
                                         std::to_string(asked.max_tokens) +
                                         " new ones are more than the context of " +
                                         std::to_string(places) + " tokens");
    for (const int32_t id : asked.prompt)
      if (id < 0 || id >= rank_.config().vocab)
        throw Error(ErrorKind::kUsage, what + "token id " + std::to_string(id) +
                                           " is outside the vocabulary of " +
                                           std::to_string(rank_.config().vocab));
  }

  bool stopped() {
    if (!options_.stop) return false;
    return rank_.placement().broadcast_from_root(rank_.stream(),
                                                 {.kind = Payload::kControl, .topic = Topic::kStep},
                                                 options_.stop->load()) != 0;
  }

  // Starts waiting requests in order, while the batch has a place and the cache has pages for all
  // of their tokens.
  std::vector<int> admit() {
    std::vector<int> fresh;
    while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.batch) {
      const int request = waiting_.front();
      int64_t promised = 0;
      for (int other : running_) promised += rank_.pages_for(tokens_of(requests_[other]));
      if (promised + rank_.pages_for(tokens_of(requests_[request])) >
          rank_.pages_for(rank_.options().cache_tokens))
        break;
      waiting_.pop_front();
      rank_.open(request);
      running_.push_back(request);
      fresh.push_back(request);
    }
    return fresh;
  }

  // The next tokens of a prompt that go into one pass. A pass has at most `chunk` rows on each
  // rank.
  struct Piece {
    bool splits = false;  // split by tokens over the ranks
    int64_t tokens = 0;
  };
  Piece next_piece(int64_t past, int64_t left, bool was_split) const {
    const int64_t shares = rank_.placement().layout().sequence();
    const int64_t most = std::min(left, options_.chunk * shares);
    const bool splits = most >= rank_.options().split_tokens && rank_.can_split(past, most) &&
                        (past == 0 || was_split);
    return {splits, splits ? most : std::min(left, options_.chunk)};
  }

  // Packs the prompts' ids into passes. All parts of a pass are split the same way.
  std::vector<Batch> passes_of(const std::vector<int>& fresh) const {
    std::vector<Batch> micros;
    int64_t free_rows = 0;
    bool splits = false;  // whether the last pass is split by tokens
    for (int request : fresh) {
      const std::vector<int32_t>& prompt = requests_[request].prompt;
      const auto all = static_cast<int64_t>(prompt.size());
      bool was_split = false;
      for (int64_t at = 0; at < all;) {
        Piece piece = next_piece(at, all - at, was_split);
        // A piece that is split by tokens is never cut to fill up a pass; it starts a new one.
        if (micros.empty() || piece.splits != splits ||
            (piece.splits && piece.tokens > free_rows) || free_rows == 0) {
          micros.emplace_back();
          splits = piece.splits;
          if (splits) micros.back().split = LanguageRank::Split::kTokens;
          free_rows = options_.chunk * (splits ? rank_.placement().layout().sequence() : 1);
        }
        piece.tokens = std::min(piece.tokens, free_rows);
        Batch& micro = micros.back();
        micro.parts.push_back({request, {prompt.begin() + at, prompt.begin() + at + piece.tokens}});
        at += piece.tokens;
        free_rows -= piece.tokens;
        was_split = piece.splits;
        micro.samples.push_back(at == all);
        if (at == all) micro.requests.push_back(request);
      }
    }
    return micros;
  }

  void prefill(const std::vector<int>& fresh) {
    if (fresh.empty()) return;
    const auto start = Clock::now();
    const ZoneScope zone(Zone::kEncodeText);
    std::vector<Batch> micros = passes_of(fresh);
    for (int request : fresh)
      stats_.prefill_tokens += static_cast<int64_t>(requests_[request].prompt.size());
    stats_.prefill_passes += static_cast<int64_t>(micros.size());
    // Only some passes run together, because each holds its hidden rows until all have finished.
    const auto together = static_cast<size_t>(rank_.passes_together());
    for (size_t at = 0; at < micros.size(); at += together) {
      const size_t count = std::min(together, micros.size() - at);
      walk({micros.data() + at, count}, 1);
      for (Batch& micro : std::span(micros).subspan(at, count)) micro = {};
    }
    stats_.prefill_s += seconds_since(start);
  }

  // Runs some rounds. Each round adds one token to every running sequence. The sequences form as
  // many micro-batches as there are pipeline stages, so that all stages are busy.
  void decode() {
    leave();
    if (running_.empty()) return;
    const auto start = Clock::now();
    const ZoneScope zone(Zone::kDecode);
    const int groups =
        std::min(static_cast<int>(running_.size()), rank_.placement().layout()[Axis::kLayers]);
    std::vector<Batch> micros(groups);
    for (size_t i = 0; i < running_.size(); ++i) micros[i % groups].requests.push_back(running_[i]);
    for (Batch& micro : micros) next_parts(micro);
    walk(micros, options_.rounds);
    stats_.decode_s += seconds_since(start);
    leave();
  }

  // A dry run leaves out the rounds between the first one, which may move the caches, and the last
  // one, whose caches are the longest: they take no more memory.
  void skip_to_last_round() {
    for (int request : running_) {
      std::vector<int32_t>& ids = completions_[request].ids;
      const auto last = static_cast<size_t>(requests_[request].max_tokens - 1);
      if (ids.size() < last) rank_.skip(request, static_cast<int64_t>(last - ids.size()));
      ids.resize(last);
    }
  }

  void leave() {
    std::erase_if(running_, [&](int request) {
      const bool over = ended(request);
      if (over) rank_.close(request);
      return over;
    });
  }

  bool ended(int request) const { return completions_[request].seconds > 0; }

  // Feeds the last token of each sequence that has not ended.
  void next_parts(Batch& micro) {
    std::erase_if(micro.requests, [&](int request) { return ended(request); });
    micro.parts.clear();
    for (int request : micro.requests)
      micro.parts.push_back({request, {completions_[request].ids.back()}});
    micro.samples.assign(micro.parts.size(), true);
    stats_.decode_tokens += static_cast<int64_t>(micro.parts.size());
    stats_.decode_passes += !micro.parts.empty();
  }

  void walk(std::span<Batch> micros, int rounds) {
    micros_ = micros;
    run_rounds(static_cast<int>(micros.size()), rounds);
  }

  Batch& micro(int index) override { return micros_[index]; }
  void next_parts(int micro) override { next_parts(micros_[micro]); }

  void choose(const Pass& pass, std::span<int32_t> ids) override {
    const Batch& micro = micros_[pass.micro];
    std::ranges::fill(ids, -1);
    if (std::ranges::find(micro.samples, true) == micro.samples.end()) return;
    const HostCopy logits(
        rank_.stream(),
        rank_.logits(pass, rank_.wanted_rows(pass, micro.parts, micro.share, micro.hidden,
                                             LanguageRank::Tokens::kLast)));
    if (dry_) return;
    const int64_t vocab = rank_.config().vocab;
    for (size_t i = 0; i < micro.parts.size(); ++i) {
      if (!micro.samples[i]) continue;
      const int request = micro.parts[i].sequence;
      const float* row = logits.view().as<float>() + static_cast<int64_t>(i) * vocab;
      ids[i] = choose_token({row, static_cast<size_t>(vocab)}, requests_[request].sampling,
                            static_cast<uint32_t>(request),
                            static_cast<uint32_t>(rank_.length(request)));
    }
  }

  // Appends the sampled tokens to their sequences. Every rank does this for every token.
  void learn(int index, std::span<const int32_t> ids) override {
    const Batch& micro = micros_[index];
    for (size_t i = 0; i < micro.parts.size(); ++i) {
      if (!micro.samples[i]) continue;
      const int request = micro.parts[i].sequence;
      const CompletionRequest& asked = requests_[request];
      Completion& completion = completions_[request];
      const int32_t id = dry_ ? 0 : ids[i];  // a dry run chooses and receives nothing
      const double now = seconds_since(start_);
      if (completion.first_token_s == 0) completion.first_token_s = now;
      const bool stop = std::ranges::find(asked.stop, id) != asked.stop.end();
      if (!stop) {
        completion.ids.push_back(id);
        if (options_.on_token) options_.on_token(request, id);
      }
      const bool full = static_cast<int64_t>(completion.ids.size()) == asked.max_tokens;
      if (!stop && !full) continue;
      completion.end = stop ? Completion::End::kStopId : Completion::End::kMaxTokens;
      end(request, now);
    }
  }

  void end(int request, double now) {
    completions_[request].seconds = now;
    if (options_.on_end) options_.on_end(request, completions_[request]);
  }

  std::span<const CompletionRequest> requests_;
  const CompletionOptions& options_;
  CompletionStats& stats_;
  const bool dry_ = is_dry_run(rank_.stream());
  Clock::time_point start_ = Clock::now();
  std::vector<Completion> completions_;
  std::deque<int> waiting_;
  std::vector<int> running_;
  std::span<Batch> micros_;  // the batches of the rounds that run
};

// Requests of the same lengths without values, the longest ones first: `batch` of them, and another
// batch, whose prompts are read when the pages of the first one have been allocated.
std::vector<CompletionRequest> longest(std::span<const CompletionRequest> requests, int batch) {
  std::vector<CompletionRequest> longest;
  for (const CompletionRequest& each : requests)
    longest.push_back(
        {.prompt = std::vector<int32_t>(each.prompt.size()), .max_tokens = each.max_tokens});
  std::ranges::sort(longest, std::greater<>(), [](const CompletionRequest& each) {
    return std::pair(tokens_of(each), each.prompt.size());
  });
  longest.resize(std::min(longest.size(), 2 * static_cast<size_t>(batch)));
  return longest;
}

}  // namespace

LanguageOptions sized_for(std::span<const CompletionRequest> requests, int batch,
                          LanguageOptions options) {
  options.positions = options.cache_tokens = 0;
  for (const CompletionRequest& each : longest(requests, batch)) {
    options.positions = std::max(options.positions, tokens_of(each));
    if (batch-- > 0)
      options.cache_tokens +=
          (tokens_of(each) + options.page_rows - 1) / options.page_rows * options.page_rows;
  }
  return options;
}

LanguageBytes LanguageModel::predict(const DecoderConfig& config, const LanguageOptions& options,
                                     const Layout& layout, int rank,
                                     std::span<const CompletionRequest> requests,
                                     const CompletionOptions& how) {
  const bool on_host = options.device == Device{};
  DryRun run(on_host ? std::nullopt : std::optional(device_traits(options.device)));
  LanguageOptions measured = options;
  measured.device = run.stream().device();
  measured.ops = nullptr;
  measured.resident = 0;  // the thread that reads blocks has no meter
  LanguageBytes bytes;
  size_t arena = 0, all_weights = 0;
  const Footprint tensors = run.measure([&] {
    LanguageModel model(
        without_values(decoder_tensors(config)), config, measured,
        {Communicator(std::make_shared<SilentTransport>(rank, layout.ranks())), layout});
    model.complete(longest(requests, how.batch),
                   {.batch = how.batch, .chunk = how.chunk, .rounds = 1});
    all_weights = model.rank().weights_bytes();
    bytes.weights = model.rank().weights_bytes(options.resident);
    bytes.cache = model.rank().cache_bytes();
    arena = model.rank().arena_high_water();
  });
  bytes.workspace = tensors.passing - all_weights - bytes.cache;
  bytes.workspace += on_host ? arena
                             : committed_bytes(arena) + kDeviceSlab +
                                   committed_bytes(std::max(kTransferPiece, tensors.scratch));
  return bytes;
}

DecoderConfig LanguageModel::read_config(const std::string& folder) {
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::kModel, folder + ": no such model folder");
  return DecoderConfig::from_json_file(folder + "/config.json");
}

std::vector<int32_t> LanguageModel::end_ids(const std::string& folder) {
  for (const char* file : {"/generation_config.json", "/config.json"}) {
    if (!std::filesystem::exists(folder + file)) continue;
    const nlohmann::json json = read_json_file(folder + file);
    if (!json.is_object() || !json_has(json, "eos_token_id")) continue;
    constexpr IntRange kIds{0, (1 << 24) - 1};
    const std::string what = folder + file;
    std::vector<int32_t> ids;
    if (json["eos_token_id"].is_array())
      for (int64_t id : json_ints(json, "eos_token_id", what, kIds))
        ids.push_back(static_cast<int32_t>(id));
    else
      ids.push_back(static_cast<int32_t>(json_int(json, "eos_token_id", what, kIds)));
    return ids;
  }
  return {};
}

LanguageModel::LanguageModel(TensorFile file, const DecoderConfig& config,
                             const LanguageOptions& options, RankPlacement placement)
    : file_(std::move(file)), rank_(file_, config, options, std::move(placement)) {}

LanguageModel::LanguageModel(const std::string& folder, const LanguageOptions& options,
                             RankPlacement placement)
    : LanguageModel(open_part_weights(PartKind::kTextEncoder, folder), read_config(folder), options,
                    std::move(placement)) {}

std::vector<Completion> LanguageModel::complete(std::span<const CompletionRequest> requests,
                                                const CompletionOptions& options) {
  CHECK(options.batch >= 1 && options.chunk >= 1 && options.rounds >= 1, "batch", options.batch,
        "chunk", options.chunk, "rounds", options.rounds);
  stats_ = {};
  const JobScope job(rank_.placement());
  return Run(rank_, requests, options, stats_).run();
}

}  // namespace weft
