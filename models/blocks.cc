#include "models/blocks.h"

#include <algorithm>

#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

// Tokens of one frame.
struct Rectangle {
  int64_t row, rows, column, columns;
};

// A view of a latent as the patches of a rectangle of tokens: [rows, columns, C, ph, pw].
TensorView latent_patches(const TensorView& latent, std::array<int64_t, 3> patch, int64_t frame,
                          const Rectangle& of) {
  const TensorView picture = latent.select(1, frame)
                                 .slice(1, of.row * patch[1], of.rows * patch[1])
                                 .slice(2, of.column * patch[2], of.columns * patch[2]);
  TensorView view = picture;
  view.rank = 5;
  view.extent = {of.rows, of.columns, picture[0], patch[1], patch[2]};
  view.stride = {patch[1] * picture.stride[1], patch[2] * picture.stride[2], picture.stride[0],
                 picture.stride[1], picture.stride[2]};
  return view;
}

// A view of token rows as the same patches, [rows, columns, C, ph, pw], with the strides of a
// patch.
TensorView row_patches(const TensorView& rows, int64_t first, const TensorView& like,
                       std::array<int64_t, 3> inner, int64_t offset) {
  TensorView view = rows.slice(0, first, like[0] * like[1]).slice(1, offset, 1);
  const int64_t stride = rows.stride[0];
  view.rank = 5;
  view.extent = like.extent;
  view.stride = {like[1] * stride, stride, inner[0], inner[1], inner[2]};
  return view;
}

// Cuts the token ranges into rectangles, and calls f(latent view, rows view) for every rectangle
// and every frame of a patch.
template <class F>
void for_patches(const TensorView& latent, const TensorView& rows, std::array<int64_t, 3> patch,
                 const TokenRanges& tokens, F&& f) {
  const auto [pf, ph, pw] = patch;
  const int64_t channels = latent[0], gh = latent[2] / ph, gw = latent[3] / pw;
  CHECK(latent.rank == 4 && latent[1] % pf == 0 && latent[2] % ph == 0 && latent[3] % pw == 0,
        latent.to_string_shape());
  CHECK(tokens.total == latent[1] / pf * gh * gw && rows[0] == tokens.size() &&
            rows[1] == channels * pf * ph * pw,
        "tokens", tokens.total, "rows", rows.to_string_shape(), "of", latent.to_string_shape());
  const std::array<int64_t, 3> inner{pf * ph * pw, pw, 1};
  int64_t done = 0;
  for (const Range& range : tokens.ranges)
    for (int64_t token = range.begin; token < range.end;) {
      const int64_t frame = token / (gh * gw), row = token / gw % gh, column = token % gw;
      const int64_t left = range.end - token;
      const bool whole_rows = column == 0 && left >= gw;
      const int64_t n = whole_rows ? std::min(left / gw, gh - row) : 1;
      const int64_t m = whole_rows ? gw : std::min(left, gw - column);
      for (int64_t t = 0; t < pf; ++t) {
        const TensorView in_latent =
            latent_patches(latent, patch, frame * pf + t, {row, n, column, m});
        f(in_latent, row_patches(rows, done, in_latent, inner, t * ph * pw));
      }
      token += n * m;
      done += n * m;
    }
}

}  // namespace

void CheckpointPart::take(WeightBinder& binder, const TensorSpec& tensor, const TensorPlace& place,
                          TensorPart part) {
  CHECK(place.taken == 1 && !place.swapped, tensor.name, "as", place.name);
  std::vector<int64_t> shape = tensor.shape;
  shape[0] *= place.parts;
  if (place.part == 0) binder.take(place.name, shape);
  if (place.parts > 1) {
    CHECK(part.dim == 0, tensor.name);
    part.range.begin += place.part * tensor.shape[0];
    part.range.end += place.part * tensor.shape[0];
  }
  add(tensor.name, place.name, part, shape);
}

void CheckpointPart::read_ahead(const Stream& stream, const std::string& prefix) const {
  if (is_dry_run(stream)) return;
  for (auto at = tensors_.lower_bound(prefix);
       at != tensors_.end() && at->first.starts_with(prefix); ++at)
    if (whole(at->first)) file_->read_ahead(at->second.name);
}

bool CheckpointPart::whole(const std::string& name) const {
  const Place& place = tensors_.at(name);
  return place.part.range == Range{0, place.shape[place.part.dim]};
}

HeldWeight CheckpointPart::held(Stream& stream, const std::string& name, DType dtype) const {
  const Place& place = tensors_.at(name);
  return HeldWeight(stream, *file_, place.name, place.part, place.shape, dtype);
}

Tensor CheckpointPart::vector(Stream& stream, const std::string& name) const {
  const HeldWeight weight = held(stream, name);
  return f32_copy(stream, weight.view(), {weight.view().count()});
}

