#pragma once
// LanguageModel: a decoder loaded once; prompts in, tokens out, many at a time. In a replica of
// several ranks each has one and all complete the same requests; every rank learns every token.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/language_rank.h"
#include "engine/token_sampler.h"
#include "parallel/token_plan.h"

namespace weft {

struct CompletionRequest {
  std::vector<int32_t> prompt{};  // at least one id
  int64_t max_tokens = 256;
  TokenSampling sampling{};
  std::vector<int32_t> stop{};  // ids that end it; they are not part of the result
};

struct Completion {
  enum class End : uint8_t {
    kStopId,     // one of CompletionRequest::stop
    kMaxTokens,  // as many as were asked for
    kCut,        // stopped from outside
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
  // Called on every rank, in the order the tokens are known; a request's are in its order.
  std::function<void(int request, int32_t id)> on_token{};
  // Called on every rank when a request has ended, kCut ones at the end.
  std::function<void(int request, const Completion& completion)> on_end{};
  // Read by the root between rounds; every rank has one or none has.
  const std::atomic<bool>* stop = nullptr;
  int batch = 16;       // sequences at once, at most
  int64_t chunk = 512;  // rows of a prefill pass, at most, on each rank
  int rounds = 8;       // tokens of each sequence between two looks at the queue and at `stop`
};

class LanguageModel {
 public:
  // A transformers folder: config.json and safetensors. Error(kModel) for what cannot be served.
  LanguageModel(const std::string& folder, const LanguageOptions& options, Replica replica = {});
  // The same of a file opened or made elsewhere.
  LanguageModel(TensorFile file, const QwenConfig& config, const LanguageOptions& options,
                Replica replica = {});

  static QwenConfig read_config(const std::string& folder);
  // The ids that end a text, of generation_config.json, else of config.json; may be empty.
  static std::vector<int32_t> end_ids(const std::string& folder);

  LanguageRank& rank() { return rank_; }

  // Continuous batching (Orca: Yu et al. 2022): a request joins as soon as a place in the batch and
  // pages for all of its tokens are free, and leaves when it ends. A request's tokens do not depend
  // on the others' but for the rounding of sums that packed rows change, and its draws belong to
  // its place in the list. Error(kUsage) for a request that could never run.
  std::vector<Completion> complete(std::span<const CompletionRequest> requests,
                                   const CompletionOptions& options = {});
  const CompletionStats& stats() const { return stats_; }  // of the last complete()

 private:
  TensorFile file_;
  LanguageRank rank_;
  CompletionStats stats_;
};

}  // namespace weft
