// The configuration of Wan 2.2 speech to video: the config file, tensor lists and parts.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"
#include "models/files/tensor_sizes.h"
#include "models/registry.h"
#include "models/wan/names.h"
#include "models/wan_s2v/transformer.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

constexpr IntRange kSize{1, 1 << 20}, kTokens{1, 64};

// The blocks of the published model, and those after which the sound enters.
constexpr int kPublishedBlocks = 40;
constexpr std::array kPublishedInjects = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};

void check_keys(const nlohmann::json& json, const std::string& path) {
  ConfigCheck check(json, path);
  check.keys({"dim", "num_heads", "num_layers", "ffn_dim", "in_dim", "out_dim", "audio_dim",
              "num_audio_token", "audio_inject_layers"},
             {"text_dim",
              "freq_dim",
              "eps",
              "patch_size",
              "text_len",
              "model_type",
              "window_size",
              "qk_norm",
              "cross_attn_norm",
              "cond_dim",
              "adain_mode",
              "enable_adain",
              "enable_framepack",
              "enable_motioner",
              "enable_tsm",
              "framepack_drop_mode",
              "add_last_motion",
              "motion_token_num",
              "trainable_token_pos_emb",
              "zero_init",
              "zero_timestep"});
  const auto only = [&](const char* key, const nlohmann::json& legal) {
    if (json_has(json, key) && json.at(key) != legal)
      check.refuse(key, "only " + legal.dump() + " is supported");
  };
  for (const char* key :
       {"enable_adain", "enable_framepack", "zero_timestep", "qk_norm", "cross_attn_norm"})
    only(key, true);
  for (const char* key : {"enable_motioner", "enable_tsm", "trainable_token_pos_emb"})
    only(key, false);
  only("adain_mode", "attn_norm");
  only("framepack_drop_mode", "padd");
  only("model_type", "s2v");
  check.finish("a Wan speech-to-video transformer's configuration");
}

// Returns the blocks after which the sound enters, in the order of their modules.
std::vector<int> inject_layers(const nlohmann::json& json, const std::string& path, int layers) {
  std::vector<int> out;
  for (const int64_t layer : json_ints(json, "audio_inject_layers", path, {0, layers - 1}))
    out.push_back(static_cast<int>(layer));
  std::ranges::sort(out);
  if (out.empty() || std::ranges::adjacent_find(out) != out.end())
    throw Error(ErrorKind::kModel,
                path + ": audio_inject_layers = " + json.at("audio_inject_layers").dump() +
                    " (legal: at least one block, each once)");
  return out;
}

bool has_weights(const fs::path& folder) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

// Published configs leave out the columns of the prompt's rows and the patch.
void read_sizes(const TensorFile& file, WanConfig& config) {
  const TensorSizes sizes(file, detect_wan_names(file), kSize.max);
  config.text_dim = sizes.shape("condition_embedder.text_embedder.linear_1.weight", 2)[1];
  const TensorView patch = sizes.shape("patch_embedding.weight", 5);
  config.patch = {patch[2], patch[3], patch[4]};
}

size_t injectors_of(const TensorFile& file) {
  return static_cast<size_t>(std::ranges::count_if(file.names(), [](const std::string& name) {
    return name.starts_with("audio_injector.injector.") && name.ends_with(".q.weight");
  }));
}

void check_sizes(const WanS2vConfig& config, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kModel, path + ": " + why);
  };
  if (config.wan.patch != std::array<int64_t, 3>{1, 2, 2})
    refuse("the patch is not [1, 2, 2], of which the patches of the motion are multiples");
  if (config.wan.in_channels != config.wan.out_channels)
    refuse("in_dim " + std::to_string(config.wan.in_channels) + " (legal: out_dim, " +
           std::to_string(config.wan.out_channels) + ")");
}

}  // namespace

