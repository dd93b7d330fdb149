// The Wan transformer's configuration: config files, tensor lists and counts.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/weights/safetensors_header.h"
#include "models/config_check.h"
#include "models/files/tensor_sizes.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"

namespace weft {

namespace {

// The legal keys of one spelling of a config file. `others` are all keys besides the named ones.
struct ConfigKeys {
  const char *heads, *layers, *ffn_dim, *in_channels, *out_channels;
  std::vector<std::string> others;
};

const ConfigKeys kDiffusers{"num_attention_heads",
                            "num_layers",
                            "ffn_dim",
                            "in_channels",
                            "out_channels",
                            {"attention_head_dim", "text_dim", "freq_dim", "eps", "patch_size",
                             "rope_max_seq_len", "cross_attn_norm", "qk_norm", "image_dim",
                             "added_kv_proj_dim", "pos_embed_seq_len", "audio_dim"}};
const ConfigKeys kOriginal{"num_heads",
                           "num_layers",
                           "ffn_dim",
                           "in_dim",
                           "out_dim",
                           {"dim", "text_dim", "freq_dim", "eps", "patch_size", "text_len",
                            "model_type", "cross_attn_norm", "qk_norm", "window_size"}};

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits: the largest
// matrix is kMaxWidth by kSize.max.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kClipRows = 257;  // of the encoder that Wan 2.1 was trained with
constexpr IntRange kSize{1, 1 << 22}, kHeads{1, 1 << 16}, kLayers{1, 1 << 10},
    kChannels{1, 1 << 12};

bool is_original(const nlohmann::json& json) {
  return json.contains("num_heads") || json.contains("dim");
}

void check_keys(const nlohmann::json& json, const ConfigKeys& keys, bool original,
                const std::string& path) {
  ConfigCheck check(json, path);
  check.keys({keys.heads, original ? "dim" : "attention_head_dim", keys.layers, keys.ffn_dim,
              keys.in_channels, keys.out_channels},
             keys.others);
  for (const char* key : {"added_kv_proj_dim", "pos_embed_seq_len"})
    if (json_has(json, key) && !json_has(json, "image_dim"))
      check.refuse(key, "it needs image_dim");
  if (json_has(json, "cross_attn_norm") && json.at("cross_attn_norm") != true)
    check.refuse("cross_attn_norm", "only true is supported");
  if (json.contains("qk_norm") &&
      json.at("qk_norm") != (original ? nlohmann::json(true) : "rms_norm_across_heads"))
    check.refuse("qk_norm", original ? "only true is supported"
                                     : "only \"rms_norm_across_heads\" is supported");
  if (json_has(json, "model_type")) {
    const std::string type = json_string(json, "model_type", path);
    if (type != "t2v" && type != "i2v" && type != "ti2v")
      check.refuse("model_type", "only t2v, i2v and ti2v are supported");
  }
  check.finish("a Wan transformer's configuration");
}

// Refuses combinations of sizes that no checkpoint can have.
void check_sizes(const WanConfig& config, const std::string& what) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kModel, what + ": " + why);
  };
  if (config.head_dim < 6 || config.head_dim % 2)
    refuse("head size " + std::to_string(config.head_dim) +
           " cannot hold three rotary axes (legal: even, at least 6)");
  if (config.width() > kMaxWidth)
    refuse(std::to_string(config.heads) + " heads of " + std::to_string(config.head_dim) +
           " are wider than " + std::to_string(kMaxWidth));
  if (config.in_channels < config.out_channels)
    refuse("in_channels " + std::to_string(config.in_channels) +
           " (legal: at least out_channels, " + std::to_string(config.out_channels) + ")");
  if (config.freq_dim % 2) refuse("freq_dim " + std::to_string(config.freq_dim) + " is odd");
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    refuse("eps is " + std::to_string(config.eps) + " (legal: positive and finite)");
}

// Reads the keys of Wan 2.1 with pictures.
void read_image_keys(const nlohmann::json& json, const std::string& path, WanConfig& config) {
  if (!json_has(json, "image_dim")) return;
  config.image_dim = json_int(json, "image_dim", path, kSize);
  if (json_has(json, "pos_embed_seq_len"))
    config.image_positions = json_int(json, "pos_embed_seq_len", path, kSize);
  config.image_keys = json_has(json, "added_kv_proj_dim");
  if (!config.image_keys) return;
  const int64_t columns = json_int(json, "added_kv_proj_dim", path, kSize);
  if (columns != config.width())
    throw Error(ErrorKind::kModel, path + ": added_kv_proj_dim is " + std::to_string(columns) +
                                       ", legal: the width of the model, " +
                                       std::to_string(config.width()));
}

