#include "models/wan/family.h"

#include <filesystem>
#include <span>

#include "io/text/text_clean.h"
#include "io/text/tokenizer.h"

namespace weft {

namespace {

// Published defaults (Wan-Video/Wan2.1 and Wan2.2, generate.py and configs). A row is found by the
// transformer's width and channels and the number of experts.
struct DefaultsRow {
  const char* name;
  int64_t width, in_channels, out_channels;  // the transformer's
  int experts;
  int steps;
  double shift, guidance, guidance_2;  // guidance_2 0: one expert
  int64_t frames;
  double fps;
  int64_t picture_width, picture_height;
  std::span<const double> teacache{};
};

// The polynomials of TeaCache4Wan2.1 on the time embedding. They were fitted for Wan 2.1 alone.
constexpr double kTeaCache1B[] = {2.39676752e3, -1.31110545e3, 2.01331979e2, -8.29855975,
                                  1.37887774e-1};
constexpr double kTeaCache14B[] = {-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429,
                                   -13.02252404};

constexpr DefaultsRow kDefaults[] = {
    {"wan2.1-t2v-1.3b", 1536, 16, 16, 1, 50, 5, 5, 0, 81, 16, 832, 480, kTeaCache1B},
    {"wan2.1-t2v-14b", 5120, 16, 16, 1, 50, 5, 5, 0, 81, 16, 1280, 720, kTeaCache14B},
    {"wan2.2-t2v-a14b", 5120, 16, 16, 2, 40, 12, 4, 3, 81, 16, 1280, 720},
    {"wan2.2-i2v-a14b", 5120, 36, 16, 2, 40, 5, 3.5, 3.5, 81, 16, 1280, 720},
    {"wan2.2-ti2v-5b", 3072, 48, 48, 1, 50, 5, 5, 0, 121, 24, 1280, 704},
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

DefaultSettings wan_defaults(const ModelDirectory& model) {
  const TransformerTraits& traits = model.expert(0).traits();
  for (const DefaultsRow& row : kDefaults)
    if (row.width == traits.width && row.in_channels == traits.in_channels &&
        row.out_channels == traits.out_channels && row.experts == model.experts())
      return built_in(row);
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
      : tokenizer_(SentencePieceTokenizer::load(folder + "/spiece.model")),
        max_ids_(tokenizer_model_max_length(folder + "/tokenizer_config.json")) {}

  int64_t max_ids() const override { return max_ids_; }
  int64_t padded_rows(int64_t) const override { return max_ids_; }
  PromptTokens read(const std::string& prompt) const override {
    PromptTokens out{tokenizer_.encode(clean_prompt(prompt), std::numeric_limits<int>::max()), {}};
    if (static_cast<int64_t>(out.ids.size()) <= max_ids_) return out;
    out.cut = cut(out.ids);
    out.ids.resize(max_ids_);
    out.ids.back() = kEndId;
    return out;
  }

 private:
  PromptCut cut(const std::vector<int32_t>& ids) const {
    // The last row, like the last token, is the end of the text.
    const auto first_lost = ids.begin() + max_ids_ - 1;
    const std::string read = tokenizer_.decode({ids.begin(), first_lost});
    std::string lost = tokenizer_.decode({first_lost, ids.end() - 1});
    // A word that is cut in two is told whole.
    const std::string all = tokenizer_.decode({ids.begin(), ids.end() - 1});
    if (all.starts_with(read) && all.ends_with(lost)) {
      const size_t space = all.find_last_of(' ', read.size());
      lost = all.substr(space == std::string::npos ? 0 : space + 1);
    }
    return {static_cast<int64_t>(ids.size()), max_ids_, lost};
  }

  SentencePieceTokenizer tokenizer_;
  int64_t max_ids_;
};

}  // namespace

const ModelFamily kWanFamily{
    .class_name = "WanPipeline",
    .tokenizer = [](const std::string& folder) -> std::unique_ptr<PromptTokenizer> {
      return std::make_unique<WanPrompts>(folder);
    },
    .defaults = wan_defaults,
};

}  // namespace weft
