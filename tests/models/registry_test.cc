#include "models/registry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/random_weights/random_weights.h"
#include "models/wan/family.h"
#include "models/wan/transformer.h"
#include "tests/models/model_folder_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Copies a golden pipeline's configs with empty weights, so that tests can damage them.
class ModelDirectoryTest : public ModelFolder {
 protected:
  void SetUp() override { copy("pipeline_two_experts"); }
};

TEST_F(ModelDirectoryTest, TwoExperts) {
  const ModelDirectory model = open_model_directory(path_);
  EXPECT_STREQ(model.family->class_name, "WanPipeline");
  EXPECT_EQ(model.experts(), 2);
  EXPECT_EQ(model.boundary_ratio, 0.875);
  EXPECT_EQ(model.expert_path(1), path_ + "/transformer_2");
  EXPECT_EQ(model.expert(1).traits().width, 24);
  EXPECT_EQ(model.vae, path_ + "/vae");
}

TEST_F(ModelDirectoryTest, OneExpertWhateverTheBoundarySays) {
  edit("model_index.json", [](auto& json) { json["transformer_2"] = {nullptr, nullptr}; });
  const ModelDirectory model = open_model_directory(path_);
  EXPECT_EQ(model.experts(), 1);
  EXPECT_EQ(model.boundary_ratio, 0.875);
  EXPECT_EQ(open_model_directory("tests/golden/pipeline_t2v/model").experts(), 1);
}

TEST_F(ModelDirectoryTest, MissingPartsAreNamed) {
  fs::remove_all(path_ + "/tokenizer");
  EXPECT_TRUE(contains(fault(), path_ + "/tokenizer: missing"));
}

TEST_F(ModelDirectoryTest, MissingConfigsAreNamed) {
  for (const char* file :
       {"transformer_2/config.json", "transformer/config.json", "scheduler/scheduler_config.json",
        "vae/config.json", "model_index.json"}) {
    fs::remove(path_ + "/" + file);
    EXPECT_TRUE(contains(fault(), path_ + "/" + file + ": missing"));
  }
  EXPECT_TRUE(contains(fault(), "-Diffusers"));
  std::ofstream(path_ + "/Wan2.1_VAE.pth") << "x";
  EXPECT_TRUE(contains(fault(), "Wan2.1_VAE.pth, and .pth files are not read"));
  fs::copy_file("tests/golden/s2v_motion/model/transformer/config.json", path_ + "/config.json");
  EXPECT_TRUE(contains(fault(), "Wan2.1_VAE.pth is not read"));
  fs::remove_all(path_);
  EXPECT_TRUE(contains(fault(), "no such model directory"));
}

TEST_F(ModelDirectoryTest, WhatCannotRunIsRefused) {
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json before;
    edit("model_index.json", [&](auto& json) {
      before = json.value(key, nlohmann::json());
      json[key] = value;
    });
    const std::string text = fault();
    edit("model_index.json", [&](auto& json) { json[key] = before; });
    return text;
  };
  EXPECT_TRUE(contains(with("expand_timesteps", 5), "expand_timesteps"));
  EXPECT_TRUE(contains(with("_class_name", "SanaPipeline"), "SanaPipeline"));
  EXPECT_TRUE(contains(with("vae", {nullptr, nullptr}), "no vae"));
  EXPECT_TRUE(contains(with("vae", "AutoencoderKLWan"), "vae = "));
  EXPECT_TRUE(contains(with("boundary_ratio", nullptr), "boundary_ratio"));
  EXPECT_TRUE(contains(with("boundary_ratio", 875), "boundary_ratio"));
  EXPECT_EQ(fault(), "");
}

TEST_F(ModelDirectoryTest, AnUnknownComponentIsNamedWithTheLegalOnes) {
  edit("transformer/config.json",
       [](auto& json) { json["_class_name"] = "SD3Transformer2DModel"; });
  EXPECT_TRUE(contains(fault(),
                       "transformer/config.json: _class_name or model_type SD3Transformer2DModel "
                       "is not supported (legal: WanTransformer3DModel, "));
}

TEST_F(ModelDirectoryTest, WeftJsonGivesTheDefaults) {
  std::ofstream(path_ + "/weft.json")
      << R"({"name": "pocket", "width": 128, "height": 96, "num_frames": 25, "fps": 16, "steps": 20,
             "guidance_scale": 4, "flow_shift": 3})";
  const DefaultSettings defaults = open_model_directory(path_).defaults;
  EXPECT_EQ(defaults.name, "pocket");
  EXPECT_EQ(defaults.origin, "weft.json");
  EXPECT_EQ(defaults.width, 128);
  EXPECT_EQ(defaults.height, 96);
  EXPECT_EQ(defaults.frames, 25);
  EXPECT_EQ(defaults.steps, 20);
  EXPECT_EQ(defaults.guidance_scale, 4);
  EXPECT_EQ(defaults.flow_shift, 3);
  std::ofstream(path_ + "/weft.json") << R"({"widht": 128})";
  EXPECT_TRUE(contains(fault(), "unknown: widht"));
}

