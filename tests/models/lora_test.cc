#include "models/lora/lora.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "io/text/utf8.h"
#include "models/flux/names.h"
#include "models/z_image/transformer.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/single_files.h"

namespace weft::test {
namespace {

TEST_F(LoraTest, EveryFamilyOfFilesNamesTheSameModule) {
  const Shared up = tensor_of({24, 3}, 1), down = tensor_of({3, 24}, 2), alpha = constant({}, 6);
  const std::string changed = "blocks.1.attn2.to_out.0.weight";
  std::vector<float> first;
  for (const auto& [module, a, b] :
       {std::tuple{"transformer.blocks.1.attn2.to_out.0", ".lora_A.weight", ".lora_B.weight"},
        {"blocks.1.attn2.to_out.0", ".lora_A.default.weight", ".lora_B.default.weight"},
        {"base_model.model.blocks.1.attn2.to_out.0", ".lora_A.weight", ".lora_B.weight"},
        {"diffusion_model.blocks.1.cross_attn.o", ".lora_A.weight", ".lora_B.weight"},
        {"model.diffusion_model.blocks.1.cross_attn.o", ".lora_down.weight", ".lora_up.weight"},
        {"blocks.1.cross_attn.o", ".lora.down.weight", ".lora.up.weight"},
        {"lora_unet_blocks_1_cross_attn_o", ".lora_down.weight", ".lora_up.weight"},
        {"transformer.base_model.model.blocks.1.attn2.to_out.0", ".lora_A.a-1.weight",
         ".lora_B.a-1.weight"},
        {"pipe.dit.blocks.1.cross_attn.o", ".lora_A.default.weight", ".lora_B.default.weight"},
        {"lora_unet__blocks_1_cross_attn_o", ".lora_down.weight", ".lora_up.weight"},
        {"lora_unet_blocks_1.cross_attn.o", ".lora_down.weight", ".lora_up.weight"},
        {"lycoris_blocks_1_cross_attn.o", ".lora_down.style.weight", ".lora_up.style.weight"},
        {"lora_transformer_blocks_1_attn2_to_out_0", ".lora_down.weight", ".lora_up.weight"}}) {
    SCOPED_TRACE(module);
    Given tensors;
    tensors[std::string(module) + a] = down;
    tensors[std::string(module) + b] = up;
    tensors[std::string(module) + ".alpha"] = alpha;
    const TensorFile file = merged({write(tensors, 0.5)});
    expect_product(file, changed, 0.5 * 6 / 3, up, down);
    if (first.empty()) first = values(file, changed);
    EXPECT_EQ(values(file, changed), first);
    EXPECT_TRUE(notes_.empty());
  }
}

TEST_F(LoraTest, PartsHaveTheBitsOfTheWhole) {
  const std::string module = "diffusion_model.blocks.0.ffn.0";
  Given tensors;
  tensors[module + ".lora_down.weight"] = tensor_of({5, 24}, 1);
  tensors[module + ".lora_up.weight"] = tensor_of({40, 5}, 2);
  tensors[module + ".diff_b"] = tensor_of({40}, 3);
  const TensorFile file = merged({write(tensors, 0.7)});
  const std::string name = "blocks.0.ffn.net.0.proj.weight";
  const std::vector<float> whole = values(file, name);
  EXPECT_EQ(file.describe(name).dtype, DType::kF32);
  std::mt19937 random(3);
  for (int draw = 0; draw < 200; ++draw) {
    const auto first = static_cast<int64_t>(random() % whole.size());
    const auto count = 1 + static_cast<int64_t>(random() % (whole.size() - first));
    std::vector<float> part(static_cast<size_t>(count));
    file.read_run(name, first, TensorView(part.data(), DType::kF32, {count}));
    ASSERT_EQ(std::memcmp(part.data(), whole.data() + first, part.size() * sizeof(float)), 0);
  }
  const Tensor columns = file.read(name, 1, 7, 9);
  for (int64_t row = 0; row < 40; ++row)
    for (int64_t i = 0; i < 9; ++i)
      ASSERT_EQ(columns.as<float>()[row * 9 + i], whole[static_cast<size_t>(row * 24 + 7 + i)]);
}

TEST_F(LoraTest, FullDifferencesAreAddedAndSetWeightsReplace) {
  Given tensors;
  const std::string prefix = "diffusion_model.";
  tensors[prefix + "head.head.diff"] = tensor_of({16, 24}, 1);
  tensors[prefix + "time_projection.1.diff_b"] = tensor_of({144}, 2);
  tensors[prefix + "blocks.0.norm3.diff"] = tensor_of({24}, 3);
  tensors[prefix + "blocks.1.modulation.diff"] = tensor_of({1, 6, 24}, 4);
  tensors[prefix + "blocks.0.diff_m"] = tensor_of({1, 6, 24}, 6);
  tensors[prefix + "head.diff_m"] = tensor_of({1, 2, 24}, 7);
  tensors[prefix + "patch_embedding.set_weight"] = tensor_of({24, 4, 1, 2, 2}, 5);
  tensors[prefix + "blocks.0.norm1.diff"] = constant({24}, 0);  // has no weights
  tensors[prefix + "blocks.0.self_attn.norm_q.diff_b"] = constant({24}, 0);
  const TensorFile file = merged({write(tensors, 2)});
  const std::vector<std::pair<std::string, std::string>> places = {
      {"proj_out.weight", "head.head.diff"},
      {"condition_embedder.time_proj.bias", "time_projection.1.diff_b"},
      {"blocks.0.norm2.weight", "blocks.0.norm3.diff"},
      {"blocks.1.scale_shift_table", "blocks.1.modulation.diff"},
      {"blocks.0.scale_shift_table", "blocks.0.diff_m"},
      {"scale_shift_table", "head.diff_m"},
      {"patch_embedding.weight", "patch_embedding.set_weight"}};
  std::vector<std::string> changed;
  for (const auto& [name, from] : places) {
    changed.push_back(name);
    const std::vector<float> before = values(*base_, name), after = values(file, name);
    const float* given = tensors.at(prefix + from)->as<float>();
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(after[i], from.ends_with("set_weight") ? given[i] : before[i] + 2 * given[i])
          << name;
  }
  expect_others_unchanged(file, changed);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(LoraTest, ModulesThatFitNothingAreNamed) {
  Given tensors;
  for (const char* module : {"diffusion_model.blocks.2.self_attn.q", "diffusion_model.motion.net",
                             "vace.blocks.0.self_attn.q"}) {
    tensors[std::string(module) + ".lora_down.weight"] = tensor_of({3, 24}, 1);
    tensors[std::string(module) + ".lora_up.weight"] = tensor_of({24, 3}, 2);
  }
  refused(tensors,
          "3 modules: \"diffusion_model.blocks.2.self_attn.q\", "
          "\"diffusion_model.motion.net\", \"vace.blocks.0.self_attn.q\"");
  refused(tensors, model_->description());
  tensors.clear();
  tensors["diffusion_model.blocks.0.norm1.diff"] = constant({24}, 1);
  refused(tensors, "1 modules: \"diffusion_model.blocks.0.norm1\"");
  tensors.clear();
  tensors["diffusion_model.blocks.0.self_attn.norm_q.diff_b"] = constant({24}, 1);
  refused(tensors, "fits nothing");
  // Modules of the relatives that see an image are no fault, and are not passed over in silence.
  tensors.clear();
  tensors["diffusion_model.blocks.0.cross_attn.k_img.lora_down.weight"] = tensor_of({3, 24}, 1);
  tensors["diffusion_model.blocks.0.cross_attn.k_img.lora_up.weight"] = tensor_of({24, 3}, 2);
  const TensorFile file = merged({write(tensors)});
  expect_others_unchanged(file, {});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0], "1 modules: \"diffusion_model.blocks.0.cross_attn.k_img\""));
}

