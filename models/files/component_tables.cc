// The tables of the classes of components.
#include <nlohmann/json.hpp>

#include "models/autoencoder_kl/vae.h"
#include "models/causal_decoder/names.h"
#include "models/causal_decoder/text_model.h"
#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "models/files/components.h"
#include "models/files/tensor_sizes.h"
#include "models/flux/names.h"
#include "models/flux/transformer.h"
#include "models/flux2/names.h"
#include "models/flux2/transformer.h"
#include "models/krea2/names.h"
#include "models/krea2/transformer.h"
#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"
#include "models/umt5/encoder.h"
#include "models/umt5/names.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"
#include "models/wan_s2v/transformer.h"
#include "models/wav2vec2/encoder.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

// A config.json of the original repository names no class.
bool is_original_wan(const nlohmann::json& config) {
  return config.contains("num_heads") && config.contains("ffn_dim");
}

bool holds_wan_alone(const TensorNames& names) { return holds_wan(names) && !holds_wan_s2v(names); }

template <DecoderRows rows>
std::unique_ptr<TextEncoderModel> make_decoder_text(const DecoderConfig& config) {
  return make_decoder_text_model(config, rows);
}

VaeModel make_wan_picture_vae(WanVaeConfig config) {
  config.pictures = true;
  return make_wan_vae_model(config);
}

template <class Model>
std::shared_ptr<const Model> shared(std::unique_ptr<Model> model) {
  return model;
}
std::shared_ptr<const VaeModel> shared(VaeModel model) {
  return std::make_shared<const VaeModel>(std::move(model));
}

template <class Config, auto make>
auto open(const std::string& path) {
  return shared(make(Config::from_json_file(path)));
}

// The row of a class whose config.json says `name`, and whose models `make` makes of a Config.
template <class Config, auto make>
constexpr auto row(const char* class_name, const char* name,
                   bool (*holds)(const TensorNames& names)) {
  using Model = std::remove_const_t<typename decltype(open<Config, make>(""))::element_type>;
  return ComponentRow<Model>{
      .class_name = class_name,
      .name = name,
      .open = open<Config, make>,
      .of_tensors = [](const TensorFile& file) { return shared(make(Config::from_tensors(file))); },
      .holds = holds,
      .describe = [](const TensorFile& file) { return to_string(Config::from_tensors(file)); }};
}

// The row of a class whose config.json names it.
template <class Config, auto make>
constexpr auto row(const char* class_name, bool (*holds)(const TensorNames& names)) {
  return row<Config, make>(class_name, class_name, holds);
}

constexpr ComponentRow<TransformerModel> kTransformerRows[] = {
    [] {
      auto wan = row<WanConfig, make_wan_model>("WanTransformer3DModel", holds_wan_alone);
      wan.is_unnamed = is_original_wan;
      return wan;
    }(),
    row<WanS2vConfig, make_wan_s2v_model>(kSpeechClass, holds_wan_s2v),
    row<ZImageConfig, make_z_image_model>("ZImageTransformer2DModel", holds_z_image),
    row<QwenImageConfig, make_qwen_image_model>("QwenImageTransformer2DModel", holds_qwen_image),
    row<Krea2Config, make_krea2_model>("Krea2Transformer2DModel", holds_krea2),
    row<Flux2Config, make_flux2_model>("Flux2Transformer2DModel", holds_flux2),
    row<FluxConfig, make_flux_model>("FluxTransformer2DModel", holds_flux)};

constexpr ComponentRow<TextEncoderModel> kTextEncoderRows[] = {
    row<Umt5Config, make_umt5_model>("UMT5EncoderModel", "umt5", holds_umt5),
    row<Umt5Config, make_umt5_model>("T5EncoderModel", "t5", holds_t5),
    row<ClipTextConfig, make_clip_text_model>("CLIPTextModel", "clip_text_model", holds_clip_text),
    row<DecoderConfig, make_decoder_text<DecoderRows::kBeforeLast>>("Qwen3Model", "qwen3",
                                                                    holds_qwen3),
    row<DecoderConfig, make_decoder_text<DecoderRows::kFinal>>("Qwen2_5_VLForConditionalGeneration",
                                                               "qwen2_5_vl", holds_qwen2),
    [] {
      auto seeing = row<DecoderConfig, make_decoder_text<DecoderRows::kBeforeLast>>(
          "Qwen3VLModel", "qwen3_vl", holds_qwen3);
      seeing.of_tensors = [](const TensorFile& file) {
        return shared(make_decoder_text<DecoderRows::kBeforeLast>(
            DecoderConfig::from_tensors(file, kSeeingQwen3Theta)));
      };
      return seeing;
    }()};

constexpr ComponentRow<ImageEncoderModel> kImageEncoderRows[] = {
    row<ClipVisionConfig, make_clip_vision_model>("CLIPVisionModel", "clip_vision_model",
                                                  holds_clip_vision)};

constexpr ComponentRow<AudioEncoderModel> kAudioEncoderRows[] = {
    {.class_name = "Wav2Vec2Model",
     .name = "wav2vec2",
     .open = open<Wav2Vec2Config, make_wav2vec2_model>,
     .of_tensors = [](const TensorFile& file) -> std::shared_ptr<const AudioEncoderModel> {
       throw Error(ErrorKind::kModel, shown_name(file) +
                                          ": no config.json, and the strides of the "
                                          "convolutions follow from no tensor");
     },
     .holds = holds_wav2vec2}};

constexpr ComponentRow<VaeModel> kVaeRows[] = {
    row<WanVaeConfig, make_wan_vae_model>("AutoencoderKLWan", holds_wan_vae),
    row<WanVaeConfig, make_wan_picture_vae>("AutoencoderKLQwenImage", holds_wan_vae),
    row<KlVaeConfig, make_kl_vae_model>("AutoencoderKL", holds_kl_vae),
    row<PackedKlVaeConfig, make_packed_kl_vae_model>("AutoencoderKLFlux2", holds_packed_kl_vae)};

}  // namespace

constinit const ComponentRows<TransformerModel> kTransformers{kTransformerRows};
constinit const ComponentRows<TextEncoderModel> kTextEncoders{kTextEncoderRows};
constinit const ComponentRows<ImageEncoderModel> kImageEncoders{kImageEncoderRows};
constinit const ComponentRows<AudioEncoderModel> kAudioEncoders{kAudioEncoderRows};
constinit const ComponentRows<VaeModel> kVaes{kVaeRows};

}  // namespace weft
