#include "io/weights/tensor_file.h"

#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "io/weights/safetensors_header.h"
#include "tests/io/io_testing.h"
#include "tests/support/compare.h"

namespace weft::test {
namespace {

std::string le64(uint64_t value) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string data;
  for (size_t i = 0; i < data_bytes; ++i) data += static_cast<char>(i + 1);
  return le64(header.size()) + header + data;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

// A header with two f32 values and three u8 values.
const std::string kGood =
    "{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "U8", "[1,3]", "[8,11]") + "}";

void expect_file_refused(const std::string& bytes, const std::string& part) {
  SCOPED_TRACE(part);
  TempDir dir;
  const std::string path = dir.write("x.safetensors", bytes);
  expect_error(ErrorKind::kModel, part, [&] { TensorFile::open(path); });
  expect_error(ErrorKind::kModel, "x.safetensors", [&] { TensorFile::open(path); });
}

TEST(TensorFile, ReadsAWellFormedFile) {
  TempDir dir;
  const std::string path = dir.write(
      "x.safetensors",
      file_of("{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"}," + kGood.substr(1) + "   ", 11));
  TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("c"));
  EXPECT_EQ(file.bytes(), 11u);
  EXPECT_EQ(file.files(), std::vector<std::string>{path});
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("k"), "");
  EXPECT_EQ(file.view("a").to_string_shape(), "[2] f32");
  EXPECT_EQ(file.view("b").to_string_shape(), "[1, 3] u8");
  EXPECT_EQ(file.view("b").as<uint8_t>()[0], 9);
  TensorFile moved = std::move(file);
  moved.drop_pages(moved.view("b"));
  EXPECT_EQ(moved.view("b").as<uint8_t>()[2], 11);
  EXPECT_EQ(moved.header_hash().size(), 64u);
}

TEST(TensorFile, EveryDTypeScalarsAndEmptyTensors) {
  for (int d = 0; d < static_cast<int>(DType::kCount); ++d) {
    const DType dtype = static_cast<DType>(d);
    const std::string name(safetensors_name(dtype)), size = std::to_string(size_of(dtype));
    TempDir dir;
    const std::string header = "{" + tensor("s", name, "[]", "[0," + size + "]") + "," +
                               tensor("e", name, "[3,0,2]", "[" + size + "," + size + "]") + "}";
    const TensorFile file =
        TensorFile::open(dir.write("x.safetensors", file_of(header, size_of(dtype))));
    EXPECT_EQ(file.view("s").rank, 0);
    EXPECT_EQ(file.view("s").count(), 1);
    EXPECT_EQ(file.view("s").dtype, dtype);
    EXPECT_EQ(file.view("e").count(), 0);
    file.drop_pages(file.view("e"));
  }
  TempDir dir;
  const TensorFile none = TensorFile::open(dir.write("x.safetensors", file_of("{}", 0)));
  EXPECT_TRUE(none.names().empty());
}

// A file that is cut at any byte is refused. So is a file with additional bytes.
TEST(TensorFile, EveryTruncationIsRefused) {
  const std::string whole = file_of(kGood, 11);
  for (size_t size = 0; size < whole.size(); ++size) {
    TempDir dir;
    const std::string path = dir.write("x.safetensors", whole.substr(0, size));
    expect_error(ErrorKind::kModel, "incomplete", [&] { TensorFile::open(path); });
  }
  expect_file_refused(whole + "x", "1 bytes after its last tensor");
  expect_file_refused(whole.substr(0, whole.size() - 1), "(99 %)");
}