TEST_F(LoraTest, FilesThatAreNotWhatTheyMustBe) {
  const std::string q = "diffusion_model.blocks.0.self_attn.q";
  const auto pair = [&](std::vector<int64_t> up, std::vector<int64_t> down) {
    Given tensors;
    tensors[q + ".lora_up.weight"] = tensor_of(std::move(up), 1);
    tensors[q + ".lora_down.weight"] = tensor_of(std::move(down), 2);
    return tensors;
  };
  refused({}, "holds no tensors");
  refused(pair({24, 3}, {3, 23}), "the model's matrix has 24 columns");
  refused(pair({24, 4}, {3, 24}), "must have 72 values");
  refused(pair({23, 3}, {3, 24}), "the model's matrix is [24, 24]");
  refused(pair({24, 0}, {0, 24}), "must be [rank, columns]");
  Given tensors = pair({24, 3}, {3, 24});
  tensors.erase(q + ".lora_down.weight");
  refused(tensors, "no lora_A (lora_down)");
  tensors = pair({24, 3}, {3, 24});
  tensors.erase(q + ".lora_up.weight");
  refused(tensors, "no lora_B (lora_up)");
  for (const char* name : {".dora_scale", ".weight"}) {
    tensors = pair({24, 3}, {3, 24});
    tensors[q + name] = tensor_of({24}, 3);
    refused(tensors, "of a kind that is not read");
  }
  tensors = pair({24, 3}, {3, 24});
  tensors[q + ".alpha"] = constant({2}, 1);
  refused(tensors, "must be one number");
  tensors[q + ".alpha"] = std::make_shared<Tensor>(DType::kBool, std::vector<int64_t>{1});
  refused(tensors, "is bool (legal: f32, bf16, f16, f64, f8_e4m3, f8_e5m2 and integers)");
  tensors = pair({24, 3}, {3, 24});
  tensors[q + ".diff_b"] = std::make_shared<Tensor>(DType::kI32, std::vector<int64_t>{24});
  refused(tensors, "is i32 (legal: f32, bf16, f16, f64, f8_e4m3, f8_e5m2)");
  tensors = pair({24, 3}, {3, 24});
  tensors[q + ".lora_A.weight"] = tensor_of({3, 24}, 3);
  refused(tensors, "two tensors of one kind");
  tensors.clear();
  tensors[q + ".diff"] = tensor_of({24, 23}, 3);
  refused(tensors, "must have 576 values");
}