WanS2vConfig WanS2vConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  check_keys(json, path);
  WanS2vConfig config;
  config.wan = WanConfig::from_checked_json(json, path);
  config.wan.audio_dim = 0;  // the key has another meaning here
  config.audio_dim = json_int(json, "audio_dim", path, kSize);
  config.audio_tokens = json_int(json, "num_audio_token", path, kTokens);
  config.injects = inject_layers(json, path, config.wan.layers);
  config.reads_newest = json_bool_or(json, "add_last_motion", path, true);
  const int64_t channels = config.wan.in_channels;
  if (json_int_or(json, "cond_dim", path, channels, kSize) != channels)
    throw Error(ErrorKind::kModel, path + ": cond_dim " + json.at("cond_dim").dump() +
                                       " (legal: in_dim, " + std::to_string(channels) + ")");
  const fs::path folder = fs::path(path).parent_path();
  if (has_weights(folder))
    read_sizes(open_part_weights(PartKind::kTransformer, folder.string()), config.wan);
  check_sizes(config, path);
  return config;
}

WanS2vConfig WanS2vConfig::from_tensors(const TensorFile& file) {
  const TensorSizes sizes(file, detect_wan_names(file), kSize.max);
  WanS2vConfig config;
  config.wan = WanConfig::from_tensors(file);
  const TensorView local = sizes.shape("casual_audio_encoder.encoder.conv1_local.conv.weight", 3);
  config.audio_dim = local[1];
  check_sizes(config, shown_name(file));
  config.audio_tokens = local[0] / (config.width() / 4);
  const size_t injectors = injectors_of(file);
  if (config.wan.layers != kPublishedBlocks || injectors != kPublishedInjects.size())
    sizes.refuse("the blocks behind which the sound enters do not follow from " +
                 std::to_string(injectors) + " injectors of " + std::to_string(config.wan.layers) +
                 " blocks (legal without one: " + std::to_string(kPublishedInjects.size()) +
                 " of " + std::to_string(kPublishedBlocks) + ")");
  config.injects.assign(kPublishedInjects.begin(), kPublishedInjects.end());
  return config;
}

bool holds_wan_s2v(const TensorNames& names) {
  return holds_wan(names) && names.contains("casual_audio_encoder.weights");
}

std::string to_string(const WanS2vConfig& config) {
  return to_string(config.wan) + ", sound " + std::to_string(config.audio_dim) + " behind " +
         std::to_string(config.injects.size()) + " blocks";
}

std::vector<TensorSpec> wan_s2v_tensors(const WanS2vConfig& config) {
  const int64_t d = config.width(), channels = config.wan.in_channels;
  std::vector<TensorSpec> list = wan_tensors(config.wan);
  const auto append = [&](const std::vector<TensorSpec>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  const auto [frames, rows, columns] = config.wan.patch;
  append({{"cond_encoder.weight", {d, channels, frames, rows, columns}},
          {"cond_encoder.bias", {d}},
          {"trainable_cond_mask.weight", {3, d}}});
  append(wan_packer_tensors(d, channels));
  append(wan_audio_tensors(config.audio_sizes()));
  for (size_t i = 0; i < config.injects.size(); ++i) {
    const std::string injector = "audio_injector.injector." + std::to_string(i) + ".";
    for (const char* part : {"q", "k", "v", "o"}) add_linear(list, injector + part, d, d);
    append({{injector + "norm_q.weight", {d}}, {injector + "norm_k.weight", {d}}});
    add_linear(list, "audio_injector.injector_adain_layers." + std::to_string(i) + ".linear", 2 * d,
               d);
  }
  return list;
}

TensorPart wan_s2v_part(const WanS2vConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width) {
  if (!tensor.name.starts_with("audio_injector.injector."))
    return wan_part(config.wan, tensor, width);
  const WidthSlice all = width.of(config.wan.heads, config.wan.ffn_dim);
  const int64_t e = config.wan.head_dim;
  const Range channels{all.heads.begin * e, all.heads.end * e};
  if (tensor.name.ends_with(".o.weight")) return {.dim = 1, .range = channels};
  if (tensor.name.ends_with(".o.bias")) return {.dim = 0, .range = {0, tensor.shape[0]}};
  return {.dim = 0, .range = channels};
}

TransformerTraits WanS2vConfig::traits() const {
  TransformerTraits traits = wan.traits();
  traits.signal_columns = audio_sizes().signal_columns();
  traits.reference_frames = 1;
  traits.motion_frames = kWanMotionFrames;
  return traits;
}

}  // namespace weft
