#include "kernels/linear.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/device_plan.h"
#include "kernels/meter.h"
#include "kernels/ops.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {

void check_linear_views(const Stream& stream, const TensorView& x, const PackedLinear& packed,
                        const TensorView& out) {
  CHECK(packed && is_rows(stream, x) && x[-1] == packed.in() && x.dtype == packed.dtype(), "x",
        x.to_string_shape(), "packed", packed.in(), packed.out(), to_string(packed.dtype()));
  CHECK(is_rows(stream, out) && out[-1] == packed.out() && out.rows() == x.rows() &&
            (out.dtype == x.dtype || out.dtype == DType::kF32),
        "out", out.to_string_shape(), "x", x.to_string_shape());
  CHECK(x.rows() == 0 || out.data != x.data, "linear cannot run in place");
}

// The rows of x that a low-rank term is added for at a time. A device's multiprocessors take more:
// at 13,824 columns 2048 rows are 7 waves of tiles, and the two results take 216 MiB.
int64_t term_rows(Device device) { return of_host(device) ? 512 : 2048; }

// The scratch of one piece of rows: two results in f32, and x * down^T.
struct TermPlaces {
  int64_t sums = 0, added, inner, end;

  TermPlaces(int64_t rows, const PackedLinear& up) {
    const auto whole = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    added = whole(rows * up.out() * static_cast<int64_t>(sizeof(float)));
    inner = 2 * added;
    end = inner + whole(rows * up.in() * static_cast<int64_t>(size_of(up.dtype())));
  }
};

// The rows [begin, begin + count) of a tensor whose rows collapse, as a matrix.
TensorView some_rows(const TensorView& x, int64_t begin, int64_t count) {
  TensorView view(x.data, x.dtype, {x.rows(), x[-1]}, x.device);
  if (x.rows() > 1) view.stride[0] = x.row_stride();
  return view.slice(0, begin, count);
}

void linear_with_term(Stream& stream, const TensorView& x, const PackedLinear& packed,
                      LinearActivation activation, const TensorView& out) {
  const LowRankTerm& term = *packed.term();
  const PackedLinear &down = term.down, &up = term.up;
  const int64_t step = std::min(term_rows(stream.device()), x.rows());
  const TermPlaces at(step, up);
  const auto run = [&](void* data) {
    for (int64_t row = 0; row < x.rows(); row += step) {
      const int64_t count = std::min(step, x.rows() - row);
      const auto part = [&](int64_t place, DType dtype, int64_t columns) {
        return TensorView(static_cast<char*>(data) + place, dtype, {count, columns},
                          stream.device());
      };
      const TensorView in = some_rows(x, row, count);
      const TensorView sums = part(at.sums, DType::kF32, packed.out()),
                       added = part(at.added, DType::kF32, packed.out()),
                       inner = part(at.inner, up.dtype(), up.in());
      stream.ops().linear.linear(stream, in, packed, LinearActivation::kNone, sums);
      linear(stream, in, down, LinearActivation::kNone, inner);
      linear(stream, inner, up, LinearActivation::kNone, added);
      add(stream, sums, added, sums);
      if (activation == LinearActivation::kGeluTanh) gelu_tanh(stream, sums, sums);
      if (activation == LinearActivation::kSilu) silu(stream, sums, sums);
      copy(stream, sums, some_rows(out, row, count));
    }
  };
  term.scratch->with(
      SharedScratch::new_content(), [](void*) {}, run);
}

}  // namespace

PackedLinear::PackedLinear(PackedLinear&&) noexcept = default;
PackedLinear& PackedLinear::operator=(PackedLinear&&) noexcept = default;
PackedLinear::~PackedLinear() = default;

void PackedLinear::add_term(Device device, PackedLinear down, PackedLinear up,
                            std::shared_ptr<SharedScratch> scratch) {
  CHECK(down.in() == in() && up.out() == out() && down.out() == up.in() && !term_, "term of",
        down.in(), down.out(), up.in(), up.out(), "for", in(), out());
  scratch->reserve(device, TermPlaces(term_rows(device), up).end);
  term_ = std::make_unique<LowRankTerm>(
      LowRankTerm{std::move(down), std::move(up), std::move(scratch)});
}

void PackedLinear::for_buffers(const BufferVisitor& visit) const {
  PackedWeights::for_buffers(visit);
  if (!term_) return;
  term_->down.for_buffers(visit);
  term_->up.for_buffers(visit);
}

size_t PackedLinear::bytes() const {
  return PackedWeights::bytes() + (term_ ? term_->down.bytes() + term_->up.bytes() : 0);
}