TEST(TensorFile, ATruncatedDownloadSaysHowMuchIsThere) {
  TempDir dir;
  const std::string header = "{" + tensor("w", "F32", "[2450000000]", "[0,9800000000]") + "}";
  const std::string path = dir.write("big.safetensors", le64(header.size()) + header);
  ASSERT_EQ(truncate(path.c_str(), 3'100'000'000), 0);  // sparse: takes no disk
  expect_error(ErrorKind::kModel, "big.safetensors: file is 3.1 GB, header needs 9.8 GB (31 %)",
               [&] { TensorFile::open(path); });
}

TEST(TensorFile, HeaderSizes) {
  expect_file_refused(le64(100'000'001) + "{}", "limit 100000000");
  expect_file_refused(le64(~uint64_t{0}) + "{}", "limit 100000000");
  expect_file_refused(le64(uint64_t{1} << 63) + "{}", "limit 100000000");
  expect_file_refused(le64(3) + "{}", "incomplete");
  expect_file_refused(le64(99'999'999) + "{}", "the header alone needs 100.0 MB");
  expect_file_refused(le64(0), "0 bytes, at least 2");
  expect_file_refused(le64(1) + "{", "1 bytes, at least 2");
  expect_file_refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull");
  expect_file_refused(std::string("PK\3\4\0\0\x08\x08", 8) + "archive/data.pkl", "never read");
  expect_file_refused("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 pickle", "never read");
  expect_file_refused("\xc9\xca\xfc\xc9\xca\xfc\xc9\xca{}", "not a safetensors file");
}

TEST(TensorFile, FilesOfOtherKindsAreToldWhatTheyAre) {
  const std::string page = "is an HTML page, not the weights";
  for (const auto& [bytes, part] : std::vector<std::pair<std::string, std::string>>{
           {"<!DOCTYPE html><html>", page},
           {"\xef\xbb\xbf\r\n  <html lang='en'><head>", page},
           {"{\"error\":\"Access to this model is restricted\"}", "is JSON, not the weights"},
           {"[1, 2, 3, 4, 5]", "is JSON, not the weights"},
           {"Entry not found", "is a text, not the weights; it begins with \"Entry not found\""},
           {"FLUX.1 [dev] Non-Commercial License\n\n\"1. Licence\"", "\"FLUX.1 [dev] Non-Comm"},
           {"GGUF" + std::string("\3\0\0\0", 4) + le64(2) + le64(0), "is a GGUF file"},
           {"GGUF" + std::string("\3\0\0\0", 4) + le64('{') + le64(0), "is a GGUF file"},
           {"\x80\x04\x95\x1f" + std::string(20, '\0'), "is a pickle archive"},
           {std::string("\x1f\x8b\x08\0\0\0\0\0\0\3abc", 13), "is a compressed archive"},
           {"tjgg" + std::string("\3\0\0\0\0\x7d\0\0", 8), "is a GGML file"},
           {std::string("\x89HDF\r\n\x1a\n\0\0\0", 11), "is an HDF5 file"}})
    expect_file_refused(bytes, part);
}

// A file may hold tensors of types that are not read, as long as no model needs them.
TEST(TensorFile, TensorsOfRareTypesArePassedOver) {
  TempDir dir;
  const std::string header =
      "{\"__metadata__\":null," + tensor("a", "F32", "[2]", "[0,8]") + "," +
      tensor("b", "C64", "[2]", "[8,24]") + "," + tensor("c", "U16", "[3]", "[24,30]") + "," +
      tensor("d", "F8_E8M0", "[1,1]", "[30,31]") + "," + tensor("e", "F4", "[2,3]", "[31,34]") +
      "," + tensor("f", "F6_E2M3", "[4]", "[34,37]") + "," + tensor("g", "U64", "[]", "[37,45]") +
      "}";
  const TensorFile file = TensorFile::open(dir.write("x.safetensors", file_of(header, 45)));
  EXPECT_EQ(file.names(), std::vector<std::string>{"a"});
  EXPECT_EQ(file.metadata().size(), 0u);
  EXPECT_EQ(file.unread(), (std::map<std::string, std::string>{{"b", "C64"},
                                                               {"c", "U16"},
                                                               {"d", "F8_E8M0"},
                                                               {"e", "F4"},
                                                               {"f", "F6_E2M3"},
                                                               {"g", "U64"}}));
  expect_file_refused(file_of("{" + tensor("a", "C64", "[2]", "[0,8]") + "}", 8), "need 16 bytes");
  expect_file_refused(file_of("{" + tensor("a", "F4", "[2]", "[0,8]") + "}", 8), "need 1 bytes");
}

TEST(TensorFile, TensorsHaveTheNamesThatTheyAreGiven) {
  TempDir dir;
  const std::string header = "{" + tensor("p.a", "F32", "[1]", "[0,4]") + "," +
                             tensor("p.b", "U16", "[1]", "[4,6]") + "," +
                             tensor("q.a", "F32", "[1]", "[6,10]") + "}";
  const std::string path = dir.write("x.safetensors", file_of(header, 10));
  const auto under_p = [](const std::string& name) {
    return name.starts_with("p.") ? name.substr(2) : "";
  };
  TensorFile file = TensorFile::open(path);
  file.rename(under_p);
  EXPECT_EQ(file.names(), std::vector<std::string>{"a"});
  EXPECT_EQ(file.unread().count("b"), 1u);
  EXPECT_EQ(std::memcmp(file.view("a").data, TensorFile::open(path).view("p.a").data, 4), 0);
  expect_error(ErrorKind::kModel, "two tensors are called \"a\"", [&] {
    TensorFile::open(path).rename([](const std::string& name) { return name.substr(2); });
  });
}

TEST(TensorFile, HeadersThatAreNotWhatTheyMustBe) {
  const auto refused = [](const std::string& header, const std::string& part) {
    expect_file_refused(file_of(header, 8), part);
  };
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  refused(" {" + a + "}", "does not begin with '{'");
  refused("[" + a + "]", "does not begin with '{'");
  refused("{" + a, "not valid JSON");
  refused("{" + a + "}}", "not valid JSON");
  refused("{" + a + "} x", "not valid JSON");
  refused("{" + a + ",}", "not valid JSON");
  refused("{\"\xff\":1}", "not valid JSON");
  refused("{\"a\":NaN}", "not valid JSON");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,1e999]}}", "not valid JSON");
  refused("{" + a + "," + a + "}", "\"a\" stands twice");
  refused("{" + a + "," + tensor("\\u0061", "F32", "[2]", "[0,8]") + "}", "\"a\" stands twice");
  refused("{" + std::string(1000, '{'), "not valid JSON");
  refused("{\"a\":" + std::string(100'000, '['), "a list where none belongs");
  std::string deep = "{";
  for (int i = 0; i < 100'000; ++i) deep += "\"a\":{";
  refused(deep, "unknown field \"a\"");
  refused("{\"a\":[]}", "a list where none belongs");
  refused("{\"a\":3}", "a number where none belongs");
  refused("{\"a\":null}", "null where none belongs");
  refused("{\"a\":true}", "a boolean where none belongs");
  refused("{\"a\":\"x\"}", "a string where none belongs");
  refused("{\"a\":{}}", "\"a\" has no dtype");
  refused("{\"a\":{\"dtype\":\"F32\"}}", "has no shape");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "has no data_offsets");
  refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "\"dtype\" twice");
  refused("{\"a\":{\"x\":1}}", "unknown field \"x\"");
  refused("{\"a\":{\"dtype\":4}}", "a number where none belongs");
  refused("{\"a\":{\"dtype\":[\"F32\"]}}", "a list where none belongs");
  refused("{\"a\":{\"shape\":{}}}", "an object where none belongs");
  refused("{\"a\":{\"shape\":2}}", "a number where none belongs");
  refused("{\"a\":{\"shape\":[[2]]}}", "a list where none belongs");
  refused("{\"a\":{\"shape\":[\"2\"]}}", "a string where none belongs");
  refused("{" + tensor("a", "f32", "[2]", "[0,8]") + "}", "has dtype \"f32\", must be one of F32");
  refused("{" + tensor("a", "U7", "[1]", "[0,8]") + "}", "has dtype \"U7\"");
  refused("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}", "a negative number");
  refused("{" + tensor("a", "F32", "[2.0]", "[0,8]") + "}", "a fraction");
  refused("{" + tensor("a", "F32", "[99999999999999999999]", "[0,8]") + "}", "a huge number");
  refused("{" + tensor("a", "F32", "[2]", "[0]") + "}", "two data_offsets");
  refused("{" + tensor("a", "F32", "[2]", "[0,8,8]") + "}", "two data_offsets");
  refused("{\"" + std::string(4097, 'n') + "\":{}}", "4097 bytes (limit 4096)");
  refused("{\"__metadata__\":{\"a\":1}}", "a number where none belongs");
  refused("{\"__metadata__\":{\"a\":{}}}", "an object where none belongs");
  refused("{\"__metadata__\":[]}", "a list where none belongs");
  refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}}", "twice in __metadata__");
  refused("{\"__metadata__\":{},\"__metadata__\":{}}", "__metadata__ stands twice");
}