TEST(DefaultSettings, OfThePublishedModels) {
  const auto find = [](int64_t width, int64_t in, int64_t out, int experts, int images = 0) {
    WanConfig config;
    config.heads = static_cast<int>(width / 128);
    config.head_dim = 128;
    config.in_channels = in;
    config.out_channels = out;
    if (images) config.image_dim = 1280;
    if (images == 2) config.image_positions = 514;
    ModelDirectory model;
    model.path = "nowhere";
    model.family = &kWanFamily;
    if (experts == 2) model.transformer_2 = "nowhere/transformer_2";
    for (int i = 0; i < experts; ++i) model.transformers.push_back(make_wan_model(config));
    return default_settings(model);
  };
  const DefaultSettings small = find(1536, 16, 16, 1), a14b = find(5120, 16, 16, 2),
                        large = find(5120, 16, 16, 1), ti2v = find(3072, 48, 48, 1),
                        other = find(256, 16, 16, 1);
  EXPECT_EQ(small.name, "wan2.1-t2v-1.3b");
  EXPECT_EQ(small.width, 832);
  EXPECT_EQ(small.flow_shift, 5);
  EXPECT_FALSE(small.guidance_scale_2);
  EXPECT_EQ(large.name, "wan2.1-t2v-14b");
  EXPECT_EQ(large.height, 720);
  EXPECT_EQ(a14b.name, "wan2.2-t2v-a14b");
  EXPECT_EQ(a14b.steps, 40);
  EXPECT_EQ(a14b.guidance_scale, 4);    // for the high-noise expert
  EXPECT_EQ(a14b.guidance_scale_2, 3);  // for the low-noise expert
  const DefaultSettings i2v = find(5120, 36, 16, 1, 1), flf2v = find(5120, 36, 16, 1, 2),
                        i2v_a14b = find(5120, 36, 16, 2);
  EXPECT_EQ(i2v.name, "wan2.1-i2v-14b");
  EXPECT_EQ(i2v.steps, 40);
  EXPECT_EQ(i2v.width * i2v.height, 832 * 480);
  EXPECT_EQ(flf2v.name, "wan2.1-flf2v-14b");
  EXPECT_EQ(flf2v.flow_shift, 16);
  EXPECT_EQ(flf2v.width * flf2v.height, 1280 * 720);
  EXPECT_EQ(i2v_a14b.name, "wan2.2-i2v-a14b");
  EXPECT_EQ(i2v_a14b.guidance_scale, 3.5);
  EXPECT_EQ(ti2v.frames, 121);
  EXPECT_EQ(ti2v.fps, 24);
  EXPECT_EQ(other.name, "nowhere");
  EXPECT_FALSE(other.flow_shift);  // scheduler_config.json decides
}

// The folders of both are alike but for the scheduler.
TEST_F(ModelFolder, ZImageIsKnownByItsShift) {
  copy("pipeline_zimage_turbo");
  EXPECT_EQ(open_model_directory(path_).defaults.steps, 8);
  EXPECT_EQ(open_model_directory(path_).defaults.guidance_scale, 0);
  edit("scheduler/scheduler_config.json", [](auto& json) { json["shift"] = 6.0; });
  EXPECT_EQ(open_model_directory(path_).defaults.steps, 50);
  EXPECT_EQ(open_model_directory(path_).defaults.guidance_scale, 4);
}

TEST(KnownModels, HaveTheirLicences) {
  const auto known = [](const std::string& name, const char* transformer_class) {
    const KnownModel* model = known_model(family_of_transformer(transformer_class)->known,
                                          published_transformer(name)->traits());
    return model ? std::string(model->name) + ": " + model->licence +
                       (model->is_free() ? "" : std::string(", ") + model->restriction)
                 : "";
  };
  const char *flux = "FluxTransformer2DModel", *flux2 = "Flux2Transformer2DModel",
             *wan = "WanTransformer3DModel";
  EXPECT_EQ(known("flux.2-klein-4b", flux2), "FLUX.2 klein 4B: Apache-2.0");
  EXPECT_EQ(known("flux.2-klein-9b", flux2),
            "FLUX.2 klein 9B: FLUX Non-Commercial License, not for commercial use");
  EXPECT_EQ(known("flux.2-dev", flux2),
            "FLUX.2 dev: FLUX Non-Commercial License, not for commercial use");
  EXPECT_EQ(known("flux.1-schnell", flux), "FLUX.1 schnell: Apache-2.0");
  EXPECT_EQ(known("flux.1-dev", flux),
            "FLUX.1 dev: FLUX.1 [dev] Non-Commercial License, not for commercial use");
  EXPECT_EQ(known("wan2.1-1.3b", wan), "Wan 1.3B: Apache-2.0");
  EXPECT_EQ(known("wan2.2-ti2v-5b", wan), "Wan 5B: Apache-2.0");
  EXPECT_EQ(known("wan2.2-i2v-a14b", wan), "Wan 14B: Apache-2.0");
  EXPECT_EQ(known("z-image", "ZImageTransformer2DModel"), "Z-Image: Apache-2.0");
  EXPECT_EQ(known("krea-2", "Krea2Transformer2DModel"),
            "Krea 2: Krea 2 Community License, conditions for commercial use, see "
            "krea.ai/krea-2-licensing");
  EXPECT_EQ(known("qwen-image", "QwenImageTransformer2DModel"), "Qwen-Image: Apache-2.0");
  // No published model has the sizes of this one.
  EXPECT_EQ(open_model_directory("tests/golden/pipeline_flux2_klein/model").known(), nullptr);
}

TEST(Registry, FilesThatNoModelKnowsAreNone) {
  const TensorFile file = TensorFile::generated({{"other.weight", DType::kF32, {2}}},
                                                [](const std::string&, const TensorView&) {});
  const std::string path = testing::TempDir() + "weft_registry_other.safetensors";
  const Tensor other(DType::kF32, {2});
  write_safetensors(path, {{"other.weight", other.view()}});
  EXPECT_TRUE(held_components(path).empty());
  std::remove(path.c_str());
  EXPECT_THROW(open_transformer(file), Error);
}

}  // namespace
}  // namespace weft::test