// A value that is not finite would make the whole picture NaN. Its tensor is named.
TEST_F(LoraTest, ValuesThatAreNotFiniteAreRefused) {
  const std::string module = "diffusion_model.blocks.0.self_attn.q", block = "blocks.0";
  const std::map<std::string, std::vector<int64_t>> parts = {
      {module + ".lora_up.weight", {24, 3}},
      {module + ".lora_down.weight", {3, 24}},
      {module + ".alpha", {}},
      {module + ".diff_b", {24}},
      {block + ".diff_m", {6, 24}},
      {"blocks.1.attn1.norm_q.set_weight", {24}},
      {"blocks.1.ffn.0.diff", {40, 24}},
      {"blocks.1.ffn.0.lora_B.bias", {40}},
      {"blocks.1.ffn.0.lora_A.weight", {2, 24}},
      {"blocks.1.ffn.0.lora_B.weight", {40, 2}}};
  const auto all = [&] {
    Given tensors;
    for (const auto& [name, shape] : parts) tensors[name] = tensor_of(shape, 1);
    return tensors;
  };
  (void)merged({write(all())});
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [name, shape] : parts)
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      Given tensors = all();
      const TensorView last = *tensors[name];
      auto made = std::make_shared<Tensor>(DType::kF32, shape);
      std::copy_n(last.as<float>(), last.count(), made->as<float>());
      made->as<float>()[last.count() - 1] = value;
      tensors[name] = made;
      refused(tensors, name);
      refused(tensors, "finite number");
    }
  // A number of f64 that f32 does not hold, and a factor that overflows.
  Given tensors = all();
  auto wide = std::make_shared<Tensor>(DType::kF64, std::vector<int64_t>{24});
  std::fill_n(wide->as<double>(), 24, 1e300);
  tensors[module + ".diff_b"] = wide;
  refused(tensors, module + ".diff_b\" holds NaN or infinity");
  tensors = all();
  tensors[module + ".alpha"] = constant({}, 3e38f);
  const Lora large{.file = write(tensors).file, .scale = 100};
  expect_error(ErrorKind::kModel, module + ".alpha", [&] { merged({large}); });
}

