#include "io/weights/scaled_weights.h"

#include <cmath>

#include "io/weights/weights_file.h"
#include "kernels/convert.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

// Named tensors of a file, in the order of their making.
struct Parts {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  template <class T>
  Parts& add(const std::string& name, DType dtype, std::vector<int64_t> shape,
             std::vector<T> values) {
    Tensor tensor(dtype, shape);
    CHECK(tensor.view().bytes() == values.size() * sizeof(T), name);
    std::copy(values.begin(), values.end(), static_cast<T*>(tensor.view().data));
    tensors.emplace_back(name, std::move(tensor));
    return *this;
  }
  Parts& f32(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    return add(name, DType::kF32, std::move(shape), std::move(values));
  }
  Parts& bytes(const std::string& name, DType dtype, std::vector<int64_t> shape,
               std::vector<uint8_t> values) {
    return add(name, dtype, std::move(shape), std::move(values));
  }
  Parts& text(const std::string& name, const std::string& value) {
    return bytes(name, DType::kU8, {std::ssize(value)}, {value.begin(), value.end()});
  }
  std::string write(const TempDir& dir) const {
    std::vector<std::pair<std::string, TensorView>> views;
    for (const auto& [name, tensor] : tensors) views.emplace_back(name, tensor.view());
    const std::string path = dir / "x.safetensors";
    write_safetensors(path, views, metadata);
    return path;
  }
};

std::vector<float> values(const TensorFile& file, const std::string& name) {
  const TensorView view = file.view(name);
  return {view.as<float>(), view.as<float>() + view.count()};
}

// The e4m3 bytes of 1, -2, 0.5 and 2^-9, and the e5m2 bytes of the first three.
const std::vector<uint8_t> kE4m3 = {0x38, 0xc0, 0x30, 0x01};
const std::vector<uint8_t> kE5m2 = {0x3c, 0xc0, 0x38};

TEST(ScaledWeights, PlainValuesAreCast) {
  TempDir dir;
  Parts parts;
  parts.bytes("a.weight", DType::kF8E4M3, {2, 2}, kE4m3)
      .bytes("b.weight", DType::kF8E5M2, {3}, kE5m2)
      .f32("c.bias", {1}, {7});
  const TensorFile file = open_weights(parts.write(dir));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a.weight", "b.weight", "c.bias"}));
  EXPECT_EQ(file.describe("a.weight").to_string_shape(), "[2, 2] f32");
  EXPECT_EQ(values(file, "a.weight"), (std::vector<float>{1, -2, 0.5, 0x1p-9f}));
  EXPECT_EQ(values(file, "b.weight"), (std::vector<float>{1, -2, 0.5}));
  EXPECT_EQ(values(file, "c.bias"), std::vector<float>{7});
  EXPECT_EQ(file.read("a.weight", 1, 1, 1).as<float>()[0], -2);
}

TEST(ScaledWeights, EveryCodeOfE5m2) {
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<uint8_t>(code));
  TempDir dir;
  Parts parts;
  parts.bytes("a.weight", DType::kF8E5M2, {256}, codes);
  const std::vector<float> got = values(open_weights(parts.write(dir)), "a.weight");
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 2 & 31, fraction = code & 3;
    double want =
        exponent ? std::ldexp(1 + fraction / 4.0, exponent - 15) : std::ldexp(fraction / 4.0, -14);
    if (code & 128) want = -want;
    if (exponent == 31)
      EXPECT_EQ(std::isinf(got[code]), fraction == 0) << code;
    else
      EXPECT_EQ(got[code], want) << code;
  }
}

TEST(ScaledWeights, ScalesMultiply) {
  TempDir dir;
  Parts parts;
  const std::string format = R"({"format":"float8_e4m3fn"})";
  parts.bytes("p.a.weight", DType::kF8E4M3, {2, 2}, kE4m3)
      .f32("p.a.scale_weight", {1}, {4})
      .f32("p.a.scale_input", {1}, {9})
      .bytes("p.b.weight", DType::kF8E4M3, {2, 2}, kE4m3)
      .f32("p.b.weight_scale", {}, {0.5})
      .f32("p.b.input_scale", {}, {9})
      .text("p.b.comfy_quant", format)
      .bytes("p.c.weight", DType::kI8, {2, 2}, {1, 0xff, 3, 0x80})
      .f32("p.c.weight_scale", {2, 1}, {2, 10})
      .bytes("p.scaled_fp8", DType::kF8E4M3, {2}, {0, 0});
  const TensorFile file = open_weights(parts.write(dir));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"p.a.weight", "p.b.weight", "p.c.weight"}));
  EXPECT_EQ(values(file, "p.a.weight"), (std::vector<float>{4, -8, 2, 0x1p-7f}));
  EXPECT_EQ(values(file, "p.b.weight"), (std::vector<float>{0.5, -1, 0.25, 0x1p-10f}));
  EXPECT_EQ(values(file, "p.c.weight"), (std::vector<float>{2, -2, 30, -1280}));
  const Tensor column = file.read("p.c.weight", 1, 1, 1);
  EXPECT_EQ(column.as<float>()[0], -2);
  EXPECT_EQ(column.as<float>()[1], -1280);
}

