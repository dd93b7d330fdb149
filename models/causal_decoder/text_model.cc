#include "models/causal_decoder/text_model.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"
#include "models/causal_decoder/names.h"

namespace weft {

namespace {

class DecoderText final : public TextEncoder {
 public:
  DecoderText(CausalDecoder decoder, DecoderRows rows)
      : decoder_(std::move(decoder)), rows_(rows) {}

  size_t bytes() const override { return decoder_.bytes(); }
  void encode(Context& context, std::span<const int32_t> ids,
              const TensorView& out) const override {
    const auto n = static_cast<int64_t>(ids.size());
    CHECK(out.rank == 2 && 0 < out[0] && out[0] <= n, out.to_string_shape(), "of", n, "ids");
    if (rows_ == DecoderRows::kBeforeLast && out[0] == n) return hidden(context, ids, out);
    const Arena::Scope scope(context.arena);
    const TensorView all = context.arena.alloc(DType::kF32, {n, out[1]});
    hidden(context, ids, all);
    const TensorView last = all.slice(0, n - out[0], out[0]);
    if (rows_ == DecoderRows::kFinal)
      decoder_.norm(context, last, out);
    else
      copy(context.stream, last, out);
  }

 private:
  // Writes the rows after the loaded blocks.
  void hidden(Context& context, std::span<const int32_t> ids, const TensorView& out) const {
    const auto n = static_cast<int64_t>(ids.size());
    const TensorView in(const_cast<int32_t*>(ids.data()), DType::kI32, {n});
    const SequenceRows all{.rows = {0, n}, .tokens = TokenRanges::all(n)};
    decoder_.forward(context, in, {&all, 1}, on_device(context.stream, decoder_.rope(n)), out);
  }

  CausalDecoder decoder_;
  DecoderRows rows_;
};

// Copies the states after some layers to their columns of `out`.
class TapObserver final : public Observer {
 public:
  TapObserver(std::span<const int> layers, const TensorView& out) : layers_(layers), out_(out) {}

  void see(Context& context, const char* /*name*/, int index, const TensorView& value) override {
    for (size_t i = 0; i < layers_.size(); ++i)
      if (layers_[i] == index)
        copy(context.stream, value, out_.slice(1, static_cast<int64_t>(i) * value[1], value[1]));
  }

 private:
  std::span<const int> layers_;
  TensorView out_;
};

// The attention of a prompt's rows among themselves. It keeps their keys and values for the hidden
// rows of the same layer.
class SeenMixer final : public TokenMixer {
 public:
  void attend(Context& context, const Attend& attend) override {
    full_.attend(context, attend);
    seen_ = {.k = attend.k, .v = attend.v, .position = 0};
  }
  const KVSegment& seen() const { return seen_; }

 private:
  FullMixer full_;
  KVSegment seen_{};
};

// The attention of hidden rows, which see the keys of the others alone.
class HiddenMixer final : public TokenMixer {
 public:
  explicit HiddenMixer(const SeenMixer& seen) : seen_(seen) {}
  void attend(Context& context, const Attend& attend) override {
    apply_positions(context, attend);
    attention(
        context.stream,
        {.q = attend.q, .segments = {&seen_.seen(), 1}, .scale = attend.scale, .out = attend.out});
  }

 private:
  const SeenMixer& seen_;
};

// A decoder whose states after some layers are the rows.
class TappedText final : public TextEncoder {
 public:
  TappedText(CausalDecoder decoder, std::vector<int> layers)
      : decoder_(std::move(decoder)), layers_(std::move(layers)) {}

