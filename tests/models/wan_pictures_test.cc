// The pictures of Wan models: the mask, the size of a clip, and the form that a model directory
// asks for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/wan/pictures.h"
#include "tests/models/model_folder_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// The mask as the reference writes it: a value per frame of the clip, of which the first is
// repeated, cut into latent frames of four.
std::vector<float> reference_mask(int pictures, int64_t latent_frames, int64_t plane) {
  const int64_t frames = 4 * (latent_frames - 1) + 1;
  std::vector<float> of_frame(frames, 0);
  of_frame.front() = 1;
  if (pictures > 1) of_frame.back() = 1;
  std::vector<float> repeated(3, of_frame.front());
  repeated.insert(repeated.end(), of_frame.begin(), of_frame.end());
  std::vector<float> mask;
  for (int64_t channel = 0; channel < 4; ++channel)
    for (int64_t latent = 0; latent < latent_frames; ++latent)
      mask.insert(mask.end(), plane, repeated[4 * latent + channel]);
  return mask;
}

TEST(WanPictures, TheMaskIsThatOfTheReference) {
  for (const int pictures : {1, 2})
    for (const int64_t frames : {2, 3, 6}) {
      Tensor encoded(DType::kF32, {5, frames, 2, 3}), out(DType::kF32, {9, frames, 2, 3});
      for (int64_t i = 0; i < encoded.view().count(); ++i)
        encoded.as<float>()[i] = static_cast<float>(i) - 7.5f;
      wan_given_channels(pictures, encoded, out);
      const std::vector<float> mask = reference_mask(pictures, frames, 6);
      const float* values = out.as<float>();
      ASSERT_EQ(mask.size() + encoded.view().count(), size_t(out.view().count()));
      for (size_t i = 0; i < mask.size(); ++i)
        ASSERT_EQ(values[i], mask[i]) << pictures << " " << frames << " " << i;
      for (int64_t i = 0; i < encoded.view().count(); ++i)
        ASSERT_EQ(values[mask.size() + i], encoded.as<float>()[i]);
    }
}

// The sizes that the published programs choose.
TEST(WanPictures, AClipHasAboutTheShapeOfItsPicture) {
  using Size = std::array<int64_t, 2>;
  struct Example {
    int64_t width, height;
    Size closest, floor;
  };
  for (const auto& [width, height, closest, floor] :
       {Example{1280, 704, {1280, 704}, {1280, 704}}, Example{704, 1280, {704, 1280}, {704, 1280}},
        Example{1000, 1000, {960, 928}, {960, 960}}, Example{1920, 1080, {1248, 704}, {1280, 720}},
        Example{640, 480, {1088, 800}, {1104, 816}}, Example{300, 900, {544, 1632}, {544, 1648}},
        Example{123, 457, {480, 1824}, {496, 1840}}}) {
    EXPECT_EQ(wan_closest_size(width, height, 704 * 1280, 32), closest) << width << " " << height;
    EXPECT_EQ(wan_floor_size(width, height, 720 * 1280, 16), floor) << width << " " << height;
  }
  EXPECT_EQ(wan_floor_size(832, 480, 832 * 480, 16), (Size{832, 480}));
  EXPECT_EQ(wan_floor_size(480, 832, 832 * 480, 16), (Size{480, 832}));
  // A line keeps a row of tokens.
  EXPECT_EQ(wan_floor_size(10000, 16, 32 * 32, 16), (Size{800, 16}));
  EXPECT_EQ(wan_closest_size(16, 10000, 32 * 32, 32)[0], 32);
}

class PictureDirectory : public ModelFolder {};

TEST_F(PictureDirectory, GivenChannelsAndTheNumberOfPicturesFollowFromTheTransformer) {
  copy("pipeline_i2v_a14b");
  PictureConditioning form = open_model_directory(path_).pictures;
  EXPECT_EQ(form.form, PictureForm::kChannels);
  EXPECT_EQ(form.least, 1);
  EXPECT_EQ(form.most, 2);
  EXPECT_EQ(form.given_channels, 20);
  fs::remove_all(path_);
  copy("pipeline_i2v21");
  form = open_model_directory(path_).pictures;
  EXPECT_EQ(form.least, 1);
  EXPECT_EQ(form.most, 1);  // an image encoder's rows of one picture
  edit("transformer/config.json", [](auto& json) { json["pos_embed_seq_len"] = 10; });
  form = open_model_directory(path_).pictures;
  EXPECT_EQ(form.least, 2);  // the rows of both have positions
  EXPECT_EQ(form.most, 2);
}

TEST_F(PictureDirectory, ExpandedTimestepsMakeThePictureTheFirstFrame) {
  copy("pipeline_ti2v_5b");
  PictureConditioning form = open_model_directory(path_).pictures;
  EXPECT_EQ(form.form, PictureForm::kFirstFrame);
  EXPECT_EQ(form.least, 0);
  EXPECT_EQ(form.most, 1);
  EXPECT_EQ(form.given_channels, 0);
  // The published folder is of the class for text.
  edit("model_index.json", [](auto& json) { json["_class_name"] = "WanPipeline"; });
  EXPECT_EQ(open_model_directory(path_).pictures.form, PictureForm::kFirstFrame);
  edit("model_index.json", [](auto& json) { json["expand_timesteps"] = false; });
  EXPECT_FALSE(open_model_directory(path_).pictures.reads_any());
  edit("model_index.json", [](auto& json) { json["_class_name"] = "WanImageToVideoPipeline"; });
  EXPECT_TRUE(contains(fault(), "in_channels is 48 (legal beside 48 output channels: 100)"));
}

TEST_F(PictureDirectory, ATransformerThatFitsNoFormIsRefused) {
  copy("pipeline_i2v_a14b");
  edit("transformer/config.json", [](auto& json) { json["in_channels"] = 32; });
  EXPECT_TRUE(contains(fault(), "in_channels is 32 (legal beside 16 output channels: 36)"));
  edit("transformer/config.json", [](auto& json) { json["in_channels"] = 36; });
  edit("model_index.json", [](auto& json) { json["expand_timesteps"] = true; });
  EXPECT_TRUE(contains(fault(),
                       "in_channels is 36 (legal where model_index.json has expand_timesteps: "
                       "16)"));
  edit("model_index.json", [](auto& json) { json["image_encoder"] = {"transformers", "CLIP"}; });
  EXPECT_TRUE(contains(fault(), "/image_encoder: missing; "));
}

}  // namespace
}  // namespace weft::test