TEST(TensorFile, ShapesAndOffsetsThatLie) {
  const auto refused = [](const std::string& tensors, size_t bytes, const std::string& part) {
    expect_file_refused(file_of("{" + tensors + "}", bytes), part);
  };
  refused(tensor("a", "F32", "[3]", "[0,8]"), 8, "its shape and dtype need 12 bytes");
  refused(tensor("a", "F32", "[2]", "[8,0]"), 8, "need 8 bytes");
  refused(tensor("a", "F32", "[2]", "[18446744073709551608,0]"), 8, "need 8 bytes");
  refused(tensor("a", "F32", "[281474976710656]", "[0,8]"), 8, "limit 2^48");
  refused(tensor("a", "F32", "[281474976710655,281474976710655]", "[0,8]"), 8, "overflow");
  // 2^32 x 2^32 elements wrap to 0 in 64 bits.
  refused(tensor("a", "U8", "[4294967296,4294967296]", "[0,0]"), 0, "overflow");
  refused(tensor("a", "U8", "[0,281474976710655,281474976710655]", "[0,0]"), 0, "overflow");
  refused(tensor("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "more than 8 dimensions");
  refused(tensor("a", "U8", "[1,1,1,1,1,1]", "[0,1]"), 1, "6 dimensions, at most 5");
  refused(tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[4]", "[3,7]"), 7,
          "\"a\" and \"b\" overlap");
  refused(tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[4]", "[0,4]"), 4,
          "overlap");
  refused(tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[3]", "[5,8]"), 8,
          "a hole of 1 bytes before tensor \"b\"");
  refused(tensor("a", "U8", "[4]", "[1,5]"), 5, "a hole of 1 bytes");
  refused(tensor("e", "U8", "[0]", "[2,2]") + "," + tensor("a", "U8", "[4]", "[0,4]"), 4,
          "\"a\" and \"e\" overlap");
}

// Offsets need not be multiples of the element size. The view then points to misaligned data.
TEST(TensorFile, MisalignedDataIsServed) {
  TempDir dir;
  const std::string header =
      "{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("w", "F32", "[2]", "[1,9]") + "}";
  const TensorFile file = TensorFile::open(dir.write("x.safetensors", file_of(header, 9)));
  uint32_t value;
  std::memcpy(&value, file.view("w").data, 4);
  EXPECT_EQ(value, 0x05040302u);
}

// A million-and-one tensors are refused quickly, before much memory is taken.
TEST(TensorFile, TooManyTensors) {
  std::string header = "{";
  for (int i = 0; i < 1'000'001; ++i) {
    header += header.size() > 1 ? ",\"" : "\"";
    header += std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  header += "}";
  TempDir dir;
  const std::string path = dir.write("x.safetensors", file_of(header, 0));
  expect_error(ErrorKind::kModel, "more than 1000000 tensors", [&] { TensorFile::open(path); });
}

// After any change of one byte a small header is either refused, or its tensors still cover the
// data exactly.
TEST(TensorFile, ChangedHeadersNeverReachPastTheData) {
  int refused = 0, passed = 0;
  for (size_t at = 0; at < kGood.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string header = kGood;
      if (header[at] == static_cast<char>(value)) continue;
      header[at] = static_cast<char>(value);
      try {
        uint64_t total = 0;
        const SafetensorsHeader read = parse_safetensors_header(header, 11, "x");
        for (const TensorEntry& entry : read.tensors) {
          ASSERT_LE(entry.end, 11u);
          total += entry.end - entry.begin;
        }
        ASSERT_EQ(total + 8 * read.unread.size(), 11u) << header;  // "U32" for "F32"
        ++passed;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kModel);
        ++refused;
      }
    }
  }
  EXPECT_GT(passed, 0);  // for example, changes of a name
  EXPECT_GT(refused, 10 * passed);
}