  size_t bytes() const override { return decoder_.bytes(); }
  void encode(Context& context, std::span<const int32_t> ids,
              const TensorView& out) const override {
    const auto n = static_cast<int64_t>(ids.size());
    const int64_t width = decoder_.config().hidden,
                  seen = std::ranges::find_if(ids, is_hidden) - ids.begin();
    CHECK(out.rank == 2 && 0 < out[0] && out[0] <= n && seen > 0, out.to_string_shape(), "of", n,
          "ids");
    std::vector<int32_t> plain(ids.begin(), ids.end());
    std::transform(plain.begin() + seen, plain.end(), plain.begin() + seen, hidden_id);
    const Arena::Scope scope(context.arena);
    const TensorView last = context.arena.alloc(DType::kF32, {n, width});
    const TensorView taps = out[0] == n ? out : context.arena.alloc(DType::kF32, {n, out[1]});
    TapObserver observer(layers_, taps);
    Context own = context;
    own.observer = &observer;
    SeenMixer mixer;
    HiddenMixer hidden(mixer);
    std::vector<SequenceRows> rows{
        {.rows = {0, seen}, .tokens = {{{0, seen}}, n}, .mixer = &mixer}};
    if (seen < n) rows.push_back({.rows = {seen, n}, .tokens = {{{seen, n}}, n}, .mixer = &hidden});
    decoder_.forward(own, TensorView(plain.data(), DType::kI32, {n}), rows,
                     on_device(context.stream, decoder_.rope(n)), last);
    if (decoder_.loaded().blocks.last()) {  // not observed
      decoder_.norm(context, last, last);
      observer.see(context, "", decoder_.config().layers, last);
    }
    if (out[0] < n) copy(context.stream, taps.slice(0, n - out[0], out[0]), out);
  }

 private:
  CausalDecoder decoder_;
  std::vector<int> layers_;
};

// Ranks split the key/value heads with all of their query heads.
class DecoderTextModel final : public TextEncoderModel {
 public:
  // `rows` has no meaning where there are taps.
  DecoderTextModel(const DecoderConfig& config, DecoderRows rows, std::vector<int> taps = {})
      : TextEncoderModel({{.columns = config.hidden * std::max<int64_t>(std::ssize(taps), 1),
                           .heads = config.kv_heads,
                           .ffn_columns = config.ffn}}),
        config_(config),
        rows_(rows),
        taps_(std::move(taps)) {}

  std::vector<TensorSpec> tensors() const override { return decoder_tensors(config_); }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    std::vector<TensorPlace> places;
    for (const DecoderNames& names : all_decoder_names()) places.push_back({.name = names(name)});
    return places;
  }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file,
                                    const EncoderLoad& load) const override {
    CausalDecoder decoder = CausalDecoder::load(file, config_, stream, blocks_of(load));
    if (!taps_.empty()) return std::make_unique<TappedText>(std::move(decoder), taps_);
    return std::make_unique<DecoderText>(std::move(decoder), rows_);
  }
  std::shared_ptr<const TextEncoderModel> with_taps(std::span<const int> layers) const override {
    for (const int layer : layers)
      if (layer < 0 || layer > config_.layers)
        throw Error(ErrorKind::kUsage, "the state after layer " + std::to_string(layer) +
                                           " of a language model (legal: 0 to " +
                                           std::to_string(config_.layers) + ")");
    return std::make_shared<DecoderTextModel>(config_, rows_,
                                              std::vector<int>(layers.begin(), layers.end()));
  }

 private:
  // The blocks whose states are read: all, all but the last, or those before the last tap. None has
  // the output layer.
  DecoderLoad blocks_of(const EncoderLoad& load) const {
    const int64_t group = config_.heads / config_.kv_heads;
    const WidthSlice width{{load.width.heads.begin * group, load.width.heads.end * group},
                           load.width.ffn};
    const int end = taps_.empty() ? config_.layers - (rows_ == DecoderRows::kBeforeLast)
                                  : std::ranges::max(taps_);
    return {.dtype = load.dtype,
            .blocks = {0, end, config_.layers},
            .width = width.of(config_.heads, config_.ffn),
            .logits = false,
            .weights = load.weights};
  }

  DecoderConfig config_;
  DecoderRows rows_;
  std::vector<int> taps_;
};

}  // namespace

std::unique_ptr<TextEncoderModel> make_decoder_text_model(const DecoderConfig& config,
                                                          DecoderRows rows) {
  return std::make_unique<DecoderTextModel>(config, rows);
}

}  // namespace weft
