#include "apps/output_name.h"

#include <gtest/gtest.h>

#include "kernels/check.h"

namespace weft {
namespace {

TEST(OutputName, KindFollowsTheForm) {
  EXPECT_EQ(output_kind("a/b.mp4"), OutputKind::kMp4);
  EXPECT_EQ(output_kind("b.WEBM"), OutputKind::kWebm);
  EXPECT_EQ(output_kind("b.gif"), OutputKind::kGif);
  EXPECT_EQ(output_kind("b.png"), OutputKind::kPng);
  EXPECT_EQ(output_kind("frames/"), OutputKind::kPngFolder);
  EXPECT_THROW(output_kind("a.avi"), Error);
  EXPECT_THROW(output_kind("plain"), Error);
}

TEST(OutputName, FieldsExpand) {
  NameFields fields;
  fields.seed = 42;
  fields.model = "wan2.1 t2v";
  fields.prompt = "A cat, *running* on grass / under the very bright midday sun";
  fields.width = 832;
  fields.height = 480;
  fields.frames = 81;
  fields.index = 7;
  EXPECT_EQ(expand_name("{idx:05}.mp4", fields), "00007.mp4");
  EXPECT_EQ(expand_name("o/{model}_{seed}_{width}x{height}x{frames}.mp4", fields),
            "o/wan2.1_t2v_42_832x480x81.mp4");
  EXPECT_EQ(expand_name("{prompt:12}.mp4", fields), "A_cat_runnin.mp4");
  EXPECT_LE(expand_name("{prompt:99}", fields).size(), 40u);
  EXPECT_EQ(expand_name("{prompt}", fields).find_first_of("*/ ,"), std::string::npos);
  fields.prompt = "???";
  EXPECT_EQ(expand_name("{prompt}", fields), "untitled");
}

TEST(OutputName, UnknownFieldsAreRefused) {
  EXPECT_THROW(expand_name("{sead}.mp4", {}), Error);
  EXPECT_THROW(expand_name("{seed", {}), Error);
  EXPECT_THROW(expand_name("{idx:x}", {}), Error);
}

}  // namespace
}  // namespace weft