Tensor CheckpointPart::table(Stream& stream, const std::string& name) const {
  const HeldWeight weight = held(stream, name);
  return f32_copy(stream, weight.view(), {weight.view()[-2], weight.view()[-1]});
}

PackedLinear CheckpointPart::matrix(Stream& stream, const std::string& name, const TensorView& bias,
                                    DType dtype, WeightFormat format) const {
  const Place& weight = tensors_.at(name + ".weight");
  const StoredTensors* stored = file_->stored();
  const bool changed = stored && stored->product_rank(weight.name) > 0;
  const bool product = changed && !alike_;
  PackedLinear out;
  if (format == WeightFormat::kFile || kept_ == WeightFormat::kFile) {
    auto matrix = product == changed
                      ? held_blocks(stream, *file_, weight.name, weight.part, weight.shape, dtype)
                      : std::nullopt;
    if (matrix) out = pack_stored(stream, std::move(*matrix), bias, dtype, expanded_);
    format = WeightFormat::kCompute;
  }
  if (!out) {
    const bool merged = format == WeightFormat::kCompute || !product;
    const TensorFile& values = merged ? *file_ : *stored->base();
    const HeldWeight held(stream, values, weight.name, weight.part, weight.shape, dtype);
    const TensorView& view = held.view();
    out = pack_linear(stream, view.reshape({view[0], view.count() / view[0]}), bias, dtype, format);
    if (merged) return out;
  }
  if (product) add_product(stream, weight, dtype, out);
  return out;
}

void CheckpointPart::add_product(Stream& stream, const Place& weight, DType dtype,
                                 PackedLinear& to) const {
  const StoredTensors& stored = *file_->stored();
  const int64_t rank = stored.product_rank(weight.name);
  const bool dry = is_dry_run(stream);
  const Device place{dry ? Device::Kind::kMeasuredHost : Device::Kind::kCpu};
  const Tensor up(DType::kF32, {to.out(), rank}, place), down(DType::kF32, {rank, to.in()}, place);
  const auto [dim, range] = weight.part;
  if (!dry)
    stored.read_product(weight.name, dim == 0 ? range.begin : 0, up, dim == 0 ? 0 : range.begin,
                        down);
  to.add_term(stream.device(), pack_linear(stream, down, {}, dtype),
              pack_linear(stream, up, {}, dtype), products_);
}

PackedLinear CheckpointPart::linear(Stream& stream, const std::string& name, DType dtype,
                                    WeightFormat format) const {
  if (!tensors_.count(name + ".bias")) return matrix(stream, name, {}, dtype, format);
  const HeldWeight bias = held(stream, name + ".bias");
  return matrix(stream, name, bias.view(), dtype, format);
}

RowLinear CheckpointPart::row_linear(Stream& stream, const std::string& name, DType dtype,
                                     WeightFormat format) const {
  if (whole(name + ".weight")) return {.packed = linear(stream, name, dtype, format), .bias = {}};
  const std::string bias = name + ".bias";
  return {.packed = matrix(stream, name, {}, dtype, format),
          .bias = tensors_.count(bias) ? rounded_bias(stream, held(stream, bias).view(), dtype)
                                       : Tensor()};
}

void row_linear(Context& context, const TensorView& x, const RowLinear& weights,
                const TensorView& out) {
  CHECK(context.reducer.parts() == 1 || !weights.packed.has_bias(), "bias added before a sum over",
        context.reducer.parts(), "parts");
  linear(context.stream, x, weights.packed, LinearActivation::kNone, out);
  context.reducer.sum(context, out);
  if (weights.bias) add_bias(context.stream, out, weights.bias, out);
}

void row_linear_add(Context& context, const TensorView& x, const RowLinear& weights,
                    const TensorView& residual) {
  if (context.reducer.parts() == 1 && !weights.bias &&
      adds_in_place(context.stream, weights.packed, x.rows()))
    return linear_add(context.stream, x, weights.packed, residual);
  const Arena::Scope scope(context.arena);
  const TensorView y = context.arena.alloc(DType::kF32, residual.shape());
  row_linear(context, x, weights, y);
  add(context.stream, residual, y, residual);
}

HeadWeights load_heads(Stream& stream, const CheckpointPart& tensors, const HeadNames& names,
                       DType dtype, WeightFormat format) {
  std::array<PackedLinear, 3> to{tensors.linear(stream, names.to_q, dtype, format),
                                 tensors.linear(stream, names.to_k, dtype, format),
                                 tensors.linear(stream, names.to_v, dtype, format)};
  const int64_t key_columns = to[1].out();
  if (PackedLinear joined = join_linears(stream, to)) to[0] = std::move(joined);
  return {.to_q = std::move(to[0]),
          .to_k = std::move(to[1]),
          .to_v = std::move(to[2]),
          .norm_q = tensors.vector(stream, names.norm_q + ".weight"),
          .norm_k = tensors.vector(stream, names.norm_k + ".weight"),
          .key_columns = key_columns};
}

