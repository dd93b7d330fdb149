// The names of modules in the files of programs that train and convert LoRAs: diffusers (PEFT),
// ai-toolkit, kohya and musubi, OneTrainer, SimpleTuner (LyCORIS), lightx2v, DiffSynth, ComfyUI.
#include "models/flux/transformer.h"
#include "models/flux2/transformer.h"
#include "models/krea2/transformer.h"
#include "models/qwen_image/transformer.h"
#include "models/z_image/transformer.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Strings = std::vector<std::string>;

// Names of one module, and the tensors whose rows it changes, one after the other.
struct NamedModule {
  Strings names, tensors;
  bool halves = false;  // the halves of the tensor's rows stand the other way round in the file
};

class LoraForms : public LoraTest {
 protected:
  // Two factors, by each pair of endings.
  void expect_named(const std::vector<NamedModule>& modules) {
    for (const NamedModule& module : modules) {
      rows_ = 0;
      for (const std::string& tensor : module.tensors)
        rows_ += base_->describe(tensor + ".weight")[0];
      const TensorView like = base_->describe(module.tensors[0] + ".weight");
      columns_ = like.count() / like[0];
      for (const std::string& name : module.names) {
        SCOPED_TRACE(name);
        const Shared down = tensor_of({4, columns_}, 1), up = tensor_of({rows_, 4}, 2);
        delta_ = product(*up, *down);
        for (const auto& [a, b] : {std::pair{".lora_A.weight", ".lora_B.weight"},
                                   {".lora_A.default.weight", ".lora_B.default.weight"},
                                   {".lora_down.weight", ".lora_up.weight"},
                                   {".lora.down.weight", ".lora.up.weight"}})
          expect_changed({{name + a, down}, {name + b, up}, {name + ".alpha", constant({}, 2)}},
                         module, 0.5f);
        const int64_t one = rows_ % 4 == 0 ? 4 : 1, two = columns_ % 2 == 0 ? 2 : 1;
        const Shared w1 = tensor_of({one, two}, 3),
                     w2 = tensor_of({rows_ / one, columns_ / two}, 4);
        for (int64_t i = 0; i < rows_ * columns_; ++i) {
          const int64_t row = i / columns_, column = i % columns_;
          const int64_t inner = rows_ / one, wide = columns_ / two;
          delta_[static_cast<size_t>(i)] = w1->as<float>()[row / inner * two + column / wide] *
                                           w2->as<float>()[row % inner * wide + column % wide];
        }
        // PEFT would state alpha elsewhere.
        const size_t notes = name.starts_with("base_model.model.") ? 1 : 0;
        expect_changed({{name + ".lokr_w1", w1}, {name + ".lokr_w2", w2}}, module, 1, notes);
      }
    }
  }

 private:
  std::vector<float> product(const Tensor& up, const Tensor& down) const {
    std::vector<float> out;
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t column = 0; column < columns_; ++column) {
        float sum = 0;
        for (int64_t k = 0; k < 4; ++k)
          sum += up.as<float>()[row * 4 + k] * down.as<float>()[k * columns_ + column];
        out.push_back(sum);
      }
    return out;
  }
  void expect_changed(const Given& given, const NamedModule& module, float factor,
                      size_t notes = 0) {
    const TensorFile file = merged({write(given)});
    Strings changed;
    size_t at = 0;
    for (const std::string& name : module.tensors) {
      changed.push_back(name + ".weight");
      const std::vector<float> before = values(*base_, changed.back()),
                               after = values(file, changed.back());
      for (size_t i = 0; i < before.size(); ++i, ++at) {
        const size_t from = module.halves ? (at + delta_.size() / 2) % delta_.size() : at;
        ASSERT_NEAR(after[i], before[i] + factor * delta_[from], 2e-5) << name << " " << i;
      }
    }
    EXPECT_EQ(at, delta_.size());
    EXPECT_EQ(notes_.size(), notes) << testing::PrintToString(notes_);
    for (const std::string& name : file.names())
      if (std::ranges::count(changed, name) == 0) {
        ASSERT_EQ(values(file, name), values(*base_, name)) << name;
      }
  }

  int64_t rows_ = 0, columns_ = 0;
  std::vector<float> delta_;  // rows by columns
};

