#pragma once
// Building blocks shared by several models: the packed weights that a rank holds, row-parallel
// linears, RMS norms, patches.
#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/copy.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rope.h"
#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

// A linear layer whose input width may be split over ranks. The bias is fused if the width is
// whole. If it is split, the bias is stored separately, because it must be added after
// Reducer::sum.
struct RowLinear {
  PackedLinear packed;
  Tensor bias;  // [out] f32, or empty
};

// The part of a checkpoint that one rank holds. Tensors are named as in diffusers.
class CheckpointPart {
 public:
  // `file` must outlive the object. With `kept` kFile every matrix stays as the file stores it,
  // whatever format it is packed in, where that takes less memory. `alike` says that blocks must
  // have the same buffers: products are then merged, because they may change some blocks alone.
  explicit CheckpointPart(const TensorFile& file, WeightFormat kept = WeightFormat::kCompute,
                          bool alike = false)
      : file_(&file), kept_(kept), alike_(alike) {}
  // Says that `part` of the tensor is held, which the file spells `spelled`. `shape` are the
  // extents of the whole tensor in the file.
  void add(const std::string& name, const std::string& spelled, const TensorPart& part,
           const std::vector<int64_t>& shape) {
    tensors_[name] = {spelled, part, shape};
  }
  // The same of a tensor at a place that may be one of several in the file's, which `binder` takes.
  void take(WeightBinder& binder, const TensorSpec& tensor, const TensorPlace& place,
            TensorPart part);

  // Asks the system to read the tensors whose names begin with `prefix`, where they are held as a
  // whole. Does nothing in a dry run.
  void read_ahead(const Stream& stream, const std::string& prefix) const;
  HeldWeight held(Stream& stream, const std::string& name, DType dtype = DType::kF32) const;
  // An f32 copy on the stream's device: of all values in a row, or of the last two dimensions.
  Tensor vector(Stream& stream, const std::string& name) const;
  Tensor table(Stream& stream, const std::string& name) const;
  // Packs `name`.weight as a matrix [out, rest], and `name`.bias if there is one. In another format
  // than kCompute, a product that the file adds to the matrix (StoredTensors) is added when it is
  // used, unless it must be merged.
  PackedLinear linear(Stream& stream, const std::string& name, DType dtype,
                      WeightFormat format = WeightFormat::kCompute) const;
  RowLinear row_linear(Stream& stream, const std::string& name, DType dtype,
                       WeightFormat format = WeightFormat::kCompute) const;
  // The same with this bias [out], or none.
  PackedLinear matrix(Stream& stream, const std::string& name, const TensorView& bias, DType dtype,
                      WeightFormat format) const;

 private:
  struct Place {
    std::string name;  // in the file
    TensorPart part;
    std::vector<int64_t> shape;  // of the whole tensor
  };
  bool whole(const std::string& name) const;
  // Adds the product of the factors to the matrix that was packed without it.
  void add_product(Stream& stream, const Place& weight, DType dtype, PackedLinear& to) const;

  const TensorFile* file_;
  WeightFormat kept_;
  bool alike_;
  std::map<std::string, Place> tensors_;
  // Scratch that the packed matrices share: for one that is expanded, and for products.
  std::shared_ptr<SharedScratch> expanded_ = std::make_shared<SharedScratch>(),
                                 products_ = std::make_shared<SharedScratch>();
};

// Writes the sum over ranks of x * weight^T, plus bias, to out [N, out] f32. x [N, in] is in the
// compute dtype.
void row_linear(Context& context, const TensorView& x, const RowLinear& weights,
                const TensorView& out);
// Adds it to residual [N, out] f32.
void row_linear_add(Context& context, const TensorView& x, const RowLinear& weights,
                    const TensorView& residual);

// The matrices that make the queries [D part, D], keys and values [K part, D] of a row, and the
// norms [E] of a head's queries and keys. A device computes the three matrices as one, to_q; the
// others are then empty. There may be fewer heads of keys than of queries.
struct HeadWeights {
  PackedLinear to_q, to_k, to_v;
  Tensor norm_q, norm_k;
  int64_t key_columns = 0;