TEST(TensorFile, PathsThatAreNoFile) {
  TempDir dir;
  expect_error(ErrorKind::kModel, "none.safetensors: no such file",
               [&] { TensorFile::open(dir / "none.safetensors"); });
  expect_error(ErrorKind::kModel, "no such file", [&] { TensorFile::open(""); });
  expect_error(ErrorKind::kModel, "not a regular file", [&] { TensorFile::open("/dev/null"); });
  expect_error(ErrorKind::kModel, "holds no .safetensors", [&] { TensorFile::open(dir.path()); });
  dir.write("model.pth", "x");
  expect_error(ErrorKind::kModel, "model.pth is a pickle", [&] { TensorFile::open(dir.path()); });
}

TEST(TensorFile, AFileCutWhileInUseIsAnError) {
  TempDir dir;
  const std::string path = dir.write("x.safetensors", file_of(kGood, 11));
  const TensorFile file = TensorFile::open(path);
  EXPECT_NO_THROW(file.view("a"));
  ASSERT_EQ(truncate(path.c_str(), 20), 0);
  expect_error(ErrorKind::kModel, "became shorter", [&] { file.view("a"); });
  expect_error(ErrorKind::kModel, "became shorter", [&] { file.header_hash(); });
}

// Reads all boxes of a [3, 4, 5] tensor: every range of every dimension, misaligned by a neighbour.
TEST(TensorFile, ReadsPartsPastTheMapping) {
  TempDir dir;
  const std::string header = "{" + tensor("odd", "U8", "[1]", "[0,1]") + "," +
                             tensor("t", "I16", "[3,4,5]", "[1,121]") + "," +
                             tensor("s", "I16", "[]", "[121,123]") + "}";
  const TensorFile file = TensorFile::open(dir.write("x.safetensors", file_of(header, 123)));
  const TensorView whole = file.view("t");
  uint64_t read = 0;
  for (int d = 0; d < 3; ++d)
    for (int64_t begin = 0; begin <= whole[d]; ++begin)
      for (int64_t count = 0; begin + count <= whole[d]; ++count) {
        const Tensor part = file.read("t", d, begin, count);
        EXPECT_TRUE(bitwise_equal(part, whole.slice(d, begin, count)))
            << d << " " << begin << " " << count;
        read += part.view().bytes();
        EXPECT_EQ(file.bytes_read(), read);
      }
  Tensor box(whole.dtype, {2, 2, 3});
  file.read("t", std::array<int64_t, 3>{1, 2, 1}, box);
  EXPECT_TRUE(bitwise_equal(box, whole.slice(0, 1, 2).slice(1, 2, 2).slice(2, 1, 3)));
  Tensor scalar(whole.dtype, std::span<const int64_t>{});
  file.read("s", {}, scalar);
  EXPECT_TRUE(bitwise_equal(scalar, file.view("s")));
  EXPECT_EQ(file.bytes_read(), read + 24 + 2);
  EXPECT_DEATH(file.read("t", 1, 2, 3), "dim 1 begin 2");
  EXPECT_DEATH(file.read("u", 0, 0, 1), "no tensor u");
}

