#include <cmath>
#include <cstring>
#include <random>

#include "io/weights/gguf_header.h"
#include "io/weights/weights_file.h"
#include "kernels/convert.h"
#include "tests/io/gguf_testing.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/stored_matrices.h"

namespace weft::test {
namespace {

constexpr uint32_t kTypeIds[] = {0, 1, 30, 8, 2, 3, 6, 7, 10, 11, 12, 13, 14};

// Two f32 values of one dimension, a Q8_0 tensor of two rows, and some metadata.
GgufBytes good_gguf() {
  GgufBytes out;
  out.entries = {
      gguf_entry("general.architecture", 8, gguf_text("wan")),
      gguf_entry("count", 4, le<uint32_t>(7)), gguf_entry("yes", 7, le<uint8_t>(1)),
      gguf_entry("names", 9, le<uint32_t>(8) + le<uint64_t>(2) + gguf_text("a") + gguf_text("bc")),
      gguf_entry("numbers", 9,
                 le<uint32_t>(5) + le<uint64_t>(2) + le<int32_t>(-1) + le<int32_t>(2))};
  out.tensors = {gguf_tensor("a", {2}, 0, 0), gguf_tensor("w", {32, 2}, 8, 32)};
  out.data = le<uint32_t>(0x3f800000) + le<uint32_t>(0xc0000000) + std::string(24, '\0');
  for (int row = 0; row < 2; ++row) {
    out.data += le<uint16_t>(row ? 0x4000 : 0x3800);  // 2 and 0.5
    for (int i = 0; i < 32; ++i) out.data += static_cast<char>(i - 16);
  }
  return out;
}

void expect_gguf_refused(const std::string& bytes, const std::string& part) {
  SCOPED_TRACE(part);
  TempDir dir;
  const std::string path = dir.write("x.gguf", bytes);
  expect_error(ErrorKind::kModel, part, [&] { open_weights(path); });
  expect_error(ErrorKind::kModel, "x.gguf", [&] { open_weights(path); });
}

TEST(Gguf, ReadsAWellFormedFile) {
  TempDir dir;
  const std::string path = dir.write("x.gguf", good_gguf().file());
  const TensorFile file = open_weights(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "w"}));
  EXPECT_EQ(file.files(), std::vector<std::string>{path});
  EXPECT_EQ(file.bytes(), 8u + 68u);
  EXPECT_EQ(file.header_hash().size(), 64u);
  EXPECT_EQ(file.metadata().at("general.architecture"), "wan");
  EXPECT_EQ(file.metadata().at("count"), "7");
  EXPECT_EQ(file.metadata().at("yes"), "true");
  EXPECT_EQ(file.metadata().at("names"), "2 texts");
  EXPECT_EQ(file.metadata().at("numbers"), "[-1, 2]");
  EXPECT_EQ(file.describe("w").to_string_shape(), "[2, 32] f32");
  const TensorView a = file.view("a"), w = file.view("w");
  EXPECT_EQ(a.as<float>()[1], -2);
  EXPECT_EQ(w.as<float>()[0], -8);
  EXPECT_EQ(w.as<float>()[32 + 31], 30);
  file.drop_pages(w);
  // A column range of each row, as a part of the width is read.
  const Tensor part = file.read("w", 1, 5, 3);
  EXPECT_EQ(part.view().to_string_shape(), "[2, 3] f32");
  EXPECT_EQ(part.as<float>()[0], -5.5f);
  EXPECT_EQ(part.as<float>()[5], -18);
  // A folder with this file alone.
  EXPECT_EQ(open_weights(dir.path()).names().size(), 2u);
  dir.write("y.gguf", good_gguf().file());
  expect_error(ErrorKind::kModel, "several .gguf files (x.gguf, y.gguf)",
               [&] { open_weights(dir.path()); });
}

// The parts of a split file: a tensor of one value each, the first with no tensor at all.
std::string split_part(uint32_t number, uint32_t count, int tensors, int32_t all = 2) {
  GgufBytes bytes;
  bytes.entries = {gguf_entry("split.no", 2, le(static_cast<uint16_t>(number))),
                   gguf_entry("split.count", 2, le(static_cast<uint16_t>(count))),
                   gguf_entry("split.tensors.count", 5, le(all))};
  if (number == 0) bytes.entries.push_back(gguf_entry("a.name", 8, gguf_text("first")));
  for (int i = 0; i < tensors; ++i)
    bytes.tensors.push_back(gguf_tensor("t" + std::to_string(number), {1}, 0, 0));
  if (tensors) bytes.data = le(std::bit_cast<uint32_t>(static_cast<float>(number)));
  return bytes.file();
}

