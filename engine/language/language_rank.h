#pragma once
// LanguageRank: one rank's share of a language model: its weights, caches and seams. A pass of many
// tokens is split by tokens where the layout says so. A pass of few tokens is split by heads and
// columns over the same ranks. With Ulysses both kinds of pass leave the same keys on the same rank
// (Shift Parallelism: Arctic, arXiv 2509.16495). With a ring the cache is moved once, before the
// first pass that is split by heads.
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/parts/rank_placement.h"
#include "models/causal_decoder/decoder.h"
#include "parallel/methods/kv_cache.h"
#include "parallel/sequence_map.h"

namespace weft {

struct LanguageOptions {
  Device device{};  // the device that computes everything
  DType dtype = DType::kF32;
  // 8-bit weights are an Error(kUsage) where a layout splits the width, because the scales of a
  // part would differ from those of the whole matrix.
  WeightFormat weights = WeightFormat::kCompute;
  int threads = 0;  // 0: all
  Determinism determinism = Determinism::kFast;
  const Ops* ops = nullptr;  // null: cpu_ops()
  int resident = 0;          // blocks of a packing in memory at once, at least 2; 0: all
  int64_t positions = 0;     // tokens of the longest sequence; 0: the model's maximum
  int64_t cache_tokens = 0;  // cached tokens of all sequences together; 0: `positions`
  int64_t page_rows = 128;   // tokens per page of the cache
  // A pass of at least this many tokens is split by tokens, where the layout has such an axis. 0:
  // 16 tokens per rank of that axis.
  int64_t split_tokens = 0;
  RingBalance balance = RingBalance::kZigzag;
};

class LanguageRank {
 public:
  // Loads this rank's weights. If the layout splits tokens over S = Layout::sequence() ranks,
  // it also loads a second, sliced packing for the passes split by heads: (1 + 1/S) of a
  // rank's width in all. `file` must outlive the object.
  LanguageRank(const TensorFile& file, const DecoderConfig& config, const LanguageOptions& options,
               RankPlacement placement = {});
  ~LanguageRank();

  // The sizes that limit a layout, for sequences of at least `tokens` tokens.
  static LayoutLimits limits(const DecoderConfig& config, int64_t tokens);

  // Makes room for longer sequences, and for more tokens, than the options have said. No sequence
  // is open. Throws Error(kUsage) for more positions than the model has.
  void reserve(int64_t positions, int64_t cache_tokens);

  const RankPlacement& placement() const { return placement_; }
  Stream& stream() { return stream_; }
  const DecoderConfig& config() const { return config_; }
  const LanguageOptions& options() const { return options_; }  // defaults filled in
  const BlockRange& blocks() const { return decode_model_.loaded().blocks; }
  // The number of prefill passes whose hidden rows are held at once.
  int64_t passes_together() const { return kPassesOfAStage * placement_.layout()[Axis::kLayers]; }
  // The bytes of packed weights with at most `resident` blocks of a packing in memory; 0: those
  // that are in memory now.
  size_t weights_bytes(int resident = 0) const;
  size_t cache_bytes() const;  // bytes of the pages of keys and values that were allocated
  int64_t pages_for(int64_t tokens) const { return decode_pool_.pages_for(tokens); }
  WindowCounts window() const;  // sums over both packings
  size_t arena_high_water() const { return arena_.high_water(); }

  // The caller numbers the sequences. Every rank opens and closes the same ones.
  void open(int sequence);
  void close(int sequence);
  // Dry runs add tokens to a cache that is split by heads without computing them.
  void skip(int sequence, int64_t tokens);
  int64_t length(int sequence) const;
  const KVCache& cache(int sequence) const;

  // The next tokens of one sequence in a pass.
  struct Part {
    int sequence = 0;
    std::vector<int32_t> ids;
  };
  // This rank's part of a pass.
  struct Share {
    bool split = false;                 // split by tokens; false: split by heads
    std::vector<SequenceMap> maps{};    // per part, where split: tokens of each sequence index
    std::vector<TokenRanges> tokens{};  // per part: this rank's tokens
    int64_t rows = 0;                   // this rank's rows of the pass
  };
  enum class Split : uint8_t { kHeads, kTokens };
  Share share(std::span<const Part> parts, Split split) const;
  // The same. The pass is split by tokens if it has enough and all of its parts allow it.
  Share share(std::span<const Part> parts) const;
  // Equals share().rows, but does not need the sequences' state.
  int64_t rows_of(std::span<const Part> parts, Split split) const;
  // Returns whether `tokens` tokens that follow `past` cached ones can be split by tokens. Cached
  // tokens must themselves be split by tokens.
  bool can_split(int64_t past, int64_t tokens) const;

  // Runs the loaded blocks on the pass. `hidden` [share.rows, D] f32 is the output and, except on
  // the first stage, the input. The caches grow by the parts' ids. If it throws, the caches are
  // unchanged.
  void forward(const Pass& pass, std::span<const Part> parts, const Share& share,
               const TensorView& hidden, Observer* observer = nullptr);
  enum class Tokens : uint8_t { kLast, kAll };
  // On all ranks of the last stage: returns hidden rows [m, D] f32 before the final norm, either of
  // each part's last token or of all tokens of all parts in order. The results of this function and
  // of the two below are valid until the next call of the same function.
  TensorView wanted_rows(const Pass& pass, std::span<const Part> parts, const Share& share,
                         const TensorView& hidden, Tokens which);
  // The logits [m, V] f32 of wanted rows, bit-identical on every rank of the stage; and the final
  // norm of wanted rows.
  TensorView logits(const Pass& pass, const TensorView& wanted);
  TensorView normed(const TensorView& wanted);

 private:
  struct Sequence {
    std::optional<KVCache> cache;   // split by heads; pages from decode_pool_
    std::optional<KVCache> pieces;  // split by tokens (rings only); pages from prefill_pool_
    std::vector<TokenRanges> held;  // tokens in `pieces`, by ring index
    int64_t length = 0;
  };
  struct Groups;
  static constexpr int64_t kPassesOfAStage = 4;

  bool rings() const;
  bool may_split(const Part& part) const;
  SequenceMap map_of(int64_t tokens) const;
  std::unique_ptr<TokenMixer> mixer_for(const SequenceMap& tokens, const Sequence& sequence) const;
  void gather_heads(Sequence& sequence);
  KVCache& cache_for(Sequence& sequence, bool split);
  struct PassRows;
  void check_lengths(std::span<const Part> parts) const;
  void add_part(const Pass& pass, const Part& part, const Share& share, PassRows& rows);
  void drop(std::span<const Part> parts, const PassRows& rows);
  void commit(std::span<const Part> parts, const Share& share, const PassRows& rows);
  Context context(const Pass& pass, bool split, Observer* observer = nullptr);
  static DecoderLoad load(const DecoderConfig& config, const LanguageOptions& options,
                          const RankPlacement& placement, bool split);
  Sequence& at(int sequence);
  const Sequence& at(int sequence) const;

  DecoderConfig config_;
  LanguageOptions options_;
  RankPlacement placement_;
  Stream stream_;
  Arena arena_;
  std::unique_ptr<Groups> groups_;
  CausalDecoder decode_model_;  // this rank's heads in passes split by heads
  // Its heads in passes split by tokens. Empty where they are the same heads.
  std::optional<CausalDecoder> prefill_model_;
  KVPool decode_pool_;
  std::optional<KVPool> prefill_pool_;  // for rings only
  Rope rope_;
  Tensor wanted_, logits_, normed_;  // result buffers, enlarged when needed
  std::map<int, Sequence> sequences_;
};

}  // namespace weft