// Refuses the kinds of checkpoints that only their tensors tell apart.
void refuse_unsupported(const TensorFile& file, const std::string& where) {
  for (const auto& [mark, kind] :
       {std::pair{"vace_blocks.", "Wan VACE"}, {"motion_encoder.", "Wan Animate"}})
    for (const std::string& name : file.names())
      if (name.starts_with(mark))
        throw Error(ErrorKind::kModel,
                    where + ": " + kind + " is not supported yet (it holds " + name + ")");
}

}  // namespace

WanConfig WanConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  const bool original = is_original(json);
  check_keys(json, original ? kOriginal : kDiffusers, original, path);
  return from_checked_json(json, path);
}

WanConfig WanConfig::from_checked_json(const nlohmann::json& json, const std::string& path) {
  const bool original = is_original(json);
  const ConfigKeys& keys = original ? kOriginal : kDiffusers;
  WanConfig config;
  config.heads = static_cast<int>(json_int(json, keys.heads, path, kHeads));
  if (original) {
    const int64_t width = json_int(json, "dim", path, kSize);
    if (width % config.heads)
      throw Error(ErrorKind::kModel, path + ": dim " + std::to_string(width) +
                                         " is not a multiple of num_heads " +
                                         std::to_string(config.heads));
    config.head_dim = static_cast<int>(width / config.heads);
  } else {
    config.head_dim = static_cast<int>(json_int(json, "attention_head_dim", path, kHeads));
  }
  config.layers = static_cast<int>(json_int(json, keys.layers, path, kLayers));
  config.ffn_dim = json_int(json, keys.ffn_dim, path, kSize);
  config.in_channels = json_int(json, keys.in_channels, path, kChannels);
  config.out_channels = json_int(json, keys.out_channels, path, kChannels);
  config.text_dim = json_int_or(json, "text_dim", path, config.text_dim, kSize);
  config.freq_dim = json_int_or(json, "freq_dim", path, config.freq_dim, kSize);
  read_image_keys(json, path, config);
  if (json_has(json, "audio_dim")) config.audio_dim = json_int(json, "audio_dim", path, kSize);
  config.rope_max_seq_len = json_int_or(json, "rope_max_seq_len", path, 1024, kSize);
  config.eps = static_cast<float>(json_number_or(json, "eps", path, config.eps));
  read_axes(json, "patch_size", path, {1, 64}, config.patch);
  check_sizes(config, path);
  return config;
}

WanConfig WanConfig::from_tensors(const TensorFile& file) {
  constexpr int kHeadDim = 128;  // every Wan model published in the original layout has it
  const WanNames names = detect_wan_names(file);
  const std::string where = shown_name(file);
  refuse_unsupported(file, where);
  const TensorSizes sizes(file, names, kSize.max);
  WanConfig config;
  const TensorView patch = sizes.shape("patch_embedding.weight", 5);
  config.in_channels = patch[1];
  config.patch = {patch[2], patch[3], patch[4]};
  if (patch[0] % kHeadDim)
    sizes.refuse("the number of heads does not follow from width " + std::to_string(patch[0]) +
                 " (legal without one: multiples of 128)");
  config.head_dim = kHeadDim;
  config.heads = static_cast<int>(patch[0] / kHeadDim);
  config.ffn_dim = sizes.shape("blocks.0.ffn.net.0.proj.weight", 2)[0];
  config.text_dim = sizes.shape("condition_embedder.text_embedder.linear_1.weight", 2)[1];
  config.freq_dim = sizes.shape("condition_embedder.time_embedder.linear_1.weight", 2)[1];
  const std::string image = "condition_embedder.image_embedder.";
  if (sizes.has(image + "norm1.weight")) {
    config.image_dim = sizes.shape(image + "norm1.weight", 1)[0];
    config.image_keys = sizes.has("blocks.0.attn2.add_k_proj.weight");
    if (sizes.has(image + "pos_embed"))
      config.image_positions = sizes.shape(image + "pos_embed", 3)[1];
  }
  const int64_t head = sizes.shape("proj_out.weight", 2)[0],
                per_token = patch[2] * patch[3] * patch[4];
  if (head % per_token)
    throw Error(ErrorKind::kModel, where + ": " + names("proj_out.weight") + " has " +
                                       std::to_string(head) + " rows, not a multiple of " +
                                       std::to_string(per_token));
  config.out_channels = head / per_token;
  const std::string blocks = "blocks.";
  for (const std::string& name : file.names())
    if (name.starts_with(blocks)) {
      int64_t index = 0;
      for (size_t i = blocks.size(); i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i)
        index = std::min<int64_t>(index * 10 + (name[i] - '0'), 1 << 16);
      if (index >= kLayers.max)
        throw Error(ErrorKind::kModel, where + ": " + quoted_name(name) +
                                           " names a block (legal: " + "0 to " +
                                           std::to_string(kLayers.max - 1) + ")");
      config.layers = std::max(config.layers, static_cast<int>(index) + 1);
    }
  check_sizes(config, where);
  return config;
}

