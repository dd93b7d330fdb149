// The laws of configuration files, for the reader of every model: what is legal is read, and what
// is not is refused by an Error that names it.
#include <gtest/gtest.h>

#include "models/autoencoder_kl/vae.h"
#include "models/causal_decoder/decoder.h"
#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "models/flux/transformer.h"
#include "models/flux2/transformer.h"
#include "models/krea2/transformer.h"
#include "models/qwen_image/transformer.h"
#include "models/umt5/encoder.h"
#include "models/wan/vae.h"
#include "models/wan_s2v/transformer.h"
#include "models/wav2vec2/encoder.h"
#include "models/z_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using nlohmann::json;

// Fields of the file that have other values, and what the message says of them.
struct Refusal {
  json fields;
  std::vector<std::string> parts;
};

enum class Keys { kKnown, kAny };

struct ConfigCase {
  const char* name;
  const char* part;  // of a golden case: its folder under tests/golden
  void (*read)(const std::string& path);
  Keys keys;  // whether unknown ones are refused
  std::vector<json> legal;
  std::vector<Refusal> refused;
};

template <class Config>
void read_as(const std::string& path) {
  Config::from_json_file(path);
}

// Values of which the one at `index` differs from the rest.
json ones_but(size_t index, double value) {
  std::vector<double> values(16, 1);
  values[index] = value;
  return values;
}

const Refusal kThreeAxes[] = {
    {{{"axes_dims_rope", {4, 6, 8}}}, {"axes_dims_rope adds up to 18"}},
    {{{"axes_dims_rope", {5, 5, 6}}}, {"axes_dims_rope holds 5"}},
    {{{"axes_dims_rope", {8, 8}}}, {"axes_dims_rope must have 3 values"}},
    {{{"num_attention_heads", 0}}, {"num_attention_heads"}},
};

std::vector<Refusal> with_axes(std::vector<Refusal> refusals) {
  refusals.insert(refusals.end(), std::begin(kThreeAxes), std::end(kThreeAxes));
  return refusals;
}

