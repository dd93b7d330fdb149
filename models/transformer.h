#pragma once
// Transformer: a diffusion transformer as the engine sees it. TransformerModel is one that is known
// by its configuration alone.
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/rope.h"
#include "models/offload/weight_offload.h"
#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

struct TransformerTraits {
  int64_t width = 0;  // columns of a hidden row
  int blocks = 0;
  int heads = 0, head_dim = 0;
  int kv_heads = 0;  // heads of keys and values, which as many heads of queries share; 0: heads
  int64_t ffn_columns = 0;  // of the feed-forward's hidden rows
  int64_t in_channels = 0, out_channels = 0;
  std::array<int64_t, 3> patch{1, 1, 1};  // frames, rows, columns of the latent per token
  int64_t text_columns = 0;               // of a text encoder's rows
  int64_t image_columns = 0;              // of an image encoder's rows, or 0: it reads none
  int64_t image_rows = 0;                 // that the model was trained with
  int images = 0;                         // pictures that they are of
  int64_t pooled_columns = 0;             // of a prompt's vector, or 0: the model reads none
  bool reads_guidance = false;            // it is told a scale of guidance (Conditions::guidance)
  int64_t time_columns = 0;               // of the sinusoidal embedding of a timestep
  int64_t signal_columns = 0;  // of the signal that a latent frame follows (sound), or 0: none
  // Latent frames of a picture that the clip shows, and of frames before the clip, whose rows the
  // model joins to the tokens' (Conditions::reference, motion); 0: it reads none.
  int64_t reference_frames = 0, motion_frames = 0;
  bool reads_references = false;  // it joins pictures of any size to its rows (references)
  bool embeds_at_end = false;     // a rank that has the last block can embed tokens, too
  // A timestep t is embedded as time_offset + time_scale t.
  float time_offset = 0, time_scale = 1;
  const char* block_name = "blocks";  // under which an Observer sees the blocks' output
  bool joint_first = false;           // it sees the joint rows before the tokens'
  // Blocks from this one on are of a second kind, with a name and numbers of their own; 0: none
  // are.
  int second_blocks = 0;
  const char* second_block_name = "";

  int key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  // Part `index` of `parts` of the width. Heads that share keys are apart only where there are more
  // parts than heads of keys.
  WidthSlice width_part(int parts, int index) const {
    return {partition_heads(heads, key_heads(), parts, index).q,
            partition(ffn_columns, parts, index)};
  }
  // The name and number under which an Observer sees the output of a block.
  std::pair<const char*, int> observed_block(int block) const {
    const bool second = second_blocks > 0 && block >= second_blocks;
    return second ? std::pair{second_block_name, block - second_blocks}
                  : std::pair{block_name, block};
  }
  // Values of the latent and of the velocity per token.
  int64_t row() const { return out_channels * patch[0] * patch[1] * patch[2]; }
  // Channels of the input that are given and not denoised (Conditions::channels).
  int64_t given_channels() const { return in_channels - out_channels; }
  // The number of tokens of a latent [C, F, H, W] along (frame, row, column). Throws Error(kUsage)
  // where H or W is not a multiple of the patch.
  std::array<int64_t, 3> grid(int64_t frames, int64_t height, int64_t width) const;
};

// The timestep (0..1000) of a range of global tokens. The segments of a forward cover its tokens.
struct TimeSegment {
  Range tokens;
  float timestep = 0;
};

struct TransformerLoad {
  DType dtype = DType::kF32;  // dtype of matrices, keys and values; the conditioning path stays f32
  BlockRange blocks{};        // total 0 = all
  WidthSlice width{};         // slice of every block; embeddings and head are whole
  // Format of the blocks' matrices. Weights that are rounded to 8 bits need the whole width,
  // because the scales of a part would differ from those of the whole matrix. With kFile all
  // matrices stay as the file stores them.
  WeightFormat weights = WeightFormat::kCompute;
  AttentionFormat attention = AttentionFormat::kCompute;  // format of self-attention
  // Blocks on the device at once, at least 2. The others are offloaded: to pinned host memory, from
  // which they are copied when used (DeviceWindow), or on a CPU to the file, from which they are
  // read ahead of use (LayerWindow). 0: all blocks are on the device.
  int resident = 0;