TEST(TensorFile, APartThatIsGoneIsAnErrorThatNamesIt) {
  TempDir dir;
  const std::string path = dir.write("x.safetensors", file_of(kGood, 11));
  const TensorFile file = TensorFile::open(path);
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(8 + kGood.size() + 9)), 0);
  EXPECT_NO_THROW(file.read("a", 0, 1, 1));
  EXPECT_NO_THROW(file.read("b", 1, 0, 1));
  expect_error(ErrorKind::kModel, "x.safetensors", [&] { file.read("b", 1, 1, 2); });
  expect_error(ErrorKind::kModel, "\"b\" ends 2 B early: the file became shorter",
               [&] { file.read("b", 1, 1, 2); });
}

TEST(TensorFile, WritesWhatItReads) {
  TempDir dir;
  Tensor f32(DType::kF32, {2, 3}), i64(DType::kI64, {2}), u8(DType::kU8, {3}),
      scalar(DType::kBF16, std::span<const int64_t>()), empty(DType::kF32, {0, 4});
  for (int i = 0; i < 6; ++i) f32.as<float>()[i] = 0.5f * i;
  for (int i = 0; i < 3; ++i) u8.as<uint8_t>()[i] = static_cast<uint8_t>(i + 250);
  i64.as<int64_t>()[1] = -7;
  scalar.as<bf16>()->bits = 0x3f80;
  const std::string odd = "we\"ird \\ n\u00e4me\n";
  const std::string path = dir / "out.safetensors";
  write_safetensors(path, {{"u8", u8}, {odd, f32}, {"s", scalar}, {"i", i64}, {"e", empty}},
                    {{"prompt", "a \"red\" ball\n"}, {"k", ""}});
  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"e", "i", "s", "u8", odd}));
  EXPECT_EQ(file.metadata().at("prompt"), "a \"red\" ball\n");
  const std::pair<std::string, const Tensor*> all[] = {
      {"u8", &u8}, {odd, &f32}, {"s", &scalar}, {"i", &i64}, {"e", &empty}};
  for (const auto& [name, tensor] : all) {
    const TensorView view = file.view(name);
    ASSERT_EQ(view.to_string_shape(), tensor->view().to_string_shape());
    EXPECT_EQ(std::memcmp(view.data, tensor->view().data, view.bytes()), 0) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % size_of(view.dtype), 0u) << name;
  }
  // The same content gives the same bytes in any order.
  const std::string other = dir / "other.safetensors";
  write_safetensors(other, {{"e", empty}, {"i", i64}, {"s", scalar}, {"u8", u8}, {odd, f32}},
                    {{"k", ""}, {"prompt", "a \"red\" ball\n"}});
  EXPECT_EQ(read_bytes(other), read_bytes(path));
  EXPECT_EQ(TensorFile::open(other).header_hash(), file.header_hash());
  write_safetensors(other, {});
  EXPECT_TRUE(TensorFile::open(other).names().empty());
  expect_error(ErrorKind::kOutput, "names no file", [&] { write_safetensors(dir / "x/", {}); });
}

