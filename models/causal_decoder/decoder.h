#pragma once
// Qwen2.5 and Qwen3 decoders (Yang et al. 2024, arXiv 2412.15115; 2025, arXiv 2505.09388): pre-norm
// blocks of causal attention with grouped queries and SwiGLU. Qwen3 normalises every head of q and
// k. Qwen2.5 has biases on q, k and v instead.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/offload/layer_window.h"
#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

struct DecoderConfig {
  int64_t hidden = 0, ffn = 0, vocab = 0;
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool head_norms = false;         // Qwen3
  bool projection_biases = false;  // Qwen2.5
  bool tied = false;               // the output layer is the embedding
  float eps = 1e-6f;
  double rope_theta = 1e6;
  int64_t max_positions = 32768;

  // Reads a transformers config.json of model_type qwen2 or qwen3, or the language part of
  // qwen2_5_vl or qwen3_vl, of the latter without the output layer. Every field that would change a
  // number is honoured or refused: Error(kModel) names the field, its value and the legal values.
  static DecoderConfig from_json_file(const std::string& path);
  // Reads what the tensors and the metadata of a file without a config tell; the rest is as
  // published, `theta` where the metadata does not tell it.
  static DecoderConfig from_tensors(const TensorFile& file, double theta = 1e6);

  int64_t inner() const { return int64_t{heads} * head_dim; }
  int64_t kv_inner() const { return int64_t{kv_heads} * head_dim; }
};

inline constexpr double kSeeingQwen3Theta = 5e6;  // rope_theta of every published Qwen3-VL

std::string to_string(const DecoderConfig& config);

// Returns whether a config.json's model_type is one of them; and their names for messages.
bool is_decoder_type(const std::string& model_type);
std::string decoder_families();

// Every tensor of the checkpoint, named without prefix. lm_head.weight is listed if it is not tied.
std::vector<TensorSpec> decoder_tensors(const DecoderConfig& config);

// The part of the model that one rank loads. `width` counts query heads. A rank also holds the
// key/value heads that its query heads use, so ranks that share a group each hold that group's
// head.
struct DecoderLoad {
  DType dtype = DType::kF32;  // dtype of matrices, keys and values; the hidden rows stay f32
  BlockRange blocks{};        // total 0 = all
  WidthSlice width{};         // slice of every block
  Range vocab{};              // rows of the output layer; {} = all
  bool logits = true;         // false: the last stage lacks the output layer
  WeightFormat weights = WeightFormat::kCompute;  // format of the blocks' matrices
  int resident = 0;  // blocks in memory at once; the others are read before use; 0 = all
};

// The key/value heads of a range of query heads: whole groups, or a part of one.
Range decoder_kv_heads(const DecoderConfig& config, const Range& heads);

// Returns the part of a tensor that `load` holds: outputs of q, k, v, gate and up; inputs of o and
// down; vocabulary rows of the output layer; all of any other tensor.
TensorPart decoder_part(const DecoderConfig& config, const TensorSpec& tensor,
                        const DecoderLoad& load);

// The rows of one sequence in a pass.
struct SequenceRows {
  Range rows{};                 // its rows among the pass's rows
  TokenRanges tokens{};         // the positions of these rows
  std::span<ContextKV> past{};  // KV cache per loaded block; empty: no past, and nothing is kept
  TokenMixer* mixer = nullptr;  // null: the context's mixer
};

class CausalDecoder {
 public:
  // Reads and packs the part that `load` describes. `file` must outlive the decoder: its mapping
  // holds the embedding, and streamed blocks are read from it in every pass.
  static CausalDecoder load(const TensorFile& file, const DecoderConfig& config, Stream& stream,
                            const DecoderLoad& load = {});

  const DecoderConfig& config() const { return config_; }
  const DecoderLoad& loaded() const { return load_; }
  Range kv_heads() const { return decoder_kv_heads(config_, load_.width.heads); }
  // The bytes of packed weights with at most `resident` blocks in memory; 0: those in memory now.
  size_t bytes(int resident = 0) const;
  // The number of blocks read, the seconds spent reading and the seconds waited for it. All are
  // zero if all blocks are resident.
  WindowCounts window() const { return blocks_->counts(); }

  // The rotary angles of positions 0 ... positions - 1.
  Rope rope(int64_t positions) const;

  // Runs the loaded blocks on n rows of several sequences, concatenated. in: ids [n] i32 if the
  // blocks begin at 0, else hidden rows [n, D] f32. out: hidden rows [n, D] f32 before the final
  // norm; it may be `in`. An id outside the vocabulary throws Error(kModel).
  void forward(Context& context, const TensorView& in, std::span<const SequenceRows> sequences,
               const Rope& rope, const TensorView& out) const;

  // Only on the last stage: the final norm of hidden rows [m, D] f32, and their logits [m, V] f32.
  // Each rank of the reducer computes the logits of its part of the vocabulary.
  void norm(Context& context, const TensorView& hidden, const TensorView& out) const;
  void logits(Context& context, const TensorView& hidden, const TensorView& out) const;

 private:
  struct Block {
    Tensor attention_norm;  // [D] f32
    PackedLinear q, k, v;   // [A part E, D], [Akv part E, D]
    Tensor q_norm, k_norm;  // [E] f32, or empty
    RowLinear o;            // [D, A part E]
    Tensor ffn_norm;        // [D] f32
    PackedLinear gate, up;  // [F part, D]
    RowLinear down;         // [D, F part]

    auto weights() const {
      return std::tie(attention_norm, q, k, v, q_norm, k_norm, o, ffn_norm, gate, up, down);
    }
  };

  static Block load_block(Stream& stream, const CheckpointPart& tensors,
                          const DecoderConfig& config, const DecoderLoad& load, int index);
  void embed(Context& context, const TensorView& ids, const TensorView& x) const;
  void attend(Context& context, const Block& block, int index,
              std::span<const SequenceRows> sequences, const Rope& rope, const TensorView& x) const;
  void feed_forward(Context& context, const Block& block, const TensorView& x) const;

  DecoderConfig config_;
  DecoderLoad load_;
  TensorView embedding_;  // [V, D], in the file's mapping; or empty, and rows are read from table_
  TableInFile table_;
  std::unique_ptr<LayerWindow<Block>> blocks_;
  Tensor final_norm_;  // [D] f32, on the last stage
  PackedLinear head_;  // [V part, D], on the last stage
};

}  // namespace weft
