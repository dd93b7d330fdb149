#include "tests/support/quantised_copy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "kernels/convert.h"
#include "kernels/fp8.h"

namespace weft {

namespace {

void put_16(uint16_t bits, uint8_t* at) {
  at[0] = static_cast<uint8_t>(bits);
  at[1] = static_cast<uint8_t>(bits >> 8);
}
// Stores a scale as f16 and returns the stored value.
float put_half(float value, uint8_t* at) {
  const half stored = float_to_half(value);
  put_16(stored.bits, at);
  return half_to_float(stored);
}

// The nearest code of x in steps of `step`, from `least` to `most`.
int code_of(float x, float step, int least, int most) {
  const float code = step == 0 ? 0 : std::nearbyint(x / step);
  return static_cast<int>(std::clamp(code, static_cast<float>(least), static_cast<float>(most)));
}

float largest(const float* x, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

void encode_q8_0(const float* x, uint8_t* out) {
  const float step = put_half(largest(x, 32) / 127, out);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(code_of(x[i], step, -127, 127));
}

void encode_q4_0(const float* x, uint8_t* out) {
  const float step = put_half(largest(x, 32) / 7.5f, out);
  for (int i = 0; i < 16; ++i)
    out[2 + i] = static_cast<uint8_t>((code_of(x[i], step, -8, 7) + 8) |
                                      (code_of(x[i + 16], step, -8, 7) + 8) << 4);
}

// Eight groups of 32 values with a scale and a minimum of six bits each.
void encode_q4_k(const float* x, uint8_t* out) {
  std::array<float, 8> step, least;
  for (size_t group = 0; group < 8; ++group) {
    const auto [low, high] = std::minmax_element(x + group * 32, x + group * 32 + 32);
    least[group] = std::max(0.0f, -*low);
    step[group] = std::max(0.0f, *high + least[group]) / 15;
  }
  const float d = put_half(*std::ranges::max_element(step) / 63, out),
              dmin = put_half(*std::ranges::max_element(least) / 63, out + 2);
  uint8_t* packed = out + 4;
  std::fill_n(packed, 12, uint8_t{0});
  for (size_t group = 0; group < 8; ++group) {
    const int s = code_of(step[group], d, 0, 63), m = code_of(least[group], dmin, 0, 63);
    uint8_t* at = packed + (group & 3);
    if (group < 4) {
      at[0] = static_cast<uint8_t>(at[0] | s);
      at[4] = static_cast<uint8_t>(at[4] | m);
    } else {
      at[8] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      at[0] = static_cast<uint8_t>(at[0] | s >> 4 << 6);
      at[4] = static_cast<uint8_t>(at[4] | m >> 4 << 6);
    }
    const float unit = d * static_cast<float>(s), shift = dmin * static_cast<float>(m);
    uint8_t* q = out + 16 + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = code_of(x[group * 32 + static_cast<size_t>(i)] + shift, unit, 0, 15);
      q[i] = static_cast<uint8_t>(group % 2 ? q[i] | code << 4 : code);
    }
  }
}

class QuantisedCopy final : public StoredTensors {
 public:
  QuantisedCopy(std::shared_ptr<const TensorFile> file, BlockType type)
      : file_(std::move(file)), type_(type), shape_(shape_of(type)) {}