class Sharded : public testing::Test {
 protected:
  Sharded() {
    Tensor tensor(DType::kF32, {2});
    for (const char* name : {"a", "b", "c"}) {
      tensor.as<float>()[0] = static_cast<float>(name[0]);
      const std::string shard = name[0] == 'c' ? "m-2.safetensors" : "m-1.safetensors";
      content_[shard].emplace_back(name, tensor.as<float>()[0]);
    }
  }
  void write_shards() {
    for (const auto& [shard, tensors] : content_) {
      std::vector<Tensor> owners;
      std::vector<std::pair<std::string, TensorView>> views;
      for (const auto& [name, value] : tensors) {
        owners.emplace_back(DType::kF32, std::initializer_list<int64_t>{2});
        owners.back().as<float>()[0] = value;
        views.emplace_back(name, owners.back().view());
      }
      write_safetensors(dir_ / shard, views, {{"shard", shard}});
    }
  }
  std::string index(const std::string& map) const {
    return dir_.write("model.safetensors.index.json",
                      "{\"metadata\":{\"total_size\":24},\"weight_map\":" + map + "}");
  }
  void refused(const std::string& map, const std::string& part) {
    SCOPED_TRACE(part);
    const std::string path = index(map);
    expect_error(ErrorKind::kModel, part, [&] { TensorFile::open(path); });
  }

