// The configuration of Wan 2.2 speech to video: the config file, tensor lists and parts.
#include <algorithm>
#include <array>
#include <filesystem>

#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"
#include "models/registry.h"
#include "models/wan/names.h"
#include "models/wan_s2v/transformer.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

constexpr IntRange kSize{1, 1 << 20}, kTokens{1, 64};
constexpr int64_t kMostBlocks = 1 << 10;

// The blocks of the published model, and those after which the sound enters.
constexpr int kPublishedBlocks = 40;
constexpr std::array kPublishedInjects = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};

// Reads the fields that other Wan transformers do not have.
void read_speech(ConfigReader& fields, WanS2vConfig& config, std::vector<int64_t>& injects) {
  fields.required("audio_dim", config.audio_dim, kSize);
  fields.required("num_audio_token", config.audio_tokens, kTokens);
  fields.required("audio_inject_layers", injects, IntRange{0, kMostBlocks}, size_t{kMostBlocks});
  fields.optional("add_last_motion", config.reads_newest);
  fields.same("cond_dim", "in_dim");
  fields.only("model_type", {"s2v"});
  fields.only("adain_mode", {"attn_norm"});
  fields.only("framepack_drop_mode", {"padd"});
  for (const char* key : {"enable_adain", "enable_framepack", "zero_timestep"})
    fields.only(key, {true});
  for (const char* key : {"enable_motioner", "enable_tsm", "trainable_token_pos_emb"})
    fields.only(key, {false});
  fields.ignored({"motion_token_num", "zero_init"});
}

// Returns the blocks after which the sound enters, in the order of their modules.
std::vector<int> inject_layers(std::vector<int64_t> blocks, int layers, const std::string& path) {
  std::ranges::sort(blocks);
  if (blocks.back() >= layers || std::ranges::adjacent_find(blocks) != blocks.end())
    refuse_model(path, "audio_inject_layers holds ", blocks.back(), " of ", layers,
                 " blocks, or one of them twice (legal: at least one block, each once)");
  return {blocks.begin(), blocks.end()};
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
  if (config.wan.patch != std::array<int64_t, 3>{1, 2, 2})
    refuse_model(path,
                 "the patch is not [1, 2, 2], of which the patches of the motion are "
                 "multiples");
  if (config.wan.in_channels != config.wan.out_channels)
    refuse_model(path, "in_dim ", config.wan.in_channels, " (legal: out_dim, ",
                 config.wan.out_channels, ")");
}

}  // namespace

WanS2vConfig WanS2vConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  WanS2vConfig config;
  std::vector<int64_t> injects;
  read_speech(fields, config, injects);
  config.wan.read(fields, true, "a Wan speech-to-video transformer's configuration");
  config.injects = inject_layers(injects, config.wan.layers, path);
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
    sizes.refuse("the blocks after which the sound enters do not follow from ", injectors,
                 " injectors of ", config.wan.layers,
                 " blocks (legal without one: ", kPublishedInjects.size(), " of ", kPublishedBlocks,
                 ")");
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
  traits.embeds_at_end = false;  // the last rank has no joint rows of its own
  return traits;
}

}  // namespace weft