TEST(Gguf, ASplitFileIsReadFromAnyOfItsParts) {
  TempDir dir;
  std::vector<std::string> parts;
  for (uint32_t i = 0; i < 3; ++i)
    parts.push_back(
        dir.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", split_part(i, 3, i > 0)));
  std::string hash;
  for (const std::string& path : {dir.path(), parts[0], parts[1], parts[2]}) {
    const TensorFile file = open_weights(path);
    EXPECT_EQ(file.names(), (std::vector<std::string>{"t1", "t2"}));
    EXPECT_EQ(file.files(), parts);
    EXPECT_EQ(file.view("t1").as<float>()[0], 1);
    EXPECT_EQ(file.view("t2").as<float>()[0], 2);
    EXPECT_EQ(file.metadata().at("a.name"), "first");
    EXPECT_EQ(file.bytes(), 8u);
    EXPECT_TRUE(hash.empty() || hash == file.header_hash());
    hash = file.header_hash();
  }
  const auto refused = [&](const std::string& path, const std::string& part) {
    expect_error(ErrorKind::kModel, part, [&] { open_weights(path); });
  };
  dir.write("m-00003-of-00003.gguf", split_part(1, 3, 1));
  refused(parts[0], "m-00003-of-00003.gguf: is not part 3 of 3");
  dir.write("m-00003-of-00003.gguf", split_part(2, 3, 1, 2));
  dir.write("m-00001-of-00003.gguf", split_part(0, 3, 0, 7));
  refused(parts[1], "\"split.tensors.count\" is 7, and the parts hold 2 tensors");
  std::filesystem::remove(parts[1]);
  for (const std::string& path : {dir.path(), parts[0], parts[2]})
    refused(path, "beside it these are missing: m-00002-of-00003.gguf; the download is incomplete");
  std::filesystem::remove(parts[0]);
  refused(parts[2], "missing: m-00001-of-00003.gguf, m-00002-of-00003.gguf");
  refused(dir.path(), "is part 3 of 3 (split.count)");
  refused(dir.write("x.gguf", split_part(1, 3, 1)),
          "is part 2 of 3 (split.count); the other parts are found by its name, which must end in "
          "-00002-of-00003.gguf");
  // Two models in a folder are two, and a file of one part is whole.
  dir.write("m-00001-of-00001.gguf", split_part(0, 1, 1, 1));
  EXPECT_EQ(open_weights(dir / "m-00001-of-00001.gguf").names().size(), 1u);
  refused(dir.path(), "several .gguf files");
}

TEST(Gguf, AFlattenedTensorHasItsOwnShape) {
  GgufBytes bytes;
  const auto shape = [](std::vector<int32_t> extents) {
    std::string list = le<uint32_t>(5) + le<uint64_t>(extents.size());
    for (const int32_t extent : extents) list += le(extent);
    return gguf_entry("comfy.gguf.orig_shape.p", 9, list);
  };
  bytes.tensors = {gguf_tensor("p", {4, 6}, 1, 0)};
  bytes.data = std::string(48, 'x');
  bytes.entries = {shape({2, 3, 1, 2, 2})};
  TempDir dir;
  EXPECT_EQ(open_weights(dir.write("x.gguf", bytes.file())).describe("p").to_string_shape(),
            "[2, 3, 1, 2, 2] f16");
  for (const auto& [extents, part] : {std::pair{std::vector<int32_t>{2, 3, 1, 2, 3}, "24 values"},
                                      {{0, 3}, "24 values"},
                                      {{1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30}, "24 values"},
                                      {{-2, 12}, "1 to 5 extents"},
                                      {{1, 1, 1, 1, 1, 24}, "1 to 5 extents"},
                                      {{}, "1 to 5 extents"}}) {
    bytes.entries = {shape(extents)};
    expect_gguf_refused(bytes.file(), part);
  }
}

// The value of one element, straight from the format's definition. `in` is its block.
double slow_value(const std::string& type, const unsigned char* in, int i, double& size) {
  const auto half = [&](int at) {
    return static_cast<double>(half_to_float({static_cast<uint16_t>(in[at] | in[at + 1] << 8)}));
  };
  const auto bit = [&](int at, int n) { return in[at + n / 8] >> n % 8 & 1; };
  // Bits [n, n + count) from the byte `at`, the lowest first.
  const auto bits = [&](int at, int n, int count) {
    int out = 0;
    for (int k = 0; k < count; ++k) out |= bit(at, n + k) << k;
    return out;
  };
  double value = 0, less = 0;
  if (type == "Q8_0") value = half(0) * static_cast<signed char>(in[2 + i]);
  if (type == "Q4_0") value = half(0) * (bits(2 + i % 16, i / 16 * 4, 4) - 8);
  if (type == "Q5_0") value = half(0) * (bits(6 + i % 16, i / 16 * 4, 4) + 16 * bit(2, i) - 16);
  if (type == "Q4_1") value = half(0) * bits(4 + i % 16, i / 16 * 4, 4);
  if (type == "Q5_1") value = half(0) * (bits(8 + i % 16, i / 16 * 4, 4) + 16 * bit(4, i));
  if (type == "Q4_1" || type == "Q5_1") less = -half(2);
  const int two_bits = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
  if (type == "Q2_K") {
    value = half(80) * bits(i / 16, 0, 4) * bits(16 + two_bits, shift, 2);
    less = half(82) * bits(i / 16, 4, 4);
  }
  if (type == "Q3_K") {
    const int part = i / 16;
    const int s = bits(96 + part % 8, part / 8 * 4, 4) + 16 * bits(104 + part % 4, part / 4 * 2, 2);
    const int q = bits(32 + two_bits, shift, 2) + 4 * bit(i % 32, i / 32);
    value = half(108) * (s - 32) * (q - 4);
  }
  if (type == "Q4_K" || type == "Q5_K") {
    const bool five = type == "Q5_K";
    const int g = i / 32, at = 4;
    const int s = g < 4 ? bits(at + g, 0, 6) : bits(at + g + 4, 0, 4) + 16 * bits(at + g - 4, 6, 2);
    const int m = g < 4 ? bits(at + g + 4, 0, 6) : bits(at + g + 4, 4, 4) + 16 * bits(at + g, 6, 2);
    int q = bits((five ? 48 : 16) + i / 64 * 32 + i % 32, g % 2 * 4, 4);
    if (five) q += 16 * bit(16 + i % 32, g);
    value = half(0) * s * q;
    less = half(2) * m;
  }
  if (type == "Q6_K") {
    const int j = i % 128;  // within the half of the block
    const int low = bits(i / 128 * 64 + j % 64, j / 64 * 4, 4);
    const int high = bits(128 + i / 128 * 32 + j % 32, j / 32 * 2, 2);
    value = half(208) * static_cast<signed char>(in[192 + i / 16]) * (low + 16 * high - 32);
  }
  size = std::abs(value) + std::abs(less);
  return value - less;
}

TEST(Gguf, EveryQuantisedTypeHasTheValuesOfItsDefinition) {
  std::mt19937 random(7);
  for (const uint32_t id : kTypeIds) {
    const GgufType* type = find_gguf_type(id);
    ASSERT_TRUE(type);
    SCOPED_TRACE(type->name);
    if (!type->quantised) continue;
    constexpr int kBlocks = 37;
    std::string data;
    for (int i = 0; i < kBlocks * type->bytes; ++i) data += static_cast<char>(random());
    // Scales that are not finite would hide the rest: their exponents are made small.
    for (int b = 0; b < kBlocks; ++b)
      for (const int half : half_places(*type->quantised)) {
        char& upper = data[static_cast<size_t>(b * type->bytes + half + 1)];
        upper = static_cast<char>(upper & 0xb7);
      }
    GgufBytes bytes;
    const auto columns = static_cast<uint64_t>(type->values);
    bytes.tensors = {gguf_tensor("w", {columns, kBlocks}, id, 0)};
    bytes.data = data;
    TempDir dir;
    const TensorFile file = open_weights(dir.write("x.gguf", bytes.file()));
    const TensorView w = file.view("w");
    ASSERT_EQ(w.count(), kBlocks * type->values);
    for (int64_t i = 0; i < w.count(); ++i) {
      double size = 0;
      const auto* block =
          reinterpret_cast<const unsigned char*>(data.data()) + i / type->values * type->bytes;
      const double want = slow_value(type->name, block, static_cast<int>(i % type->values), size);
      ASSERT_NEAR(w.as<float>()[i], want, 0x3p-24 * size) << "value " << i;
    }
    // Any part has the bits of the whole.
    for (int draw = 0; draw < 50; ++draw) {
      const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(w.count()));
      const auto count =
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(w.count() - first));
      const Tensor part(DType::kF32, {count});
      file.read_run("w", first, part.view());
      ASSERT_EQ(std::memcmp(part.as<float>(), w.as<float>() + first, part.view().bytes()), 0)
          << first << " " << count;
    }
  }
}

