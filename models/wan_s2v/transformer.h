#pragma once
// Wan 2.2 speech to video (Wan-Video/Wan2.2, wan/modules/s2v): the Wan transformer, whose tokens
// hear the sound of their latent frame, joined by rows of a reference picture and of the frames
// before the clip. Config, weights, forward.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/weights/tensor_names.h"
#include "models/wan/transformer.h"
#include "models/wan_s2v/audio.h"
#include "models/wan_s2v/motion.h"

namespace weft {

struct WanS2vConfig {
  WanConfig wan;             // of the blocks
  int64_t audio_dim = 0;     // A: values of a feature of the sound
  int64_t audio_tokens = 0;  // that a latent frame has, but for a learned one
  std::vector<int> injects;  // blocks after which the sound enters, ascending
  bool reads_newest = true;  // of the motion; else its newest three latents count as zeros

  // Reads the original config.json, and the sizes that it leaves out from the weights beside it
  // where there are any. Throws Error(kModel) that lists every unknown, missing and unsupported key
  // at once.
  static WanS2vConfig from_json_file(const std::string& path);
  // Derives the config of the published model, or of one that hears after the same blocks, from
  // names and shapes, for single-file checkpoints without a config.
  static WanS2vConfig from_tensors(const TensorFile& file);

  int64_t width() const { return wan.width(); }  // D
  WanAudioSizes audio_sizes() const { return {audio_dim, audio_tokens, width()}; }
  TransformerTraits traits() const;
};

std::string to_string(const WanS2vConfig& config);

// Returns whether the file holds this transformer.
bool holds_wan_s2v(const TensorNames& names);

// Every tensor of the checkpoint, and the part of it that the slice `width` holds. Tensors that
// other Wan transformers have, too, are named as in diffusers.
std::vector<TensorSpec> wan_s2v_tensors(const WanS2vConfig& config);
TensorPart wan_s2v_part(const WanS2vConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width);

// The cross-attention of tokens over the sound of their latent frame.
struct WanAudioInjector {
  PackedLinear to_q, to_k, to_v;  // [D part, D]
  RowLinear to_out;               // [D, D part]
  Tensor norm_q, norm_k;          // [D part] f32
  PackedLinear adain;             // [2D, D]: shift, scale

  auto weights() const { return std::tie(to_q, to_k, to_v, to_out, norm_q, norm_k, adain); }
};

// A prompt, and what a clip shows beside it.
struct WanSpeech final : WanText {
  bool tokens_are_reference = false;
  Tensor pose{};                      // [C, F, H, W] f32, or empty
  std::vector<WanPosition> places{};  // of the joint rows: the reference's, then the motion's
  int64_t reference_rows = 0;
  Tensor embedded{};  // the joint rows [rows, D] f32; empty where the first block is not loaded

  size_t bytes() const override;
};

class WanS2vTransformer final : public WanTransformer {
 public:
  // Loads the slice `load.width` of the weights of `load.blocks`. The first block brings the
  // embedders, and so the audio encoder, which every block that hears brings, too.
  static WanS2vTransformer load(Stream& stream, const TensorFile& file, const WanS2vConfig& config,
                                const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  // Observes "context" and "motion_tokens".
  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  Rope joint_rope(int64_t frames, const Conditioning& conditioning) const override;
  // Every latent frame has a time segment and a row of the signal. Observes what a WanTransformer
  // does, "audio_tokens" and "audio_global".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  bool hears(const BlockRange& blocks) const;
  const WanAudioInjector* injector(int block) const;
  void check_given(const Conditions& conditions, std::array<int64_t, 3> grid) const;
  void embed_joint(Context& context, const Conditions& conditions, WanSpeech& speech) const;
  void enter(Context& context, const WanSpeech& speech, const TensorView& x) const;
  void hear(Context& context, const WanAudioInjector& weights, std::span<const TimeRows> times,
            const WanAudioRows& sound, const TensorView& x) const;
  TensorView normed_audio(Context& context, const WanAudioInjector& weights,
                          std::span<const TimeRows> times, const WanAudioRows& sound,
                          const TensorView& x) const;

  WanS2vConfig config_;
  PackedLinear pose_embedding_;  // cond_encoder: [D, C * patch] f32
  Tensor kinds_;                 // [3, D] f32, added to tokens, reference and motion rows
  Tensor without_pose_;          // [D] f32, added to tokens of a clip without a pose
  WanFramePacker packer_;
  WanAudioEncoder audio_;
  std::vector<WanAudioInjector> injectors_;  // of the loaded blocks that hear
};

// The transformer by its configuration.
std::unique_ptr<TransformerModel> make_wan_s2v_model(const WanS2vConfig& config);

}  // namespace weft
