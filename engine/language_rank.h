#pragma once
// LanguageRank: one rank's share of a language model: its weights, caches and seams. A pass of many
// tokens is split by tokens where the layout says so, one of few by heads and columns over the same
// ranks. Where tokens are split by Ulysses both leave the same keys on the same rank (Shift
// Parallelism: Arctic, arXiv 2509.16495); behind a ring the cache is moved once, before the first
// pass of the second kind.
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/replica.h"
#include "models/qwen.h"
#include "parallel/kv_cache.h"
#include "parallel/sequence_map.h"

namespace weft {

// How a causal ring shares its work: zigzag and LightSeq give every rank as many keys to see,
// contiguous does not.
enum class RingBalance : uint8_t { kZigzag, kContiguous, kLightSeq };

struct LanguageOptions {
  Device device{};  // where everything is computed
  DType dtype = DType::kF32;
  // Error(kUsage) for 8-bit weights where a layout splits the width: a part's scales are not the
  // whole's.
  WeightFormat weights = WeightFormat::kCompute;
  int threads = 0;  // 0: all
  Determinism determinism = Determinism::kFast;
  const Ops* ops = nullptr;  // null: cpu_ops()
  int resident = 0;          // blocks of a packing in memory at once, at least 2; 0: all
  int64_t positions = 0;     // longest sequence; 0: the model's
  int64_t cache_tokens = 0;  // of all sequences together; 0: as many as one of `positions`
  int64_t page_rows = 128;   // tokens of a page of the cache
  // From how many tokens a pass is split by tokens, where the layout has such an axis; 0: 16 each.
  int64_t split_tokens = 0;
  RingBalance balance = RingBalance::kZigzag;
};

// What a rank holds, predicted before anything is loaded.
struct LanguageBytes {
  uint64_t weights = 0;    // those resident; the embedding stays in the file's mapping
  uint64_t cache = 0;      // keys and values of all of LanguageOptions::cache_tokens
  uint64_t workspace = 0;  // of the largest passes, without what messages take

  uint64_t total() const { return weights + cache + workspace; }
};

class LanguageRank {
 public:
  // Loads this rank's weights: of every axis that splits tokens a second, sliced packing for the
  // passes split by heads, so (1 + 1/S) of a rank's width with S = ring * token_ring * ulysses.
  // `file` must outlive the object.
  LanguageRank(const TensorFile& file, const QwenConfig& config, const LanguageOptions& options,
               Replica replica = {});
  ~LanguageRank();

  // What a layout may split, for sequences of at least `tokens` tokens.
  static LayoutLimits limits(const QwenConfig& config, int64_t tokens);
  // `replica` may be a place for plans. Passes of `chunk` rows of each sequence index, of prompts
  // of `prompt_tokens` together; `sequences` at once.
  static LanguageBytes predict(const QwenConfig& config, const LanguageOptions& options,
                               const Replica& replica, int64_t chunk, int64_t prompt_tokens,
                               int64_t sequences);

  Replica& replica() { return replica_; }
  Stream& stream() { return stream_; }
  const QwenConfig& config() const { return config_; }
  const LanguageOptions& options() const { return options_; }  // defaults filled in
  const BlockRange& blocks() const { return narrow_.loaded().blocks; }
  // Prefill passes whose hidden rows are held at once.
  int64_t passes_together() const { return kPassesOfAStage * replica_.layout()[Axis::kLayers]; }
  size_t weights_bytes() const { return narrow_.bytes() + (wide_ ? wide_->bytes() : 0); }
  int64_t pages_for(int64_t tokens) const { return narrow_pool_.pages_for(tokens); }
  WindowCounts window() const;  // of both packings

  // Sequences, by a number of the caller's. Every rank opens and closes the same.
  void open(int sequence);
  void close(int sequence);
  int64_t length(int sequence) const;
  const KVCache& cache(int sequence) const;

  // The next tokens of a sequence in a pass.
  struct Part {
    int sequence = 0;
    std::vector<int32_t> ids;
  };
  // How this rank takes part in a pass.
  struct Share {
    bool split = false;                 // by tokens; else by heads
    std::vector<SequenceMap> maps{};    // per part, where split: tokens of each sequence index
    std::vector<TokenRanges> tokens{};  // per part: this rank's
    int64_t rows = 0;                   // this rank's of the pass
  };
  enum class Split : uint8_t { kHeads, kTokens };
  Share share(std::span<const Part> parts, Split split) const;
  // The same, by tokens where there are enough and all of the parts can be split so.
  Share share(std::span<const Part> parts) const;
  // share().rows without the sequences' state.
  int64_t rows_of(std::span<const Part> parts, Split split) const;
  // Whether tokens behind `past` others, those kept by tokens themselves where there are any, can
  // be split by tokens.
  bool can_split(int64_t past, int64_t tokens) const;

  // The loaded blocks over the pass. hidden [share.rows, D] f32: in, except on the first stage, and
  // out. Caches grow by the parts' ids; where it throws they are as before.
  void forward(const Pass& pass, std::span<const Part> parts, const Share& share,
               const TensorView& hidden, Observer* observer = nullptr);
  enum class Tokens : uint8_t { kLast, kAll };
  // Of the last stage, on all its ranks: hidden rows [m, D] f32, before the last norm, of each
  // part's last token, or of every token of each part in turn. This and the two below are valid
  // until the next call of their kind.
  TensorView wanted_rows(const Pass& pass, std::span<const Part> parts, const Share& share,
                         const TensorView& hidden, Tokens which);
  // Their logits [m, V] f32, the same bits on every rank of the stage; and their final norm.
  TensorView logits(const Pass& pass, const TensorView& wanted);
  TensorView normed(const TensorView& wanted);

 private:
  struct Sequence {
    std::optional<KVCache> cache;   // by heads, of the narrow pool
    std::optional<KVCache> pieces;  // by tokens: a ring's; of the wide pool
    std::vector<TokenRanges> held;  // by ring index, while in pieces
    int64_t length = 0;
  };
  struct Groups;
  static constexpr int64_t kPassesOfAStage = 4;

  bool rings() const;
  bool may_split(const Part& part) const;
  SequenceMap map_of(int64_t tokens) const;
  std::unique_ptr<TokenMixer> make_mixer(const SequenceMap& tokens, const Sequence& sequence) const;
  void gather_heads(Sequence& sequence);
  KVCache& cache_for(Sequence& sequence, bool split);
  std::vector<KVPlace> held_places(const Sequence& sequence) const;
  std::vector<KVPlace> wanted_places(int64_t tokens) const;
  Context context(const Pass& pass, bool split, Observer* observer = nullptr);
  static QwenLoad load(const QwenConfig& config, const LanguageOptions& options,
                       const Replica& replica, bool split);
  Sequence& at(int sequence);
  const Sequence& at(int sequence) const;

  QwenConfig config_;
  LanguageOptions options_;
  Replica replica_;
  Stream stream_;
  Arena arena_;
  std::unique_ptr<Groups> groups_;
  QwenDecoder narrow_;               // this rank's heads of a pass split by heads
  std::optional<QwenDecoder> wide_;  // and of one split by tokens; empty: the same
  KVPool narrow_pool_;
  std::optional<KVPool> wide_pool_;  // of rings
  Rope rope_;
  Tensor wanted_, logits_, normed_;  // grown as asked
  std::map<int, Sequence> sequences_;
};

}  // namespace weft