// Values and sums that gguf-py 0.19 gives for two blocks whose bytes are 37 i + 11 and whose scales
// are 1/16 and 1/2: values 0, 1, the last of the first half block, the last of the block, the
// fourth of the second block and the last; the sum; and the sum weighted by 1, 2, ...
struct GgufPyValues {
  uint32_t id;
  std::array<float, 6> values;
  double sum, weighted;
};
constexpr GgufPyValues kGgufPy[] = {
    {2, {-0.1875, 0.125, -0.5, 0.0, 0.375, -0.4375}, -2.0, -66.9375},
    {3, {1.4375, 0.75, 1.125, 1.25, 0.625, 1.125}, 62.875, 2051.25},
    {6, {0.5625, -0.125, -0.75, 0.0625, -0.625, 0.25}, -0.25, -6.8125},
    {7, {1.6875, 2.0, 2.375, 0.8125, 1.125, 2.3125}, 93.625, 2974.875},
    {8, {5.3125, 7.625, -8.0, -3.0, -5.125, -4.375}, -18.0, -856.0},
    {10, {2.0625, 0.0, 2.625, -1.125, 0.875, -1.25}, -1353.25, -363291.875},
    {11, {5.0625, -6.75, 4.5, 2.625, 3.75, 0.375}, 49.6875, 6915.9375},
    {12, {-4.1875, -25.5, -10.875, -13.375, 27.875, 19.0}, 1285.0, 749261.0},
    {13, {26.8125, -25.5, -16.125, -9.625, -8.125, 11.5}, 5711.0, 1349198.0},
    {14, {-89.4375, 106.0, 93.75, -3.75, -64.75, -100.0}, 340.0, 113051.75}};

