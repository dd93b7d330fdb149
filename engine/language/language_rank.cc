#include "engine/language/language_rank.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "parallel/methods/tensor_parallel.h"

namespace weft {

namespace {

Range offset(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

// Returns part `index` of `parts` of a range of heads. Query groups stay whole if there are enough.
HeadPart heads_within(const DecoderConfig& config, const Range& heads, int parts, int index) {
  const Range kv = decoder_kv_heads(config, heads);
  const HeadPart part = partition_heads(heads.size(), kv.size(), parts, index);
  return {offset(part.q, heads.begin), offset(part.kv, kv.begin)};
}

}  // namespace

struct LanguageRank::Groups {
  FullMixer full;
  IdentityReducer whole;
  IdentityHalo one_band;
  std::unique_ptr<TensorReducer> width, stage;  // for passes split by tokens; for those by heads
  std::optional<Communicator> sequence;
};

LayoutLimits LanguageRank::limits(const DecoderConfig& config, int64_t tokens) {
  return {.heads = config.heads,
          .layers = config.layers,
          .tokens = tokens,
          .ffn = config.ffn,
          .kv_heads = config.kv_heads,
          .guided = false,
          .decodes = true,
          .vocabulary = config.vocab};
}

DecoderLoad LanguageRank::load(const DecoderConfig& config, const LanguageOptions& options,
                               const RankPlacement& placement, bool split) {
  const Mesh& mesh = placement.mesh();
  const int rank = placement.rank(), parts = placement.layout()[Axis::kTensor];
  const int part = mesh.at(Axis::kTensor, rank), shares = placement.layout().sequence();
  DecoderLoad load{.dtype = options.dtype, .blocks = placement.blocks(config.layers)};
  load.weights = options.weights;
  load.resident = options.resident;
  const Range heads = partition_heads(config.heads, config.kv_heads, parts, part).q;
  const Range ffn = partition(config.ffn, parts, part);
  if (split) {
    if (parts > 1) load.width = {heads, ffn};
    load.vocab = {0, 1};  // the output layer of this packing is never used
    return load;
  }
  if (parts * shares == 1) return load;
  const int index = mesh.sequence_index(rank);
  load.width = {heads_within(config, heads, shares, index).q,
                offset(partition(ffn.size(), shares, index), ffn.begin)};
  load.vocab = partition(config.vocab, parts * shares, index * parts + part);
  return load;
}

namespace {

LanguageOptions filled(LanguageOptions options, const DecoderConfig& config, const Layout& layout) {
  if (!options.positions) options.positions = config.max_positions;
  if (!options.cache_tokens) options.cache_tokens = options.positions;
  if (!options.split_tokens) options.split_tokens = 16 * layout.sequence();
  if (options.resident == 1)
    throw Error(
        ErrorKind::kUsage,
        "--resident-layers is 1, legal: 0 (all) or at least 2 (one in use, one being read)");
  if (options.positions > config.max_positions)
    throw Error(ErrorKind::kUsage, "a context of " + std::to_string(options.positions) +
                                       " tokens is too long; the model has positions for " +
                                       std::to_string(config.max_positions));
  if (options.weights != WeightFormat::kCompute && layout[Axis::kTensor] * layout.sequence() > 1)
    throw Error(ErrorKind::kUsage,
                "8-bit weights under " + to_string(layout) +
                    ": each scale belongs to a whole row, and the other axes split rows; legal "
                    "here: data, layers");
  return options;
}

// The cache's shape for passes that are split by heads, or for one of `parts` of these heads.
KVShape cache_shape(const DecoderConfig& config, const LanguageOptions& options,
                    const DecoderLoad& load, int parts = 1, int part = 0) {
  const Range heads = load.width.of(config.heads, config.ffn).heads;
  return {.layers = load.blocks.end - load.blocks.begin,
          .kv_heads = heads_within(config, heads, parts, part).kv.size(),
          .head_dim = config.head_dim,
          .dtype = load.dtype,
          .rows = options.page_rows,
          .device = options.device};
}

bool has_rings(const Layout& layout) { return layout.blocks() > 1; }

}  // namespace

LanguageRank::LanguageRank(const TensorFile& file, const DecoderConfig& config,
                           const LanguageOptions& options, RankPlacement placement)
    : config_(config),
      options_(filled(options, config, placement.layout())),
      placement_(std::move(placement)),
      stream_(stream_on(options.device, options.threads, options.determinism, options.ops)),
      arena_(size_t{256} << 30, options.device),
      groups_(std::make_unique<Groups>()),
      decode_model_(
          CausalDecoder::load(file, config, stream_, load(config, options_, placement_, false))),
      decode_pool_(
          cache_shape(config, options_, decode_model_.loaded()),
          cache_shape(config, options_, decode_model_.loaded()).pages_for(options_.cache_tokens)),
      rope_(on_device(stream_, decode_model_.rope(options_.positions))) {
  const Layout& layout = placement_.layout();
  if (layout.sequence() > 1)
    prefill_model_ =
        CausalDecoder::load(file, config, stream_, load(config, options_, placement_, true));
  if (rings())  // whose passes are split by tokens
    prefill_pool_.emplace(
        cache_shape(config, options_, prefill_model_->loaded(), layout[Axis::kUlysses],
                    placement_.mesh().at(Axis::kUlysses, placement_.rank())),
        decode_pool_.limit() + 1);
  if (placement_.alone()) return;
  const auto group = [&](const std::vector<Axis>& axes, int id) {
    return placement_.group(placement_.mesh().along(axes, placement_.rank()), id);
  };
  if (layout[Axis::kTensor] > 1)
    groups_->width =
        std::make_unique<TensorReducer>(group({Axis::kTensor}, kWidthGroup), AllReduce::kBySize);
  if (layout[Axis::kTensor] * layout.sequence() > 1)
    groups_->stage = std::make_unique<TensorReducer>(
        group(sequence_axes({Axis::kTensor}), kStageGroup), AllReduce::kBySize);
  if (layout.sequence() == 1) return;
  groups_->sequence = group(sequence_axes(), kSequenceGroup);
  (void)mixer_for(map_of(4 * layout.sequence()), {});  // its groups open before messages
}

LanguageRank::~LanguageRank() = default;

void LanguageRank::reserve(int64_t positions, int64_t cache_tokens) {
  CHECK(sequences_.empty(), "sequences", sequences_.size());
  LanguageOptions wanted = options_;
  wanted.positions = std::max(positions, options_.positions);
  wanted.cache_tokens = std::max(cache_tokens, options_.cache_tokens);
  wanted = filled(wanted, config_, placement_.layout());
  if (wanted.positions > options_.positions)
    rope_ = on_device(stream_, decode_model_.rope(wanted.positions));
  decode_pool_.raise_limit(decode_pool_.pages_for(wanted.cache_tokens));
  if (prefill_pool_) prefill_pool_->raise_limit(decode_pool_.limit() + 1);
  options_ = wanted;
}

bool LanguageRank::rings() const { return has_rings(placement_.layout()); }

LanguageRank::Sequence& LanguageRank::at(int sequence) {
  const auto found = sequences_.find(sequence);
  CHECK(found != sequences_.end(), "sequence", sequence);
  return found->second;
}

const LanguageRank::Sequence& LanguageRank::at(int sequence) const {
  return const_cast<LanguageRank*>(this)->at(sequence);
}

void LanguageRank::open(int sequence) {
  CHECK(!sequences_.count(sequence), "sequence", sequence);
  sequences_[sequence].cache.emplace(decode_pool_);
}

void LanguageRank::close(int sequence) { sequences_.erase(sequence); }

void LanguageRank::skip(int sequence, int64_t tokens) {
  Sequence& state = at(sequence);
  const int64_t end = state.length + tokens;
  state.cache->reserve({{{state.length, end}}, end});
  state.cache->commit();
  state.length = end;
}

int64_t LanguageRank::length(int sequence) const { return at(sequence).length; }

const KVCache& LanguageRank::cache(int sequence) const {
  const Sequence& state = at(sequence);
  return state.pieces ? *state.pieces : *state.cache;
}

// Every sequence index needs at least one token. Token rings and LightSeq cannot attend to tokens
// of earlier passes.
bool LanguageRank::can_split(int64_t past, int64_t tokens) const {
  const Layout& layout = placement_.layout();
  if (layout.sequence() == 1 || tokens < layout.sequence()) return false;
  return !rings() || past == 0 ||
         (layout[Axis::kRing] > 1 && options_.balance != RingBalance::kLightSeq);
}

// Once a ring's cache was gathered by heads, later passes of that sequence stay split by heads.
bool LanguageRank::may_split(const Part& part) const {
  const Sequence& sequence = at(part.sequence);
  return can_split(sequence.length, static_cast<int64_t>(part.ids.size())) &&
         (!rings() || sequence.length == 0 || sequence.pieces);
}

SequenceMap LanguageRank::map_of(int64_t tokens) const {
  const Layout& layout = placement_.layout();
  const int rings = layout.blocks();
  const bool zigzag = rings > 1 && options_.balance == RingBalance::kZigzag;
  return zigzag ? SequenceMap::zigzag(tokens, rings, layout[Axis::kUlysses])
                : SequenceMap::contiguous(tokens, layout.sequence());
}

int64_t LanguageRank::rows_of(std::span<const Part> parts, Split split) const {
  int64_t rows = 0;
  for (const Part& part : parts) {
    const auto tokens = static_cast<int64_t>(part.ids.size());
    rows += split == Split::kHeads
                ? tokens
                : map_of(tokens).rows(placement_.mesh().sequence_index(placement_.rank()));
  }
  return rows;
}

LanguageRank::Share LanguageRank::share(std::span<const Part> parts) const {
  int64_t tokens = 0;
  bool all = !parts.empty();
  for (const Part& part : parts) {
    tokens += static_cast<int64_t>(part.ids.size());
    all = all && may_split(part);
  }
  return share(parts, all && tokens >= options_.split_tokens ? Split::kTokens : Split::kHeads);
}

LanguageRank::Share LanguageRank::share(std::span<const Part> parts, Split split) const {
  Share share{.split = split == Split::kTokens};
  for (const Part& part : parts) {
    CHECK(!part.ids.empty() && (!share.split || may_split(part)), "a part of", part.ids.size());
    const int64_t begin = length(part.sequence), n = static_cast<int64_t>(part.ids.size());
    if (share.split) {
      share.maps.push_back(map_of(n).shifted(begin));
      share.tokens.push_back(
          share.maps.back()[placement_.mesh().sequence_index(placement_.rank())]);
    } else {
      share.tokens.push_back({{{begin, begin + n}}, begin + n});
    }
    share.rows += share.tokens.back().size();
  }
  return share;
}

std::unique_ptr<TokenMixer> LanguageRank::mixer_for(const SequenceMap& tokens,
                                                    const Sequence& sequence) const {
  return make_mixer({.mesh = placement_.mesh(),
                     .rank = placement_.rank(),
                     .tokens = tokens,
                     .balance = options_.balance,
                     .held = sequence.held},
                    [this](const std::vector<int>& ranks, int number) {
                      return placement_.group(ranks, kLanguageMixerGroup + number);
                    });
}

// Moves a cache that a ring split by tokens to one that is split by heads.
void LanguageRank::gather_heads(Sequence& sequence) {
  if (!sequence.pieces) return;
  const ZoneScope zone(Zone::kCommunication);
  const int shares = placement_.layout().sequence(), ulysses = placement_.layout()[Axis::kUlysses];
  const Range heads = prefill_model_->loaded().width.heads;
  KVMove move;
  for (int index = 0; index < shares; ++index) {
    move.held.push_back({sequence.held[index / ulysses],
                         heads_within(config_, heads, ulysses, index % ulysses).kv});
    move.wanted.push_back(
        {TokenRanges::all(sequence.length), heads_within(config_, heads, shares, index).kv});
  }
  move_cache(*groups_->sequence, stream_, arena_, move, *sequence.pieces, *sequence.cache);
  sequence.pieces.reset();
  sequence.held.clear();
}

KVCache& LanguageRank::cache_for(Sequence& sequence, bool split) {
  if (!split) {
    gather_heads(sequence);
    return *sequence.cache;
  }
  if (!rings()) return *sequence.cache;
  if (!sequence.pieces) sequence.pieces.emplace(*prefill_pool_);
  return *sequence.pieces;
}

Context LanguageRank::context(const Pass& pass, bool split, Observer* observer) {
  Groups& groups = *groups_;
  const std::unique_ptr<TensorReducer>& shared = split ? groups.width : groups.stage;
  Reducer* reducer = &groups.whole;
  if (shared) reducer = shared.get();
  return {stream_, arena_, groups.full, *reducer, groups.one_band, pass, {}, observer};
}

// The rows of a pass, part by part, and what their attention needs.
struct LanguageRank::PassRows {
  std::vector<SequenceRows> rows;
  std::vector<std::unique_ptr<TokenMixer>> mixers;  // of passes split by tokens
  std::vector<KVCache*> caches;
  std::vector<int32_t> ids;
};

void LanguageRank::check_lengths(std::span<const Part> parts) const {
  for (const Part& part : parts) {
    const int64_t end = length(part.sequence) + static_cast<int64_t>(part.ids.size());
    if (end > options_.positions)
      throw Error(ErrorKind::kUsage, "a sequence of " + std::to_string(end) +
                                         " tokens is too long; at most " +
                                         std::to_string(options_.positions) + " are legal");
  }
}

// Adds the next part's rows, and reserves their place in its cache.
void LanguageRank::add_part(const Pass& pass, const Part& part, const Share& share,
                            PassRows& rows) {
  const size_t i = rows.rows.size();
  Sequence& sequence = at(part.sequence);
  const TokenRanges& tokens = share.tokens[i];
  TokenRanges kept = tokens;
  TokenMixer* mixer = nullptr;
  KVCache& cache = cache_for(sequence, share.split);
  if (share.split) {
    const int ulysses = placement_.layout()[Axis::kUlysses];
    kept = share.maps[i].blocks(
        ulysses)[placement_.mesh().sequence_index(placement_.rank()) / ulysses];
    mixer = rows.mixers.emplace_back(mixer_for(share.maps[i], sequence)).get();
    Pass own = pass;
    own.prompt = static_cast<int>(i);  // tells the messages of the sequences apart
    mixer->begin(own);
  }
  rows.caches.push_back(&cache);
  cache.reserve(kept);
  const auto first = static_cast<int64_t>(rows.ids.size());
  for (const Range& range : tokens.ranges)
    rows.ids.insert(rows.ids.end(), part.ids.begin() + (range.begin - sequence.length),
                    part.ids.begin() + (range.end - sequence.length));
  rows.rows.push_back({.rows = {first, first + tokens.size()},
                       .tokens = tokens,
                       .past = cache.layers(),
                       .mixer = mixer});
}

void LanguageRank::drop(std::span<const Part> parts, const PassRows& rows) {
  for (KVCache* cache : rows.caches) cache->drop();
  for (const Part& part : parts)
    if (at(part.sequence).held.empty()) at(part.sequence).pieces.reset();
}

void LanguageRank::commit(std::span<const Part> parts, const Share& share, const PassRows& rows) {
  for (size_t i = 0; i < parts.size(); ++i) {
    Sequence& sequence = at(parts[i].sequence);
    rows.caches[i]->commit();
    sequence.length += static_cast<int64_t>(parts[i].ids.size());
    if (!share.split || !rings()) continue;
    const SequenceMap blocks = share.maps[i].blocks(placement_.layout()[Axis::kUlysses]);
    sequence.held.resize(blocks.size());
    for (int ring = 0; ring < blocks.size(); ++ring)
      for (const Range& range : blocks[ring].ranges) sequence.held[ring].append(range);
  }
}

void LanguageRank::forward(const Pass& pass, std::span<const Part> parts, const Share& share,
                           const TensorView& hidden, Observer* observer) {
  check_lengths(parts);
  const CausalDecoder& model = share.split ? *prefill_model_ : decode_model_;
  PassRows rows;
  try {
    for (const Part& part : parts) add_part(pass, part, share, rows);
    const auto count = static_cast<int64_t>(rows.ids.size());
    CHECK(count == hidden[0], "rows", count, "hidden", hidden.to_string_shape());
    Context context = this->context(pass, share.split, observer);
    const TensorView in =
        model.loaded().blocks.first() ? TensorView(rows.ids.data(), DType::kI32, {count}) : hidden;
    model.forward(context, in, rows.rows, rope_, hidden);
  } catch (...) {
    drop(parts, rows);
    throw;
  }
  commit(parts, share, rows);
}

size_t LanguageRank::weights_bytes(int resident) const {
  size_t bytes = 0;
  for (const CausalDecoder* model : {&decode_model_, prefill_model_ ? &*prefill_model_ : nullptr})
    if (model) bytes += model->bytes(resident);
  return bytes;
}

size_t LanguageRank::cache_bytes() const {
  return decode_pool_.bytes() + (prefill_pool_ ? prefill_pool_->bytes() : 0);
}

WindowCounts LanguageRank::window() const {
  WindowCounts counts = decode_model_.window();
  if (!prefill_model_) return counts;
  const WindowCounts more = prefill_model_->window();
  return {.reads = counts.reads + more.reads,
          .bytes = counts.bytes + more.bytes,
          .reading_s = counts.reading_s + more.reading_s,
          .waited_s = counts.waited_s + more.waited_s};
}

namespace {

// Returns f32 rows [rows, columns] in a buffer, which is enlarged if it is too small.
TensorView grown(Tensor& buffer, int64_t rows, int64_t columns, Device device) {
  if (!buffer || buffer.view()[0] < rows) buffer = Tensor(DType::kF32, {rows, columns}, device);
  return buffer.view().slice(0, 0, rows);
}

}  // namespace

TensorView LanguageRank::wanted_rows(const Pass& pass, std::span<const Part> parts,
                                     const Share& share, const TensorView& hidden, Tokens which) {
  const bool all = which == Tokens::kAll;
  // The wanted rows that a sequence index holds: (its row, the row in the result), in the order of
  // its rows.
  const auto wanted_of = [&](int index) {
    std::vector<std::pair<int64_t, int64_t>> list;
    int64_t row = 0, first = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto n = static_cast<int64_t>(parts[i].ids.size());
      const TokenRanges& tokens = share.split ? share.maps[i][index] : share.tokens[i];
      const int64_t end = length(parts[i].sequence);  // includes this pass
      for (const Range& range : tokens.ranges)
        for (int64_t token = range.begin; token < range.end; ++token, ++row)
          if (all)
            list.emplace_back(row, first + token - (end - n));
          else if (token == end - 1)
            list.emplace_back(row, first);
      first += all ? n : 1;
    }
    return list;
  };
  int64_t count = 0;
  for (const Part& part : parts) count += all ? static_cast<int64_t>(part.ids.size()) : 1;
  const TensorView out = grown(wanted_, count, config_.hidden, stream_.device());
  const auto place = [&](const TensorView& rows, int index, bool packed) {
    int64_t at = 0;
    for (const auto& [from, to] : wanted_of(index))
      copy(stream_, rows.slice(0, packed ? at++ : from, 1), out.slice(0, to, 1));
  };
  if (!share.split) {
    place(hidden, 0, false);
    return out;
  }
  const Arena::Scope scope(arena_);
  std::vector<TensorView> gathered;
  for (int index = 0; index < groups_->sequence->size(); ++index) {
    const auto rows = static_cast<int64_t>(wanted_of(index).size());
    gathered.push_back(arena_.alloc(DType::kF32, {rows, config_.hidden}));
  }
  const TensorView& own = gathered[groups_->sequence->rank()];
  int64_t at = 0;
  for (const auto& [from, to] : wanted_of(groups_->sequence->rank()))
    copy(stream_, hidden.slice(0, from, 1), own.slice(0, at++, 1));
  groups_->sequence->all_gather_v(stream_, {.kind = Payload::kHidden, .pass = pass}, own, gathered);
  for (int index = 0; index < groups_->sequence->size(); ++index)
    place(gathered[index], index, true);
  return out;
}

TensorView LanguageRank::logits(const Pass& pass, const TensorView& wanted) {
  const TensorView out = grown(logits_, wanted[0], config_.vocab, stream_.device());
  Context context = this->context(pass, false);
  decode_model_.logits(context, wanted, out);
  return out;
}

TensorView LanguageRank::normed(const TensorView& wanted) {
  const TensorView out = grown(normed_, wanted[0], wanted[1], stream_.device());
  Context context = this->context({}, false);
  decode_model_.norm(context, wanted, out);
  return out;
}

}  // namespace weft