  // The same with all ranges written out.
  TransformerLoad of(const TransformerTraits& traits) const;
  bool operator==(const TransformerLoad&) const = default;
};

// Writes the sinusoidal embedding [cos(t f_0), .., sin(t f_0), ..] with f_i = 10000^(-i / half) (Ho
// et al. 2020) to out [time_columns] f32. It is evaluated in f64.
void time_embedding(float timestep, const TensorView& out);

// The inputs of a forward that stay the same in every step.
struct Conditions {
  TensorView text{};        // the prompt's rows [length, text_columns] f32
  int64_t text_length = 0;  // rows that the model was trained on, padding included; >= length
  TensorView image{};       // rows of an image encoder [n, image_columns] f32, or empty
  // The channels [given_channels, F, H, W] f32 that follow the latent's in the input, or empty.
  TensorView channels{};
  TensorView pooled{};  // the prompt as one vector [pooled_columns] f32, or empty
  double guidance = 0;  // the scale that a model with embedded guidance is told
  // The latents of a picture that the clip shows [C, reference_frames, H, W] and of the frames
  // before it [C, up to motion_frames, H, W], the newest last; f32, or empty.
  TensorView reference{}, motion{};
  // The latents of pictures that the model joins to its rows in this order [C, h, w] f32, each of a
  // size of its own.
  std::vector<TensorView> references{};
  // Scales of time of the motion that are read: 2 all, 1 without the newest latent, 0 without the
  // newest three. Those that are not read count as zeros.
  int motion_scales = 2;
  TensorView pose{};  // the latent of a video that guides the clip [C, F, H, W] f32, or empty
  // The tokens belong to the reference picture, not to a video: a forward for their keys alone.
  bool tokens_are_reference = false;
};

// The rows that Conditions::references become, which have these rows and columns.
int64_t reference_rows_of(const TransformerTraits& traits,
                          std::span<const std::array<int64_t, 2>> references);

// The result of Transformer::prepare for one prompt.
struct Conditioning {
  virtual ~Conditioning() = default;
  virtual size_t bytes() const = 0;
  // Rows of this rank's hidden state that are no tokens of the latent. They follow those that are:
  // first its tokens of the pictures beside the latent, then rows that every rank of a sequence
  // axis has (joint text).
  virtual int64_t joint_rows() const { return 0; }
  // The tokens of pictures beside the latent, of all ranks (Sequence::beside).
  virtual int64_t beside() const { return 0; }
};

// Sees the hidden rows x [N + joint rows, D] f32 of a forward between its last block and its head.
using HiddenHook = std::function<void(const TensorView& x)>;

// A forward of this rank's tokens through some blocks, N of which (context.tokens) are the
// latent's.
struct ForwardArgs {
  // An empty range at the beginning is the embedding alone, one at the end the head alone.
  BlockRange blocks{};
  // Rows of the latent [N, row] f32 (patchify) if blocks.first(), else hidden rows [N + joint rows,
  // D] f32.
  TensorView in{};
  std::span<const TimeSegment> times{};
  TensorView embedding{};  // of the times, by timestep_embedding
  const Conditioning& conditioning;
  const Rope& rope;
  // Rows of the velocity [N, row] f32 if blocks.last(), else hidden rows as above.
  TensorView out{};
  HiddenHook hook{};  // called if blocks.last()
  // The signal of every segment of `times` [segments, signal_columns] f32, or empty if the model
  // follows none.
  TensorView signal{};
};