  bool joined() const { return !to_k; }
  int64_t columns() const { return to_q.out() - (joined() ? 2 * key_columns : 0); }  // of queries
  HeadNorms norms(float eps) const { return {.q = norm_q, .k = norm_k, .eps = eps}; }
  auto weights() const { return std::tie(to_q, to_k, to_v, norm_q, norm_k); }
};
// Their names in a checkpoint, without ".weight" and ".bias".
struct HeadNames {
  std::string to_q, to_k, to_v, norm_q, norm_k;
};
HeadWeights load_heads(Stream& stream, const CheckpointPart& tensors, const HeadNames& names,
                       DType dtype, WeightFormat format);

// The queries [n, A part, E], keys and values [n, Akv part, E] of the same rows.
struct Heads {
  TensorView q, k, v;
};
// Returns room for the heads of `rows` rows in the arena. Those of joined matrices lie beside each
// other in a row.
Heads room_for_heads(Context& context, const HeadWeights& weights, int64_t rows);
// Writes the heads of x [n, D] to the rows of `heads` from `begin` on, before their norms.
void project_heads(Stream& stream, const TensorView& x, const HeadWeights& weights,
                   const Heads& heads, int64_t begin = 0);

// Returns the RMS norm of x [n, D] f32 as a tensor of `dtype` in the arena.
TensorView rms_normed(Context& context, const TensorView& x, const TensorView& weight, float eps,
                      DType dtype);

// Applies RMS norm in place to x [N, D part], whose width may be split over ranks. `width` is the
// full D.
void full_rms_norm(Context& context, const TensorView& x, int64_t width, const TensorView& weight,
                   float eps);

// The bytes of weights. std::tie makes a list of some.
inline size_t bytes_of(const Tensor& x) { return x ? x.view().bytes() : 0; }
inline size_t bytes_of(const Rope& rope) {
  size_t bytes = 0;
  for (const Tensor& table : rope.table) bytes += bytes_of(table);
  return bytes;
}
inline size_t bytes_of(const PackedLinear& packed) { return packed.bytes(); }
inline size_t bytes_of(const RowLinear& weights) {
  return weights.packed.bytes() + bytes_of(weights.bias);
}
template <class... Weights>
size_t bytes_of(const std::tuple<const Weights&...>& list) {
  return std::apply([](const Weights&... weights) { return (size_t{0} + ... + bytes_of(weights)); },
                    list);
}

// Append the buffers that an offloaded layer is copied as, and free those that repeat others.
void append_pieces(const Tensor& x, std::vector<TensorView>& pieces);
void append_pieces(const PackedLinear& packed, std::vector<TensorView>& pieces);
void append_pieces(const RowLinear& weights, std::vector<TensorView>& pieces);
template <class... Weights>
std::vector<TensorView> pieces_of(const std::tuple<const Weights&...>& list) {
  std::vector<TensorView> pieces;
  std::apply([&](const Weights&... weights) { (append_pieces(weights, pieces), ...); }, list);
  return pieces;
}

// Returns the memory of `x` as a view of another shape with at most as many elements. The values of
// x are no longer needed.
TensorView reuse(const TensorView& x, std::initializer_list<int64_t> shape);

// A table [V, D] that stays in its file, which must outlive this.
struct TableInFile {
  const TensorFile* file = nullptr;
  std::string name{};  // in the file
};
// Throws Error(kModel) where an id is none of a table's `rows` tokens.
void check_ids(std::span<const int32_t> ids, int64_t rows);
// Reads the rows `ids` of the table as out [n, D] f32.
void read_rows(Stream& stream, const TableInFile& table, std::span<const int32_t> ids,
               const TensorView& out);

// Returns an f32 copy of a checkpoint tensor, reshaped, on the stream's device.
Tensor f32_copy(Stream& stream, const TensorView& x, std::initializer_list<int64_t> shape);

// Copies patches of latent [C, F, H, W] f32 to `rows` [N, C * pf * ph * pw] f32, one row per token.
// C is slowest within a row, as in the weight of a strided convolution. `tokens` are the global
// tokens of the rows.
void patchify(Stream& stream, const TensorView& latent, std::array<int64_t, 3> patch,
              const TokenRanges& tokens, const TensorView& rows);
// The inverse copies. They write only the patches of `tokens`.
void unpatchify(Stream& stream, const TensorView& rows, std::array<int64_t, 3> patch,
                const TokenRanges& tokens, const TensorView& latent);

}  // namespace weft