Heads room_for_heads(Context& context, const HeadWeights& weights, int64_t rows) {
  const int64_t e = weights.norm_q.count(), a = weights.columns() / e, k = weights.key_columns / e;
  const auto room = [&](int64_t heads) {
    return context.arena.alloc(weights.to_q.dtype(), {rows, heads, e});
  };
  if (!weights.joined()) return {.q = room(a), .k = room(k), .v = room(k)};
  const TensorView all = room(a + 2 * k);
  return {.q = all.slice(1, 0, a), .k = all.slice(1, a, k), .v = all.slice(1, a + k, k)};
}

void project_heads(Stream& stream, const TensorView& x, const HeadWeights& weights,
                   const Heads& heads, int64_t begin) {
  const auto rows = [&](const TensorView& of) { return of.slice(0, begin, x[0]); };
  const auto project = [&](const PackedLinear& matrix, const TensorView& to) {
    TensorView out(to.data, to.dtype, {to[0], matrix.out()}, to.device);
    out.stride[0] = to.stride[0];
    linear(stream, x, matrix, LinearActivation::kNone, out);
  };
  project(weights.to_q, rows(heads.q));
  if (weights.joined()) return;
  project(weights.to_k, rows(heads.k));
  project(weights.to_v, rows(heads.v));
}

TensorView rms_normed(Context& context, const TensorView& x, const TensorView& weight, float eps,
                      DType dtype) {
  const TensorView h = context.arena.alloc(dtype, x.shape());
  rms_norm(context.stream, x, weight, eps, h);
  return h;
}

void full_rms_norm(Context& context, const TensorView& x, int64_t width, const TensorView& weight,
                   float eps) {
  // A row that is read once moves 4 bytes per value, in two steps 6.
  if (context.reducer.parts() == 1) return rms_norm(context.stream, x, weight, eps, x);
  Arena::Scope scope(context.arena);
  const TensorView sums = context.arena.alloc(DType::kF32, {x[0]});
  sum_squares(context.stream, x, sums);
  context.reducer.sum(context, sums);
  rms_scale(context.stream, x, sums, width, weight, eps, x);
}

void append_pieces(const Tensor& x, std::vector<TensorView>& pieces) {
  if (x) pieces.push_back(x);
}

void append_pieces(const PackedLinear& packed, std::vector<TensorView>& pieces) {
  packed.for_buffers([&](Tensor& buffer) { pieces.push_back(buffer); });
}

void append_pieces(const RowLinear& weights, std::vector<TensorView>& pieces) {
  append_pieces(weights.packed, pieces);
  append_pieces(weights.bias, pieces);
}

TensorView reuse(const TensorView& x, std::initializer_list<int64_t> shape) {
  TensorView out(x.data, x.dtype, shape, x.device);
  CHECK(x.contiguous() && out.count() <= x.count(), out.to_string_shape(), "in",
        x.to_string_shape());
  return out;
}

void check_ids(std::span<const int32_t> ids, int64_t rows) {
  for (const int32_t id : ids)
    if (id < 0 || id >= rows)
      throw Error(ErrorKind::kModel,
                  "token id " + std::to_string(id) + " is outside the model's vocabulary of " +
                      std::to_string(rows) + "; the tokenizer belongs to another model");
}

void read_rows(Stream& stream, const TableInFile& table, std::span<const int32_t> ids,
               const TensorView& out) {
  make_on_host(stream, out, [&](const TensorView& to) {
    Stream host = host_stream(stream);
    const TensorView like = table.file->describe(table.name);
    const Tensor row(like.dtype, {like[1]});
    for (size_t i = 0; i < ids.size(); ++i) {
      table.file->read_run(table.name, ids[i] * like[1], row);
      copy(host, row, to.select(0, static_cast<int64_t>(i)));
    }
  });
}

Tensor f32_copy(Stream& stream, const TensorView& x, std::initializer_list<int64_t> shape) {
  Tensor out(DType::kF32, shape, stream.device());
  copy(stream, x.reshape(shape), out);
  return out;
}

void patchify(Stream& stream, const TensorView& latent, std::array<int64_t, 3> patch,
              const TokenRanges& tokens, const TensorView& rows) {
  for_patches(latent, rows, patch, tokens,
              [&](const TensorView& from, const TensorView& to) { copy(stream, from, to); });
}

void unpatchify(Stream& stream, const TensorView& rows, std::array<int64_t, 3> patch,
                const TokenRanges& tokens, const TensorView& latent) {
  for_patches(latent, rows, patch, tokens,
              [&](const TensorView& to, const TensorView& from) { copy(stream, from, to); });
}

}  // namespace weft
