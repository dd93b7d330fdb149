// The layout never changes the picture: golden cases under every legal layout of up to as many
// ranks as their family names, at the cases' own bounds, in both precisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/verify/verify_case.h"
#include "engine/generation/generator.h"
#include "io/json.h"
#include "parallel/transport/local.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

Ranks threads(int count) { return {.count = count, .on_this_host = count}; }

struct Family {
  const char* name;
  std::vector<const char*> cases;
  int most_ranks;
  std::vector<DType> dtypes{DType::kF32, DType::kBF16};
};

// Lets gtest print it.
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class Layouts : public testing::TestWithParam<Family> {};

TEST_P(Layouts, EveryLegalOneGivesTheExpectedTensors) {
  int combinations = 0;
  double worst = 0;
  for (const char* name : GetParam().cases) {
    const std::string folder = std::string("tests/golden/") + name;
    const LayoutLimits limits = stage_limits(folder, read_json_file(folder + "/case.json"));
    for (int ranks = 2; ranks <= GetParam().most_ranks; ++ranks)
      for (const Layout& layout : legal_layouts(ranks, limits)) {
        if (layout[Axis::kData] > 2) continue;  // more of the same
        for (DType dtype : GetParam().dtypes) {
          const VerifyOptions options{.dtype = dtype, .threads = 1};
          ++combinations;
          for (const VerifyRow& row :
               verify_case(folder, options, threads(ranks), to_string(layout))) {
            EXPECT_TRUE(row.pass) << name << " " << to_string(layout) << " " << to_string(dtype)
                                  << " " << row.tensor << ": rel_l2 " << row.rel_l2 << ", bound "
                                  << row.bound << " " << row.note;
            if (dtype == DType::kF32) worst = std::max(worst, row.rel_l2 / row.bound);
          }
        }
      }
  }
  std::printf("%d combinations, worst f32 error %.3g of its bound\n", combinations, worst);
  RecordProperty("combinations", combinations);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Layouts,
    testing::Values(
        Family{"Transformer",
               {"dit_wan_tiny", "dit_wan_tiny_image", "dit_wan_tiny_sharded",
                "dit_wan_hd128_bf16_weights", "dit_wan_i2v21", "dit_wan_flf2v", "dit_wan_ti2v",
                "dit_zimage", "dit_qwen_image", "dit_flux", "dit_flux2_references", "dit_flux2_dev",
                "dit_flux2_original_names", "dit_krea2", "dit_krea2_original_names",
                "dit_krea2_twelve_taps"},
               8},
        Family{"QuantizedTransformer",
               {"weights_fp8_plain", "weights_fp8_scaled", "weights_fp8_mixed", "weights_gguf_q8_0",
                "weights_gguf_old", "weights_gguf_k"},
               4},
        Family{"Speech", {"s2v_first_clip", "s2v_motion", "s2v_pose_bf16_weights"}, 4},
        Family{"Lora", {"lora_comfy_alpha", "lora_diff", "lora_kohya", "lora_peft"}, 4},
        Family{"Vae",
               {"vae21_tiny_decode3", "vae21_tiny_encode3", "vae_patch2_decode3", "vae22_decode3",
                "vae22_encode3", "vae_kl_decode", "vae_flux2_small_decoder_decode",
                "vae_flux2_encode"},
               5},
        Family{"Encoders",
               {"umt5", "umt5_uneven", "t5", "clip_text", "clip_vision", "wav2vec2_tiny",
                "wav2vec2_bare_names", "text_taps_qwen3", "text_taps_qwen3vl"},
               4},
        Family{"LanguageModel",
               {"llm_qwen2_bias", "llm_qwen3_tied", "llm_qwen3_untied", "llm_pocket"},
               4},
        Family{"Pipeline",
               {"pipeline_t2v", "pipeline_two_experts", "pipeline_zimage_cfg",
                "pipeline_zimage_turbo", "pipeline_qwen_image"},
               8},
        Family{"Pictures", {"pipeline_i2v_a14b", "pipeline_i2v21", "pipeline_ti2v_5b"}, 4},
        Family{"PaddedText", {"pipeline_flux2_klein", "pipeline_flux2_klein_base"}, 4},
        Family{"References", {"pipeline_flux2_klein_edit_two_large"}, 4},
        Family{"GroupedHeads", {"pipeline_krea2_turbo"}, 4},
        // Its bf16 errs by about the bound in every order of sums: engine/guided_bf16_test has the
        // median.
        Family{"GuidedGroupedHeads", {"pipeline_krea2_raw"}, 4, {DType::kF32}},
        Family{"TwoTextEncoders", {"pipeline_flux_dev", "pipeline_flux_schnell"}, 4},
        Family{"Clips",
               {"clips_small", "clips_local", "clips_hard_phases", "clips_uneven_globals"},
               4},
        Family{"Displaced",
               {"displaced_distrifusion", "displaced_distrifusion_uneven", "displaced_pcpp",
                "displaced_pcpp_uneven"},
               4},
        Family{"PipeFusion", {"displaced_pipefusion", "displaced_pipefusion_uneven"}, 6},
        Family{"Stream", {"stream_small", "stream_sink_moves"}, 8},
        Family{"SpeechStream", {"s2v_stream", "s2v_stream_swap_block_audio"}, 4},
        Family{"Queue",
               {"queue_small", "queue_no_context", "queue_prompts", "queue_two_experts",
                "queue_wide_context"},
               4}),
    [](const auto& info) { return std::string(info.param.name); });

