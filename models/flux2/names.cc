#include "models/flux2/names.h"

#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr const char kOriginalMark[] = "single_stream_modulation.lin.weight";
constexpr const char kDiffusersMark[] = "single_stream_modulation.linear.weight";

// A pair of (diffusers, original) spellings of the beginning of a name, or of what follows the
// number of a block; and the part of a matrix that joins three, or -1.
struct Spelling {
  const char *ours, *theirs;
  int64_t part = -1;
};
constexpr Spelling kOutside[] = {
    {"x_embedder.", "img_in."},
    {"context_embedder.", "txt_in."},
    {"time_guidance_embed.timestep_embedder.linear_1.", "time_in.in_layer."},
    {"time_guidance_embed.timestep_embedder.linear_2.", "time_in.out_layer."},
    {"time_guidance_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."},
    {"time_guidance_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."},
    {"double_stream_modulation_img.linear.", "double_stream_modulation_img.lin."},
    {"double_stream_modulation_txt.linear.", "double_stream_modulation_txt.lin."},
    {"single_stream_modulation.linear.", "single_stream_modulation.lin."},
    {"norm_out.linear.", "final_layer.adaLN_modulation.1."},
    {"proj_out.", "final_layer.linear."}};
constexpr Spelling kDouble[] = {{"attn.to_q.", "img_attn.qkv.", 0},
                                {"attn.to_k.", "img_attn.qkv.", 1},
                                {"attn.to_v.", "img_attn.qkv.", 2},
                                {"attn.norm_q.weight", "img_attn.norm.query_norm.scale"},
                                {"attn.norm_k.weight", "img_attn.norm.key_norm.scale"},
                                {"attn.to_out.0.", "img_attn.proj."},
                                {"ff.linear_in.", "img_mlp.0."},
                                {"ff.linear_out.", "img_mlp.2."},
                                {"attn.add_q_proj.", "txt_attn.qkv.", 0},
                                {"attn.add_k_proj.", "txt_attn.qkv.", 1},
                                {"attn.add_v_proj.", "txt_attn.qkv.", 2},
                                {"attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"},
                                {"attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"},
                                {"attn.to_add_out.", "txt_attn.proj."},
                                {"ff_context.linear_in.", "txt_mlp.0."},
                                {"ff_context.linear_out.", "txt_mlp.2."}};
constexpr Spelling kSingle[] = {{"attn.to_qkv_mlp_proj.", "linear1."},
                                {"attn.to_out.", "linear2."},
                                {"attn.norm_q.weight", "norm.query_norm.scale"},
                                {"attn.norm_k.weight", "norm.key_norm.scale"}};

TensorPlace respelled(std::span<const Spelling> pairs, const std::string& block,
                      const std::string& name) {
  for (const Spelling& pair : pairs)
    if (const std::string start = pair.ours; name.starts_with(start)) {
      TensorPlace place{.name = block + pair.theirs + name.substr(start.size())};
      if (pair.part >= 0) {
        place.part = pair.part;
        place.parts = 3;
      }
      return place;
    }
  return {};
}

}  // namespace

bool has_original_flux2_names(const TensorNames& names) { return names.contains(kOriginalMark); }

bool holds_flux2(const TensorNames& names) {
  return has_original_flux2_names(names) || names.contains(kDiffusersMark);
}

TensorPlace flux2_original_place(const std::string& name) {
  for (const auto& [list, theirs, spellings] :
       {std::tuple{"transformer_blocks.", "double_blocks.", std::span<const Spelling>(kDouble)},
        {"single_transformer_blocks.", "single_blocks.", std::span<const Spelling>(kSingle)}}) {
    const std::string start = list;
    if (!name.starts_with(start)) continue;
    const size_t dot = name.find('.', start.size()) + 1;
    return respelled(spellings, theirs + name.substr(start.size(), dot - start.size()),
                     name.substr(dot));
  }
  TensorPlace place = respelled(kOutside, "", name);
  place.swapped = name.starts_with("norm_out.");
  return place;
}

Flux2Config Flux2Config::from_tensors(const TensorFile& file) {
  const bool original = has_original_flux2_names(file);
  const TensorSizes sizes(file, [&](const std::string& name) {
    return original ? flux2_original_place(name).name : name;
  });
  Flux2Config config;
  config.double_blocks = sizes.count("transformer_blocks.", ".attn.to_out.0.weight");
  config.single_blocks = sizes.count("single_transformer_blocks.", ".attn.to_out.weight");
  const std::string block =
      config.double_blocks > 0 ? "transformer_blocks.0." : "single_transformer_blocks.0.";
  const int64_t width = sizes.extent("x_embedder.weight", 0);
  const int64_t head = sizes.extent(block + "attn.norm_q.weight", 0);
  constexpr auto kAxes = std::tuple_size_v<decltype(config.axes_dims)>;
  if (head % (2 * kAxes))
    sizes.refuse("heads of ", head, " columns are not those of FLUX.2 (legal: multiples of ",
                 2 * kAxes, ")");
  config.heads = static_cast<int>(sizes.heads(width, head));
  config.head_dim = static_cast<int>(head);
  config.axes_dims.fill(head / static_cast<int64_t>(kAxes));
  config.channels = sizes.extent("x_embedder.weight", 1);
  config.text_dim = sizes.extent("context_embedder.weight", 1);
  config.guidance_embeds = sizes.has("time_guidance_embed.guidance_embedder.linear_1.weight");
  config.ffn = config.double_blocks > 0 ? sizes.extent(block + "ff.linear_out.weight", 1)
                                        : sizes.extent(block + "attn.to_out.weight", 1) - width;
  return config;
}

}  // namespace weft
