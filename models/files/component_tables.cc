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

constexpr ComponentRow<TransformerModel> kTransformerRows[] = {
    {"WanTransformer3DModel",
     [](const std::string& name, const nlohmann::json& config) {
       return name == "WanTransformer3DModel" || (name.empty() && is_original_wan(config));
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_wan_model(WanConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_wan_model(WanConfig::from_tensors(file));
     },
     [](const TensorNames& names) { return holds_wan(names) && !holds_wan_s2v(names); }},
    {kSpeechClass,
     [](const std::string& name, const nlohmann::json&) { return name == kSpeechClass; },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_wan_s2v_model(WanS2vConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_wan_s2v_model(WanS2vConfig::from_tensors(file));
     },
     holds_wan_s2v},
    {"ZImageTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "ZImageTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_z_image_model(ZImageConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_z_image_model(ZImageConfig::from_tensors(file));
     },
     holds_z_image},
    {"QwenImageTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "QwenImageTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_qwen_image_model(QwenImageConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_qwen_image_model(QwenImageConfig::from_tensors(file));
     },
     holds_qwen_image},
    {"FluxTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "FluxTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_flux_model(FluxConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_flux_model(FluxConfig::from_tensors(file));
     },
     holds_flux}};

constexpr ComponentRow<TextEncoderModel> kTextEncoderRows[] = {
    {"UMT5EncoderModel",
     [](const std::string& name, const nlohmann::json&) { return name == "umt5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_tensors(file));
     },
     holds_umt5, [](const TensorFile& file) { return to_string(Umt5Config::from_tensors(file)); }},
    {"T5EncoderModel", [](const std::string& name, const nlohmann::json&) { return name == "t5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_tensors(file));
     },
     holds_t5, [](const TensorFile& file) { return to_string(Umt5Config::from_tensors(file)); }},
    {"CLIPTextModel",
     [](const std::string& name, const nlohmann::json&) { return name == "clip_text_model"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_clip_text_model(ClipTextConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_clip_text_model(ClipTextConfig::from_tensors(file));
     },
     holds_clip_text,
     [](const TensorFile& file) { return to_string(ClipTextConfig::from_tensors(file)); }},
    {"Qwen3Model", [](const std::string& name, const nlohmann::json&) { return name == "qwen3"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_json_file(path),
                                      DecoderRows::kBeforeLast);
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_tensors(file), DecoderRows::kBeforeLast);
     },
     holds_qwen3,
     [](const TensorFile& file) { return to_string(DecoderConfig::from_tensors(file)); }},
    {"Qwen2_5_VLForConditionalGeneration",
     [](const std::string& name, const nlohmann::json&) { return name == "qwen2_5_vl"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_json_file(path), DecoderRows::kFinal);
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_tensors(file), DecoderRows::kFinal);
     },
     holds_qwen2,
     [](const TensorFile& file) { return to_string(DecoderConfig::from_tensors(file)); }}};

constexpr ComponentRow<ImageEncoderModel> kImageEncoderRows[] = {
    {"CLIPVisionModel",
     [](const std::string& name, const nlohmann::json&) { return name == "clip_vision_model"; },
     [](const std::string& path) -> std::shared_ptr<const ImageEncoderModel> {
       return make_clip_vision_model(ClipVisionConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const ImageEncoderModel> {
       return make_clip_vision_model(ClipVisionConfig::from_tensors(file));
     },
     holds_clip_vision,
     [](const TensorFile& file) { return to_string(ClipVisionConfig::from_tensors(file)); }}};

constexpr ComponentRow<AudioEncoderModel> kAudioEncoderRows[] = {
    {"Wav2Vec2Model",
     [](const std::string& name, const nlohmann::json&) { return name == "wav2vec2"; },
     [](const std::string& path) -> std::shared_ptr<const AudioEncoderModel> {
       return make_wav2vec2_model(Wav2Vec2Config::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const AudioEncoderModel> {
       throw Error(ErrorKind::kModel, shown_name(file) +
                                          ": no config.json, and the strides of the "
                                          "convolutions follow from no tensor");
     },
     holds_wav2vec2}};

constexpr ComponentRow<VaeModel> kVaeRows[] = {
    {"AutoencoderKLWan",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKLWan"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_tensors(file));
     },
     holds_wan_vae,
     [](const TensorFile& file) { return to_string(WanVaeConfig::from_tensors(file)); }},
    {"AutoencoderKLQwenImage",
     [](const std::string& name, const nlohmann::json&) {
       return name == "AutoencoderKLQwenImage";
     },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       WanVaeConfig config = WanVaeConfig::from_tensors(file);
       config.pictures = true;
       return make_wan_vae_model(config);
     },
     holds_wan_vae,
     [](const TensorFile& file) { return to_string(WanVaeConfig::from_tensors(file)); }},
    {"AutoencoderKL",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKL"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_kl_vae_model(KlVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       return make_kl_vae_model(KlVaeConfig::from_tensors(file));
     },
     holds_kl_vae,
     [](const TensorFile& file) { return to_string(KlVaeConfig::from_tensors(file)); }}};

}  // namespace

constinit const ComponentRows<TransformerModel> kTransformers = kTransformerRows;
constinit const ComponentRows<TextEncoderModel> kTextEncoders = kTextEncoderRows;
constinit const ComponentRows<ImageEncoderModel> kImageEncoders = kImageEncoderRows;
constinit const ComponentRows<AudioEncoderModel> kAudioEncoders = kAudioEncoderRows;
constinit const ComponentRows<VaeModel> kVaes = kVaeRows;

}  // namespace weft
