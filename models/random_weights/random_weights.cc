#include "models/random_weights/random_weights.h"

#include <map>

#include "kernels/copy.h"
#include "models/flux/transformer.h"
#include "models/flux2/transformer.h"
#include "models/krea2/transformer.h"
#include "models/qwen_image/transformer.h"
#include "models/z_image/transformer.h"

namespace weft {

WanConfig wan_1_3b(int layers) {
  WanConfig config;
  config.heads = 12;
  config.head_dim = 128;
  config.layers = layers;
  config.ffn_dim = 8960;
  config.in_channels = config.out_channels = 16;
  return config;
}

WanConfig wan_14b(int layers) {
  WanConfig config = wan_1_3b(layers);
  config.heads = 40;
  config.ffn_dim = 13824;
  return config;
}

namespace {

// Wan 2.1 14B and Wan 2.2 A14B from a picture: its channels come with the latent's, and Wan 2.1
// also reads `image_rows` rows of an image encoder.
WanConfig wan_14b_of_pictures(int64_t image_rows) {
  constexpr int64_t kRows = 257;  // of one picture
  WanConfig config = wan_14b();
  config.in_channels = 36;
  config.image_dim = image_rows > 0 ? 1280 : 0;
  config.image_keys = image_rows > 0;
  config.image_positions = image_rows > kRows ? image_rows : 0;
  return config;
}

WanConfig wan_5b() {
  WanConfig config = wan_1_3b();
  config.heads = 24;
  config.ffn_dim = 14336;
  config.in_channels = config.out_channels = 48;
  return config;
}

FluxConfig flux(bool guidance_embeds) {
  FluxConfig config;
  config.guidance_embeds = guidance_embeds;
  return config;
}

Flux2Config flux2(int heads, int double_blocks, int single_blocks, int64_t text_dim) {
  Flux2Config config;
  config.heads = heads;
  config.double_blocks = double_blocks;
  config.single_blocks = single_blocks;
  config.text_dim = text_dim;
  config.ffn = 3 * config.width();
  return config;
}

Flux2Config flux2_dev() {
  Flux2Config config = flux2(48, 8, 48, 15360);
  config.guidance_embeds = true;
  return config;
}

using Model = std::unique_ptr<TransformerModel>;

struct Published {
  const char* name;
  Model (*make)();
};
constexpr Published kPublished[] = {
    {"wan2.1-1.3b", []() -> Model { return make_wan_model(wan_1_3b()); }},
    {"wan2.1-14b", []() -> Model { return make_wan_model(wan_14b()); }},
    {"wan2.1-i2v-14b", []() -> Model { return make_wan_model(wan_14b_of_pictures(257)); }},
    {"wan2.1-flf2v-14b", []() -> Model { return make_wan_model(wan_14b_of_pictures(514)); }},
    {"wan2.2-i2v-a14b", []() -> Model { return make_wan_model(wan_14b_of_pictures(0)); }},
    {"wan2.2-ti2v-5b", []() -> Model { return make_wan_model(wan_5b()); }},
    {"z-image", []() -> Model { return make_z_image_model({}); }},
    {"qwen-image", []() -> Model { return make_qwen_image_model({}); }},
    {"krea-2", []() -> Model { return make_krea2_model({}); }},
    {"flux.1-dev", []() -> Model { return make_flux_model(flux(true)); }},
    {"flux.1-schnell", []() -> Model { return make_flux_model(flux(false)); }},
    {"flux.2-klein-4b", []() -> Model { return make_flux2_model({}); }},
    {"flux.2-klein-9b", []() -> Model { return make_flux2_model(flux2(32, 8, 24, 12288)); }},
    {"flux.2-dev", []() -> Model { return make_flux2_model(flux2_dev()); }}};

}  // namespace

std::string published_transformers() {
  std::string names;
  for (const Published& row : kPublished)
    names += (names.empty() ? "" : "|") + std::string(row.name);
  return names;
}

std::shared_ptr<const TransformerModel> published_transformer(const std::string& name) {
  for (const Published& row : kPublished)
    if (name == row.name) return row.make();
  throw Error(ErrorKind::kUsage,
              "no published transformer is named " + name + "; legal: " + published_transformers());
}

DecoderConfig qwen3_0_6b() {
  return {.hidden = 1024,
          .ffn = 3072,
          .vocab = 151936,
          .layers = 28,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .head_norms = true,
          .tied = true,
          .max_positions = 40960};
}

void fill_random(uint64_t seed, const TensorView& out) {
  CHECK(out.dtype == DType::kBF16 && out.contiguous(), out.to_string_shape());
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  auto* bits = static_cast<uint16_t*>(out.data);
  for (int64_t i = 0, count = out.count(); i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bits[i] = static_cast<uint16_t>((state >> 48 & 0x807f) | 0x3c80);  // sign and mantissa
  }
}

TensorFile random_tensors(const std::vector<TensorSpec>& specs, uint64_t first_seed,
                          DType vectors) {
  std::vector<TensorFile::Generated> tensors;
  std::map<std::string, uint64_t> seeds;
  for (const TensorSpec& spec : specs) {
    seeds.emplace(spec.name, first_seed + seeds.size());
    tensors.push_back({.name = spec.name,
                       .dtype = spec.shape.size() == 1 ? vectors : DType::kBF16,
                       .shape = spec.shape});
  }
  return TensorFile::generated(tensors, [seeds](const std::string& name, const TensorView& out) {
    if (out.dtype == DType::kBF16) return fill_random(seeds.at(name), out);
    const Tensor values(DType::kBF16, out.shape());
    fill_random(seeds.at(name), values);
    Stream host = Stream::cpu(1);
    copy(host, values, out);
    for (int64_t i = 0; i < out.count(); ++i) out.as<float>()[i] *= 1 + 0x1p-12f;
  });
}

TensorFile random_wan(const WanConfig& config) { return random_tensors(wan_tensors(config)); }

void write_random(const std::string& path, const TensorFile& tensors) {
  std::vector<std::pair<std::string, TensorView>> list;
  for (const std::string& name : tensors.names()) list.emplace_back(name, tensors.view(name));
  write_safetensors(path, list);
}

}  // namespace weft
