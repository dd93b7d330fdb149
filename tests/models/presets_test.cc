// The table of presets: each belongs to a model that is known by its configuration.
#include "models/presets.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/random_weights/random_weights.h"
#include "models/registry.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// The published models that presets name, as their folders would be opened.
ModelDirectory published_folder(const std::string& name) {
  struct Facts {
    const ModelFamily* family;
    const char* transformer;
    int experts;
  };
  const std::map<std::string, Facts> known{
      {"wan2.1-t2v-1.3b", {&kWanFamily, "wan2.1-1.3b", 1}},
      {"wan2.1-t2v-14b", {&kWanFamily, "wan2.1-14b", 1}},
      {"wan2.1-i2v-14b", {&kWanPictureFamily, "wan2.1-i2v-14b", 1}},
      {"wan2.1-flf2v-14b", {&kWanPictureFamily, "wan2.1-flf2v-14b", 1}},
      {"wan2.2-t2v-a14b", {&kWanFamily, "wan2.1-14b", 2}},
      {"wan2.2-i2v-a14b", {&kWanPictureFamily, "wan2.2-i2v-a14b", 2}},
      {"qwen-image", {&kQwenImageFamily, "qwen-image", 1}},
      {"qwen-image-2512", {&kQwenImageFamily, "qwen-image", 1}},
      {"z-image", {&kZImageFamily, "z-image", 1}}};
  const Facts& facts = known.at(name);
  ModelDirectory model;
  model.path = "/nowhere/folder";
  model.family = facts.family;
  for (int i = 0; i < facts.experts; ++i)
    model.transformers.push_back(published_transformer(facts.transformer));
  if (facts.experts > 1) model.transformer_2 = "/nowhere/folder/transformer_2";
  return model;
}

std::vector<std::string> names_for(const std::string& model) {
  std::vector<std::string> names;
  for (const Preset* preset : presets_for(published_folder(model)))
    names.emplace_back(preset->name);
  return names;
}

TEST(Presets, EachBelongsToTheModelsThatItNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_for("wan2.1-t2v-1.3b"), Names{"distill-4"});
  EXPECT_EQ(names_for("wan2.1-t2v-14b"), (Names{"distill-4", "wan2.1-t2v-lightx2v-4"}));
  EXPECT_EQ(names_for("wan2.1-i2v-14b"), (Names{"distill-4", "wan2.1-i2v-lightx2v-4"}));
  EXPECT_EQ(names_for("wan2.1-flf2v-14b"), Names{"distill-4"});
  EXPECT_EQ(names_for("wan2.2-t2v-a14b"), (Names{"distill-4", "wan2.2-t2v-lightx2v-4"}));
  EXPECT_EQ(names_for("wan2.2-i2v-a14b"), (Names{"distill-4", "wan2.2-i2v-lightx2v-4"}));
  EXPECT_EQ(names_for("qwen-image"),
            (Names{"distill-4", "qwen-image-lightning-4", "qwen-image-lightning-8",
                   "qwen-image-2512-lightning-4", "qwen-image-2512-lightning-8"}));
  EXPECT_EQ(names_for("z-image"), Names{"distill-4"});
}

