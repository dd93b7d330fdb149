#include "models/flux/names.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr const char kOriginalMark[] = "double_blocks.0.img_attn.qkv.weight";
constexpr const char kDiffusersMark[] = "transformer_blocks.0.attn.add_q_proj.weight";
constexpr const char kSingleMark[] = "single_transformer_blocks.0.proj_mlp.weight";

// Pairs of (diffusers, original) spellings of the beginning of a name, and of what follows the
// number of a block of either kind.
using Spelling = std::pair<const char*, const char*>;
constexpr Spelling kOutside[] = {
    {"x_embedder.", "img_in."},
    {"context_embedder.", "txt_in."},
    {"time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer."},
    {"time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer."},
    {"time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."},
    {"time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."},
    {"time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."},
    {"time_text_embed.text_embedder.linear_2.", "vector_in.out_layer."},
    {"norm_out.linear.", "final_layer.adaLN_modulation.1."},
    {"proj_out.", "final_layer.linear."}};
constexpr Spelling kDouble[] = {{"norm1.linear.", "img_mod.lin."},
                                {"norm1_context.linear.", "txt_mod.lin."},
                                {"attn.to_q.", "img_attn.qkv."},
                                {"attn.to_k.", "img_attn.qkv."},
                                {"attn.to_v.", "img_attn.qkv."},
                                {"attn.norm_q.weight", "img_attn.norm.query_norm.scale"},
                                {"attn.norm_k.weight", "img_attn.norm.key_norm.scale"},
                                {"attn.to_out.0.", "img_attn.proj."},
                                {"ff.net.0.proj.", "img_mlp.0."},
                                {"ff.net.2.", "img_mlp.2."},
                                {"attn.add_q_proj.", "txt_attn.qkv."},
                                {"attn.add_k_proj.", "txt_attn.qkv."},
                                {"attn.add_v_proj.", "txt_attn.qkv."},
                                {"attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"},
                                {"attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"},
                                {"attn.to_add_out.", "txt_attn.proj."},
                                {"ff_context.net.0.proj.", "txt_mlp.0."},
                                {"ff_context.net.2.", "txt_mlp.2."}};
constexpr Spelling kSingle[] = {{"norm.linear.", "modulation.lin."},
                                {"attn.to_q.", "linear1."},
                                {"attn.to_k.", "linear1."},
                                {"attn.to_v.", "linear1."},
                                {"proj_mlp.", "linear1."},
                                {"attn.norm_q.weight", "norm.query_norm.scale"},
                                {"attn.norm_k.weight", "norm.key_norm.scale"},
                                {"proj_out.", "linear2."}};

// The same for the processors of x-flux, after `processor.`.
constexpr Spelling kDoubleProcessor[] = {
    {"attn.to_q.", "qkv_lora1."},       {"attn.to_k.", "qkv_lora1."},
    {"attn.to_v.", "qkv_lora1."},       {"attn.to_out.0.", "proj_lora1."},
    {"attn.add_q_proj.", "qkv_lora2."}, {"attn.add_k_proj.", "qkv_lora2."},
    {"attn.add_v_proj.", "qkv_lora2."}, {"attn.to_add_out.", "proj_lora2."}};
constexpr Spelling kSingleProcessor[] = {{"attn.to_q.", "qkv_lora."},
                                         {"attn.to_k.", "qkv_lora."},
                                         {"attn.to_v.", "qkv_lora."},
                                         {"proj_out.", "proj_lora."}};
// The parts of a matrix that joins several.
constexpr std::pair<const char*, int64_t> kJoined[] = {
    {"attn.to_q.", 0},       {"attn.to_k.", 1},       {"attn.to_v.", 2}, {"attn.add_q_proj.", 0},
    {"attn.add_k_proj.", 1}, {"attn.add_v_proj.", 2}, {"proj_mlp.", 3}};

std::optional<int64_t> joined_part(const std::string& rest) {
  for (const auto& [start, part] : kJoined)
    if (rest.starts_with(start)) return part;
  return std::nullopt;
}

// The name of a tensor of a block.
struct BlockName {
  bool single = false;
  std::string original;  // the block with its number, in the original spelling
  std::string rest;
};

std::optional<BlockName> block_of(const std::string& name) {
  for (const auto& [list, theirs, single] :
       {std::tuple{"transformer_blocks.", "double_blocks.", false},
        {"single_transformer_blocks.", "single_blocks.", true}}) {
    const std::string start = list;
    if (!name.starts_with(start)) continue;
    const size_t dot = name.find('.', start.size()) + 1;
    return BlockName{single, theirs + name.substr(start.size(), dot - start.size()),
                     name.substr(dot)};
  }
  return std::nullopt;
}

// Returns the original spelling of a name that one of the pairs begins, or "".
std::string respelled(std::span<const Spelling> pairs, const std::string& name) {
  for (const auto& [ours, theirs] : pairs)
    if (const std::string start = ours; name.starts_with(start))
      return theirs + name.substr(start.size());
  return "";
}

bool has_original_flux_names(const TensorNames& names) { return names.contains(kOriginalMark); }

