#include "models/krea2/names.h"

#include <span>
#include <utility>

#include "models/files/tensor_sizes.h"
#include "models/krea2/transformer.h"

namespace weft {

namespace {

constexpr const char kSingleFileMark[] = "txtfusion.projector.weight";
constexpr const char kFolderMark[] = "text_fusion.projector.weight";

// Pairs of (diffusers, single file) spellings of the beginning of a name, or of what follows the
// number of a block.
using Spellings = std::span<const std::pair<const char*, const char*>>;
constexpr std::pair<const char*, const char*> kTopLevel[] = {
    {"img_in.", "first."},
    {"time_embed.linear_1.", "tmlp.0."},
    {"time_embed.linear_2.", "tmlp.2."},
    {"time_mod_proj.", "tproj.1."},
    {"txt_in.norm.weight", "txtmlp.0.scale"},
    {"txt_in.linear_1.", "txtmlp.1."},
    {"txt_in.linear_2.", "txtmlp.3."},
    {"text_fusion.projector.", "txtfusion.projector."},
    {"final_layer.scale_shift_table", "last.modulation.lin"},
    {"final_layer.norm.weight", "last.norm.scale"},
    {"final_layer.linear.", "last.linear."}};
constexpr std::pair<const char*, const char*> kInBlock[] = {
    {"scale_shift_table", "mod.lin"},
    {"norm1.weight", "prenorm.scale"},
    {"norm2.weight", "postnorm.scale"},
    {"attn.to_q.", "attn.wq."},
    {"attn.to_k.", "attn.wk."},
    {"attn.to_v.", "attn.wv."},
    {"attn.to_gate.", "attn.gate."},
    {"attn.to_out.0.", "attn.wo."},
    {"attn.norm_q.weight", "attn.qknorm.qnorm.scale"},
    {"attn.norm_k.weight", "attn.qknorm.knorm.scale"},
    {"ff.", "mlp."}};
constexpr std::pair<const char*, const char*> kLists[] = {
    {"transformer_blocks.", "blocks."},
    {"text_fusion.layerwise_blocks.", "txtfusion.layerwise_blocks."},
    {"text_fusion.refiner_blocks.", "txtfusion.refiner_blocks."}};

std::string spelled(Spellings pairs, const std::string& name) {
  for (const auto& [ours, theirs] : pairs)
    if (const std::string start = ours; name.starts_with(start))
      return theirs + name.substr(start.size());
  return name;
}

}  // namespace

bool has_original_krea2_names(const TensorNames& names) { return names.contains(kSingleFileMark); }

bool holds_krea2(const TensorNames& names) {
  return has_original_krea2_names(names) || names.contains(kFolderMark);
}

std::string krea2_original_name(const std::string& name) {
  for (const auto& [ours, theirs] : kLists) {
    const std::string start = ours;
    if (!name.starts_with(start)) continue;
    const size_t dot = name.find('.', start.size()) + 1;
    return theirs + name.substr(start.size(), dot - start.size()) +
           spelled(kInBlock, name.substr(dot));
  }
  return spelled(kTopLevel, name);
}

Krea2Config Krea2Config::from_tensors(const TensorFile& file) {
  const bool original = has_original_krea2_names(file);
  const TensorSizes sizes(
      file, [&](const std::string& name) { return original ? krea2_original_name(name) : name; });
  const std::string block = "transformer_blocks.0.", taps = "text_fusion.layerwise_blocks.",
                    refiners = "text_fusion.refiner_blocks.";
  Krea2Config config;
  const int64_t head = sizes.extent(block + "attn.norm_q.weight", 0);
  config.head_dim = static_cast<int>(head);
  config.heads = sizes.heads(sizes.extent("img_in.weight", 0), head);
  config.kv_heads = sizes.heads(sizes.extent(block + "attn.to_k.weight", 0), head);
  config.layers = sizes.count("transformer_blocks.", ".norm1.weight");
  config.patch_dim = sizes.extent("img_in.weight", 1);
  config.ffn = sizes.extent(block + "ff.gate.weight", 0);
  config.time_columns = sizes.extent("time_embed.linear_1.weight", 1);
  config.text_dim = sizes.extent("txt_in.norm.weight", 0);
  config.taps = static_cast<int>(sizes.extent("text_fusion.projector.weight", -1));
  config.tap_blocks = sizes.count(taps, ".norm1.weight");
  config.refiner_blocks = sizes.count(refiners, ".norm1.weight");
  if (config.tap_blocks + config.refiner_blocks > 0) {
    const std::string attention = (config.tap_blocks > 0 ? taps : refiners) + "0.attn.";
    const int64_t text_head = sizes.extent(attention + "norm_q.weight", 0);
    config.text_heads = sizes.heads(config.text_dim, text_head);
    config.text_kv_heads = sizes.heads(sizes.extent(attention + "to_k.weight", 0), text_head);
    config.text_ffn =
        sizes.extent((config.tap_blocks > 0 ? taps : refiners) + "0.ff.gate.weight", 0);
  }
  const int64_t unit = head / 16;
  config.axes_dims = {head - 12 * unit, 6 * unit, 6 * unit};
  config.check(shown_name(file));
  return config;
}

}  // namespace weft
