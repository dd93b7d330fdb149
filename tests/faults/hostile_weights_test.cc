// Hostile weight files are refused with a line that says why, in bounded memory.
#include <fcntl.h>
#include <unistd.h>

#include <functional>

#include "io/weights/safetensors_header.h"
#include "io/weights/tensor_file.h"
#include "tests/faults/inject.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

using test::AllocationFault;
using test::expect_error;
using test::TempDir;

constexpr size_t kMemory = size_t{256} << 20;

std::string le64(uint64_t value) {
  std::string text(8, '\0');
  for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(value >> (8 * i));
  return text;
}

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

// Expects that `path` is refused for `reason`, and that operator new stays below the limit
// meanwhile.
void expect_refused(const std::string& path, const std::string& reason) {
  SCOPED_TRACE(reason);
  const AllocationFault count(0);
  expect_error(ErrorKind::kModel, reason, [&] { TensorFile::open(path); });
  EXPECT_LT(count.peak_bytes(), kMemory);
}

void expect_header_refused(const std::string& header, const std::string& reason,
                           size_t data_bytes = 8) {
  TempDir dir;
  expect_refused(
      dir.write("x.safetensors", le64(header.size()) + header + std::string(data_bytes, 'x')),
      reason);
}

TEST(HostileWeights, TensorsThatDoNotCoverTheData) {
  expect_header_refused("{" + entry("a", "[2]", "[0,8]") + "," + entry("b", "[1]", "[4,8]") + "}",
                        "overlap");
  expect_header_refused("{" + entry("a", "[2]", "[0,8]") + "," + entry("b", "[2]", "[0,8]") + "}",
                        "overlap");
  expect_header_refused("{" + entry("a", "[1]", "[4,8]") + "}", "a hole of 4 bytes");
  expect_header_refused("{" + entry("a", "[1]", "[0,4]") + "}", "4 bytes after its last tensor");
  expect_header_refused("{" + entry("a", "[1]", "[8,4]") + "}", "need 4 bytes");
  expect_header_refused(
      "{" + entry("a", "[1]", "[18446744073709551612,18446744073709551616]") + "}", "huge number");
  expect_header_refused(
      "{" + entry("a", "[1]", "[18446744073709551611,18446744073709551615]") + "}", "hole");
}

TEST(HostileWeights, ShapesWhoseProductsOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[281474976710655,281474976710655,281474976710655]",
        "[0,281474976710655,281474976710655]", "[65536,65536,65536,65536]"})
    expect_header_refused("{" + entry("a", shape, "[0,0]") + "}", "overflow", 0);
  expect_header_refused("{" + entry("a", "[281474976710656]", "[0,0]") + "}", "limit 2^48", 0);
  expect_header_refused("{" + entry("a", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", "more than 8", 4);
}

TEST(HostileWeights, DTypesThatAreNotTheirs) {
  expect_header_refused("{" + entry("a", "[2]", "[0,8]", "F64") + "}", "need 16 bytes");
  expect_header_refused("{" + entry("a", "[8]", "[0,8]", "F4") + "}", "need 4 bytes");
  expect_header_refused("{" + entry("a", "[8]", "[0,8]", std::string(1 << 20, 'F')) + "}",
                        "must be one of");
}

TEST(HostileWeights, KeysTwiceAndDeepJson) {
  expect_header_refused("{" + entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[4,8]") + "}",
                        "twice");
  expect_header_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                        "twice");
  for (const char* open : {"[", R"({"a":)"}) {
    expect_header_refused("{\"a\":" + repeated(open, 1'000'000),
                          *open == '[' ? "where none belongs" : "unknown field");
    expect_header_refused(R"({"__metadata__":{"a":)" + repeated(open, 1'000'000),
                          "where none belongs");
    TempDir dir;
    expect_refused(dir.write("x.safetensors.index.json", repeated(open, 1'000'000)),
                   "nested deeper");
  }
  expect_header_refused("{\"" + std::string(5'000'000, 'n') + "\":1}", "limit 4096");
}

TEST(HostileWeights, HeadersOfAnySize) {
  TempDir dir;
  for (const uint64_t size :
       {uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40})
    expect_refused(dir.write("x.safetensors", le64(size) + "{}"), "limit 100000000");
  // The largest header that the format allows. The file is sparse, so that it takes no disk space.
  const std::string path = dir.write("big.safetensors", le64(99'999'990) + "{");
  ASSERT_EQ(truncate(path.c_str(), 8 + 99'999'990), 0);
  expect_refused(path, "not valid JSON");
}

// A header has as many entries as fit. The reader stops at its own limit.
TEST(HostileWeights, MillionsOfEntries) {
  std::string header = "{";
  for (int i = 0; header.size() < kMaxHeaderBytes - 100; ++i)
    header += (i ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  expect_header_refused(header, "more than 1000000 tensors", 0);
  header = R"({"__metadata__":{)";
  for (int i = 0; header.size() < kMaxHeaderBytes - 100; ++i)
    header += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  header += "}}";
  expect_header_refused(header, "more than 65536 entries in __metadata__", 0);
  TempDir dir;
  std::string index = R"({"weight_map":{)";
  for (int i = 0; index.size() < (size_t{64} << 20) - 100; ++i)
    index += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"a\"";
  index += "}}";
  expect_refused(dir.write("x.safetensors.index.json", index), "JSON values");
}

TEST(HostileWeights, ShardsStayInTheirFolder) {
  for (const std::string name :
       {"../a.safetensors", "/etc/passwd", "a/../../b", "..", "a\\\\..\\\\b", "a\\u0000b"}) {
    TempDir dir;
    expect_refused(dir.write("x.safetensors.index.json", R"({"weight_map":{"a":")" + name + "\"}}"),
                   "must be the name of a file in the same folder");
  }
}

// Weights that are NaN can be read. The computation finds them (exit code 5 and the place).
TEST(HostileWeights, NaNPayloadsAreData) {
  TempDir dir;
  const std::string header = "{" + entry("a", "[2]", "[0,8]") + "}";
  const std::string path =
      dir.write("x.safetensors", le64(header.size()) + header + std::string(8, '\xff'));
  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.view("a").count(), 2);
}

}  // namespace
}  // namespace weft
