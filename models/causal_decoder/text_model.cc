#include "models/causal_decoder/text_model.h"

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

// Ranks split the key/value heads with all of their query heads.
class DecoderTextModel final : public TextEncoderModel {
 public:
  DecoderTextModel(const DecoderConfig& config, DecoderRows rows)
      : TextEncoderModel(
            {{.columns = config.hidden, .heads = config.kv_heads, .ffn_columns = config.ffn}}),
        config_(config),
        rows_(rows) {}

  std::vector<TensorSpec> tensors() const override { return decoder_tensors(config_); }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    std::vector<TensorPlace> places;
    for (const DecoderNames& names : all_decoder_names()) places.push_back({.name = names(name)});
    return places;
  }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file,
                                    const EncoderLoad& load) const override {
    return std::make_unique<DecoderText>(
        CausalDecoder::load(file, config_, stream, blocks_of(load)), rows_);
  }

 private:
  // All blocks, or all but the last; no output layer.
  DecoderLoad blocks_of(const EncoderLoad& load) const {
    const int64_t group = config_.heads / config_.kv_heads;
    const WidthSlice width{{load.width.heads.begin * group, load.width.heads.end * group},
                           load.width.ffn};
    return {.dtype = load.dtype,
            .blocks = {0, config_.layers - (rows_ == DecoderRows::kBeforeLast), config_.layers},
            .width = width.of(config_.heads, config_.ffn),
            .logits = false,
            .weights = load.weights};
  }

  DecoderConfig config_;
  DecoderRows rows_;
};

}  // namespace

std::unique_ptr<TextEncoderModel> make_decoder_text_model(const DecoderConfig& config,
                                                          DecoderRows rows) {
  return std::make_unique<DecoderTextModel>(config, rows);
}

}  // namespace weft
