#pragma once
// LanguageModel: loads a decoder once and completes many prompts at a time. In a replica of several
// ranks each rank has one, all complete the same requests, and every rank receives every token.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/language/token_program.h"
#include "engine/sampling/token_sampler.h"

namespace weft {

struct CompletionRequest {
  std::vector<int32_t> prompt{};  // at least one id
  int64_t max_tokens = 256;
  TokenSampling sampling{};
  std::vector<int32_t> stop{};  // ids that end the completion; they are not part of the result
};

struct Completion {
  enum class End : uint8_t {
    kStopId,     // one of CompletionRequest::stop
    kMaxTokens,  // it has CompletionRequest::max_tokens tokens
    kCut,        // CompletionOptions::stop ended it
  };
  std::vector<int32_t> ids{};
  End end = End::kCut;
  double first_token_s = 0, seconds = 0;  // since complete() was called
};

struct CompletionStats {
  int64_t prefill_tokens = 0, decode_tokens = 0, prefill_passes = 0, decode_passes = 0;
  double prefill_s = 0, decode_s = 0;
};

struct CompletionOptions {
  // Called on every rank for each token as soon as it is known. A request's tokens come in order.
  std::function<void(int request, int32_t id)> on_token{};
  // Called on every rank when a request has ended. Requests that were cut (kCut) come last.
  std::function<void(int request, const Completion& completion)> on_end{};
  // Read by the root between rounds. Either every rank sets it or none does.
  const std::atomic<bool>* stop = nullptr;
  int batch = 16;       // at most this many sequences at once
  int64_t chunk = 512;  // at most this many rows of a prefill pass on each rank
  int rounds = 8;       // tokens per sequence before the queue and `stop` are checked again
};

// The bytes that a rank takes, predicted before anything is loaded.
struct LanguageBytes {
  uint64_t weights = 0;    // resident weights; the embedding stays in the mapped file
  uint64_t cache = 0;      // pages of keys and values
  uint64_t workspace = 0;  // everything else, without message buffers

  uint64_t total() const { return weights + cache + workspace; }
};

// Returns the options with the `positions` and `cache_tokens` that any `batch` of the requests need
// together.
LanguageOptions sized_for(std::span<const CompletionRequest> requests, int batch,
                          LanguageOptions options);

class LanguageModel {
 public:
  // Loads a transformers folder: config.json and safetensors. Throws Error(kModel) for a model that
  // is not supported.
  LanguageModel(const std::string& folder, const LanguageOptions& options,
                RankPlacement placement = {});
  // The same from a file that is already open.
  LanguageModel(TensorFile file, const DecoderConfig& config, const LanguageOptions& options,
                RankPlacement placement = {});

  // Predicts what a rank of the layout takes to complete the requests, by a dry run. It depends on
  // the lengths of the prompts, and assumes that no completion stops early.
  static LanguageBytes predict(const DecoderConfig& config, const LanguageOptions& options,
                               const Layout& layout, int rank,
                               std::span<const CompletionRequest> requests,
                               const CompletionOptions& how = {});

  static DecoderConfig read_config(const std::string& folder);
  // The ids that end a text, from generation_config.json or else from config.json. May be empty.
  static std::vector<int32_t> end_ids(const std::string& folder);

  LanguageRank& rank() { return rank_; }

  // Completes the requests with continuous batching (Orca: Yu et al. 2022). A request joins as soon
  // as a place in the batch and cache pages for all of its tokens are free, and leaves when it
  // ends. Other requests change its tokens only through rounding, because packed rows change the
  // order of sums. Its random draws depend on its place in the list. Throws Error(kUsage) for a
  // request that could never run.
  std::vector<Completion> complete(std::span<const CompletionRequest> requests,
                                   const CompletionOptions& options = {});
  const CompletionStats& stats() const { return stats_; }  // statistics of the last complete()

 private:
  TensorFile file_;
  LanguageRank rank_;
  CompletionStats stats_;
};

}  // namespace weft