// A tensor in the file: its place, and how many values it has and how many of the file's tensor
// precede them.
struct Source {
  TensorPlace place;
  int64_t before = 0, values = 0;

  // Writes the values [first, first + out.count()).
  void read(const TensorFile& file, int64_t first, const TensorView& out) const {
    const int64_t half = values / 2, end = first + out.count();
    for (int64_t at = first; at < end;) {
      const int64_t stop = place.swapped && at < half ? std::min(half, end) : end;
      const int64_t from = !place.swapped ? before + at : at < half ? at + half : at - half;
      file.read_run(place.name, from, out.slice(0, at - first, stop - at));
      at = stop;
    }
  }
};

}  // namespace

bool holds_flux(const TensorNames& names) {
  return has_original_flux_names(names) ||
         (names.contains(kDiffusersMark) && names.contains(kSingleMark));
}

TensorPlace flux_original_place(const FluxConfig& config, const std::string& name) {
  const std::optional<BlockName> block = block_of(name);
  if (!block) return {.name = respelled(kOutside, name), .swapped = name.starts_with("norm_out.")};
  TensorPlace place{.name = block->original + (block->single ? respelled(kSingle, block->rest)
                                                             : respelled(kDouble, block->rest))};
  if (const auto part = joined_part(block->rest)) {
    const int64_t ffn = config.ffn() / config.width();
    place.part = *part;
    place.parts = block->single ? 3 + ffn : 3;
    place.taken = *part == 3 ? ffn : 1;
  }
  return place;
}

TensorPlace flux_processor_place(const std::string& name) {
  const std::optional<BlockName> block = block_of(name);
  if (!block) return {};
  const std::string rest = block->single ? respelled(kSingleProcessor, block->rest)
                                         : respelled(kDoubleProcessor, block->rest);
  if (rest.empty()) return {};
  TensorPlace place{.name = block->original + "processor." + rest};
  if (const auto part = joined_part(block->rest)) {
    place.part = *part;
    place.parts = 3;
  }
  return place;
}

std::optional<TensorFile> with_diffusers_names(const TensorFile& file, const FluxConfig& config) {
  if (!has_original_flux_names(file)) return std::nullopt;
  auto sources = std::make_shared<std::map<std::string, Source>>();
  std::vector<TensorFile::Generated> list;
  for (const TensorSpec& tensor : flux_tensors(config)) {
    const TensorPlace place = flux_original_place(config, tensor.name);
    if (!file.contains(place.name)) continue;  // the binder says so
    const TensorView view = file.describe(place.name);
    int64_t columns = 1;
    for (int dim = 1; dim < view.rank; ++dim) columns *= view[dim];
    const bool joined = place.parts > 1;
    const int64_t rows = joined ? tensor.shape[0] : view.rank ? view[0] : 1;
    const bool sound = !joined || (view.rank > 0 && view[0] == place.parts * config.width());
    TensorFile::Generated entry{.name = tensor.name,
                                .dtype = view.dtype,
                                .shape = {view.shape().begin(), view.shape().end()},
                                .stored = file.stored_type(place.name)};
    // A joined tensor of other extents keeps them, so that the binder names it.
    if (sound && joined) entry.shape[0] = rows;
    const int64_t first_row = sound ? place.part * config.width() : 0;
    (*sources)[tensor.name] = {place, first_row * columns, rows * columns};
    list.push_back(std::move(entry));
  }
  return TensorFile::derived(
      list,
      [&file, sources](const std::string& name, int64_t first, const TensorView& out) {
        const auto found = sources->find(name);
        CHECK(found != sources->end(), name);
        found->second.read(file, first, out);
      },
      {.format = file.format(),
       .files = file.files(),
       .metadata = file.metadata(),
       .header_hash = file.header_hash(),
       .bytes = file.bytes()});
}

FluxConfig FluxConfig::from_tensors(const TensorFile& file) {
  const bool original = has_original_flux_names(file);
  FluxConfig config;
  const TensorSizes sizes(file, [&](const std::string& name) {
    return original ? flux_original_place(config, name).name : name;
  });
  const int64_t width = sizes.extent("x_embedder.weight", 0);
  const int64_t head = sizes.extent("transformer_blocks.0.attn.norm_q.weight", 0);
  int64_t axes = 0;
  for (const int64_t dims : config.axes_dims) axes += dims;
  if (width % head || head != axes)
    sizes.refuse("heads of ", head, " columns in a width of ", width,
                 " are not those of FLUX.1 (legal: ", axes, ")");
  config.head_dim = static_cast<int>(head);
  config.heads = static_cast<int>(width / head);
  config.channels = sizes.extent("x_embedder.weight", 1) / (config.patch[1] * config.patch[2]);
  config.text_dim = sizes.extent("context_embedder.weight", 1);
  config.pooled_dim = sizes.extent("time_text_embed.text_embedder.linear_1.weight", 1);
  config.guidance_embeds = sizes.has("time_text_embed.guidance_embedder.linear_1.weight");
  config.double_blocks = sizes.count("transformer_blocks.", ".attn.to_q.weight");
  config.single_blocks = sizes.count("single_transformer_blocks.", ".proj_mlp.weight");
  return config;
}

}  // namespace weft
