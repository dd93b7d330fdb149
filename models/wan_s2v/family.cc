#include "models/wan_s2v/family.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/wan/family.h"
#include "models/wan_s2v/motion.h"

namespace weft {

namespace {

// Published defaults (Wan-Video/Wan2.2, wan/configs/wan_s2v_14B.py and wan/speech2video.py).
constexpr int64_t kPublishedWidth = 5120;  // of the transformer
constexpr double kShift = 3;
constexpr int64_t kClipLatents = 20;
constexpr int64_t kDropped = 3;
// The largest patches of the motion are 8 x 8 latent pixels.
constexpr int64_t kMotionPatch = 8;

// Live Avatar draws streams so (Alibaba-Quark/LiveAvatar, liveavatar/models/wan,
// causal_s2v_pipeline_tpp.py), with its LoRA of four steps.
StreamDefaults speech_stream() {
  return {.caption = "",
          .moods = {},
          .width = 704,
          .height = 384,
          .fps = 25,
          .steps = 4,
          .solver = "euler",
          .segment_frames = 3,
          .window_frames = 12,
          .clean_pass = false,
          .picture = StreamPicture{.sink_frame = kWanReferenceFrame,
                                   .sink_distance = {4, 31},
                                   .swap_segment = 4,
                                   .decoded_latents = 7,
                                   .dropped_pictures = kDropped},
          .needs_lora = "Live Avatar"};
}

DefaultSettings speech_defaults(const ModelDirectory& model) {
  DefaultSettings out;
  const bool published = model.expert(0).traits().width == kPublishedWidth;
  out.name = published ? "wan2.2-s2v-14b" : folder_name(model.path);
  out.origin = "built-in";
  out.width = 1024;
  out.height = 704;
  out.frames = 80;
  out.fps = 16;
  out.steps = 40;
  out.guidance_scale = 4.5;
  out.flow_shift = kShift;
  out.stream = speech_stream();
  return out;
}

PictureConditioning speech_pictures(const ModelDirectory&) {
  return {.form = PictureForm::kReference, .least = 1, .most = 1, .clip_size = wan_speech_size};
}

SpeechChunks speech_chunks(const ModelDirectory& model) {
  const VaeTraits& vae = model.vae_model->traits;
  return {.latent_frames = kClipLatents,
          .dropped_frames = kDropped,
          .motion_frames = vae.frames(kWanMotionFrames),
          .size_multiple = vae.spatial_factor * kMotionPatch};
}

PipelineFacts speech_pipeline(const ModelDirectory&) {
  return {.scheduler = nlohmann::json{
              {"_class_name", "FlowUniPCMultistepScheduler"},
              {"flow_shift", kShift},
              {"prediction_type", "flow_prediction"},
              {"use_flow_sigmas",
               true}}.dump()};
}

constexpr RootLayout kRoot{.vae_pickle = "Wan2.1_VAE.pth",
                           .text_encoder_pickle = "models_t5_umt5-xxl-enc-bf16.pth",
                           .tokenizer = "google/umt5-xxl",
                           .audio_encoder = "wav2vec2-large-xlsr-53-english"};

int64_t rounded_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

}  // namespace

std::array<int64_t, 2> wan_speech_size(int64_t width, int64_t height, int64_t area,
                                       int64_t multiple) {
  const auto padded = [&](double scale) {
    const auto side = [&](int64_t whole) {
      const auto scaled = static_cast<int64_t>(static_cast<double>(whole) * scale);
      return rounded_up(std::max<int64_t>(scaled, 1), multiple);
    };
    return std::array{side(width), side(height)};
  };
  // A size changes where a scaled side is a multiple, so that the largest scale is 1 or one of
  // these.
  std::array<int64_t, 2> best{multiple, multiple};
  double largest = 0;
  const auto consider = [&](double scale) {
    const auto size = padded(scale);
    if (scale <= largest || scale > 1 || size[0] * size[1] > area) return;
    largest = scale;
    best = size;
  };
  consider(1);
  for (const int64_t side : {width, height})
    for (int64_t pixels = multiple; pixels <= side; pixels += multiple)
      // The side has this many pixels just below the scale at which it would have one more.
      consider(std::nextafter(static_cast<double>(pixels + 1) / static_cast<double>(side), 0.0));
  return best;
}

constexpr KnownModel kSpeechModels[] = {{"Wan S2V 14B", 5120, 40, false, "Apache-2.0"}};

const ModelFamily kWanSpeechFamily{.class_name = "WanModel_S2V",
                                   .tokenizer = wan_tokenizer,
                                   .defaults = speech_defaults,
                                   .known = kSpeechModels,
                                   .pictures = speech_pictures,
                                   .chunks = speech_chunks,
                                   .root = &kRoot,
                                   .text_encoder_class = "UMT5EncoderModel",
                                   .vae_class = "AutoencoderKLWan",
                                   .pipeline = speech_pipeline};

}  // namespace weft