std::string to_string(const WanConfig& config) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  return "Wan transformer: width " + text(config.width()) + " = " + text(config.heads) +
         " heads x " + text(config.head_dim) + ", " + text(config.layers) + " layers, ffn " +
         text(config.ffn_dim) + ", channels " + text(config.in_channels) + " -> " +
         text(config.out_channels) + ", text " + text(config.text_dim) +
         (config.image_dim ? ", image " + text(config.image_dim) : "") + ", patch " +
         text(config.patch[0]) + "x" + text(config.patch[1]) + "x" + text(config.patch[2]);
}

namespace {

// Appends the tensors of the MLP between two norms that reads rows of pictures.
void add_image_embedder(const WanConfig& config, std::vector<TensorSpec>& list) {
  const std::string name = "condition_embedder.image_embedder.";
  const int64_t d = config.width(), in = config.image_dim;
  if (config.image_positions) list.push_back({name + "pos_embed", {1, config.image_positions, in}});
  for (const auto& [part, extent] : {std::pair{"norm1", in}, {"norm2", d}}) {
    list.push_back({name + part + ".weight", {extent}});
    list.push_back({name + part + ".bias", {extent}});
  }
  add_linear(list, name + "ff.net.0.proj", in, in);
  add_linear(list, name + "ff.net.2", d, in);
}

}  // namespace

std::vector<TensorSpec> wan_tensors(const WanConfig& config) {
  const int64_t d = config.width();
  const int64_t per_token = config.patch[0] * config.patch[1] * config.patch[2];
  std::vector<TensorSpec> list;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    list.push_back({name, std::move(shape)});
  };
  const std::string embedder = "condition_embedder.";
  add("scale_shift_table", {1, 2, d});
  add("patch_embedding.weight",
      {d, config.in_channels, config.patch[0], config.patch[1], config.patch[2]});
  add("patch_embedding.bias", {d});
  add_linear(list, embedder + "time_embedder.linear_1", d, config.freq_dim);
  add_linear(list, embedder + "time_embedder.linear_2", d, d);
  add_linear(list, embedder + "time_proj", 6 * d, d);
  if (config.audio_dim) {
    add_linear(list, embedder + "audio_embedder.linear_1", d, config.audio_dim);
    add_linear(list, embedder + "audio_embedder.linear_2", d, d);
  }
  add_linear(list, embedder + "text_embedder.linear_1", d, config.text_dim);
  add_linear(list, embedder + "text_embedder.linear_2", d, d);
  if (config.image_dim) add_image_embedder(config, list);
  for (int i = 0; i < config.layers; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    add(block + "scale_shift_table", {1, 6, d});
    for (const char* attention : {"attn1.", "attn2."}) {
      for (const char* part : {"to_q", "to_k", "to_v", "to_out.0"})
        add_linear(list, block + attention + part, d, d);
      add(block + attention + "norm_q.weight", {d});
      add(block + attention + "norm_k.weight", {d});
    }
    if (config.image_keys) {
      add_linear(list, block + "attn2.add_k_proj", d, d);
      add_linear(list, block + "attn2.add_v_proj", d, d);
      add(block + "attn2.norm_added_k.weight", {d});
    }
    add(block + "norm2.weight", {d});
    add(block + "norm2.bias", {d});
    add_linear(list, block + "ffn.net.0.proj", config.ffn_dim, d);
    add_linear(list, block + "ffn.net.2", d, config.ffn_dim);
  }
  add_linear(list, "proj_out", per_token * config.out_channels, d);
  return list;
}

TransformerTraits WanConfig::traits() const {
  return {.width = width(),
          .blocks = layers,
          .heads = heads,
          .head_dim = head_dim,
          .ffn_columns = ffn_dim,
          .in_channels = in_channels,
          .out_channels = out_channels,
          .patch = patch,
          .text_columns = text_dim,
          .image_columns = image_dim,
          .image_rows = image_dim == 0    ? 0
                        : image_positions ? image_positions
                                          : kClipRows,
          .images = image_dim == 0    ? 0
                    : image_positions ? 2
                                      : 1,
          .time_columns = freq_dim,
          .signal_columns = audio_dim};
}

TensorPart wan_part(const WanConfig& config, const TensorSpec& tensor, const WidthSlice& width) {
  const WidthSlice all = width.of(config.heads, config.ffn_dim);
  const Range channels{all.heads.begin * config.head_dim, all.heads.end * config.head_dim};
  const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  if (is(".to_q.") || is(".to_k.") || is(".to_v.") || is(".norm_q.") || is(".norm_k.") ||
      is(".add_k_proj.") || is(".add_v_proj.") || is(".norm_added_k."))
    return {.dim = 0, .range = channels};
  if (is(".to_out.0.weight")) return {.dim = 1, .range = channels};
  if (is(".ffn.net.0.")) return {.dim = 0, .range = all.ffn};
  if (is(".ffn.net.2.weight")) return {.dim = 1, .range = all.ffn};
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

}  // namespace weft