  TempDir dir_;
  std::map<std::string, std::vector<std::pair<std::string, float>>> content_;
  const std::string good_ =
      R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"})";
};

TEST_F(Sharded, JoinsTheShards) {
  write_shards();
  const std::string path = index(good_);
  for (const std::string& place : {path, dir_.path()}) {
    const TensorFile file = TensorFile::open(place);
    EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b", "c"}));
    for (const std::string& name : file.names())
      EXPECT_EQ(file.view(name).as<float>()[0], static_cast<float>(name[0]));
    EXPECT_EQ(file.bytes(), 24u);
    EXPECT_EQ(file.files().size(), 2u);
    EXPECT_EQ(file.metadata().at("shard"), "m-1.safetensors");
    file.drop_pages(file.view("c"));
    EXPECT_EQ(file.view("c").as<float>()[0], static_cast<float>('c'));
  }
}

TEST_F(Sharded, ShardNamesStayInTheFolder) {
  write_shards();
  for (const char* name : {"../m-1.safetensors", "/etc/passwd", "x/m-1.safetensors", "..", "",
                           "a\\\\b", "m..safetensors", "m\\u0000"})
    refused("{\"a\":\"" + std::string(name) + "\"}", "must be the name of a file");
  refused(R"({"a":3})", "must be the name of a file");
  refused(R"({"a":null})", "must be the name of a file");
  refused(R"({"a":["m-1.safetensors"]})", "must be the name of a file");
}

TEST_F(Sharded, IndexesThatAreNone) {
  write_shards();
  refused("{}", "not empty");
  refused("[]", "not empty");
  refused("null", "\"weight_map\" is missing");
  dir_.write("model.safetensors.index.json", "{\"weight_map\"");
  expect_error(ErrorKind::kModel, "not valid JSON", [&] { TensorFile::open(dir_.path()); });
  refused(R"({"a":"m-1.safetensors","a":"m-2.safetensors"})", "\"a\" stands twice");
}

TEST_F(Sharded, IndexAndShardsMustAgree) {
  write_shards();
  refused(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-3.safetensors"})",
          "these shards are missing: \"m-3.safetensors\"");
  refused(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})",
          "\"b\" is mapped to m-2.safetensors but stands in m-1.safetensors");
  refused(R"({"a":"m-1.safetensors","c":"m-2.safetensors"})",
          "\"b\" of m-1.safetensors is not in the index");
  refused(good_.substr(0, good_.size() - 1) + R"(,"d":"m-2.safetensors"})",
          "\"d\" is missing from m-2.safetensors");
  refused(good_.substr(0, good_.size() - 1) + R"(,"d\n":"m-2.safetensors"})",
          "\"d\\n\" is missing from m-2.safetensors");
  content_["m-2.safetensors"].emplace_back("a", 1.f);
  write_shards();
  refused(good_, "\"a\" stands in m-1.safetensors and in m-2.safetensors");
}

// The whole file is taken first, as transformers does.
TEST_F(Sharded, AWholeFileIsReadBesideAnIndexWhoseShardsAreGone) {
  write_shards();
  index(good_);
  content_ = {{"model.safetensors", {{"w", 5.f}}}};
  write_shards();
  EXPECT_EQ(TensorFile::open(dir_.path()).names().size(), 3u);  // the index is good
  for (const char* gone : {"m-1.safetensors", "m-2.safetensors"}) {
    std::filesystem::remove(dir_ / gone);
    EXPECT_EQ(TensorFile::open(dir_.path()).names(), std::vector<std::string>{"w"}) << gone;
  }
  std::filesystem::rename(dir_ / "model.safetensors", dir_ / "other.safetensors");
  EXPECT_EQ(TensorFile::open(dir_.path()).names(), std::vector<std::string>{"w"});
  std::filesystem::remove(dir_ / "other.safetensors");
  expect_error(ErrorKind::kModel, "these shards are missing: \"m-1.safetensors\", \"m-2",
               [&] { TensorFile::open(dir_.path()); });
}