TEST_F(LoraForms, Wan) {
  expect_named({{{"transformer.blocks.1.attn1.to_q", "diffusion_model.blocks.1.self_attn.q",
                  "lora_unet_blocks_1_self_attn_q", "lora_unet__blocks_1_self_attn_q",
                  "blocks.1.self_attn.q", "pipe.dit.blocks.1.self_attn.q",
                  "base_model.model.blocks.1.self_attn.q", "lycoris_blocks_1_attn1_to_q",
                  "diffusion_model.blocks.1.attn1.to_q"},
                 {"blocks.1.attn1.to_q"}},
                {{"lora_unet_blocks_0_cross_attn_o", "blocks.0.attn2.to_out.0",
                  "diffusion_model.blocks.0.cross_attn.o"},
                 {"blocks.0.attn2.to_out.0"}},
                {{"lora_unet_blocks_0_ffn_0", "transformer.blocks.0.ffn.net.0.proj",
                  "diffusion_model.blocks.0.ffn.0"},
                 {"blocks.0.ffn.net.0.proj"}},
                {{"lora_unet_time_projection_1", "diffusion_model.time_projection.1",
                  "transformer.condition_embedder.time_proj"},
                 {"condition_embedder.time_proj"}},
                {{"lora_unet_text_embedding_0", "diffusion_model.text_embedding.0"},
                 {"condition_embedder.text_embedder.linear_1"}},
                {{"lora_unet_head_head", "diffusion_model.head.head"}, {"proj_out"}}});
}

TEST_F(LoraForms, QwenImage) {
  QwenImageConfig config;
  config.heads = 2;
  config.head_dim = 16;
  config.layers = 1;
  config.channels = 4;
  config.text_dim = 12;
  config.axes_dims = {4, 6, 6};
  open(make_qwen_image_model(config));
  std::vector<NamedModule> modules;
  for (const std::string end : {"attn.to_q", "attn.add_k_proj", "attn.to_out.0", "attn.to_add_out",
                                "img_mod.1", "txt_mod.1", "img_mlp.net.0.proj", "txt_mlp.net.2"}) {
    const std::string name = "transformer_blocks.0." + end;
    std::string flat = name;
    std::ranges::replace(flat, '.', '_');
    modules.push_back(
        {{name, "transformer." + name, "diffusion_model." + name, "base_model.model." + name,
          "pipe.dit." + name, "lora_unet_" + flat, "lycoris_" + flat, "lora_transformer_" + flat},
         {name}});
  }
  modules.push_back({{"lora_unet_time_text_embed_timestep_embedder_linear_1",
                      "transformer.time_text_embed.timestep_embedder.linear_1"},
                     {"time_text_embed.timestep_embedder.linear_1"}});
  modules.push_back(
      {{"lora_unet_norm_out_linear", "diffusion_model.norm_out.linear"}, {"norm_out.linear"}});
  modules.push_back({{"lora_unet_img_in", "diffusion_model.img_in"}, {"img_in"}});
  expect_named(modules);
}

TEST_F(LoraForms, Flux) {
  FluxConfig config;
  config.heads = 2;
  config.head_dim = 8;
  config.double_blocks = config.single_blocks = 1;
  config.channels = 4;
  config.text_dim = 12;
  config.pooled_dim = 6;
  config.axes_dims = {2, 2, 4};
  open(make_flux_model(config));
  const std::string block = "transformer_blocks.0.", single = "single_transformer_blocks.0.";
  expect_named(
      {{{"lora_unet_double_blocks_0_img_attn_qkv", "diffusion_model.double_blocks.0.img_attn.qkv",
         "base_model.model.double_blocks.0.img_attn.qkv", "lycoris_double_blocks_0_img_attn_qkv"},
        {block + "attn.to_q", block + "attn.to_k", block + "attn.to_v"}},
       {{"lora_unet_double_blocks_0_txt_mlp_2", "diffusion_model.double_blocks.0.txt_mlp.2",
         "lora_transformer_transformer_blocks_0_ff_context_net_2",
         "lycoris_transformer_blocks_0_ff_context_net_2",
         "transformer.transformer_blocks.0.ff_context.net.2"},
        {block + "ff_context.net.2"}},
       {{"lora_unet_double_blocks_0_img_mod_lin", "transformer.transformer_blocks.0.norm1.linear"},
        {block + "norm1.linear"}},
       {{"lora_transformer_transformer_blocks_0_attn_add_q_proj",
         "lora_unet_transformer_blocks_0_attn_add_q_proj",
         "transformer.transformer_blocks.0.attn.add_q_proj",
         "lycoris_transformer_blocks_0_attn_add_q_proj"},
        {block + "attn.add_q_proj"}},
       {{"lora_unet_single_blocks_0_linear1", "diffusion_model.single_blocks.0.linear1"},
        {single + "attn.to_q", single + "attn.to_k", single + "attn.to_v", single + "proj_mlp"}},
       {{"lora_unet_single_blocks_0_linear2", "transformer.single_transformer_blocks.0.proj_out",
         "lora_transformer_single_transformer_blocks_0_proj_out"},
        {single + "proj_out"}},
       {{"lora_unet_single_blocks_0_modulation_lin",
         "lycoris_single_transformer_blocks_0_norm_linear"},
        {single + "norm.linear"}},
       {{"lora_unet_img_in", "transformer.x_embedder"}, {"x_embedder"}},
       {{"lora_unet_final_layer_adaLN_modulation_1",
         "diffusion_model.final_layer.adaLN_modulation.1"},
        {"norm_out.linear"},
        true}});
}