TEST_F(LoraTest, SeveralFilesAddUp) {
  const std::string name = "blocks.0.attn1.to_q.weight";
  Given one, two;
  one["blocks.0.attn1.to_q.diff"] = tensor_of({24, 24}, 1);
  two["blocks.0.self_attn.q.diff"] = tensor_of({24, 24}, 2);
  const Lora first = write(one, 0.5, "one"), second = write(two, -1, "two");
  const TensorFile both = merged({first, second}), alone = merged({first});
  const std::vector<float> base = values(*base_, name), sum = values(both, name);
  for (size_t i = 0; i < base.size(); ++i)
    ASSERT_EQ(sum[i], base[i] + 0.5f * one.begin()->second->as<float>()[i] -
                          two.begin()->second->as<float>()[i]);
  EXPECT_NE(both.header_hash(), alone.header_hash());
  EXPECT_NE(merged({write(one, 0.25, "one")}).header_hash(), alone.header_hash());
  EXPECT_NE(alone.header_hash(), base_->header_hash());
}

// Single files of Z-Image fuse the projections to queries, keys and values. LoRA files of either
// kind change weights of either kind.
TEST_F(LoraTest, FusedProjections) {
  ZImageConfig config;
  config.dim = 48;
  config.heads = 2;
  config.layers = config.refiner_layers = 1;
  config.caption_dim = 16;
  config.axes_dims = {8, 8, 8};
  open(make_z_image_model(config));
  const Shared up = tensor_of({144, 3}, 1), down = tensor_of({3, 48}, 2);
  Given tensors;
  tensors["diffusion_model.layers.0.attention.qkv.lora_up.weight"] = up;
  tensors["diffusion_model.layers.0.attention.qkv.lora_down.weight"] = down;
  const TensorFile file = merged({write(tensors)});
  std::vector<std::string> changed;
  int64_t part = 0;
  for (const char* to : {"to_q", "to_k", "to_v"}) {
    const std::string name = std::string("layers.0.attention.") + to + ".weight";
    changed.push_back(name);
    const std::vector<float> before = values(*base_, name), after = values(file, name);
    for (size_t i = 0; i < before.size(); ++i) {
      double sum = 0;
      for (int k = 0; k < 3; ++k)
        sum += double{up->as<float>()[(part * 48 + static_cast<int64_t>(i) / 48) * 3 + k]} *
               double{down->as<float>()[k * 48 + static_cast<int64_t>(i) % 48]};
      ASSERT_NEAR(after[i], before[i] + sum, 1e-6) << name;
    }
    ++part;
  }
  expect_others_unchanged(file, changed);
}

// The values that W + up * down has in rows [first, first + rows) of the product.
std::vector<float> with_product(std::vector<float> weights, const Tensor& up, const Tensor& down,
                                int64_t first) {
  const int64_t rank = down.view()[0], columns = down.count() / rank;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t row = first + static_cast<int64_t>(i) / columns,
                  column = static_cast<int64_t>(i) % columns;
    float sum = 0;
    for (int64_t k = 0; k < rank; ++k)
      sum += up.as<float>()[row * rank + k] * down.as<float>()[k * columns + column];
    weights[i] += sum;
  }
  return weights;
}