// The rings of a stream hold the same rows in the same order wherever its steps, layers and heads
// are.
TEST(Streams, EverySplitGivesTheErrorsOfOneRankToTheBit) {
  const VerifyOptions options{.threads = 1};
  for (const char* name :
       {"stream_small", "stream_sink_moves", "s2v_stream", "s2v_stream_swap_block_audio"}) {
    const std::string folder = std::string("tests/golden/") + name;
    const LayoutLimits limits = stage_limits(folder, read_json_file(folder + "/case.json"));
    const std::vector<VerifyRow> one = verify_case(folder, options, threads(1), "");
    int compared = 0;
    for (const auto& [ranks, layout] : {std::pair{2, "step=2"},
                                        {3, "step=3"},
                                        {2, "layers=2"},
                                        {4, "step=2,layers=2"},
                                        {6, "step=3,layers=2"},
                                        {2, "ulysses=2"},
                                        {4, "step=2,ulysses=2"}}) {
      const auto is = [&](const Layout& legal) { return to_string(legal) == layout; };
      if (std::ranges::none_of(legal_layouts(ranks, limits), is)) continue;  // two steps
      ++compared;
      const std::vector<VerifyRow> rows = verify_case(folder, options, threads(ranks), layout);
      ASSERT_EQ(rows.size(), one.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(rows[i].rel_l2, one[i].rel_l2) << name << " " << layout << " " << one[i].tensor;
        EXPECT_EQ(rows[i].cosine, one[i].cosine) << name << " " << layout << " " << one[i].tensor;
      }
    }
    EXPECT_GE(compared, 5) << name;
  }
}

// A whole clip of the pocket model at its defaults: errors do not add up over twenty guided steps.
TEST(PocketModel, IsOneRanksUnderEveryKindOfSplit) {
  struct LatentTap final : PipelineTap {
    std::vector<float> latents;
    void tap(const char* name, const TensorView& value) override {
      if (std::string(name) == "latents_final")
        latents.assign(value.as<float>(), value.as<float>() + value.count());
    }
  };
  const auto latents_of = [](const Layout& layout) {
    std::vector<float> latents;
    run_ranks(layout.ranks(), [&](Communicator& world) {
      GeneratorOptions options;
      options.threads = 1;
      Generator generator("models/pocket", options, RankPlacement::of(world, layout));
      Request request;
      request.prompt = "a big red ball, moving left on a navy background";
      request.seed = 3;
      LatentTap tap;
      RunOptions run;
      run.tap = &tap;
      generator.run(request, nullptr, run);
      if (world.rank() == 0) latents = std::move(tap.latents);
    });
    return latents;
  };
  const std::vector<float> whole = latents_of({});
  for (const auto& [ranks, text] : {std::pair{2, "cfg=2"},
                                    {2, "ulysses=2"},
                                    {3, "ring=3"},
                                    {2, "token_ring=2"},
                                    {3, "tensor=3"},
                                    {3, "layers=3"},
                                    {8, "cfg=2,layers=2,ulysses=2"}}) {
    const std::vector<float> split = latents_of(parse_layout(text, ranks, {}));
    ASSERT_EQ(split.size(), whole.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      const double difference = double{split[i]} - double{whole[i]};
      error += difference * difference;
      norm += double{whole[i]} * double{whole[i]};
    }
    const double relative = std::sqrt(error / norm);
    std::printf("%s: relative L2 %.2g\n", text, relative);
    EXPECT_LE(relative, 1e-5) << text;
  }
}

// The rank that decodes or encodes alone need not be the one that reports.
TEST(LayoutStages, ARankOfItsOwnHasTheVae) {
  for (const char* name : {"vae21_tiny_decode3", "vae21_tiny_encode3", "pipeline_t2v"})
    for (const char* layout : {"ring=3,decode_rank=0", "ring=3,decode_rank=2"})
      for (const VerifyRow& row :
           verify_case(std::string("tests/golden/") + name, {.dtype = DType::kF32, .threads = 1},
                       threads(3), layout))
        EXPECT_TRUE(row.pass) << name << " " << layout << " " << row.tensor << ": rel_l2 "
                              << row.rel_l2 << " " << row.note;
}

TEST(LayoutErrors, NameTheLegalOnes) {
  test::expect_error(ErrorKind::kUsage, "ulysses=2", [&] {
    verify_case("tests/golden/dit_wan_tiny", {.dtype = DType::kF32, .threads = 1}, threads(2),
                "cfg=2");
  });
}

}  // namespace
}  // namespace weft