TEST_F(LoraForms, Flux2) {
  Flux2Config config;
  config.heads = 2;
  config.head_dim = 16;
  config.axes_dims = {4, 4, 4, 4};
  config.double_blocks = config.single_blocks = 1;
  config.text_dim = 24;
  config.channels = 8;
  config.ffn = 3 * config.width();
  open(make_flux2_model(config));
  const std::string block = "transformer_blocks.0.", single = "single_transformer_blocks.0.";
  expect_named(
      {{{"lora_unet_double_blocks_0_txt_attn_qkv", "diffusion_model.double_blocks.0.txt_attn.qkv",
         "base_model.model.double_blocks.0.txt_attn.qkv"},
        {block + "attn.add_q_proj", block + "attn.add_k_proj", block + "attn.add_v_proj"}},
       {{"transformer.transformer_blocks.0.attn.to_k",
         "diffusion_model.transformer_blocks.0.attn.to_k",
         "diffusion_model.sformer_blocks.0.attn.to_k", "lycoris_transformer_blocks_0_attn_to_k",
         "transformer_blocks.0.attn.to_k"},
        {block + "attn.to_k"}},
       {{"lora_unet_double_blocks_0_img_mlp_0", "diffusion_model.double_blocks.0.img_mlp.0",
         "transformer.transformer_blocks.0.ff.linear_in",
         "lycoris_transformer_blocks_0_ff_linear_in"},
        {block + "ff.linear_in"}},
       {{"lora_unet_double_blocks_0_img_attn_proj",
         "transformer.transformer_blocks.0.attn.to_out.0"},
        {block + "attn.to_out.0"}},
       {{"lora_unet_single_blocks_0_linear1", "diffusion_model.single_blocks.0.linear1",
         "transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj",
         "diffusion_model.single_transformer_blocks.0.attn.to_qkv_mlp_proj"},
        {single + "attn.to_qkv_mlp_proj"}},
       {{"lora_unet_single_blocks_0_linear2", "base_model.model.single_blocks.0.linear2",
         "lycoris_single_transformer_blocks_0_attn_to_out"},
        {single + "attn.to_out"}},
       {{"lora_unet_img_in", "diffusion_model.img_in"}, {"x_embedder"}},
       {{"lora_unet_txt_in", "transformer.context_embedder"}, {"context_embedder"}},
       {{"lora_unet_time_in_in_layer", "diffusion_model.time_in.in_layer"},
        {"time_guidance_embed.timestep_embedder.linear_1"}},
       {{"lora_unet_double_stream_modulation_img_lin",
         "transformer.double_stream_modulation_img.linear"},
        {"double_stream_modulation_img.linear"}},
       {{"lora_unet_final_layer_linear", "transformer.proj_out"}, {"proj_out"}},
       {{"diffusion_model.final_layer.adaLN_modulation.1"}, {"norm_out.linear"}, true}});
}

