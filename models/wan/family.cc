#include "models/wan/family.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "io/text/text_clean.h"
#include "models/files/tokenizer_files.h"
#include "models/wan/pictures.h"

namespace weft {

namespace {

// Published defaults (Wan-Video/Wan2.1 and Wan2.2, generate.py and configs). A row is found by the
// transformer's width, channels and pictures, and the number of experts.
struct DefaultsRow {
  const char* name;
  int64_t width, in_channels, out_channels;  // the transformer's
  int images;                                // whose rows of an image encoder it reads
  int experts;
  int steps;
  double shift, guidance, guidance_2;  // guidance_2 0: one expert
  int64_t frames;
  double fps;
  int64_t picture_width, picture_height;
  std::span<const double> teacache{};
  double boundary = 0;  // of two experts
};

// The polynomials of TeaCache4Wan2.1 on the time embedding. They were fitted for Wan 2.1 alone.
constexpr double kTeaCache1B[] = {2.39676752e3, -1.31110545e3, 2.01331979e2, -8.29855975,
                                  1.37887774e-1};
constexpr double kTeaCache14B[] = {-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429,
                                   -13.02252404};

constexpr DefaultsRow kDefaults[] = {
    {"wan2.1-t2v-1.3b", 1536, 16, 16, 0, 1, 50, 5, 5, 0, 81, 16, 832, 480, kTeaCache1B},
    {"wan2.1-t2v-14b", 5120, 16, 16, 0, 1, 50, 5, 5, 0, 81, 16, 1280, 720, kTeaCache14B},
    {"wan2.1-i2v-14b", 5120, 36, 16, 1, 1, 40, 3, 5, 0, 81, 16, 832, 480},
    {"wan2.1-flf2v-14b", 5120, 36, 16, 2, 1, 50, 16, 5, 0, 81, 16, 1280, 720},
    {"wan2.2-t2v-a14b", 5120, 16, 16, 0, 2, 40, 12, 4, 3, 81, 16, 1280, 720, {}, 0.875},
    {"wan2.2-i2v-a14b", 5120, 36, 16, 0, 2, 40, 5, 3.5, 3.5, 81, 16, 1280, 720, {}, 0.9},
    {"wan2.2-ti2v-5b", 3072, 48, 48, 0, 1, 50, 5, 5, 0, 121, 24, 1280, 704},
};

DefaultSettings built_in(const DefaultsRow& row) {
  DefaultSettings out;
  out.name = row.name;
  out.origin = "built-in";
  out.width = row.picture_width;
  out.height = row.picture_height;
  out.frames = row.frames;
  out.fps = row.fps;
  out.steps = row.steps;
  out.guidance_scale = row.guidance;
  if (row.guidance_2 > 0) out.guidance_scale_2 = row.guidance_2;
  out.flow_shift = row.shift;
  out.teacache.assign(row.teacache.begin(), row.teacache.end());
  return out;
}

// Returns null for an unpublished size.
const DefaultsRow* row_of(const ModelDirectory& model) {
  const TransformerTraits& traits = model.expert(0).traits();
  for (const DefaultsRow& row : kDefaults)
    if (row.width == traits.width && row.in_channels == traits.in_channels &&
        row.out_channels == traits.out_channels && row.images == traits.images &&
        row.experts == model.experts())
      return &row;
  return nullptr;
}

// The sampler of every published folder, with the shift of the published code.
PipelineFacts wan_pipeline(const ModelDirectory& model) {
  constexpr double kShift = 3;  // of folders that were made without one
  const DefaultsRow* row = row_of(model);
  PipelineFacts facts{.scheduler = nlohmann::json{{"_class_name", "UniPCMultistepScheduler"},
                                                  {"flow_shift", row ? row->shift : kShift},
                                                  {"prediction_type", "flow_prediction"},
                                                  {"use_flow_sigmas", true}}
                                       .dump(),
                      .boundary_ratio = {},
                      // The latents of VAE 2.2 belong to TI2V alone.
                      .expand_timesteps = model.expert(0).traits().out_channels == 48};
  constexpr double kBoundary = 0.875;
  if (model.experts() == 2) facts.boundary_ratio = row ? row->boundary : kBoundary;
  return facts;
}

DefaultSettings wan_defaults(const ModelDirectory& model) {
  if (const DefaultsRow* row = row_of(model)) return built_in(*row);
  DefaultSettings out = built_in(kDefaults[0]);  // for an unpublished size
  out.name = folder_name(model.path);
  out.flow_shift.reset();
  out.teacache.clear();
  return out;
}

// UMT5's ids of a cleaned prompt. The transformers were trained with padding up to max_ids().
class WanPrompts final : public PromptTokenizer {
 public:
  explicit WanPrompts(const std::string& folder)
      : tokenizer_(open_sentencepiece(folder)),
        max_ids_(tokenizer_model_max_length(folder + "/tokenizer_config.json")) {}

  int64_t max_ids() const override { return max_ids_; }
  int64_t padded_rows(int64_t) const override { return max_ids_; }
  PromptTokens read(const std::string& prompt) const override {
    const std::string text = clean_prompt(prompt);
    PromptTokens out{tokenizer_.encode(text, std::numeric_limits<int>::max()), {}};
    const std::vector<int32_t>& ids = out.ids;
    if (std::ssize(ids) <= max_ids_) return out;
    out.cut = PromptCut{std::ssize(ids), max_ids_, tokenizer_.text_behind(ids, max_ids_)};
    out.ids = tokenizer_.encode(text, static_cast<int>(max_ids_));
    return out;
  }

 private:
  SentencePieceTokenizer tokenizer_;
  int64_t max_ids_;
};

}  // namespace

std::unique_ptr<PromptTokenizer> wan_tokenizer(const ModelDirectory& model) {
  return std::make_unique<WanPrompts>(model.tokenizer);
}

constexpr KnownModel kWanModels[] = {{"Wan 1.3B", 1536, 30, false, "Apache-2.0"},
                                     {"Wan 5B", 3072, 30, false, "Apache-2.0"},
                                     {"Wan 14B", 5120, 40, false, "Apache-2.0"}};

// The published classes differ in what their call takes. What a folder holds says what it does.
const ModelFamily kWanFamily{.class_name = "WanPipeline",
                             .tokenizer = wan_tokenizer,
                             .defaults = wan_defaults,
                             .known = kWanModels,
                             .pictures = wan_pictures,
                             .transformer_class = "WanTransformer3DModel",
                             .text_encoder_class = "UMT5EncoderModel",
                             .vae_class = "AutoencoderKLWan",
                             .pipeline = wan_pipeline};
const ModelFamily kWanPictureFamily{.class_name = "WanImageToVideoPipeline",
                                    .tokenizer = wan_tokenizer,
                                    .defaults = wan_defaults,
                                    .known = kWanModels,
                                    .pictures = wan_pictures,
                                    .text_encoder_class = "UMT5EncoderModel",
                                    .vae_class = "AutoencoderKLWan",
                                    .pipeline = wan_pipeline};

}  // namespace weft
