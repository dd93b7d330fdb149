#pragma once
// Wan video diffusion transformer (Wan Team 2025, arXiv 2503.20314): config, weights, forward.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/device_window.h"
#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

// Everything that tells one Wan transformer from another. The defaults are those of the public
// configs; the sizes come from the checkpoint.
struct WanConfig {
  int heads = 0, head_dim = 0, layers = 0;
  int64_t ffn_dim = 0, in_channels = 0, out_channels = 0;
  int64_t text_dim = 4096, freq_dim = 256;
  std::array<int64_t, 3> patch{1, 2, 2};  // frames, rows, columns of the latent per token
  float eps = 1e-6f;
  int64_t rope_max_seq_len = 1024;

  // transformer/config.json in the diffusers or the original spelling. Error(kModel) that lists
  // every unknown, missing and unsupported key at once.
  static WanConfig from_json_file(const std::string& path);
  // From names and shapes, for single-file checkpoints that carry no config.
  static WanConfig from_tensors(const TensorFile& file);

  int64_t width() const { return int64_t{heads} * head_dim; }  // D
  int64_t tensor_count() const;
  int64_t parameter_count() const;
};

std::string to_string(const WanConfig& config);

// The whole checkpoint in its order, diffusers spelling: loader, counts and `weft inspect` read
// this one list.
std::vector<TensorSpec> wan_tensors(const WanConfig& config);

// Which part of one of them the slice `width` holds: of the projections to heads and to the hidden
// layer the outputs, of those back the inputs, of everything else all.
TensorPart wan_part(const WanConfig& config, const TensorSpec& tensor, const WidthSlice& width);

// Tokens along (frame, row, column) of a latent [C, F, H, W]. Error(kUsage) where H or W is not a
// multiple of the patch.
std::array<int64_t, 3> wan_grid(const WanConfig& config, int64_t frames, int64_t height,
                                int64_t width);

// The timestep (0..1000) of a range of global tokens. The segments of a forward cover its tokens.
struct TimeSegment {
  Range tokens;
  float timestep = 0;
};

struct WanLoad {
  DType dtype = DType::kF32;  // of matrices, keys and values; the conditioning path stays f32
  BlockRange blocks{};        // total 0 = all
  WidthSlice width{};         // of every block; embeddings and head are whole
  // Of the blocks' matrices. 8 bits want the whole width: a part's scales are not the whole's.
  WeightFormat weights = WeightFormat::kCompute;
  AttentionFormat attention = AttentionFormat::kCompute;  // of tokens over tokens
  // Blocks on a device at once, at least 2; the others lie in pinned host memory and pass through
  // (DeviceWindow). 0: all of them.
  int resident = 0;
};

// A prompt as every cross-attention sees it; independent of the timestep, made once per prompt.
// The rows behind the prompt are equal: one of them stands for all, weighted in the softmax.
struct WanText {
  int64_t length = 0;            // rows of the prompt
  int64_t text_length = 0;       // rows the model was trained to see, padding included
  BlockRange blocks{};           // which layers' keys and values are here
  Tensor context{};              // [rows, D] compute dtype; rows = length (+ 1 where padded)
  std::vector<Tensor> k{}, v{};  // per layer [rows, A part, E] compute dtype

  int64_t rows() const { return length + (text_length > length ? 1 : 0); }
  size_t bytes() const;
};

class WanTransformer {
 public:
  // Takes the weights of `load.blocks` (the patch embedding with the first, the head with the
  // last, the time and text embedders with any) and of them the slice `load.width`; nothing else is
  // read. The file may be closed afterwards. With a part of the width, prepare_text and forward
  // want a Context whose Reducer joins the parts.
  static WanTransformer load(Stream& stream, const TensorFile& file, const WanConfig& config,
                             const WanLoad& load = {});

  const WanConfig& config() const { return config_; }
  const WanLoad& loaded() const { return load_; }
  size_t weights_bytes() const;  // on the stream's device
  // What a forward of all loaded blocks copies from the host's memory.
  size_t streamed_bytes() const { return window_ ? window_->bytes_per_pass() : 0; }
  // Of all passes so far; waits for what is under way.
  StreamedWeights streamed() const { return window_ ? window_->streamed() : StreamedWeights{}; }

  // embeds [length, text_dim] f32, the prompt's rows; text_length >= length. Observes "context".
  WanText prepare_text(Context& context, const TensorView& embeds, int64_t text_length) const;