// A FLUX.1 transformer in a file with diffusers names, or with those of Black Forest Labs'
// repository, where some matrices are joined and the halves of the last modulation are exchanged.
class FluxLora : public LoraTest {
 protected:
  FluxLora() {
    flux_.heads = 2;
    flux_.head_dim = 8;
    flux_.double_blocks = flux_.single_blocks = 1;
    flux_.channels = 4;
    flux_.text_dim = 12;
    flux_.pooled_dim = 6;
    flux_.axes_dims = {2, 2, 4};
    open(make_flux_model(flux_));
    diffusers_ = base_;
    const std::string path = dir_ / "original.safetensors";
    save_flux_transformer(*diffusers_, flux_, path);
    original_ = std::make_shared<const TensorFile>(TensorFile::open(path));
  }
  // The tensor with a diffusers name, of a file with either names that the LoRAs change.
  std::vector<float> changed(bool original, const std::string& name, const Lora& lora) {
    base_ = original ? original_ : diffusers_;
    const TensorFile file = merged({lora});
    if (!original) return values(file, name);
    return values(*with_diffusers_names(file, flux_), name);
  }
  // Expects W + up * down for rows of the product that begin at `first`, in both files.
  void expect(const Lora& lora, const std::string& name, const Shared& up, const Shared& down,
              int64_t first) {
    const std::vector<float> expected = with_product(values(*diffusers_, name), *up, *down, first);
    for (const bool original : {false, true}) {
      const std::vector<float> found = changed(original, name, lora);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 1e-5) << name << (original ? " original " : " ") << i;
      EXPECT_TRUE(notes_.empty());
    }
  }

  FluxConfig flux_;
  std::shared_ptr<const TensorFile> diffusers_, original_;
};

TEST_F(FluxLora, OriginalNamesChangeEitherFile) {
  constexpr int64_t d = 16;
  const std::string block = "double_blocks.0.", single = "single_blocks.0.";
  for (const auto& [module, rows, columns] : {std::tuple{block + "img_attn.qkv", 3 * d, d},
                                              {block + "txt_attn.qkv", 3 * d, d},
                                              {single + "linear1", 7 * d, d},
                                              {single + "linear2", d, 5 * d},
                                              {block + "img_mlp.0", 4 * d, d},
                                              {std::string("txt_in"), d, 12l}}) {
    SCOPED_TRACE(module);
    const Shared up = tensor_of({rows, 3}, 1), down = tensor_of({3, columns}, 2);
    std::string flat = module;
    std::ranges::replace(flat, '.', '_');
    for (const std::string& name : {"diffusion_model." + module, "lora_unet_" + flat}) {
      const Lora lora = write({{name + ".lora_up.weight", up}, {name + ".lora_down.weight", down}});
      std::vector<std::pair<std::string, int64_t>> parts;  // with their first rows
      for (const TensorSpec& tensor : model_->tensors())
        for (const TensorPlace& place : model_->spellings(tensor.name))
          if (place.name == module + ".weight") parts.emplace_back(tensor.name, place.part * d);
      EXPECT_EQ(parts.size(), rows == 3 * d ? 3u : rows == 7 * d ? 4u : 1u);
      for (const auto& [tensor, first] : parts) expect(lora, tensor, up, down, first);
    }
  }
}

// x-flux joins queries, keys and values, and leaves out what else the original joins to them.
TEST_F(FluxLora, ProcessorsChangeEitherFile) {
  constexpr int64_t d = 16;
  const std::string block = "double_blocks.0.processor.", single = "single_blocks.0.processor.";
  const std::string attention = "transformer_blocks.0.attn.";
  for (const auto& [module, rows, columns, tensors] :
       {std::tuple{block + "qkv_lora1", 3 * d, d, std::vector<std::string>{"to_q", "to_k", "to_v"}},
        {block + "qkv_lora2", 3 * d, d, {"add_q_proj", "add_k_proj", "add_v_proj"}},
        {block + "proj_lora1", d, d, {"to_out.0"}},
        {block + "proj_lora2", d, d, {"to_add_out"}},
        {single + "qkv_lora", 3 * d, d, {"to_q", "to_k", "to_v"}},
        {single + "proj_lora", d, 5 * d, {""}}}) {
    const Shared up = tensor_of({rows, 3}, 1), down = tensor_of({3, columns}, 2);
    for (const std::string prefix : {"", "diffusion_model."}) {
      SCOPED_TRACE(prefix + module);
      const std::string name = prefix + module;
      const Lora lora = write({{name + ".up.weight", up}, {name + ".down.weight", down}});
      std::vector<std::string> names;
      for (const std::string& tensor : tensors)
        names.push_back(tensor.empty()             ? "single_transformer_blocks.0.proj_out.weight"
                        : module.starts_with("si") ? "single_" + attention + tensor + ".weight"
                                                   : attention + tensor + ".weight");
      for (size_t i = 0; i < names.size(); ++i)
        expect(lora, names[i], up, down, static_cast<int64_t>(i) * d);
      base_ = diffusers_;
      expect_others_unchanged(merged({lora}), names);
    }
  }
}

