#include "apps/tensor_compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/copy.h"

namespace weft {
namespace {

// Every element as f64, in row-major order. The data may be misaligned.
std::vector<double> to_f64(const TensorView& view) {
  CHECK(view.contiguous(), view.to_string_shape());
  if (view.dtype == DType::kF16) {
    const Tensor exact(DType::kF32, view.shape());
    Stream stream = Stream::cpu(1);
    copy(stream, view, exact);
    return to_f64(exact);
  }
  std::vector<double> out(static_cast<size_t>(view.count()));
  const char* data = static_cast<const char*>(view.data);
  const size_t size = size_of(view.dtype);
  auto read = [&]<class T>(T tag, size_t i) {
    std::memcpy(&tag, data + i * size, sizeof tag);
    return tag;
  };
  for (size_t i = 0; i < out.size(); ++i) {
    switch (view.dtype) {
      case DType::kF32:
        out[i] = read(float{}, i);
        break;
      case DType::kBF16:
        out[i] = to_float(read(bf16{}, i));
        break;
      case DType::kF64:
        out[i] = read(double{}, i);
        break;
      case DType::kI8:
        out[i] = read(int8_t{}, i);
        break;
      case DType::kU8:
      case DType::kBool:
        out[i] = read(uint8_t{}, i);
        break;
      case DType::kI16:
        out[i] = read(int16_t{}, i);
        break;
      case DType::kI32:
        out[i] = read(int32_t{}, i);
        break;
      case DType::kI64:
        out[i] = static_cast<double>(read(int64_t{}, i));
        break;
      default:
        throw Error(ErrorKind::kModel,
                    "cannot compare tensors of dtype " + std::string(to_string(view.dtype)));
    }
  }
  return out;
}

std::string coordinate(int64_t index, const TensorView& view) {
  std::string text;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    text = std::to_string(index % view[dim]) + (text.empty() ? "" : ", ") + text;
    index /= view[dim];
  }
  return "[" + text + "]";
}

}  // namespace

Comparison compare(const TensorView& actual, const TensorView& expected, double offset) {
  CHECK(std::ranges::equal(actual.shape(), expected.shape()), actual.to_string_shape(),
        expected.to_string_shape());
  const std::vector<double> a = to_f64(actual), b = to_f64(expected);
  double difference = 0, aa = 0, bb = 0, ab = 0;
  Comparison result;
  int64_t worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - offset, y = b[i] - offset, d = x - y;
    if (!std::isfinite(x)) {
      if (result.finite) worst = static_cast<int64_t>(i);
      result.finite = false;
      continue;
    }
    difference += d * d;
    aa += x * x;
    bb += y * y;
    ab += x * y;
    if (std::abs(d) > result.max_abs && result.finite) {
      result.max_abs = std::abs(d);
      worst = static_cast<int64_t>(i);
    }
  }
  result.rel_l2 = bb > 0 ? std::sqrt(difference / bb) : std::sqrt(difference);
  result.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1 : 0);
  result.worst = coordinate(worst, expected);
  return result;
}

}  // namespace weft