TEST(Gguf, QuantisedTypesHaveTheValuesOfGgufPy) {
  for (const GgufPyValues& wants : kGgufPy) {
    const GgufType& type = *find_gguf_type(wants.id);
    SCOPED_TRACE(type.name);
    GgufBytes bytes;
    for (int64_t i = 0; i < 2 * type.bytes; ++i) bytes.data += static_cast<char>(i * 37 + 11);
    for (int block = 0; block < 2; ++block) {
      std::string scale("\0\x2c", 2);
      for (const int half : half_places(*type.quantised)) {
        bytes.data.replace(static_cast<size_t>(block * type.bytes + half), 2, scale);
        scale = std::string("\0\x38", 2);
      }
    }
    const int64_t n = type.values;
    bytes.tensors = {gguf_tensor("w", {static_cast<uint64_t>(n), 2}, wants.id, 0)};
    TempDir dir;
    const TensorFile file = open_weights(dir.write("x.gguf", bytes.file()));
    const auto* w = file.view("w").as<float>();
    const int64_t places[] = {0, 1, n / 2 - 1, n - 1, n + 3, 2 * n - 1};
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(w[places[i]], wants.values[i]) << i;
    double sum = 0, weighted = 0;
    for (int64_t i = 0; i < 2 * n; ++i) {
      sum += w[i];
      weighted += w[i] * static_cast<double>(i + 1);
    }
    EXPECT_EQ(sum, wants.sum);
    EXPECT_EQ(weighted, wants.weighted);
  }
}

// The data's end may lack the padding after the last tensor, but no byte of a tensor.
TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = good_gguf().file();
  TempDir dir;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = dir.write("x.gguf", whole.substr(0, size));
    expect_error(ErrorKind::kModel, "x.gguf", [&] { open_weights(path); });
  }
  const size_t rest = 32 - whole.size() % 32;
  EXPECT_EQ(open_weights(dir.write("x.gguf", whole + std::string(rest, '\0'))).names().size(), 2u);
  expect_gguf_refused(whole + std::string(rest + 1, '\0'), "bytes after its last tensor");
}