  bool holds(const std::string& name) const {
    const TensorView like = file_->describe(name);
    return like.rank == 2 && like[1] % shape_.values == 0;
  }
  std::optional<BlockType> blocks(const std::string& name) const override {
    return holds(name) ? std::optional(type_) : file_->blocks(name);
  }
  void read_blocks(const std::string& name, int64_t first, const TensorView& out) const override {
    if (!holds(name)) return file_->read_blocks(name, first, out);
    const int64_t columns = file_->describe(name)[1];
    const std::vector<float> scale = scales(name);
    const int64_t count = out.count() / shape_.bytes;
    constexpr int64_t kAtOnce = 64;
    std::vector<float> values(static_cast<size_t>(kAtOnce * shape_.values));
    for (int64_t done = 0; done < count; done += kAtOnce) {
      const int64_t some = std::min(kAtOnce, count - done), from = (first + done) * shape_.values;
      read_floats(name, from, some * shape_.values, values.data());
      for (int64_t b = 0; b < some; ++b)
        encode(values.data() + b * shape_.values,
               scale.empty() ? 0 : scale[static_cast<size_t>((from + b * shape_.values) / columns)],
               out.as<uint8_t>() + (done + b) * shape_.bytes);
    }
  }
  std::vector<float> scales(const std::string& name) const override {
    const float top = type_ == BlockType::kI8 ? 127 : kLargestE4m3;
    if (!holds(name) || (type_ != BlockType::kI8 && type_ != BlockType::kF8E4M3)) return {};
    const std::lock_guard lock(mutex_);
    std::vector<float>& kept = scales_[name];
    const TensorView like = file_->describe(name);
    std::vector<float> row(static_cast<size_t>(like[1]));
    for (int64_t r = std::ssize(kept); r < like[0]; ++r) {
      read_floats(name, r * like[1], like[1], row.data());
      kept.push_back(largest(row.data(), like[1]) / top);
    }
    return kept;
  }
  // The values that the blocks stand for.
  void part(const std::string& name, int64_t first, const TensorView& out) const {
    if (!holds(name)) return file_->read_run(name, first, out);
    const int64_t begin = first / shape_.values, end = first + out.count();
    const int64_t count = (end + shape_.values - 1) / shape_.values - begin;
    const Tensor packed(DType::kU8, {count * shape_.bytes});
    read_blocks(name, begin, packed);
    std::vector<float> values(static_cast<size_t>(count * shape_.values));
    expand_blocks(type_, packed.as<uint8_t>(), count, values.data());
    const int64_t columns = file_->describe(name)[1];
    const std::vector<float> scale = scales(name);
    for (int64_t i = first; i < end; ++i) {
      const float value = values[static_cast<size_t>(i - begin * shape_.values)];
      out.as<float>()[i - first] =
          scale.empty() ? value : value * scale[static_cast<size_t>(i / columns)];
    }
  }

 private:
  void read_floats(const std::string& name, int64_t first, int64_t count, float* out) const {
    const DType dtype = file_->describe(name).dtype;
    if (dtype == DType::kF32) return file_->read_run(name, first, {out, dtype, {count}});
    const Tensor stored(dtype, {count});
    file_->read_run(name, first, stored);
    visit_float(dtype, [&]<class T>(T) {
      const T* from = static_cast<const T*>(stored.view().data);
      for (int64_t i = 0; i < count; ++i) out[i] = convert<float>(from[i]);
    });
  }
  void encode(const float* x, float scale, uint8_t* out) const {
    switch (type_) {
      case BlockType::kQ8_0:
        return encode_q8_0(x, out);
      case BlockType::kQ4_0:
        return encode_q4_0(x, out);
      case BlockType::kQ4_K:
        return encode_q4_k(x, out);
      case BlockType::kF16:
        return put_16(float_to_half(*x).bits, out);
      case BlockType::kBF16:
        return put_16(to_bf16(*x).bits, out);
      case BlockType::kF8E4M3:
        *out = to_e4m3(scale == 0 ? 0 : *x / scale);
        return;
      default:
        *out = static_cast<uint8_t>(code_of(*x, scale, -127, 127));
    }
  }

  std::shared_ptr<const TensorFile> file_;
  BlockType type_;
  BlockShape shape_;
  mutable std::mutex mutex_;  // guards the member below
  mutable std::map<std::string, std::vector<float>> scales_;
};

bool can_encode(BlockType type) {
  constexpr BlockType kAll[] = {BlockType::kQ8_0, BlockType::kQ4_0, BlockType::kQ4_K,
                                BlockType::kF16,  BlockType::kBF16, BlockType::kF8E4M3,
                                BlockType::kI8};
  return std::ranges::find(kAll, type) != std::end(kAll);
}

}  // namespace

TensorFile quantised_copy(std::shared_ptr<const TensorFile> file, BlockType type) {
  if (!can_encode(type))
    throw Error(ErrorKind::kUsage, std::string("weights cannot be quantised to ") +
                                       shape_of(type).name +
                                       "; legal: Q8_0, Q4_0, Q4_K, f16, bf16, f8_e4m3, int8");
  const auto copy = std::make_shared<const QuantisedCopy>(file, type);
  TensorFile::Origin origin{.format = std::string("quantised to ") + shape_of(type).name,
                            .files = file->files(),
                            .metadata = {},
                            .header_hash = {}};
  std::vector<TensorFile::Generated> list;
  for (const std::string& name : file->names()) {
    const TensorView like = file->describe(name);
    const bool held = copy->holds(name);
    list.push_back({.name = name,
                    .dtype = held ? DType::kF32 : like.dtype,
                    .shape = {like.shape().begin(), like.shape().end()},
                    .stored = held ? shape_of(type).name : ""});
    origin.bytes +=
        held ? static_cast<size_t>(like.count() / shape_of(type).values * shape_of(type).bytes)
             : like.bytes();
  }
  return TensorFile::derived(
      list,
      [copy](const std::string& name, int64_t first, const TensorView& out) {
        copy->part(name, first, out);
      },
      std::move(origin), copy);
}

}  // namespace weft