// DeepSeek's format: `weight_scale_inv` holds a factor per 128 x 128 values, whatever its name
// says.
TEST(ScaledWeights, BlocksOf128By128HaveAScaleEach) {
  for (const auto& [rows, columns] :
       std::vector<std::array<int64_t, 2>>{{128, 128}, {130, 300}, {1, 257}, {300, 5}, {256, 129}})
    for (const std::string suffix : {".weight_scale_inv", ".weight_scale"}) {
      SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(columns) + suffix);
      const int64_t high = (rows + 127) / 128, wide = (columns + 127) / 128;
      std::vector<uint8_t> codes;
      for (int64_t i = 0; i < rows * columns; ++i)
        codes.push_back(static_cast<uint8_t>(0x30 + i % 16));
      std::vector<uint16_t> scales;  // bf16, as Qwen3-FP8 has them
      for (int64_t i = 0; i < high * wide; ++i)
        scales.push_back(to_bf16(0.5f + static_cast<float>(i)).bits);
      TempDir dir;
      Parts parts;
      parts.bytes("m.q.weight", DType::kF8E4M3, {rows, columns}, codes)
          .add("m.q" + suffix, DType::kBF16, {high, wide}, scales)
          .f32("m.q.input_scale", {}, {3})
          .f32("m.norm.weight", {1}, {2});
      const TensorFile file = open_weights(parts.write(dir));
      EXPECT_EQ(file.names(), (std::vector<std::string>{"m.norm.weight", "m.q.weight"}));
      EXPECT_EQ(file.blocks("m.q.weight").has_value(), scales.size() == 1);
      const std::vector<float> got = values(file, "m.q.weight");
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const int code = static_cast<int>((r * columns + c) % 16);
          const float value = std::ldexp(1 + static_cast<float>(code % 8) / 8, code / 8 - 1);
          const float scale = 0.5f + static_cast<float>(r / 128 * wide + c / 128);
          ASSERT_EQ(got[static_cast<size_t>(r * columns + c)], value * scale) << r << " " << c;
        }
      const Tensor column = file.read("m.q.weight", 1, columns - 1, 1);
      EXPECT_EQ(column.as<float>()[rows - 1], got.back());
    }
}

TEST(ScaledWeights, AFileWithoutThemIsReturnedAsItIs) {
  TempDir dir;
  Parts parts;
  parts.f32("scale_weight", {1}, {1}).f32("a.weight", {1}, {3});
  parts.bytes("table", DType::kI8, {1}, {5});
  const TensorFile file = open_weights(parts.write(dir));
  EXPECT_EQ(file.names().size(), 3u);
  EXPECT_EQ(file.describe("table").dtype, DType::kI8);
}

void expect_parts_refused(const Parts& parts, const std::string& part) {
  SCOPED_TRACE(part);
  TempDir dir;
  const std::string path = parts.write(dir);
  expect_error(ErrorKind::kModel, part, [&] { open_weights(path); });
  expect_error(ErrorKind::kModel, "x.safetensors", [&] { open_weights(path); });
}

Parts one_weight(DType dtype = DType::kF8E4M3) {
  Parts parts;
  parts.bytes("a.weight", dtype, {2, 2}, kE4m3);
  return parts;
}

TEST(ScaledWeights, OtherFormatsAreNamed) {
  expect_parts_refused(one_weight(DType::kI8), "\"a.weight\" is int8 and has no scale");
  expect_parts_refused(one_weight(DType::kU8).f32("a.weight_scale", {}, {1}),
                       "is u8 and has a scale");
  expect_parts_refused(one_weight().f32("a.weight_scale_2", {}, {1}),
                       "\"a.weight_scale_2\" belongs to the format NVFP4");
  expect_parts_refused(one_weight().f32("a.pre_quant_scale", {}, {1}),
                       "belongs to the format NVFP4 or AWQ");
  expect_parts_refused(one_weight().bytes("b.qweight", DType::kU8, {1}, {0}), "format AWQ or GPTQ");
  expect_parts_refused(one_weight().bytes("a.weight_scale", DType::kU8, {2, 2}, {1, 1, 1, 1}),
                       "as MXFP8 and NVFP4 have");
  expect_parts_refused(one_weight().f32("a.weight_scale", {3}, {1, 1, 1}),
                       "one per row or one per 128 x 128 values of [2, 2]");
  expect_parts_refused(one_weight().text("a.weight_scale", "ab"), "must be one float");
  expect_parts_refused(one_weight().f32("a.weight_scale", {}, {INFINITY}), "is not finite");
  expect_parts_refused(one_weight().f32("a.weight_scale", {}, {1}).f32("a.scale_weight", {}, {1}),
                       "has two scales");
  const auto described = [](const std::string& text) {
    Parts parts = one_weight();
    parts.text("a.comfy_quant", text);
    return parts;
  };
  expect_parts_refused(described(R"({"format":"nvfp4"})"), "format \"nvfp4\", which is not read");
  expect_parts_refused(described(R"({"format":"float8_e5m2"})"), "is f8_e4m3 in the format");
  expect_parts_refused(described("{"), "a.comfy_quant");
  expect_parts_refused(described("[]"), "its format is not an object");
  expect_parts_refused(described(std::string(4097, ' ')), "at most 4096 bytes");
  expect_parts_refused(one_weight(DType::kI8)
                           .f32("a.weight_scale", {}, {1})
                           .text("a.comfy_quant", R"({"format":"int8_tensorwise","convrot":true})"),
                       "rotated (convrot)");
  Parts listed = one_weight();
  listed.metadata["_quantization_metadata"] = R"({"layers":{"a":{"format":"mxfp8"}}})";
  expect_parts_refused(listed, "format \"mxfp8\"");
  listed.metadata["_quantization_metadata"] = "{}";
  expect_parts_refused(listed, "layers");
  listed.metadata["_quantization_metadata"] = R"({"layers":[]})";
  expect_parts_refused(listed, "layers is not an object");
}

}  // namespace
}  // namespace weft::test