std::vector<ConfigCase> transformers() {
  return {
      {"Wan",
       "dit_wan_tiny/model/transformer",
       read_as<WanConfig>,
       Keys::kKnown,
       {{{"quantization_config", nullptr}},
        {{"quantization_config", {{"quant_method", "fp8"}}}},
        {{"quantization_config", {{"quant_method", "gguf"}}}},
        {{"quantization_config",
          {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}}}},
       {{{{"surprise", 1},
          {"_fine", 1},
          {"pos_embed_seq_len", 514},
          {"qk_norm", "none"},
          {"num_layers", 0},
          {"ffn_dim", nullptr}},
         {"unknown: surprise (known: ", "missing: ffn_dim", "pos_embed_seq_len = 514",
          "qk_norm = \"none\"", "\"num_layers\" is 0, must be", "rope_max_seq_len"}},
        {{{"qk_norm", nullptr}}, {"qk_norm = null"}},
        {{{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
         {"its quant_method is bitsandbytes; legal: fp8"}},
        {{{"quantization_config",
           {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}}},
         {"its quant_method is compressed-tensors; legal"}},
        {{{"quantization_config", json::object()}}, {"its quant_method is none named"}},
        {{{"quantization_config", {{"quant_method", 8}}}}, {"quant_method"}},
        {{{"attention_head_dim", 13}}, {"head size 13"}},
        {{{"num_layers", "two"}}, {"num_layers"}},
        {{{"patch_size", {2, 2}}}, {"patch_size"}},
        {{{"freq_dim", 255}}, {"freq_dim"}},
        {{{"in_channels", 15}}, {"in_channels 15"}}}},
      {"WanImage",
       "dit_wan_i2v21/model/transformer",
       read_as<WanConfig>,
       Keys::kKnown,
       {},
       {{{{"added_kv_proj_dim", 25}}, {"added_kv_proj_dim is 25"}},
        {{{"image_dim", nullptr}}, {"added_kv_proj_dim = 24 (it needs image_dim)"}}}},
      {"WanSpeech",
       "s2v_motion/model/transformer",
       read_as<WanS2vConfig>,
       Keys::kKnown,
       {},
       {{{{"zero_timestep", false}}, {"zero_timestep = false (legal: true)"}},
        {{{"adain_mode", "x"}}, {"adain_mode = \"x\" (legal: \"attn_norm\")"}},
        {{{"audio_inject_layers", {0, 2}}}, {"audio_inject_layers"}},
        {{{"audio_inject_layers", {1, 1}}}, {"each once"}},
        {{{"out_dim", 15}}, {"legal: out_dim, 15"}}}},
      {"ZImage",
       "dit_zimage/model/transformer",
       read_as<ZImageConfig>,
       Keys::kKnown,
       {},
       {{{{"surprise", 1},
          {"_fine", 1},
          {"n_kv_heads", 1},
          {"qk_norm", false},
          {"siglip_feat_dim", 1152},
          {"dim", nullptr}},
         {"unknown: surprise (known: ", "missing: dim", "n_kv_heads = 1", "qk_norm = false",
          "siglip_feat_dim = 1152", "axes_lens"}},
        {{{"dim", 49}}, {"n_heads = 2 (legal: a divisor of dim, 49)"}},
        {{{"axes_dims", {8, 8, 6}}}, {"axes_dims adds up to 22"}},
        {{{"axes_dims", {9, 7, 8}}}, {"axes_dims holds 9"}},
        {{{"axes_dims", {8, 16}}}, {"axes_dims must have 3 values"}},
        {{{"rope_theta", 1}}, {"\"rope_theta\" is 1.0, must be finite and above 1"}},
        {{{"t_scale", 1.1e6}}, {"\"t_scale\" is 1100000.0, must be -1e6 to 1e6"}},
        {{{"all_patch_size", {2, 4}}}, {"all_patch_size = [2,4]"}}}},
      {"QwenImage",
       "dit_qwen_image/model/transformer",
       read_as<QwenImageConfig>,
       Keys::kKnown,
       {},
       with_axes({{{{"surprise", 1},
                    {"_fine", 1},
                    {"guidance_embeds", true},
                    {"zero_cond_t", true},
                    {"num_layers", nullptr}},
                   {"unknown: surprise (known: ", "missing: num_layers", "guidance_embeds = true",
                    "zero_cond_t = true"}},
                  {{{"in_channels", 60}}, {"in_channels is 60 (legal: 64"}}})},
      {"Flux2",
       "dit_flux2_references/model/transformer",
       read_as<Flux2Config>,
       Keys::kKnown,
       {},
       {{{{"surprise", 1}, {"_fine", 1}, {"patch_size", 2}, {"num_layers", nullptr}},
         {"unknown: surprise (known: ", "missing: num_layers", "patch_size = 2"}},
        {{{"axes_dims_rope", {4, 4, 4}}}, {"axes_dims_rope is [4, 4, 4], legal: four even"}},
        {{{"axes_dims_rope", {4, 4, 4, 6}}}, {"whose sum is 16"}},
        {{{"rope_theta", 1}}, {"\"rope_theta\" is 1.0, must be finite and above 1"}},
        {{{"mlp_ratio", 0}}, {"\"mlp_ratio\" is 0.0, must be 1/64 to 64"}}}},
      {"Krea2",
       "dit_krea2/model/transformer",
       read_as<Krea2Config>,
       Keys::kKnown,
       {},
       with_axes({{{{"surprise", 1}, {"_fine", 1}, {"num_layers", 0}},
                   {"unknown: surprise (known: ", "num_layers"}},
                  {{{"num_key_value_heads", 3}},
                   {"num_key_value_heads is 3, legal: a divisor of num_attention_heads"}},
                  {{{"text_num_attention_heads", 5}},
                   {"text_num_attention_heads is 5, legal: a divisor of text_hidden_dim"}},
                  {{{"in_channels", 62}}, {"in_channels is 62, legal: multiples of 4"}},
                  {{{"timestep_embed_dim", 255}}, {"timestep_embed_dim is 255, legal: even"}},
                  {{{"norm_eps", 0}}, {"\"norm_eps\" is 0.0, must be positive"}}})},
      {"Flux",
       "dit_flux/model/transformer",
       read_as<FluxConfig>,
       Keys::kKnown,
       {},
       with_axes({{{{"surprise", 1},
                    {"_fine", 1},
                    {"out_channels", 16},
                    {"patch_size", 2},
                    {"num_single_layers", nullptr}},
                   {"unknown: surprise (known: ", "missing: num_single_layers", "out_channels = 16",
                    "patch_size = 2"}},
                  {{{"in_channels", 63}}, {"in_channels is 63 (legal: multiples of 4"}}})},
  };
}

std::vector<ConfigCase> vaes() {
  return {
      {"WanVae",
       "vae21_tiny_decode3/model/vae",
       read_as<WanVaeConfig>,
       Keys::kKnown,
       {{{"clip_output", false}, {"_note", "ours"}}},
       {{{{"is_residual", true}, {"dim_mult", {1, 3, 3, 3}}},
         {"dim_mult[1] is 3, legal with is_residual: 1 times a number that divides 8"}},
        {{{"warp", 1}, {"flux", 2}}, {"unknown: flux, warp (known: "}},
        {{{"in_channels", nullptr}, {"input_channels", 4}}, {"in_channels is 4"}},
        {{{"attn_scales", {0.5}}}, {"attn_scales = [0.5] (legal: []"}},
        {{{"temperal_downsample", {true}}}, {"temperal_downsample"}},
        {{{"patch_size", 2}}, {"in_channels"}},
        {{{"latents_std", ones_but(3, 0)}}, {"\"latents_std[3]\" is 0.0, must be positive"}},
        {{{"latents_mean", ones_but(3, 1e99)}}, {"\"latents_mean[3]\" is 1e+99, must be finite"}},
        {{{"z_dim", 8}}, {"latents_mean has 16 values, z_dim is 8"}}}},
      {"AutoencoderKlFlux2",
       "vae_flux2_encode/model/vae",
       read_as<PackedKlVaeConfig>,
       Keys::kKnown,
       {},
       {{{{"patch_size", {1, 1}}}, {"patch_size = [1,1] (legal: [2,2])"}},
        {{{"decoder_block_out_channels", {8, 8}}}, {"decoder_block_out_channels has 2 widths"}},
        {{{"decoder_block_out_channels", {8, 8, 8, 9}}}, {"decoder_block_out_channels holds 9"}},
        {{{"batch_norm_eps", 0}}, {"\"batch_norm_eps\" is 0.0, must be positive"}}}},
      {"AutoencoderKl",
       "vae_kl_decode/model/vae",
       read_as<KlVaeConfig>,
       Keys::kKnown,
       {},
       {{{{"act_fn", "relu"}}, {"act_fn = \"relu\" (legal: \"silu\")"}},
        {{{"latents_mean", {1, 2}}}, {"latents_mean = [1,2] (legal: null; not supported yet"}},
        {{{"norm_num_groups", 24}}, {"norm_num_groups 24"}},
        {{{"up_block_types", {"UpDecoderBlock2D", "AttnUpDecoderBlock2D"}}},
         {"AttnUpDecoderBlock2D", "(legal: [\"UpDecoderBlock2D\",\"UpDecoderBlock2D\"])"}},
        {{{"down_block_types", {"DownEncoderBlock2D"}}},
         {"down_block_types = [\"DownEncoderBlock2D\"] (legal: "}},
        {{{"out_channels", 4}}, {"out_channels"}},
        {{{"scaling_factor", 0}}, {"\"scaling_factor\" is 0.0, must be positive and finite"}}}},
  };
}

std::vector<ConfigCase> encoders() {
  return {
      {"Umt5",
       "umt5/model/text_encoder",
       read_as<Umt5Config>,
       Keys::kAny,
       {},
       {{{{"feed_forward_proj", "relu"}}, {"feed_forward_proj = \"relu\" (legal: \"gated-gelu\")"}},
        {{{"d_kv", nullptr}}, {"missing: d_kv"}},
        {{{"num_layers", 0}}, {"num_layers"}}}},
      {"ClipText",
       "clip_text/model/text_encoder",
       read_as<ClipTextConfig>,
       Keys::kAny,
       {},
       {{{{"hidden_act", "relu"}}, {"hidden_act = \"relu\" (legal: \"gelu\", \"quick_gelu\")"}},
        {{{"num_attention_heads", 5}}, {"num_attention_heads = 5 (legal: a divisor of hidden_"}},
        {{{"layer_norm_eps", 0}}, {"layer_norm_eps"}},
        {{{"vocab_size", 0}}, {"vocab_size"}}}},
      {"ClipVision",
       "clip_vision/model/image_encoder",
       read_as<ClipVisionConfig>,
       Keys::kAny,
       {},
       {{{{"patch_size", 13}}, {"patch_size = 13 (legal: a divisor of image_size"}},
        {{{"num_channels", 4}}, {"num_channels = 4 (legal: 3)"}}}},
      {"Decoder",
       "llm_qwen3_tied/model",
       read_as<DecoderConfig>,
       Keys::kAny,
       {{{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}}},
        {{"vocab_size", 600}}},
       {{{{"model_type", "llama"}}, {"model_type = \"llama\" (legal: \"qwen2\", \"qwen3\""}},
        {{{"hidden_act", "gelu"}}, {"hidden_act", "legal: \"silu\""}},
        {{{"use_sliding_window", true}}, {"use_sliding_window", "legal: false"}},
        {{{"attention_bias", true}}, {"attention_bias", "legal: false"}},
        {{{"num_key_value_heads", 3}}, {"num_key_value_heads", "a divisor"}},
        {{{"head_dim", 15}}, {"head_dim", "an even number"}},
        {{{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}, {"rope_scaling", "yarn"}},
        {{{"rope_parameters", {{"rope_type", "linear"}}}}, {"rope_parameters", "linear"}},
        {{{"rope_parameters", {{"rope_theta", 1}}}}, {"rope_parameters", "rope_theta", "above 1"}},
        {{{"rope_parameters", 8}}, {"rope_parameters = 8 (legal: an object)"}},
        {{{"hidden_size", 0}}, {"\"hidden_size\" is 0"}},
        {{{"rms_norm_eps", -1.0}}, {"rms_norm_eps", "positive"}}}},
      {"Wav2Vec2",
       "wav2vec2_tiny/model/audio_encoder",
       read_as<Wav2Vec2Config>,
       Keys::kKnown,
       {},
       {{{{"feat_extract_norm", "group"}}, {"feat_extract_norm = \"group\" (legal: \"layer\")"}},
        {{{"do_stable_layer_norm", false}}, {"do_stable_layer_norm = false (legal: true)"}},
        {{{"hidden_act", "gelu_new"}}, {"hidden_act = \"gelu_new\" (legal: \"gelu\")"}},
        {{{"hidden_act", 3}}, {"hidden_act = 3"}},
        {{{"feat_extract_activation", "relu"}}, {"feat_extract_activation = \"relu\""}},
        {{{"add_adapter", true}}, {"add_adapter = true (legal: false)"}},
        {{{"adapter_attn_dim", 16}}, {"adapter_attn_dim = 16 (legal: null)"}},
        {{{"model_type", "wavlm"}}, {"model_type = \"wavlm\""}},
        {{{"num_buckets", 320}}, {"unknown: num_buckets (known: "}},
        {{{"num_attention_heads", 5}},
         {"num_attention_heads = 5 (legal: a divisor of hidden_size, 48)"}},
        {{{"num_attention_heads", 0}}, {"num_attention_heads"}},
        {{{"num_conv_pos_embedding_groups", 7}},
         {"num_conv_pos_embedding_groups = 7 (legal: a divisor of hidden_size, 48)"}},
        {{{"num_conv_pos_embeddings", 1 << 20}}, {"num_conv_pos_embeddings"}},
        {{{"num_feat_extract_layers", 6}}, {"num_feat_extract_layers is 6, legal: "}},
        {{{"conv_dim", json::array()}}, {"conv_dim = [] (legal: 1 to 32 values)"}},
        {{{"conv_dim", {16}}}, {"conv_dim, conv_kernel and conv_stride have 1, 7 and 7 values"}},
        {{{"conv_stride", {5, 2}}}, {"have 7, 7 and 2 values"}},
        {{{"conv_dim", {16, 16, 16, 16, 16, 16, -16}}}, {"conv_dim[6]"}},
        {{{"conv_stride", std::vector<int>(7, 1000)}}, {"more than 1048576 samples"}},
        {{{"conv_kernel", std::vector<int>(7, 4096)}}, {"more than 1048576 samples"}},
        {{{"conv_bias", "yes"}}, {"\"conv_bias\" is \"yes\", must be true or false"}},
        {{{"layer_norm_eps", 0}}, {"\"layer_norm_eps\" is 0.0, must be positive and finite"}},
        {{{"hidden_size", 1e300}}, {"hidden_size"}},
        {{{"conv_dim", nullptr}}, {"missing: conv_dim"}}}},
  };
}

class Configs : public testing::TestWithParam<ConfigCase> {
 protected:
  // The message with which a file is refused, or "".
  std::string fault(const json& config) const {
    const ConfigFile file(config);
    const std::string message = error_of([&] { GetParam().read(file.path()); }, ErrorKind::kModel);
    EXPECT_TRUE(message.empty() || message.starts_with(file.path())) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  std::string fault_with(const json& fields) const {
    json config = json_;
    config.update(fields);
    return fault(config);
  }

  const json json_ =
      read_json_file("tests/golden/" + std::string(GetParam().part) + "/config.json");
};

TEST_P(Configs, WhatIsLegalIsRead) {
  EXPECT_EQ(fault(json_), "");
  for (const json& fields : GetParam().legal) EXPECT_EQ(fault_with(fields), "") << fields;
}

TEST_P(Configs, RefusalsNameTheFaults) {
  for (const auto& [fields, parts] : GetParam().refused) {
    const std::string message = fault_with(fields);
    for (const std::string& part : parts)
      EXPECT_TRUE(contains(message, part))
          << fields << " without " << part << ": '" << message << "'";
  }
}

TEST_P(Configs, UnknownKeysAreNamedWithTheKnownOnes) {
  EXPECT_EQ(fault_with({{"_fine", 1}}), "");
  const std::string message = fault_with({{"surprise", 1}});
  if (GetParam().keys == Keys::kAny)
    EXPECT_EQ(message, "");
  else
    EXPECT_TRUE(contains(message, "unknown: surprise (known: "));
}

// A field that is not there has a default, or the message names it.
TEST_P(Configs, AMissingFieldIsNamed) {
  for (const auto& [key, value] : json_.items()) {
    json config = json_;
    config.erase(key);
    const std::string message = fault(config);
    EXPECT_TRUE(message.empty() || message.find(key) != std::string::npos) << key << message;
  }
}

// Any field, replaced by values of other types and sizes, gives a configuration or an Error.
TEST_P(Configs, AnyFieldMayBeAnything) {
  size_t refused = 0, fields = 0;
  for (const auto& [key, value] : json_.items()) {
    fields += key.starts_with('_') ? 0 : 1;
    for (const json& other :
         std::vector<json>{nullptr, -1, 0, 1, 1e30, true, "x", json::array(), {1, "x"}, {{"a", 1}}})
      refused += fault_with({{key, other}}).empty() ? 0 : 1;
  }
  EXPECT_GT(3 * refused, 5 * fields);  // most fields are read, and refuse most of these
}

std::string case_name(const testing::TestParamInfo<ConfigCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Transformers, Configs, testing::ValuesIn(transformers()), case_name);
INSTANTIATE_TEST_SUITE_P(Vaes, Configs, testing::ValuesIn(vaes()), case_name);
INSTANTIATE_TEST_SUITE_P(Encoders, Configs, testing::ValuesIn(encoders()), case_name);

}  // namespace
}  // namespace weft::test
