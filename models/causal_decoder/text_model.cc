#include "models/causal_decoder/text_model.h"

#include "kernels/transfer.h"

namespace weft {

namespace {

class DecoderText final : public TextEncoder {
 public:
  explicit DecoderText(CausalDecoder decoder) : decoder_(std::move(decoder)) {}

  size_t bytes() const override { return decoder_.bytes(); }
  void encode(Context& context, std::span<const int32_t> ids,
              const TensorView& out) const override {
    const auto n = static_cast<int64_t>(ids.size());
    const TensorView in(const_cast<int32_t*>(ids.data()), DType::kI32, {n});
    const SequenceRows all{.rows = {0, n}, .tokens = TokenRanges::all(n)};
    decoder_.forward(context, in, {&all, 1}, on_device(context.stream, decoder_.rope(n)), out);
  }

 private:
  CausalDecoder decoder_;
};

// Ranks split the key/value heads with all of their query heads.
class DecoderTextModel final : public TextEncoderModel {
 public:
  explicit DecoderTextModel(const DecoderConfig& config)
      : TextEncoderModel(
            {.columns = config.hidden, .heads = config.kv_heads, .ffn_columns = config.ffn}),
        config_(config) {}

  std::vector<TensorSpec> tensors() const override { return decoder_tensors(config_); }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file, DType dtype,
                                    const WidthSlice& width) const override {
    return std::make_unique<DecoderText>(
        CausalDecoder::load(file, config_, stream, load_of(dtype, width)));
  }

 private:
  // All blocks but the last.
  DecoderLoad load_of(DType dtype, WidthSlice width) const {
    const int64_t group = config_.heads / config_.kv_heads;
    width.heads = {width.heads.begin * group, width.heads.end * group};
    return {.dtype = dtype,
            .blocks = {0, config_.layers - 1, config_.layers},
            .width = width.of(config_.heads, config_.ffn)};
  }

  DecoderConfig config_;
};

}  // namespace

std::unique_ptr<TextEncoderModel> make_decoder_text_model(const DecoderConfig& config) {
  return std::make_unique<DecoderTextModel>(config);
}

}  // namespace weft
