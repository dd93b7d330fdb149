#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"
#include "models/wav2vec2/encoder.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kChannels{1, 1 << 16}, kKernel{1, 1 << 12}, kStride{1, 1 << 10};
constexpr size_t kMostConvs = 32;
constexpr int64_t kMostSamples = 1 << 20;  // under a row

constexpr EncoderBlockNames kBlockNames{.norm1 = "layer_norm",
                                        .q = "attention.q_proj",
                                        .k = "attention.k_proj",
                                        .v = "attention.v_proj",
                                        .out = "attention.out_proj",
                                        .norm2 = "final_layer_norm",
                                        .fc1 = "feed_forward.intermediate_dense",
                                        .fc2 = "feed_forward.output_dense"};

const std::vector<std::string>& required_keys() {
  static const std::vector<std::string> keys{"model_type",
                                             "hidden_size",
                                             "intermediate_size",
                                             "num_hidden_layers",
                                             "num_attention_heads",
                                             "hidden_act",
                                             "conv_dim",
                                             "conv_kernel",
                                             "conv_stride",
                                             "conv_bias",
                                             "num_conv_pos_embeddings",
                                             "num_conv_pos_embedding_groups",
                                             "feat_extract_norm",
                                             "do_stable_layer_norm"};
  return keys;
}

// Only layer_norm_eps and the keys that check_values reads matter to the encoder.
const std::vector<std::string>& optional_keys() {
  static const std::vector<std::string> keys{
      "layer_norm_eps", "feat_extract_activation", "num_feat_extract_layers", "add_adapter",
      "adapter_attn_dim", "pruned_heads",
      // Training: dropout, masks, quantiser, losses.
      "activation_dropout", "attention_dropout", "feat_extract_dropout", "feat_proj_dropout",
      "feat_quantizer_dropout", "final_dropout", "hidden_dropout", "hidden_dropout_prob",
      "layerdrop", "apply_spec_augment", "mask_channel_length", "mask_channel_min_space",
      "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_feature_length",
      "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks",
      "mask_time_min_space", "mask_time_other", "mask_time_prob", "mask_time_selection",
      "codevector_dim", "contrastive_logits_temperature", "diversity_loss_weight",
      "num_codevector_groups", "num_codevectors_per_group", "num_negatives", "proj_codevector_dim",
      "ctc_loss_reduction", "ctc_zero_infinity", "initializer_range", "gradient_checkpointing",
      // Heads and adapters that come after the encoder.
      "vocab_size", "classifier_proj_size", "use_weighted_layer_sum", "tdnn_dilation", "tdnn_dim",
      "tdnn_kernel", "xvector_output_dim", "adapter_kernel_size", "adapter_stride",
      "num_adapter_layers", "output_hidden_size", "id2label", "label2id", "problem_type",
      // Keys that any configuration of transformers may have.
      "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "dtype",
      "torch_dtype", "transformers_version", "name_or_path", "output_attentions",
      "output_hidden_states", "return_dict", "torchscript", "use_bfloat16", "use_cache",
      "tie_word_embeddings", "is_encoder_decoder", "is_decoder", "add_cross_attention",
      "chunk_size_feed_forward", "finetuning_task", "tokenizer_class", "task_specific_params"};
  return keys;
}

// Notes the values that would make another network.
void check_values(const nlohmann::json& json, ConfigCheck& check) {
  const auto only = [&](const char* key, const nlohmann::json& legal) {
    if (json_has(json, key) && json.at(key) != legal) check.refuse(key, "legal: " + legal.dump());
  };
  only("model_type", "wav2vec2");
  only("feat_extract_norm", "layer");
  only("feat_extract_activation", "gelu");
  only("hidden_act", "gelu");
  only("do_stable_layer_norm", true);
  only("add_adapter", false);
  only("pruned_heads", nlohmann::json::object());
  if (json_has(json, "adapter_attn_dim")) check.refuse("adapter_attn_dim", "legal: null");
}

std::vector<Wav2Vec2Conv> read_convs(const nlohmann::json& json, const std::string& path) {
  const std::vector<int64_t> channels = json_ints(json, "conv_dim", path, kChannels),
                             kernels = json_ints(json, "conv_kernel", path, kKernel),
                             strides = json_ints(json, "conv_stride", path, kStride);
  const size_t layers = channels.size();
  if (layers < 1 || layers > kMostConvs || kernels.size() != layers || strides.size() != layers)
    throw Error(
        ErrorKind::kModel,
        path + ": conv_dim, conv_kernel and conv_stride have " + std::to_string(layers) + ", " +
            std::to_string(kernels.size()) + " and " + std::to_string(strides.size()) +
            " values (legal: the same number of each, 1 to " + std::to_string(kMostConvs) + ")");
  const int64_t named =
      json_int_or(json, "num_feat_extract_layers", path, static_cast<int64_t>(layers));
  if (named != static_cast<int64_t>(layers))
    throw Error(ErrorKind::kModel, path + ": num_feat_extract_layers is " + std::to_string(named) +
                                       ", legal: the number of values of conv_dim, " +
                                       std::to_string(layers));
  std::vector<Wav2Vec2Conv> convs;
  int64_t hop = 1, window = 1;
  for (size_t i = 0; i < layers; ++i) {
    convs.push_back({channels[i], kernels[i], strides[i]});
    window += (kernels[i] - 1) * hop;
    hop *= strides[i];
    if (window > kMostSamples || hop > kMostSamples)
      throw Error(ErrorKind::kModel, path + ": conv_kernel and conv_stride put more than " +
                                         std::to_string(kMostSamples) + " samples under a row");
  }
  return convs;
}

}  // namespace

int64_t Wav2Vec2Config::hop() const {
  int64_t hop = 1;
  for (const Wav2Vec2Conv& conv : convs) hop *= conv.stride;
  return hop;
}

int64_t Wav2Vec2Config::window() const {
  int64_t window = 1, hop = 1;
  for (const Wav2Vec2Conv& conv : convs) {
    window += (conv.kernel - 1) * hop;
    hop *= conv.stride;
  }
  return window;
}

Wav2Vec2Config Wav2Vec2Config::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ConfigCheck check(json, path);
  check.keys(required_keys(), optional_keys());
  check_values(json, check);
  check.finish("the configuration of a wav2vec 2.0 encoder");

  Wav2Vec2Config config;
  config.blocks = EncoderBlocksConfig::from_json_file(path, kBlockNames, EncoderActivation::kGelu);
  config.convs = read_convs(json, path);
  config.conv_bias = json_bool(json, "conv_bias", path);
  config.position_kernel = json_int(json, "num_conv_pos_embeddings", path, kKernel);
  config.position_groups =
      json_int(json, "num_conv_pos_embedding_groups", path, {1, config.blocks.width});
  if (config.blocks.width % config.position_groups)
    throw Error(ErrorKind::kModel, path + ": num_conv_pos_embedding_groups is " +
                                       std::to_string(config.position_groups) +
                                       ", legal: a divisor of hidden_size, " +
                                       std::to_string(config.blocks.width));
  return config;
}

}  // namespace weft