TEST_F(FluxLora, DiffusersNamesChangeEitherFile) {
  constexpr int64_t d = 16;
  for (const auto& [module, rows, columns] :
       {std::tuple{"transformer_blocks.0.attn.add_k_proj", d, d},
        {"transformer_blocks.0.attn.to_out.0", d, d},
        {"single_transformer_blocks.0.attn.to_v", d, d},
        {"single_transformer_blocks.0.proj_mlp", 4 * d, d},
        {"norm_out.linear", 2 * d, d}}) {
    SCOPED_TRACE(module);
    const Shared up = tensor_of({rows, 3}, 1), down = tensor_of({3, columns}, 2);
    const std::string name = std::string("transformer.") + module;
    expect(write({{name + ".lora_B.weight", up}, {name + ".lora_A.weight", down}}),
           std::string(module) + ".weight", up, down, 0);
  }
}

// The original repository has the shift of the last modulation before its scale.
TEST_F(FluxLora, HalvesAreExchanged) {
  constexpr int64_t d = 16;
  const std::string name = "norm_out.linear.weight";
  const Shared up = tensor_of({2 * d, 3}, 1), down = tensor_of({3, d}, 2),
               difference = tensor_of({2 * d, d}, 3);
  const std::string module = "diffusion_model.final_layer.adaLN_modulation.1";
  const Lora product =
      write({{module + ".lora_up.weight", up}, {module + ".lora_down.weight", down}}, 1, "product");
  const Lora sum = write({{module + ".diff", difference}}, 1, "sum");
  auto exchanged = std::make_shared<Tensor>(DType::kF32, std::vector<int64_t>{2 * d, 3});
  std::copy_n(up->as<float>(), d * 3, exchanged->as<float>() + d * 3);
  std::copy_n(up->as<float>() + d * 3, d * 3, exchanged->as<float>());
  expect(product, name, exchanged, down, 0);
  const std::vector<float> before = values(*diffusers_, name);
  for (const bool original : {false, true}) {
    const std::vector<float> after = changed(original, name, sum);
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(after[i], before[i] + difference->as<float>()[(i + d * d) % (2 * d * d)]);
  }
}

// FLUX.1-schnell has no guidance that LoRAs of FLUX.1-dev may change.
TEST_F(FluxLora, ThatOfAGuidedModelIsTold) {
  flux_.guidance_embeds = false;
  open(make_flux_model(flux_));
  const Shared up = tensor_of({16, 3}, 1), down = tensor_of({3, 16}, 2);
  const std::string module = "diffusion_model.guidance_in.out_layer";
  const TensorFile file =
      merged({write({{module + ".lora_up.weight", up}, {module + ".lora_down.weight", down}})});
  expect_others_unchanged(file, {});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0], "guidance_in.out_layer"));
}

