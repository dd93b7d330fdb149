#include <gtest/gtest.h>

#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"
#include "tests/models/config_testing.h"

namespace weft::test {
namespace {

const std::string kQwenImageConfig = "tests/golden/dit_qwen_image/model/transformer/config.json";

// Rows and columns count from the middle of the picture, the prompt from its edge on.
TEST(QwenImageForward, PositionsCountFromTheMiddle) {
  const auto config = QwenImageConfig::from_json_file(kQwenImageConfig);
  EXPECT_EQ(config.rope({1, 4, 7}, {}).start, (std::array<int64_t, 3>{0, -2, -4}));
  EXPECT_EQ(config.text_rope({1, 4, 7}, 5).start[0], 3);
  EXPECT_EQ(config.text_rope({1, 9, 6}, 5).start[0], 4);
}

TEST(QwenImageNames, AFileIsKnownByThem) {
  EXPECT_TRUE(holds_qwen_image(without_values(qwen_image_tensors({}))));
  EXPECT_FALSE(holds_qwen_image(TensorFile::open("tests/golden/dit_zimage/model/transformer")));
}

TEST(QwenImageConfig, EveryFieldIsRead) {
  const auto config = config_with<QwenImageConfig>(
      kQwenImageConfig, {{"out_channels", 4}, {"patch_size", 4}, {"num_layers", 5}});
  EXPECT_EQ(to_string(config),
            "Qwen-Image transformer: width 32 = 2 heads x 16, 5 double-stream blocks, ffn 128, "
            "channels 4, text 20, patch 1x4x4");
  EXPECT_EQ(config.axes_dims, (std::array<int64_t, 3>{4, 6, 6}));
}

}  // namespace
}  // namespace weft::test
