#pragma once
// A TensorView is a value: pointer, dtype, extents, strides, device. A Tensor is its move-only
// owner.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "kernels/check.h"
#include "kernels/dtype.h"

namespace weft {

// The measured kinds stand for the host and a device in a dry run (kernels/dry_run.h): their memory
// is counted, per thread, but it does not exist.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda, kMeasuredHost, kMeasuredDevice } kind = Kind::kCpu;
  int8_t index = 0;
  bool operator==(const Device&) const = default;
  bool measured() const { return kind >= Kind::kMeasuredHost; }
};

inline constexpr int kMaxRank = 5;

// A TensorView owns nothing. Strides are in elements, the innermost dimension last. An empty view
// (data null, rank 0) stands for "not given" where an argument is optional.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{};
  std::array<int64_t, kMaxRank> stride{};

  TensorView() = default;
  // A contiguous view of `shape` over `data`.
  TensorView(void* data, DType dtype, std::span<const int64_t> shape, Device device = {});
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {})
      : TensorView(data, dtype, std::span<const int64_t>(shape.begin(), shape.size()), device) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t operator[](int dim) const { return extent[dim < 0 ? dim + rank : dim]; }
  std::span<const int64_t> shape() const { return {extent.data(), static_cast<size_t>(rank)}; }
  int64_t count() const;
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype); }
  bool contiguous() const;
  // True when every row (the last dimension) is dense and the leading dimensions collapse to one
  // row index with a constant stride; ops over rows take such views.
  bool rows_collapse() const;
  int64_t rows() const;        // product of all extents but the last
  int64_t row_stride() const;  // elements between consecutive rows; needs rows_collapse()

  template <class T>
  T* as() const {
    CHECK(dtype == DTypeOf<T>::value, "dtype", to_string(dtype));
    return static_cast<T*>(data);
  }

  // All of these share the data; none copies.
  TensorView slice(int dim, int64_t begin, int64_t count) const;
  TensorView select(int dim, int64_t index) const;                 // drops the dimension
  TensorView reshape(std::initializer_list<int64_t> shape) const;  // CHECKs contiguity and count
  TensorView permute(std::initializer_list<int> order) const;
  std::string to_string_shape() const;  // "[2, 3] f32"
};

// A Tensor owns memory of the host (64-byte aligned) or of a device. Fresh memory is zero. On a
// device, allocating and freeing wait for the device, so neither belongs in a step.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::span<const int64_t> shape, Device device = {});
  Tensor(DType dtype, std::initializer_list<int64_t> shape, Device device = {})
      : Tensor(dtype, std::span<const int64_t>(shape.begin(), shape.size()), device) {}
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  explicit operator bool() const { return static_cast<bool>(view_); }
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  int64_t count() const { return view_.count(); }

 private:
  struct Free {
    size_t bytes;  // no initialisers: the deleter must be default constructible inside Tensor
    Device device;
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> memory_;
  TensorView view_;
};

// "12.00 GiB", "3.21 MiB".
std::string format_bytes(uint64_t bytes);

// These count the bytes of this process's live Tensors on the host or its devices, and their
// maximum since the last reset; tests and the memory report read them. For a measured kind they
// count those of the calling thread.
size_t tensor_bytes_live(Device::Kind kind = Device::Kind::kCpu);
size_t tensor_bytes_peak(Device::Kind kind = Device::Kind::kCpu);
void reset_tensor_bytes_peak(Device::Kind kind = Device::Kind::kCpu);

// Calls f with a float or bf16 tag for the two compute dtypes; any other dtype is a bug.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "dtype", to_string(dtype));
  return dtype == DType::kF32 ? f(float{}) : f(bf16{});
}

}  // namespace weft
