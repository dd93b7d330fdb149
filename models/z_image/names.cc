#include "models/z_image/names.h"

#include <utility>

#include "kernels/check.h"
#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr const char* kMark = "cap_embedder.1.weight";

// Pairs of (diffusers, single file) spellings. The embedders' diffusers names also hold the patch.
constexpr std::pair<const char*, const char*> kSpellings[] = {{"all_x_embedder.", "x_embedder."},
                                                              {"all_final_layer.", "final_layer."},
                                                              {".to_out.0.", ".out."},
                                                              {".norm_q.", ".q_norm."},
                                                              {".norm_k.", ".k_norm."}};
constexpr const char* kFused[] = {".to_q.", ".to_k.", ".to_v."};

}  // namespace

TensorPlace ZImageNames::operator()(const std::string& name) const {
  TensorPlace place{.name = name};
  if (!single_file) return place;
  const auto replace = [&](const std::string& ours, const std::string& theirs) {
    const size_t at = place.name.find(ours);
    if (at != std::string::npos) place.name.replace(at, ours.size(), theirs);
    return at != std::string::npos;
  };
  for (const auto& [ours, theirs] : kSpellings)
    if (replace(ours, theirs)) replace(patch + ".", "");
  for (int64_t part = 0; part < 3; ++part)
    if (replace(kFused[part], ".qkv.")) {
      place.part = part;
      place.parts = 3;
    }
  return place;
}

bool holds_z_image(const TensorNames& names) { return names.contains(kMark); }

ZImageNames detect_z_image_names(const TensorFile& file) {
  if (file.contains(kMark)) return {.single_file = file.contains("x_embedder.weight")};
  throw Error(ErrorKind::kModel, shown_name(file) +
                                     ": no tensor has a name of a Z-Image transformer (" + kMark +
                                     "), in the diffusers or the single-file spelling");
}

}  // namespace weft
