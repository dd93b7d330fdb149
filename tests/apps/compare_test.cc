// weft compare accepts every kind of result.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "io/media/image.h"
#include "io/weights/tensor_file.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using test::Cli, test::Outcome, test::run, test::json_lines;

class Compare : public Cli {
 protected:
  // Makes a clip of flat frames that brighten; `shift` is added to every sample of frame 1.
  std::string clip(const std::string& name, int frames = 3, int width = 32, int shift = 0) {
    VideoSettings settings;
    settings.width = width;
    settings.height = 16;
    settings.deterministic = true;
    const auto sink = make_sink(path(name), settings, Overwrite::kReplace);
    for (int i = 0; i < frames; ++i) {
      Frame frame(width, 16);
      std::fill(frame.rgb.begin(), frame.rgb.end(), 60 + 20 * i + (i == 1 ? shift : 0));
      sink->push(frame);
    }
    sink->finish();
    return path(name);
  }
  std::string weights(const std::string& name, std::vector<float> values) {
    Tensor tensor(DType::kF32, {2, static_cast<int64_t>(values.size()) / 2});
    std::copy(values.begin(), values.end(), tensor.as<float>());
    write_safetensors(path(name), {{"a.weight", tensor.view()}});
    return path(name);
  }
};

TEST_F(Compare, EqualClipsAreIdentical) {
  const std::string a = clip("a.mp4"), b = clip("b.mp4");
  const Outcome outcome = run("compare --json --min-psnr 1000 --min-ssim 1 " + a + " " + b);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2].at("frame"), 2);
  EXPECT_EQ(lines[3].at("frames"), 3);
  EXPECT_EQ(lines[3].at("identical"), true);
  EXPECT_TRUE(lines[3].at("psnr").is_null());
  EXPECT_EQ(run("compare " + a + " " + b).out.find("inf dB") == std::string::npos, false);
}

// One frame of three is off by 30: mse 900 there, 300 in all.
TEST_F(Compare, NumbersPerFrameAndInAll) {
  const std::string a = clip("a/"), b = clip("b/", 3, 32, 30);
  const Outcome outcome = run("compare --json " + a + " " + b);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].at("identical"));
  EXPECT_NEAR(lines[1].at("psnr"), 10 * std::log10(255.0 * 255 / 900), 1e-9);
  EXPECT_NEAR(lines[3].at("psnr"), 10 * std::log10(255.0 * 255 / 300), 1e-9);
  EXPECT_NEAR(lines[3].at("ssim"), (2 + lines[1].at("ssim").get<double>()) / 3, 1e-9);
  EXPECT_EQ(run("compare --min-psnr 23 " + a + " " + b).code, 0);  // 23.36 dB
  EXPECT_EQ(run("compare --min-psnr 24 " + a + " " + b).code, 1);
  EXPECT_EQ(run("compare --min-ssim 0.9999 " + a + " " + b).code, 1);
}

TEST_F(Compare, ClipsPicturesAndFoldersMix) {
  EXPECT_EQ(run("compare --min-psnr 30 " + clip("a.mp4") + " " + clip("b.webm")).code, 0);
  EXPECT_EQ(run("compare --min-psnr 30 " + clip("c.gif") + " " + clip("d/")).code, 0);
  EXPECT_EQ(run("compare --min-psnr 30 " + clip("one.png", 1) + " " + clip("e/", 1)).code, 0);
}

// The VAE computes in bf16 on a GPU (--vae-dtype auto): a drawn clip's pictures stay within 45 dB.
TEST_F(Compare, AVaeInBf16DrawsTheSameClip) {
  for (const char* dtype : {"f32", "bf16"}) {
    const Outcome outcome =
        run("generate --model models/pocket --prompt 'a cyan ring, circling' --seed 3 --threads 1 "
            "--device cpu -q --frames png --vae-dtype " +
            std::string(dtype) + " -o " + path(dtype));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  const Outcome compared = run("compare --min-psnr 45 " + path("f32") + " " + path("bf16"));
  EXPECT_EQ(compared.code, 0) << compared.out;
  EXPECT_EQ(run("compare --min-psnr 90 " + path("f32") + " " + path("bf16")).code, 1);  // not equal
}

TEST_F(Compare, WhatCannotBeComparedIsNamed) {
  const std::string a = clip("a.mp4"), png = clip("p.png", 1);
  const std::string tensors = weights("w.safetensors", {1, 2, 3, 4});
  struct Case {
    std::string operands;
    int code;
    std::string text;
  };
  for (const Case& c :
       {Case{a + " " + clip("wide.mp4", 3, 48), 8, "48x16"},
        Case{a + " " + clip("long.mp4", 5), 8, "has 5"}, Case{a + " " + png, 8, "frame counts"},
        Case{a, 2, "two operands"}, Case{a + " " + path("none.mp4"), 2, "none.mp4: no such file"},
        Case{a + " " + tensors, 2, "holds tensors"},
        Case{tensors + " " + weights("x.safetensors", {1, 2}), 3, "[2, 1]"},
        Case{"--min-ssim 0 " + tensors + " " + tensors, 2, "--max-rel-l2"},
        Case{"--max-rel-l2 0 " + a + " " + a, 2, "--min-psnr"},
        Case{"--min-ssim 2 " + a + " " + a, 2, "nearest: 1"}}) {
    const Outcome outcome = run("compare " + c.operands);
    EXPECT_EQ(outcome.code, c.code) << c.operands << outcome.err;
    EXPECT_NE(outcome.err.find(c.text), std::string::npos) << outcome.err;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
}

TEST_F(Compare, TensorsByNameWithTheWorstPlace) {
  const std::string a = weights("a.safetensors", {3, 4, 0, 0.5});
  const std::string b = weights("b.safetensors", {3, 4, 0, 0});
  const Outcome outcome = run("compare --json " + a + " " + b);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("tensor"), "a.weight");
  EXPECT_NEAR(lines[0].at("rel_l2"), 0.1, 1e-12);
  EXPECT_NEAR(lines[0].at("cosine"), 25 / (5 * std::sqrt(25.25)), 1e-12);
  EXPECT_EQ(lines[0].at("max_abs"), 0.5);
  EXPECT_EQ(lines[0].at("worst"), "[1, 1]");
  EXPECT_EQ(lines[1].at("worst_tensor"), "a.weight");
  EXPECT_EQ(run("compare --max-rel-l2 0.11 " + a + " " + b).code, 0);
  EXPECT_EQ(run("compare --max-rel-l2 0.09 " + a + " " + b).code, 1);
}

}  // namespace
}  // namespace weft