// Every byte of the header takes other values. The file is refused, or its tensors can be read.
TEST(Gguf, EveryByteChanged) {
  const GgufBytes bytes = good_gguf();
  const std::string whole = bytes.file();
  TempDir dir;
  int refused = 0, read = 0;
  for (size_t at = 0; at < bytes.header().size(); ++at)
    for (const int change : {1, 2, 4, 0x20, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const std::string path = dir.write("x.gguf", changed);
      try {
        const TensorFile file = open_weights(path);
        for (const std::string& name : file.names()) file.drop_pages(file.view(name));
        ++read;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kModel) << error.what();
        EXPECT_TRUE(contains(error.what(), "x.gguf"));
        ++refused;
      }
    }
  EXPECT_GT(refused, 500);
  EXPECT_GT(read, 20);  // letters of names, numbers of the metadata
}

TEST(Gguf, HeadersThatAreNotWhatTheyMustBe) {
  const std::string ok = good_gguf().file();
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = ok;
    return changed.replace(at, bytes.size(), bytes);
  };
  expect_gguf_refused("GGML" + ok.substr(4), "is not a GGUF file: it begins with \"GGML\"");
  expect_gguf_refused(le<uint64_t>(17) + "{\"__metadata__\":{}}", "is a safetensors file under");
  expect_gguf_refused("<html><body>Sign in</body></html>", "is an HTML page");
  expect_gguf_refused("version https://git-lfs.github.com/spec/v1\noid", "git lfs pull");
  expect_gguf_refused("{\"detail\": \"Unauthorized\"}", "is JSON, not the weights");
  expect_gguf_refused(with(4, le<uint32_t>(1)), "GGUF version 1 is not read");
  expect_gguf_refused(with(4, le<uint32_t>(0x03000000)), "little endian");
  expect_gguf_refused(with(8, le<uint64_t>(65537)), "65537 tensors (legal: at most 65536)");
  expect_gguf_refused(with(8, le(~uint64_t{0})), "tensors (legal: at most 65536)");
  expect_gguf_refused(with(8, le<uint64_t>(3)), "x.gguf");
  expect_gguf_refused(with(16, le<uint64_t>(65537)), "65537 metadata entries");
  expect_gguf_refused(with(24, le(~uint64_t{0})),
                      "the file ends inside the key of metadata entry 0");
  expect_gguf_refused(with(24, le<uint64_t>(0)), "legal: UTF-8 of 1 to 4096 bytes");
}

void expect_entry_refused(const std::string& entry, const std::string& part) {
  GgufBytes bytes = good_gguf();
  bytes.entries.push_back(entry);
  expect_gguf_refused(bytes.file(), part);
}

TEST(Gguf, MetadataThatIsNotWhatItMustBe) {
  const auto list = [](uint32_t type, uint64_t count) {
    return gguf_entry("k", 9, le(type) + le(count));
  };
  expect_entry_refused(gguf_entry("count", 4, le<uint32_t>(7)), "metadata \"count\" stands twice");
  expect_entry_refused(gguf_entry("k", 13, ""), "value type 13 (legal: 0 to 12)");
  expect_entry_refused(gguf_entry("k", 7, le<uint8_t>(2)), "truth value of 2 (legal: 0, 1)");
  expect_entry_refused(gguf_entry("k", 8, gguf_text("\xff")), "is not UTF-8");
  expect_entry_refused(gguf_entry("\xff", 7, le<uint8_t>(1)), "legal: UTF-8");
  expect_entry_refused(gguf_entry("k", 8, le(~uint64_t{0})), "the file ends inside metadata");
  expect_entry_refused(list(9, 1), "list of lists");
  expect_entry_refused(list(99, 1), "value type 99");
  expect_entry_refused(list(10, uint64_t{1} << 61), "more than the file holds");
  expect_entry_refused(list(0, ~uint64_t{0}), "more than the file holds");
  expect_entry_refused(list(8, ~uint64_t{0}), "the file ends inside");
  expect_entry_refused(gguf_entry("general.alignment", 4, le<uint32_t>(0)), "a power of two");
  expect_entry_refused(gguf_entry("general.alignment", 4, le<uint32_t>(48)), "a power of two");
  expect_entry_refused(gguf_entry("general.alignment", 4, le<uint32_t>(1u << 31)),
                       "a power of two up to 65536");
  expect_entry_refused(gguf_entry("general.alignment", 10, le<uint64_t>(32)), "not of type uint32");
  // Another alignment than the one that the offsets have.
  expect_entry_refused(gguf_entry("general.alignment", 4, le<uint32_t>(64)), "must at 64");
}