TEST(LoraText, IsReadAndWritten) {
  const std::string here = std::filesystem::current_path().string();
  for (const auto& [text, file, scale, expert] :
       {std::tuple{"/a/b.safetensors", "/a/b.safetensors", 1.0, LoraExpert::kAll},
        {"b.safetensors:0.5", "b.safetensors", 0.5, LoraExpert::kAll},
        {"./b.safetensors:-1:high", "b.safetensors", -1.0, LoraExpert::kHigh},
        {"b.safetensors:low", "b.safetensors", 1.0, LoraExpert::kLow},
        {"/a:b/c:2", "/a:b/c", 2.0, LoraExpert::kAll}}) {
    SCOPED_TRACE(text);
    const std::vector<Lora> loras = parse_loras(text, "--lora");
    ASSERT_EQ(loras.size(), 1u);
    EXPECT_EQ(loras[0].file, file[0] == '/' ? file : here + "/" + file);
    EXPECT_EQ(loras[0].scale, scale);
    EXPECT_EQ(loras[0].expert, expert);
    EXPECT_EQ(parse_loras(to_string(loras), "--lora"), loras) << to_string(loras);
  }
  EXPECT_EQ(to_string(parse_loras("/a:0.25,/b:1:low", "x")), "/a:0.25,/b:1:low");
  for (const char* text : {"", ":2", "/a,,/b", "/a:x", "/a:1e9", "/a:nan", "/a:inf", "/a:-INF:high",
                           "/a:NaN(1)", "/a:1e999", "/a:0.5:middle"})
    if (*text) expect_error(ErrorKind::kUsage, "--lora is '", [&] { parse_loras(text, "--lora"); });
  EXPECT_TRUE(parse_loras("", "--lora").empty());
}

// Commas, colons and bytes of any kind in a path: an existing file wins, and what is written reads
// back the same, whatever exists.
TEST(LoraText, PathsMayHaveCommasAndColons) {
  namespace fs = std::filesystem;
  const std::string folder = testing::TempDir() + "weft_lora_" + std::to_string(getpid());
  fs::create_directories(folder);
  for (const char* name : {"a,b", "c:d", "e:0.5", "f,g:h,i", "gr\xfcn", "b"})
    std::ofstream(folder + "/" + name) << "x";
  const auto at = [&](const std::string& name) { return folder + "/" + name; };
  const auto read = [&](const std::string& text) { return parse_loras(text, "--lora"); };
  for (const auto& [text, wanted] :
       {std::pair{at("a,b"), std::vector<Lora>{{.file = at("a,b")}}},
        {at("a,b:0.5"), {{.file = at("a,b"), .scale = 0.5}}},
        {at("c:d"), {{.file = at("c:d")}}},
        {at("c:d:2:low"), {{.file = at("c:d"), .scale = 2, .expert = LoraExpert::kLow}}},
        {at("e:0.5"), {{.file = at("e:0.5")}}},
        {at("e:0.5:0.25"), {{.file = at("e:0.5"), .scale = 0.25}}},
        {at("f,g:h,i:3,") + at("b"), {{.file = at("f,g:h,i"), .scale = 3}, {.file = at("b")}}},
        {at("b,") + at("a,b:high"),
         {{.file = at("b")}, {.file = at("a,b"), .expert = LoraExpert::kHigh}}},
        {path_text(at("gr\xfcn")) + ":0.5", {{.file = at("gr\xfcn"), .scale = 0.5}}}}) {
    EXPECT_EQ(read(text), wanted) << text;
    EXPECT_EQ(read(to_string(wanted)), wanted) << to_string(wanted);
  }
  fs::remove_all(folder);
  const std::vector<Lora> gone{{.file = "/a,b:0.5,c", .scale = 2}, {.file = "/\\x2c:low"}};
  EXPECT_EQ(read(to_string(gone)), gone) << to_string(gone);
}

TEST(LoraText, AnExpertIsOneOfTwo) {
  EXPECT_TRUE((Lora{.file = "a"}.changes(0)) && (Lora{.file = "a"}.changes(1)));
  const Lora high{.file = "a", .expert = LoraExpert::kHigh},
      low{.file = "a", .expert = LoraExpert::kLow};
  EXPECT_TRUE(high.changes(0) && !high.changes(1) && !low.changes(0) && low.changes(1));
}

}  // namespace
}  // namespace weft::test