TEST_F(Sharded, ABrokenShardIsNamed) {
  write_shards();
  ASSERT_EQ(truncate((dir_ / "m-2.safetensors").c_str(), 90), 0);
  refused(good_, "m-2.safetensors: file is 90 B");
}

TEST_F(Sharded, AFolderWithoutIndex) {
  write_shards();
  expect_error(ErrorKind::kModel, "several weight files (m-1.safetensors, m-2.safetensors)",
               [&] { TensorFile::open(dir_.path()); });
  std::filesystem::rename(dir_ / "m-1.safetensors", dir_ / "model.safetensors");
  EXPECT_EQ(TensorFile::open(dir_.path()).names(), (std::vector<std::string>{"a", "b"}));
  dir_.write("._model.safetensors", "not ours");
  std::filesystem::remove(dir_ / "model.safetensors");
  EXPECT_EQ(TensorFile::open(dir_.path()).names(), (std::vector<std::string>{"c"}));
}

TEST(TensorFile, GoldenShardedFolder) {
  const TensorFile file = TensorFile::open("tests/golden/dit_wan_tiny_sharded/model/transformer");
  EXPECT_GE(file.files().size(), 2u);
  size_t total = 0;
  for (const std::string& name : file.names()) total += file.view(name).bytes();
  EXPECT_EQ(total, file.bytes());
  EXPECT_TRUE(file.contains("patch_embedding.weight"));
}

TEST(TensorFile, MadeTensorsAreMadeWhenAskedForAndDroppedWithTheirLastView) {
  std::map<std::string, int> made;
  const TensorFile file =
      TensorFile::generated({{.name = "b", .dtype = DType::kF32, .shape = {3, 4}},
                             {.name = "a", .dtype = DType::kBF16, .shape = {2}}},
                            [&](const std::string& name, const TensorView& out) {
                              ++made[name];
                              if (name != "b") return;
                              for (int64_t i = 0; i < out.count(); ++i)
                                out.as<float>()[i] = static_cast<float>(i);
                            });
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(file.bytes(), 4u + 48u);
  EXPECT_EQ(file.describe("b")[1], 4);
  EXPECT_TRUE(made.empty());
  const TensorView first = file.view("b"), second = file.view("b");
  EXPECT_EQ(made["b"], 1);
  EXPECT_EQ(first.as<float>()[7], 7);
  file.drop_pages(first);
  EXPECT_EQ(second.as<float>()[7], 7);  // still in use
  file.drop_pages(second);
  EXPECT_EQ(second.as<float>()[7], 0);
  EXPECT_EQ(file.view("b").as<float>()[11], 11);
  EXPECT_EQ(made["b"], 2);
  const Tensor part = file.read("b", 0, 1, 2);
  EXPECT_EQ(part.as<float>()[0], 4);
  EXPECT_EQ(made["b"], 2);
  EXPECT_EQ(made.count("a"), 0u);
}

TEST(SizeText, RoundsToOneDecimal) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(999), "999 B");
  EXPECT_EQ(size_text(1000), "1.0 kB");
  EXPECT_EQ(size_text(999'949), "999.9 kB");
  EXPECT_EQ(size_text(999'950), "1.0 MB");
  EXPECT_EQ(size_text(3'100'000'000), "3.1 GB");
  EXPECT_EQ(size_text(~uint64_t{0}), "18.4 EB");
}

}  // namespace
}  // namespace weft::test
