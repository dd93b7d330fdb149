// The Wan transformer's configuration: config files, tensor lists and counts.
#include <algorithm>

#include "io/weights/safetensors_header.h"
#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits: the largest
// matrix is kMaxWidth by kSize.max.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kClipRows = 257;  // of the encoder that Wan 2.1 was trained with
constexpr IntRange kSize{1, 1 << 22}, kHeads{1, 1 << 16}, kLayers{1, 1 << 10},
    kChannels{1, 1 << 12};

// Refuses combinations of sizes that no checkpoint can have.
void check_sizes(const WanConfig& config, const std::string& where) {
  if (config.head_dim < 6 || config.head_dim % 2)
    refuse_model(where, "head size ", config.head_dim,
                 " cannot hold three rotary axes (legal: even, at least 6)");
  if (config.width() > kMaxWidth)
    refuse_model(where, config.heads, " heads of ", config.head_dim, " are wider than ", kMaxWidth);
  if (config.in_channels < config.out_channels)
    refuse_model(where, "in_channels ", config.in_channels, " (legal: at least out_channels, ",
                 config.out_channels, ")");
  if (config.freq_dim % 2) refuse_model(where, "freq_dim ", config.freq_dim, " is odd");
}

// Refuses the kinds of checkpoints that only their tensors tell apart.
void refuse_unsupported(const TensorFile& file, const std::string& where) {
  for (const auto& [mark, kind] :
       {std::pair{"vace_blocks.", "Wan VACE"}, {"motion_encoder.", "Wan Animate"}})
    for (const std::string& name : file.names())
      if (name.starts_with(mark))
        refuse_model(where, kind, " is not supported yet (it holds ", name, ")");
}

}  // namespace

WanConfig WanConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  const bool original = fields.has("num_heads") || fields.has("dim");
  WanConfig config;
  int64_t image_columns = 0;
  if (original) {
    fields.only("model_type", {"t2v", "i2v", "ti2v"});
  } else {
    for (const char* key : {"added_kv_proj_dim", "pos_embed_seq_len"})
      if (fields.has(key) && !fields.has("image_dim")) fields.refuse(key, "it needs image_dim");
    fields.optional("image_dim", config.image_dim, kSize);
    fields.optional("pos_embed_seq_len", config.image_positions, kSize);
    fields.optional("added_kv_proj_dim", image_columns, kSize);
    fields.optional("audio_dim", config.audio_dim, kSize);
    fields.optional("rope_max_seq_len", config.rope_max_seq_len, kSize);
  }
  fields.not_null("qk_norm");
  config.image_keys = image_columns > 0;
  config.read(fields, original, "a Wan transformer's configuration");
  if (config.image_keys && image_columns != config.width())
    refuse_model(path, "added_kv_proj_dim is ", image_columns, ", legal: the width of the model, ",
                 config.width());
  return config;
}

void WanConfig::read(ConfigReader& fields, bool original, const std::string& kind) {
  const auto either = [&](const char* diffusers, const char* theirs) {
    return original ? theirs : diffusers;
  };
  int64_t columns = 0;
  fields.required(either("num_attention_heads", "num_heads"), heads, kHeads);
  fields.required(either("attention_head_dim", "dim"), columns, original ? kSize : kHeads);
  fields.required("num_layers", layers, kLayers);
  fields.required("ffn_dim", ffn_dim, kSize);
  fields.required(either("in_channels", "in_dim"), in_channels, kChannels);
  fields.required(either("out_channels", "out_dim"), out_channels, kChannels);
  fields.optional("text_dim", text_dim, kSize);
  fields.optional("freq_dim", freq_dim, kSize);
  fields.optional("eps", eps, kPositive);
  fields.optional("patch_size", patch, IntRange{1, 64});
  fields.only("cross_attn_norm", {true});
  if (original) {
    fields.divides("num_heads", "dim");
    fields.only("qk_norm", {true});
    fields.ignored({"text_len", "window_size"});
  } else {
    fields.only("qk_norm", {"rms_norm_across_heads"});
  }
  fields.finish(kind);
  head_dim = static_cast<int>(original ? columns / heads : columns);
  check_sizes(*this, fields.path());
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
    sizes.refuse("the number of heads does not follow from width ", patch[0],
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
    refuse_model(where, names("proj_out.weight"), " has ", head, " rows, not a multiple of ",
                 per_token);
  config.out_channels = head / per_token;
  const std::string blocks = "blocks.";
  for (const std::string& name : file.names())
    if (name.starts_with(blocks)) {
      int64_t index = 0;
      for (size_t i = blocks.size(); i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i)
        index = std::min<int64_t>(index * 10 + (name[i] - '0'), 1 << 16);
      if (index >= kLayers.max)
        refuse_model(where, quoted_name(name), " names a block (legal: 0 to ", kLayers.max - 1,
                     ")");
      config.layers = std::max(config.layers, static_cast<int>(index) + 1);
    }
  check_sizes(config, where);
  return config;
}

std::string to_string(const WanConfig& config) {
  return text_of("Wan transformer: width ", config.width(), " = ", config.heads, " heads x ",
                 config.head_dim, ", ", config.layers, " layers, ffn ", config.ffn_dim,
                 ", channels ", config.in_channels, " -> ", config.out_channels, ", text ",
                 config.text_dim, config.image_dim ? text_of(", image ", config.image_dim) : "",
                 ", patch ", config.patch[0], "x", config.patch[1], "x", config.patch[2]);
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
          .signal_columns = audio_dim,
          .embeds_at_end = true};
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