  // Positions of a latent's tokens, once per request. `start` shifts them: (frame, row, column).
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start = {}) const;

  // in: latent [Cin, F, H, W] f32 where blocks.first(), else hidden rows [N, D] f32; N =
  // context.tokens.size(). out: velocity [Cout, F, H, W] f32 where blocks.last() (the places of
  // this rank's tokens are written), else hidden rows [N, D] f32. Observes "patch_embedding",
  // "temb", "timestep_proj", "blocks" with the block's index, and "output".
  void forward(Context& context, BlockRange blocks, const TensorView& in,
               std::span<const TimeSegment> times, const WanText& text, const Rope& rope,
               const TensorView& out) const;
  // The same in two parts. timestep_embedding computes the sinusoidal embedding of every segment's
  // timestep on the host and copies it to `out` [segments, freq_dim] f32 on the stream's device.
  // The forward that reads it can be recorded (DeviceGraph) and replayed for other timesteps.
  void timestep_embedding(Stream& stream, std::span<const TimeSegment> times,
                          const TensorView& out) const;
  void forward(Context& context, BlockRange blocks, const TensorView& in,
               std::span<const TimeSegment> times, const TensorView& embedding, const WanText& text,
               const Rope& rope, const TensorView& out) const;

 private:
  struct Attention {
    PackedLinear to_q, to_k, to_v;  // [D part, D]
    RowLinear to_out;               // [D, D part]
    Tensor norm_q, norm_k;          // [D part] f32
  };
  struct Block {
    Tensor scale_shift_table;         // [6, D] f32
    Attention attn1;                  // self
    Tensor norm2_weight, norm2_bias;  // [D] f32
    Attention attn2;                  // cross
    PackedLinear ffn_in;              // [ffn part, D]
    RowLinear ffn_out;                // [D, ffn part]
  };
  template <class Weights>
  static Block load_block(const Weights& source, const WanLoad& load, int index);
  template <class F>
  static void for_vectors(const Block& block, F&& f);
  static std::vector<TensorView> pieces(const Block& block);
  static size_t bytes(const Block& block);
  // Runs f(block) with block `index` of the model where the stream's ops take it.
  template <class F>
  void with_block(Stream& stream, int index, F&& f) const {
    const int at = index - load_.blocks.begin;
    if (window_)
      window_->use(stream, at, f);
    else
      f(blocks_[at]);
  }
  // Rows of this rank that share a timestep, and that timestep's conditioning.
  struct TimeRows {
    Range rows;
    TensorView temb;  // [D] f32
    TensorView proj;  // [6, D] f32
  };

  void check_reducer(const Context& context) const;
  void text_keys(Context& context, const Attention& weights, WanText& text) const;
  std::vector<TimeRows> embed_times(Context& context, std::span<const TimeSegment> times,
                                    const TensorView& embedding) const;
  void embed_patches(Context& context, const TensorView& latent, const TensorView& x) const;
  void block(Context& context, int index, const Block& weights, std::span<const TimeRows> times,
             const WanText& text, const Rope& rope, const TensorView& x) const;
  void modulated_norm(Stream& stream, std::span<const TimeRows> times, const TensorView& m,
                      int part, const TensorView& x, const TensorView& out) const;
  void gated_residual(Stream& stream, std::span<const TimeRows> times, const TensorView& m,
                      int part, const TensorView& y, const TensorView& x) const;
  void self_attention(Context& context, int index, const Attention& weights, const Rope& rope,
                      const TensorView& h, const TensorView& y) const;
  void cross_attention(Context& context, int index, const Attention& weights, const WanText& text,
                       const TensorView& h, const TensorView& y) const;
  void feed_forward(Context& context, const Block& weights, const TensorView& h,
                    const TensorView& y) const;
  void head(Context& context, std::span<const TimeRows> times, const TensorView& x,
            const TensorView& velocity) const;

  WanConfig config_;
  WanLoad load_;
  PackedLinear patch_embedding_;                            // [D, Cin * patch] f32
  PackedLinear time_linear_1_, time_linear_2_, time_proj_;  // [D, 256], [D, D], [6D, D] f32
  PackedLinear text_linear_1_, text_linear_2_;              // [D, text_dim], [D, D]
  std::vector<Block> blocks_;                               // of load_.blocks, or
  std::unique_ptr<DeviceWindow<Block>> window_;             // those where not all are resident
  Tensor scale_shift_table_;                                // [2, D] f32
  PackedLinear proj_out_;                                   // [patch * Cout, D] f32
};

// emb = [cos(t f_0), .., sin(t f_0), ..], f_i = 10000^(-i / half) (Ho et al. 2020), f64 inside.
// out [freq_dim] f32.
void time_embedding(float timestep, const TensorView& out);

// The feed-forward runs over this many rows at a time: its hidden rows are the widest of the model.
inline constexpr int64_t kFfnRows = 4096;

// Memory predictions for the plan, of one rank that loads `load`: bytes of packed weights, of one
// prompt's WanText, and of the arena's high-water mark during prepare_text and a forward of the
// loaded blocks over `tokens` tokens of its own with one timestep.
size_t wan_weights_bytes(const WanConfig& config, const WanLoad& load);
size_t wan_text_bytes(const WanConfig& config, int64_t text_rows, const WanLoad& load);
size_t wan_workspace_bytes(const WanConfig& config, int64_t tokens, int64_t text_rows,
                           const WanLoad& load, const SeamBytes& seams = {});
// Of a rank whose stream is a device's (kernels/device_plan.h): its weights there, what one forward
// copies from the host's memory, where that lies pinned, and the largest scratch of an op.
// `all_tokens`: whose keys a rank's tokens see.
DeviceBytes wan_device_bytes(const WanConfig& config, const WanLoad& load, Bias biases);
size_t wan_streamed_bytes(const WanConfig& config, const WanLoad& load);
size_t wan_scratch_bytes(const WanConfig& config, int64_t tokens, int64_t all_tokens,
                         int64_t text_rows, const WanLoad& load, Bias biases,
                         const DeviceTraits& device);
// Of a rank that loads everything.
size_t wan_weights_bytes(const WanConfig& config, DType dtype);
size_t wan_text_bytes(const WanConfig& config, int64_t text_rows, DType dtype);
size_t wan_workspace_bytes(const WanConfig& config, int64_t tokens, int64_t text_rows, DType dtype);

}  // namespace weft
