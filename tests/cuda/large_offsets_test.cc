// Rows and pixels so far apart that their offsets do not fit 32 bits, as in a 720p clip. A few
// values span many gigabytes. The emulated device's memory only exists where it is touched; a real
// device does what fits.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"
#include "kernels/gemm_limit.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rope.h"
#include "kernels/transfer.h"
#include "tests/cuda/first_device.h"

namespace weft {
namespace {

constexpr int64_t kFar = (int64_t{1} << 32) + 64;  // elements

// Device memory that has not been touched.
class Span {
 public:
  explicit Span(size_t bytes) { WEFT_CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  ~Span() { cudaFree(data_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class LargeOffsets : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (resize_device) resize_device(size_t{1} << 42);
  }
  void TearDown() override {
    spans_.clear();
    if (resize_device) resize_device(size_t{8} << 30);
    if (!too_large_.empty()) GTEST_SKIP() << "the device's memory is too small for" << too_large_;
  }

  static size_t far_bytes(const TensorView& like) {
    return static_cast<size_t>((like[0] - 1) * kFar + like.count()) * size_of(like.dtype);
  }
  // False if the device has not so much free memory; the test then tells what it left out.
  bool fits(const std::string& what, size_t bytes) {
    constexpr size_t kOthers = size_t{2} << 30;  // for what else takes memory meanwhile
    if (bytes + kOthers <= device_memory_info(kCuda).free) return true;
    too_large_ += " " + what + " (" + std::to_string(bytes >> 30) + " GiB)";
    return false;
  }

  Tensor values(std::initializer_list<int64_t> shape, DType dtype) {
    Tensor tensor(dtype, shape);
    fill_for_limit(tensor.view().data, dtype, tensor.count());
    return on_device(stream_, std::move(tensor));
  }
  // Returns a view like `like` in new memory, with the entries of its first dimension kFar elements
  // apart.
  TensorView far(const TensorView& like) {
    spans_.push_back(std::make_unique<Span>(far_bytes(like)));
    TensorView view(spans_.back()->data(), like.dtype, like.shape(), kCuda);
    view.stride[0] = kFar;
    return view;
  }
  TensorView far_copy(const TensorView& of) {
    const TensorView to = far(of);
    copy(stream_, of, to);
    return to;
  }
  std::vector<unsigned char> bytes_of(const TensorView& x) {
    Tensor dense(x.dtype, x.shape());
    copy(stream_, x, dense);
    const auto* data = static_cast<const unsigned char*>(dense.view().data);
    return {data, data + dense.view().bytes()};
  }
  void expect_same(const TensorView& is, const TensorView& wanted, const char* what) {
    EXPECT_EQ(bytes_of(is), bytes_of(wanted)) << what;
  }
  // Runs the same op between dense views and between views with large strides.
  template <class Op>
  void compare(const TensorView& x, const char* what, Op&& op) {
    if (!fits(what, 2 * far_bytes(x))) return;
    const Tensor near(x.dtype, x.shape(), kCuda);
    op(x, near.view());
    const TensorView out = far(x);
    op(far_copy(x), out);
    expect_same(out, near, what);
    spans_.clear();
  }

  Stream stream_ = cuda_stream(0, Determinism::kFixed, 1);
  std::vector<std::unique_ptr<Span>> spans_;
  std::string too_large_;
};

TEST_P(LargeOffsets, Rows) {
  const Tensor x = values({3, 64}, GetParam()), vector = values({64}, DType::kF32);
  compare(x, "copy", [&](const TensorView& a, const TensorView& out) { copy(stream_, a, out); });
  compare(x, "layer_norm", [&](const TensorView& a, const TensorView& out) {
    layer_norm(stream_, a, vector, vector, 1e-6f, out);
  });
  compare(x, "rms_norm", [&](const TensorView& a, const TensorView& out) {
    rms_norm(stream_, a, vector, 1e-6f, out);
  });
  compare(x, "gated_add", [&](const TensorView& a, const TensorView& out) {
    gated_add(stream_, a, a, vector, out);
  });
  compare(x, "silu", [&](const TensorView& a, const TensorView& out) { silu(stream_, a, out); });
  const Tensor weight = values({64, 64}, GetParam());
  const PackedLinear packed = pack_linear(stream_, weight, {}, GetParam());
  // The library multiplies many rows, our GEMV few.
  const Tensor many = values({17, 64}, GetParam());
  for (const TensorView& rows : {x.view(), many.view()})
    compare(rows, "linear", [&](const TensorView& a, const TensorView& out) {
      linear(stream_, a, packed, LinearActivation::kSilu, out);
    });
}

TEST_P(LargeOffsets, Transposed) {
  const Tensor x = values({3, 40, 48}, GetParam());
  const Tensor near(GetParam(), {3, 48, 40}, kCuda);
  copy(stream_, x.view().permute({0, 2, 1}), near);
  if (!fits("transposed", far_bytes(x) + far_bytes(near))) return;
  const TensorView out = far(near);
  copy(stream_, far_copy(x).permute({0, 2, 1}), out);
  expect_same(out, near, "transposed");
}

TEST_P(LargeOffsets, Gathered) {
  const Tensor table = values({4, 32}, GetParam());
  Tensor ids(DType::kI32, {3});
  for (int i = 0; i < 3; ++i) ids.as<int32_t>()[i] = 3 - i;
  ids = on_device(stream_, std::move(ids));
  const Tensor near(GetParam(), {3, 32}, kCuda);
  gather_rows(stream_, table, ids, near);
  if (!fits("gathered", far_bytes(table))) return;
  const Tensor out(GetParam(), {3, 32}, kCuda);
  gather_rows(stream_, far_copy(table), ids, out);
  expect_same(out, near, "gathered");
}

TEST_P(LargeOffsets, Heads) {
  const Tensor x = values({5, 2, 64}, GetParam());
  const Rope rope = weft::on_device(stream_, make_rope({1, 1, 5}, {0, 0, 0}, 64));
  compare(x, "apply_rope", [&](const TensorView& a, const TensorView& out) {
    apply_rope(stream_, a, rope, 0, out);
  });
  compare(x, "attention", [&](const TensorView& a, const TensorView& out) {
    const KVSegment segment{.k = a, .v = a};
    attention(stream_, {.q = a, .segments = {&segment, 1}, .scale = 0.1f, .out = out});
  });
}

TEST_P(LargeOffsets, States) {
  const Tensor lse = values({2, 3}, DType::kF32), b = values({3, 2, 8}, DType::kF32);
  const Tensor near = values({3, 2, 8}, DType::kF32), near_lse = values({2, 3}, DType::kF32);
  if (!fits("states", 2 * (far_bytes(near) + far_bytes(near_lse)))) return;
  const TensorView out = far_copy(near), out_lse = far_copy(near_lse);
  merge_attention(stream_, near, near_lse, b, lse);
  merge_attention(stream_, out, out_lse, far_copy(b), far_copy(lse));
  expect_same(out, near, "states");
  expect_same(out_lse, near_lse, "their sums");
}

// Computes four corners of two frames by a stride; each frame has more than 2^32 elements; our own
// kernel computes it, as the library takes no three channels.
TEST_P(LargeOffsets, Pixels) {
  constexpr int64_t kSide = 23174, kChannels = 8;  // kSide^2 kChannels > 2^32
  const Tensor weight = values({3, kChannels, 1, 2, 2}, GetParam());
  const PackedConv packed = pack_conv(stream_, weight, {}, GetParam());
  const auto run = [&](const TensorView& x, int64_t step) {
    Tensor out(GetParam(), {2, 2, 2, 3}, kCuda);
    conv3d(stream_, x, packed,
           {.stride = {1, step, step}, .pad_front = 0, .pad_h = {0, 0}, .pad_w = {0, 0}}, out);
    return out;
  };
  const Tensor x = values({2, 4, 4, kChannels}, GetParam());
  const Tensor near = run(x, 2);
  const size_t bytes = size_t{2} * kSide * kSide * kChannels * size_of(GetParam());
  if (!fits("pixels", bytes)) return;
  const Span span(bytes);
  const TensorView wide(span.data(), GetParam(), {2, kSide, kSide, kChannels}, kCuda);
  for (int64_t row : {0, 1})
    for (int64_t column : {0, 1})
      copy(stream_, x.view().slice(1, 2 * row, 2).slice(2, 2 * column, 2),
           wide.slice(1, row * (kSide - 2), 2).slice(2, column * (kSide - 2), 2));
  expect_same(run(wide, kSide - 2), near, "pixels");
}

INSTANTIATE_TEST_SUITE_P(, LargeOffsets, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace weft