void PackedLinear::append(Stream& stream, std::span<const PackedLinear> more) {
  std::vector<std::vector<TensorView>> others;
  for (const PackedLinear& matrix : more) {
    matrix.for_buffers(
        [&, &list = others.emplace_back()](Tensor& buffer) { list.push_back(buffer); });
    out_ += matrix.out();
  }
  size_t index = 0;
  for_buffers([&](Tensor& buffer) {
    const TensorView& own = buffer;
    std::vector<int64_t> shape(own.shape().begin(), own.shape().end());
    for (const auto& list : others) shape[0] += list[index][0];
    Tensor all(own.dtype, shape, own.device);
    copy(stream, own, all.view().slice(0, 0, own[0]));
    int64_t row = own[0];
    for (const auto& list : others) {
      copy(stream, list[index], all.view().slice(0, row, list[index][0]));
      row += list[index][0];
    }
    buffer = std::move(all);
    ++index;
  });
}

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  CHECK(is_compute(dtype) && format != WeightFormat::kFile, "dtype", to_string(dtype));
  CHECK(weight.rank == 2 && is_float(weight.dtype) && weight.count() > 0 && is_near(stream, weight),
        "weight", weight.to_string_shape());
  // The largest possible int8 dot product must fit 32 bits.
  CHECK(format != WeightFormat::kInt8 || weight[1] <= INT32_MAX / (255 * 127), "weight",
        weight.to_string_shape());
  CHECK(!bias || (bias.rank == 1 && bias[0] == weight[0] && is_float(bias.dtype) &&
                  is_near(stream, bias)),
        "bias", bias.to_string_shape(), "weight", weight.to_string_shape());
  const Tensor rounded = bias ? rounded_bias(stream, bias, dtype) : Tensor();
  return stream.ops().linear.pack_linear(stream, weight, rounded, dtype, format);
}

Tensor rounded_bias(Stream& stream, const TensorView& bias, DType dtype) {
  const Tensor values(dtype, bias.shape(), stream.device());
  copy(stream, bias, values);
  Tensor rounded(DType::kF32, bias.shape(), stream.device());
  copy(stream, values, rounded);
  return rounded;
}

PackedLinear pack_stored(Stream& stream, StoredMatrix matrix, const TensorView& bias, DType dtype,
                         std::shared_ptr<SharedScratch> scratch) {
  CHECK(is_compute(dtype), "dtype", to_string(dtype));
  const TensorView& blocks = matrix.blocks;
  CHECK(matrix.out > 0 && matrix.in > 0 && matrix.in % shape_of(matrix.type).values == 0 &&
            blocks.count() == matrix.out * matrix.row_bytes() && blocks.dtype == DType::kU8,
        "blocks", blocks.to_string_shape(), "of", matrix.out, matrix.in);
  CHECK(!matrix.scales || matrix.scales.count() == 1 || matrix.scales.count() == matrix.out,
        "scales", matrix.scales.view().to_string_shape());
  CHECK(!bias || (bias.rank == 1 && bias[0] == matrix.out && is_float(bias.dtype) &&
                  is_near(stream, bias)),
        "bias", bias.to_string_shape(), "of", matrix.out);
  const Tensor rounded = bias ? rounded_bias(stream, bias, dtype) : Tensor();
  return stream.ops().linear.pack_stored(stream, std::move(matrix), rounded, dtype,
                                         std::move(scratch));
}

PackedLinear join_linears(Stream& stream, std::span<PackedLinear> parts) {
  const auto joins = [&first = parts[0]](const PackedLinear& part) {
    // 8-bit matrices may have rows of zeros after their outputs.
    const int64_t rows = packed_extents(part.out(), part.in(), part.dtype(), part.format()).rows;
    return part.in() == first.in() && part.dtype() == first.dtype() &&
           part.format() == first.format() && part.has_bias() == first.has_bias() &&
           part.format() != WeightFormat::kFp8Tensor && rows == part.out() && !part.term();
  };
  if (!computes_on_device(stream) || !std::ranges::all_of(parts, joins)) return {};
  PackedLinear joined = std::move(parts[0]);
  joined.append(stream, parts.subspan(1));
  for (PackedLinear& part : parts) part = {};
  return joined;
}

int64_t rows_at_once(const Stream& stream, int64_t rows,
                     std::initializer_list<const PackedLinear*> matrices) {
  const DeviceTraits* measured = thread_meter() ? thread_meter()->measures() : nullptr;
  std::vector<MatrixExtents> extents;
  for (const PackedLinear* matrix : matrices) extents.push_back({matrix->out(), matrix->in()});
  if (measured) return rows_in_waves(rows, extents, measured->multiprocessors);
  if (stream.queue()) return rows_in_waves(rows, extents, stream.queue()->multiprocessors());
  return std::min<int64_t>(rows, 4096);
}

bool adds_in_place(const Stream& stream, const PackedLinear& packed, int64_t rows) {
  return computes_on_device(stream) && packed.format() == WeightFormat::kCompute &&
         !packed.term() && library_takes_rows(rows, packed.dtype());
}

void linear_add(Stream& stream, const TensorView& x, const PackedLinear& packed,
                const TensorView& sum) {
  check_linear_views(stream, x, packed, sum);
  CHECK(sum.dtype == DType::kF32 && packed.format() == WeightFormat::kCompute && !packed.term(),
        "sum", to_string(sum.dtype));
  stream.ops().fused.linear_add(stream, x, packed, sum);
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  check_linear_views(stream, x, packed, out);
  if (x.rows() == 0) return;
  if (packed.term()) return linear_with_term(stream, x, packed, activation, out);
  stream.ops().linear.linear(stream, x, packed, activation, out);
}

}  // namespace weft