// The part of a transformer that one rank holds (TransformerLoad). With a part of the width,
// prepare and forward need a Context whose Reducer sums over the parts.
class Transformer {
 public:
  virtual ~Transformer() = default;

  virtual const TransformerTraits& traits() const = 0;
  virtual const TransformerLoad& loaded() const = 0;
  virtual size_t weights_bytes() const = 0;  // bytes on the stream's device
  // Weight bytes that a forward of all loaded blocks copies from host memory, or reads from the
  // file.
  virtual size_t streamed_bytes() const = 0;
  // The offload totals of all passes so far. Waits for pending copies and reads.
  virtual WeightOffload streamed() const = 0;

  // Computes what the steps need of a prompt, for a latent of `grid` tokens.
  virtual std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                                std::array<int64_t, 3> grid) const = 0;
  // The rotary angles of a latent's tokens. `start` shifts the positions: (frame, row, column).
  virtual Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
                    const Conditioning& conditioning) const = 0;
  // The rotary angles of the joint rows, moved by so many frames, for those who keep their keys.
  // Empty where the model gives none.
  virtual Rope joint_rope(int64_t /*frames*/, const Conditioning& /*conditioning*/) const {
    return {};
  }

  // Writes the embedding of every segment's timestep to `out` [segments, time_columns] f32 on the
  // stream's device. The forward that reads it can be recorded (DeviceGraph) and
  // replayed for other timesteps.
  void timestep_embedding(Stream& stream, std::span<const TimeSegment> times,
                          const TensorView& out) const;
  virtual void forward(Context& context, const ForwardArgs& args) const = 0;

 protected:
  // Check that the blocks of a forward are loaded and its angles those of its tokens, and that the
  // reducer sums over several ranks exactly if this one holds only a part of the width.
  void check_forward(const Context& context, const ForwardArgs& args) const;
  void check_reducer(const Context& context) const;
};

class TransformerModel : public CheckpointModel {
 public:
  const TransformerTraits& traits() const { return traits_; }
  virtual std::string description() const = 0;  // the configuration in one line
  // The same transformer with its first `blocks` blocks alone, for measurements.
  virtual std::unique_ptr<TransformerModel> with_blocks(int blocks) const = 0;

  // Returns whether other models of the family have a module of this name, which this one may lack.
  virtual bool relatives_have(const std::string& /*module*/) const { return false; }

  // Reads the part of the weights that `load` describes and nothing else. The file may be closed
  // afterwards, unless `load` offloads blocks on a CPU. Throws Error(kModel) that names every
  // tensor that is missing or misshapen.
  virtual std::unique_ptr<Transformer> load(Stream& stream, const TensorFile& file,
                                            const TransformerLoad& load) const = 0;

  // The vector that modulates all blocks at each of these timesteps, computed on the host from the
  // file's weights, with the same bits everywhere. Empty for models that offer none.
  virtual std::vector<std::vector<float>> time_vectors(const TensorFile& /*file*/,
                                                       std::span<const float> /*times*/) const {
    return {};
  }

  // Writes what each latent frame hears of the features of a sound, as ForwardArgs::signal takes
  // it, to `rows` [frames, signal_columns] f32. `features` [layers, columns, n] f32 belong to the
  // first of the frames; both are in host memory. Error(kModel) that names a size that is not
  // legal.
  virtual void signal_rows(const TensorView& features, const TensorView& rows) const;

  // The joint rows that Conditions::motion becomes, for a latent of `grid` tokens.
  virtual int64_t motion_rows(std::array<int64_t, 3> /*grid*/) const { return 0; }

  // Conditioning::joint_rows of a prompt of `text` rows and a latent of `tokens` tokens.
  virtual int64_t joint_rows(int64_t /*tokens*/, int64_t /*text*/) const { return 0; }

 protected:
  explicit TransformerModel(const TransformerTraits& traits) : traits_(traits) {}

 private:
  TransformerTraits traits_;
};

}  // namespace weft