// The two releases have the same configuration. A name tells which one it is, or nothing does.
TEST(Presets, NamesTellTheReleasesOfQwenImageApart) {
  const Preset &first = preset_of_name("qwen-image-lightning-4", ""),
               &second = preset_of_name("qwen-image-2512-lightning-4", "");
  const auto refused = [](const Preset& preset, const std::string& path, const std::string& file) {
    ModelDirectory model = published_folder("qwen-image");
    model.path = path;
    model.transformer = file;
    return error_of([&] { check_preset(preset, model, "preset"); });
  };
  for (const auto& [path, file, is_first, is_second] :
       {std::tuple{"/models/Qwen-Image", "/models/Qwen-Image/transformer", true, false},
        {"/models/Qwen-Image-2512", "/models/Qwen-Image-2512/transformer", false, true},
        {"/hub/models--Qwen--Qwen-Image-2512/snapshots/25ab", "", false, true},
        {"/hub/models--Qwen--Qwen-Image/snapshots/2512", "", true, false},
        {"qwen_image_2512_fp8_e4m3fn.safetensors", "", false, true},
        {"/models/Qwen-Image", "/unet/qwen-image-2512-Q4_K_M.gguf", false, true},
        {"/models/Qwen-Image-2512", "/unet/qwen_image_bf16.safetensors", true, false},
        {"/2512/model", "", true, true}}) {
    SCOPED_TRACE(std::string(path) + " " + file);
    EXPECT_EQ(refused(first, path, file).empty(), is_first);
    EXPECT_EQ(refused(second, path, file).empty(), is_second);
  }
  EXPECT_TRUE(contains(refused(first, "/models/Qwen-Image-2512", ""),
                       "which belongs to qwen-image, but the model is qwen-image-2512; legal with "
                       "it: distill-4, qwen-image-2512-lightning-4"));
}

TEST(Presets, TheTableIsConsistent) {
  std::set<std::string> names;
  const std::string text = presets_text();
  for (const Preset& preset : all_presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_EQ(preset.loras.empty(), preset.repository == nullptr) << preset.name;
    // Another model is refused, and its own is not.
    if (preset.models) {
      EXPECT_NO_THROW(check_preset(preset, published_folder(preset.models), "preset"));
      expect_error(ErrorKind::kUsage,
                   std::string("preset is ") + preset.name + ", which belongs to",
                   [&] { check_preset(preset, published_folder("z-image"), "preset"); });
    }
    // The two experts of a model have a file each.
    const bool two = preset.models && published_folder(preset.models).experts() == 2;
    EXPECT_EQ(preset.loras.size(), preset.loras.empty() ? 0u : two ? 2u : 1u) << preset.name;
    for (const PresetLora& lora : preset.loras) {
      EXPECT_EQ(lora.expert != LoraExpert::kAll, two) << preset.name;
      EXPECT_TRUE(contains(text, lora.file));
    }
    EXPECT_TRUE(contains(text, preset.name));
    EXPECT_EQ(&preset_of_name(preset.name, ""), &preset);
    EXPECT_EQ(preset.solver == std::string("distill-4"), preset.flow_shift == 5) << preset.name;
  }
  expect_error(ErrorKind::kUsage, "preset is 'distil-4', legal: distill-4, ",
               [] { preset_of_name("distil-4", "preset"); });
}

TEST(Presets, FilesAreFoundInTheFolderOrBesideIt) {
  const TempDir folder;
  ModelDirectory model = published_folder("wan2.2-t2v-a14b");
  model.path = folder / "model";
  const Preset& preset = preset_of_name("wan2.2-t2v-lightx2v-4", "");
  const std::string high = preset.loras[0].file, low = preset.loras[1].file;
  const auto found = [&] { return preset_loras(preset, model, "preset"); };
  const auto write = [](const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "x";
  };
  expect_error(ErrorKind::kUsage, "its LoRA " + high, found);
  write(folder / ("model/loras/" + high));
  expect_error(ErrorKind::kUsage, "its LoRA " + low + " (lightx2v/Wan2.2-Distill-Loras", found);
  EXPECT_FALSE(contains(error_of(found), std::string(folder / "model")));
  write(folder / ("loras/Wan2.2-Distill-Loras/" + low));
  const std::vector<Lora> loras = found();
  ASSERT_EQ(loras.size(), 2u);
  EXPECT_EQ(loras[0],
            (Lora{.file = folder / ("model/loras/" + high), .expert = LoraExpert::kHigh}));
  EXPECT_EQ(loras[1], (Lora{.file = folder / ("loras/Wan2.2-Distill-Loras/" + low),
                            .expert = LoraExpert::kLow}));
}

}  // namespace
}  // namespace weft::test