TEST_F(LoraForms, Krea2) {
  Krea2Config config;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.axes_dims = {4, 6, 6};
  config.layers = 1;
  config.ffn = 40;
  config.text_dim = 24;
  config.text_ffn = 32;
  config.taps = 4;
  config.text_heads = config.text_kv_heads = 2;
  open(make_krea2_model(config));
  const std::string block = "transformer_blocks.0.";
  expect_named(
      {{{"transformer.transformer_blocks.0.attn.to_k", "diffusion_model.blocks.0.attn.wk",
         "base_model.model.blocks.0.attn.wk", "lora_unet_blocks_0_attn_wk", "blocks.0.attn.wk",
         "lycoris_transformer_blocks_0_attn_to_k",
         "lora_transformer_transformer_blocks_0_attn_to_k"},
        {block + "attn.to_k"}},
       {{"diffusion_model.blocks.0.attn.gate", "transformer.transformer_blocks.0.attn.to_gate"},
        {block + "attn.to_gate"}},
       {{"diffusion_model.blocks.0.mlp.down", "lora_unet_blocks_0_mlp_down",
         "lycoris_transformer_blocks_0_ff_down"},
        {block + "ff.down"}},
       {{"diffusion_model.txtfusion.layerwise_blocks.0.attn.wo",
         "transformer.text_fusion.layerwise_blocks.0.attn.to_out.0"},
        {"text_fusion.layerwise_blocks.0.attn.to_out.0"}},
       {{"diffusion_model.first", "lora_unet_first", "transformer.img_in"}, {"img_in"}},
       {{"diffusion_model.tmlp.2", "lora_unet_tmlp_2"}, {"time_embed.linear_2"}},
       {{"diffusion_model.last.linear", "transformer.final_layer.linear"},
        {"final_layer.linear"}}});
}

TEST_F(LoraForms, ZImage) {
  ZImageConfig config;
  config.dim = 48;
  config.heads = 2;
  config.layers = config.refiner_layers = 1;
  config.caption_dim = 16;
  config.axes_dims = {8, 8, 8};
  open(make_z_image_model(config));
  const std::string attention = "layers.0.attention.";
  expect_named(
      {{{"diffusion_model.layers.0.attention.qkv", "lora_unet_layers_0_attention_qkv",
         "lycoris_layers_0_attention_qkv"},
        {attention + "to_q", attention + "to_k", attention + "to_v"}},
       {{"diffusion_model.layers.0.attention.to_v", "transformer.layers.0.attention.to_v",
         "lora_unet_layers_0_attention_to_v", "layers.0.attention.to_v",
         "lycoris_layers_0_attention_to_v", "pipe.dit.layers.0.attention.to_v"},
        {attention + "to_v"}},
       {{"diffusion_model.layers.0.attention.out", "transformer.layers.0.attention.to_out.0",
         "lora_unet_layers_0_attention_out", "lora_unet_layers_0_attention_to_out_0"},
        {attention + "to_out.0"}},
       {{"diffusion_model.layers.0.feed_forward.w1", "lora_unet_layers_0_feed_forward_w1",
         "transformer.layers.0.feed_forward.w1"},
        {"layers.0.feed_forward.w1"}},
       {{"diffusion_model.context_refiner.0.attention.to_q",
         "lora_unet_context_refiner_0_attention_to_q"},
        {"context_refiner.0.attention.to_q"}},
       {{"diffusion_model.layers.0.adaLN_modulation.0", "lora_unet_layers_0_adaLN_modulation_0"},
        {"layers.0.adaLN_modulation.0"}}});
}

// A file for another family says which of its modules the model lacks.
TEST_F(LoraForms, OtherFamiliesAreRefused) {
  Given tensors;
  for (const char* module :
       {"lora_unet_double_blocks_0_img_attn_qkv", "lora_unet_double_blocks_1_img_attn_qkv",
        "lora_unet_single_blocks_0_linear1", "lora_unet_single_blocks_1_linear1"}) {
    tensors[std::string(module) + ".lokr_w1"] = tensor_of({4, 4}, 1);
    tensors[std::string(module) + ".lokr_w2"] = tensor_of({18, 6}, 2);
  }
  refused(tensors,
          "4 modules: \"lora_unet_double_blocks_0_img_attn_qkv\", "
          "\"lora_unet_double_blocks_1_img_attn_qkv\", \"lora_unet_single_blocks_0_linear1\"");
}

}  // namespace
}  // namespace weft::test
