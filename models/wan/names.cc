#include "models/wan/names.h"

#include <utility>

#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

// Pairs of (diffusers, original) spellings. All that occur anywhere in a name are applied, in
// order. The original's norm3 is diffusers' norm2, because the original's own norm2 has no
// parameters.
constexpr std::pair<const char*, const char*> kSpellings[] = {
    {"condition_embedder.time_embedder.linear_1", "time_embedding.0"},
    {"condition_embedder.time_embedder.linear_2", "time_embedding.2"},
    {"condition_embedder.time_proj", "time_projection.1"},
    {"condition_embedder.text_embedder.linear_1", "text_embedding.0"},
    {"condition_embedder.text_embedder.linear_2", "text_embedding.2"},
    {"condition_embedder.image_embedder.norm1", "img_emb.proj.0"},
    {"condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"},
    {"condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"},
    {"condition_embedder.image_embedder.norm2", "img_emb.proj.4"},
    {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
    {"proj_out", "head.head"},
    {".scale_shift_table", ".modulation"},
    {".attn1.", ".self_attn."},
    {".attn2.", ".cross_attn."},
    {".to_q.", ".q."},
    {".to_k.", ".k."},
    {".to_v.", ".v."},
    {".to_out.0.", ".o."},
    {".add_k_proj.", ".k_img."},
    {".add_v_proj.", ".v_img."},
    {".norm_added_k.", ".norm_k_img."},
    {".norm2.", ".norm3."},
    {".ffn.net.0.proj.", ".ffn.0."},
    {".ffn.net.2.", ".ffn.2."},
};

// Parts of names that occur in only one of the two spellings.
constexpr const char* kDiffusersMarks[] = {"condition_embedder.", "proj_out.", ".attn1.",
                                           ".attn2."};
constexpr const char* kOriginalMarks[] = {"time_embedding.", "time_projection.", "text_embedding.",
                                          "head.modulation", "head.head.",       ".self_attn.",
                                          ".cross_attn."};

template <class Marks>
bool has_mark(const std::string& name, const Marks& marks) {
  for (const char* mark : marks)
    if (name.find(mark) != std::string::npos) return true;
  return false;
}

}  // namespace

std::string WanNames::operator()(const std::string& name) const {
  if (!original) return name;
  if (name == "scale_shift_table") return "head.modulation";
  std::string out = name;
  for (const auto& [ours, theirs] : kSpellings)
    if (const size_t at = out.find(ours); at != std::string::npos)
      out.replace(at, std::string(ours).size(), theirs);
  return out;
}

bool holds_wan(const TensorNames& names) {
  return names.contains("patch_embedding.weight") &&
         (names.contains("head.modulation") ||
          names.contains("condition_embedder.time_proj.weight"));
}

WanNames detect_wan_names(const TensorFile& file) {
  int diffusers = 0, original = 0;
  for (const std::string& name : file.names()) {
    diffusers += has_mark(name, kDiffusersMarks);
    original += has_mark(name, kOriginalMarks);
  }
  if (diffusers + original == 0)
    throw Error(ErrorKind::kModel,
                shown_name(file) +
                    ": no tensor has a name of a Wan transformer, in the diffusers or the original "
                    "spelling");
  return {.original = original > diffusers};
}

}  // namespace weft
