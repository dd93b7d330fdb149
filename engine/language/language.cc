#include "engine/language/language.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;
using Part = LanguageRank::Part;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One call of complete() on one rank. All ranks see the same tokens and so make the same decisions.
class Run {
 public:
  Run(LanguageRank& rank, std::span<const CompletionRequest> requests,
      const CompletionOptions& options, CompletionStats& stats)
      : rank_(rank), requests_(requests), options_(options), stats_(stats) {
    completions_.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      check(static_cast<int>(i));
      waiting_.push_back(static_cast<int>(i));
    }
  }

  ~Run() {
    for (int request : running_) rank_.close(request);
  }

  std::vector<Completion> run() {
    while (!waiting_.empty() || !running_.empty()) {
      if (stopped()) break;
      prefill(admit());
      decode();
    }
    for (size_t i = 0; i < completions_.size(); ++i)
      if (!ended(static_cast<int>(i))) end(static_cast<int>(i), seconds_since(start_));
    return std::move(completions_);
  }

 private:
  // A micro-batch: one pass through the pipeline stages.
  struct Micro {
    std::vector<int> requests{};  // requests that have not ended
    std::vector<Part> parts{};    // tokens of this round; empty: nothing is left to do
    std::vector<bool> samples{};  // per part: whether the pass samples its next token
    LanguageRank::Split split = LanguageRank::Split::kHeads;
    LanguageRank::Share share{};
    Tensor hidden{}, wire{};
    std::vector<int32_t> results{};
    int round = -1;
    std::vector<Communicator::Pending> sending_hidden{}, sending_results{};
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

  // The last generated token is not fed back, so it needs no place in the cache.
  int64_t tokens_of(int request) const {
    return static_cast<int64_t>(requests_[request].prompt.size()) + requests_[request].max_tokens -
           1;
  }

  bool stopped() {
    if (!options_.stop) return false;
    return rank_.placement().agreed(rank_.stream(),
                                    {.kind = Payload::kControl, .hop = kStepDecision},
                                    options_.stop->load()) != 0;
  }

  // Starts waiting requests in order, while the batch has a place and the cache has pages for all
  // of their tokens.
  std::vector<int> admit() {
    std::vector<int> fresh;
    while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.batch) {
      const int request = waiting_.front();
      int64_t promised = 0;
      for (int other : running_) promised += rank_.pages_for(tokens_of(other));
      if (promised + rank_.pages_for(tokens_of(request)) >
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
  std::vector<Micro> passes_of(const std::vector<int>& fresh) const {
    std::vector<Micro> micros;
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
        Micro& micro = micros.back();
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
    std::vector<Micro> micros = passes_of(fresh);
    for (int request : fresh)
      stats_.prefill_tokens += static_cast<int64_t>(requests_[request].prompt.size());
    stats_.prefill_passes += static_cast<int64_t>(micros.size());
    // Only some passes run together, because each holds its hidden rows until all have finished.
    const auto together = static_cast<size_t>(rank_.passes_together());
    for (size_t at = 0; at < micros.size(); at += together) {
      const size_t count = std::min(together, micros.size() - at);
      walk({micros.data() + at, count}, 1);
      for (Micro& micro : std::span(micros).subspan(at, count)) micro = {};
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
    std::vector<Micro> micros(groups);
    for (size_t i = 0; i < running_.size(); ++i) micros[i % groups].requests.push_back(running_[i]);
    for (Micro& micro : micros) next_parts(micro);
    walk(micros, options_.rounds);
    stats_.decode_s += seconds_since(start);
    leave();
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
  void next_parts(Micro& micro) {
    std::erase_if(micro.requests, [&](int request) { return ended(request); });
    micro.parts.clear();
    for (int request : micro.requests)
      micro.parts.push_back({request, {completions_[request].ids.back()}});
    micro.samples.assign(micro.parts.size(), true);
    stats_.decode_tokens += static_cast<int64_t>(micro.parts.size());
    stats_.decode_passes += !micro.parts.empty();
  }

  void walk(std::span<Micro> micros, int rounds) {
    const Layout& layout = rank_.placement().layout();
    TokenPlanConfig config{.blocks = rank_.config().layers,
                           .stages = layout[Axis::kLayers],
                           .rounds = rounds,
                           .hidden_bytes = rank_.config().hidden *
                                           static_cast<int64_t>(size_of(rank_.options().dtype)),
                           .result_bytes = sizeof(int32_t)};
    for (const Micro& micro : micros)
      config.micros.push_back(
          {rank_.rows_of(micro.parts, micro.split), static_cast<int64_t>(micro.parts.size())});
    const int stage = rank_.placement().mesh().at(Axis::kLayers, rank_.placement().rank());
    const Plan plan = plan_tokens(config)[stage];
    for (const Step& step : plan.steps) take(step, micros, stage);
  }

  void take(const Step& step, std::span<Micro> micros, int stage) {
    if (step.kind == Step::Kind::kLoad) return;
    if (step.kind == Step::Kind::kWait) {
      for (int slot : step.reads) {
        Micro& micro = micros[(slot - 1) / 2];
        auto& sending = slot % 2 ? micro.sending_results : micro.sending_hidden;
        for (Communicator::Pending& pending : sending)
          rank_.placement().communicator().wait(pending);
        sending.clear();
      }
      return;
    }
    Micro& micro = micros[step.pass.micro];
    const bool begins = step.kind == Step::Kind::kReceive ? step.payload == Payload::kHidden
                                                          : step.kind == Step::Kind::kCompute;
    if (begins) begin_round(step.pass, micro);
    if (micro.parts.empty()) return;
    const int peer = step.peer < 0 ? -1 : rank_.placement().stage_peer(step.peer - stage);
    switch (step.kind) {
      case Step::Kind::kCompute:
        rank_.forward(step.pass, micro.parts, micro.share, micro.hidden);
        break;
      case Step::Kind::kUpdate:
        choose(step.pass, micro);
        learn(micro);
        break;
      case Step::Kind::kSend:
        send(step, micro, peer);
        break;
      default:
        receive(step, micro, peer);
    }
  }

  // Prepares the parts and buffers of the pass, once per round and micro-batch.
  void begin_round(const Pass& pass, Micro& micro) {
    if (pass.step == micro.round) return;
    micro.round = pass.step;
    if (pass.step > 0) next_parts(micro);
    if (micro.parts.empty()) return;
    micro.share = rank_.share(micro.parts, micro.split);
    if (!micro.hidden || micro.hidden.view()[0] != micro.share.rows) {
      const Device device = rank_.stream().device();
      const int64_t rows = micro.share.rows, d = rank_.config().hidden;
      micro.hidden = Tensor(DType::kF32, {rows, d}, device);
      if (rank_.placement().layout()[Axis::kLayers] > 1)
        micro.wire = Tensor(rank_.options().dtype, {rows, d}, device);
    }
  }

  void choose(const Pass& pass, Micro& micro) {
    micro.results.assign(micro.parts.size(), -1);
    if (std::ranges::find(micro.samples, true) == micro.samples.end()) return;
    const HostCopy logits(
        rank_.stream(),
        rank_.logits(pass, rank_.wanted_rows(pass, micro.parts, micro.share, micro.hidden,
                                             LanguageRank::Tokens::kLast)));
    const int64_t vocab = rank_.config().vocab;
    for (size_t i = 0; i < micro.parts.size(); ++i) {
      if (!micro.samples[i]) continue;
      const int request = micro.parts[i].sequence;
      const float* row = logits.view().as<float>() + static_cast<int64_t>(i) * vocab;
      micro.results[i] = choose_token({row, static_cast<size_t>(vocab)},
                                      requests_[request].sampling, static_cast<uint32_t>(request),
                                      static_cast<uint32_t>(rank_.length(request)));
    }
  }

  // Appends the sampled tokens to their sequences. Every rank does this for every token.
  void learn(Micro& micro) {
    for (size_t i = 0; i < micro.parts.size(); ++i) {
      if (!micro.samples[i]) continue;
      const int request = micro.parts[i].sequence;
      const CompletionRequest& asked = requests_[request];
      Completion& completion = completions_[request];
      const int32_t id = micro.results[i];
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

  Tag tag_of(const Step& step) const {
    const bool hidden = step.payload == Payload::kHidden;
    return {.kind = step.payload, .pass = step.pass, .hop = hidden ? 0 : kTokenDecision};
  }

  TensorView ids_view(Micro& micro) {
    micro.results.resize(micro.parts.size());
    return {micro.results.data(), DType::kI32, {static_cast<int64_t>(micro.results.size())}};
  }

  // A message has the size that the plan says, or is smaller if sequences have ended since.
  static void check_bytes(const Step& step, const TensorView& view) {
    const auto bytes = static_cast<int64_t>(view.bytes());
    CHECK(step.pass.step == 0 ? bytes == step.bytes : bytes <= step.bytes, to_string(step), bytes);
  }

  void send(const Step& step, Micro& micro, int peer) {
    const bool hidden = step.payload == Payload::kHidden;
    if (hidden) copy(rank_.stream(), micro.hidden, micro.wire);
    const Message message{peer, tag_of(step), hidden ? micro.wire.view() : ids_view(micro)};
    check_bytes(step, message.view);
    (hidden ? micro.sending_hidden : micro.sending_results)
        .push_back(rank_.placement().communicator().post(rank_.stream(), {&message, 1}, {}));
  }

  void receive(const Step& step, Micro& micro, int peer) {
    const bool hidden = step.payload == Payload::kHidden;
    const TensorView view = hidden ? micro.wire.view() : ids_view(micro);
    check_bytes(step, view);
    rank_.placement().communicator().receive(rank_.stream(), peer, tag_of(step), view);
    if (hidden)
      copy(rank_.stream(), micro.wire, micro.hidden);
    else
      learn(micro);
  }

  LanguageRank& rank_;
  std::span<const CompletionRequest> requests_;
  const CompletionOptions& options_;
  CompletionStats& stats_;
  Clock::time_point start_ = Clock::now();
  std::vector<Completion> completions_;
  std::deque<int> waiting_;
  std::vector<int> running_;
};

}  // namespace

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
    : LanguageModel(TensorFile::open(folder), read_config(folder), options, std::move(placement)) {}

std::vector<Completion> LanguageModel::complete(std::span<const CompletionRequest> requests,
                                                const CompletionOptions& options) {
  CHECK(options.batch >= 1 && options.chunk >= 1 && options.rounds >= 1, "batch", options.batch,
        "chunk", options.chunk, "rounds", options.rounds);
  stats_ = {};
  return Run(rank_, requests, options, stats_).run();
}

}  // namespace weft
