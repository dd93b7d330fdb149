#include "models/config_reader.h"
#include "models/wav2vec2/encoder.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kChannels{1, 1 << 16}, kKernel{1, 1 << 12}, kStride{1, 1 << 10},
    kGroups{1, 1 << 20};
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

// Keys that change nothing in the encoder.
const std::vector<const char*>& ignored_keys() {
  static const std::vector<const char*> keys{
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
void check_values(ConfigReader& fields) {
  fields.required({"model_type", "hidden_act", "feat_extract_norm", "do_stable_layer_norm"});
  fields.only("model_type", {"wav2vec2"});
  fields.only("feat_extract_norm", {"layer"});
  fields.only("feat_extract_activation", {"gelu"});
  fields.only("do_stable_layer_norm", {true});
  fields.only("add_adapter", {false});
  fields.only("pruned_heads", {Json::object()});
  fields.only("adapter_attn_dim", {nullptr});
}

// The values of the fields that describe the convolutions over the samples.
struct ConvFields {
  std::vector<int64_t> channels, kernels, strides;
  std::optional<int64_t> layers;
};

std::vector<Wav2Vec2Conv> convs_of(const ConvFields& fields, const std::string& path) {
  const size_t layers = fields.channels.size();
  if (fields.kernels.size() != layers || fields.strides.size() != layers)
    refuse_model(path, "conv_dim, conv_kernel and conv_stride have ", layers, ", ",
                 fields.kernels.size(), " and ", fields.strides.size(),
                 " values (legal: the same number of each)");
  if (fields.layers.value_or(std::ssize(fields.channels)) != std::ssize(fields.channels))
    refuse_model(path, "num_feat_extract_layers is ", *fields.layers,
                 ", legal: the number of values of conv_dim, ", layers);
  std::vector<Wav2Vec2Conv> convs;
  int64_t hop = 1, window = 1;
  for (size_t i = 0; i < layers; ++i) {
    convs.push_back({fields.channels[i], fields.kernels[i], fields.strides[i]});
    window += (fields.kernels[i] - 1) * hop;
    hop *= fields.strides[i];
    if (window > kMostSamples || hop > kMostSamples)
      refuse_model(path, "conv_kernel and conv_stride put more than ", kMostSamples,
                   " samples under a row");
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
  ConfigReader fields(path);
  check_values(fields);
  Wav2Vec2Config config;
  config.blocks =
      EncoderBlocksConfig::read(fields, kBlockNames, EncoderActivation::kGelu, {"gelu"});
  ConvFields convs;
  fields.required("conv_dim", convs.channels, kChannels, kMostConvs);
  fields.required("conv_kernel", convs.kernels, kKernel, kMostConvs);
  fields.required("conv_stride", convs.strides, kStride, kMostConvs);
  fields.optional("num_feat_extract_layers", convs.layers, IntRange{});
  fields.required("conv_bias", config.conv_bias);
  fields.required("num_conv_pos_embeddings", config.position_kernel, kKernel);
  fields.required("num_conv_pos_embedding_groups", config.position_groups, kGroups);
  fields.divides("num_conv_pos_embedding_groups", "hidden_size");
  fields.ignored(ignored_keys());
  fields.finish("the configuration of a wav2vec 2.0 encoder");
  config.convs = convs_of(convs, path);
  return config;
}

}  // namespace weft