TEST(Gguf, ALongTextIsNotKept) {
  GgufBytes bytes = good_gguf();
  bytes.entries.push_back(gguf_entry("long", 8, gguf_text(std::string(4097, 'x'))));
  bytes.entries.push_back(
      gguf_entry("many", 9, le<uint32_t>(4) + le<uint64_t>(9) + std::string(36, '\0')));
  TempDir dir;
  const TensorFile file = open_weights(dir.write("x.gguf", bytes.file()));
  EXPECT_EQ(file.metadata().at("long"), "a text of more than 4096 bytes");
  EXPECT_EQ(file.metadata().at("many"), "9 values");
}

void expect_tensor_refused(const std::string& tensor, const std::string& part) {
  GgufBytes bytes = good_gguf();
  bytes.tensors[1] = tensor;
  expect_gguf_refused(bytes.file(), part);
}

TEST(Gguf, TensorsThatAreNotWhatTheyMustBe) {
  const uint64_t huge = uint64_t{1} << 47;
  expect_tensor_refused(gguf_tensor("a", {32, 2}, 8, 32), "tensor \"a\" stands twice");
  expect_tensor_refused(gguf_tensor("w", {}, 8, 32), "0 dimensions (legal: 1 to 5)");
  expect_tensor_refused(gguf_tensor("w", {1, 1, 1, 1, 1, 1}, 8, 32), "6 dimensions");
  expect_tensor_refused(gguf_tensor("w", {32, 0}, 8, 32), "extent of 0");
  expect_tensor_refused(gguf_tensor("w", {32, uint64_t{1} << 48}, 8, 32), "legal: 1 to 2^48");
  expect_tensor_refused(gguf_tensor("w", {huge, huge, huge}, 8, 32), "bytes overflow");
  expect_tensor_refused(gguf_tensor("w", {huge, 128}, 8, 32), "header needs");
  expect_tensor_refused(gguf_tensor("w", {32, 2}, 99, 32),
                        "the type 99, which is not known (legal: F32, F16, BF16, F64, I8, I16, "
                        "I32, I64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)");
  for (const auto& [id, name] : {std::pair<uint32_t, std::string>{20, "IQ4_NL"},
                                 {23, "IQ4_XS"},
                                 {39, "MXFP4"},
                                 {35, "TQ2_0"},
                                 {15, "Q8_K"}}) {
    const char* nearest = id == 35 ? "Q2_K" : id == 15 ? "Q8_0" : "Q4_K";
    expect_tensor_refused(
        gguf_tensor("w", {256, 2}, id, 32),
        "the type " + name + ", which is not read; the nearest that is: " + nearest + " (legal: ");
  }
  expect_tensor_refused(gguf_tensor("w", {31, 2}, 8, 32), "Q8_0 needs multiples of 32");
  expect_tensor_refused(gguf_tensor("w", {128, 2}, 12, 32), "Q4_K needs multiples of 256");
  expect_tensor_refused(gguf_tensor("w", {32, 2}, 8, 0), "must at 32");
  expect_tensor_refused(gguf_tensor("w", {32, 2}, 8, 33), "must at 32");
  expect_tensor_refused(gguf_tensor("w", {32, 2}, 8, 64), "must at 32");
  expect_tensor_refused(gguf_tensor("w", {32, 2}, 8, ~uint64_t{0}), "offset of");
  expect_tensor_refused(gguf_tensor("w", {32, 3}, 8, 32), "the download is incomplete");
  expect_tensor_refused(gguf_tensor("w", {32, 1}, 8, 32), "bytes after its last tensor");
  expect_tensor_refused(gguf_tensor(std::string(4097, 'n'), {32, 2}, 8, 32), "of 4097 bytes");
}

}  // namespace
}  // namespace weft::test
