// Readers must cope with a system that does not return all bytes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/text/tokenizer.h"
#include "io/weights/safetensors_header.h"
#include "io/weights/tensor_file.h"
#include "tests/faults/inject.h"
#include "tests/faults/small_clip.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

using test::expect_error;
using test::Fault;
using test::small_clip;
using test::TempDir;

Tensor counting(int64_t rows, int64_t columns) {
  Tensor tensor(DType::kF32, {rows, columns});
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.as<float>()[i] = static_cast<float>(i);
  return tensor;
}

struct Weights : testing::Test {
  Weights() { write_safetensors(path, {{"a", values.view()}}); }
  TempDir dir;
  std::string path = dir / "w.safetensors";
  Tensor values = counting(40, 50);
};

TEST_F(Weights, OpenAndMapFail) {
  for (const char* rule : {"open:w.safetensors:1:EMFILE", "mmap:w.safetensors:1:ENOMEM"}) {
    const Fault fault(rule);
    expect_error(ErrorKind::kModel, "w.safetensors: cannot be", [&] { TensorFile::open(path); });
    EXPECT_EQ(fault.hits(), 1);
  }
  EXPECT_EQ(TensorFile::open(path).names().size(), 1u);
}

TEST_F(Weights, ReadsFailOrComeInPieces) {
  const TensorFile file = TensorFile::open(path);
  {
    const Fault fault("pread:w.safetensors:1:EIO");
    expect_error(ErrorKind::kModel, "\"a\" cannot be read: Input/output error",
                 [&] { file.read("a", 0, 3, 20); });
  }
  const Fault fault("pread:w.safetensors:1:short");
  const Tensor part = file.read("a", 0, 3, 20);
  EXPECT_GT(fault.hits(), 5);  // 4000 bytes, 2000, 1000 ...
  EXPECT_EQ(std::memcmp(part.view().data, values.as<float>() + 150, part.view().bytes()), 0);
}

TEST_F(Weights, CutWhileMapped) {
  const TensorFile file = TensorFile::open(path);
  ASSERT_EQ(truncate(path.c_str(), 200), 0);
  expect_error(ErrorKind::kModel, "became shorter", [&] { file.view("a"); });
  expect_error(ErrorKind::kModel, "became shorter", [&] { file.read("a", 0, 0, 40); });
  expect_error(ErrorKind::kModel, "became shorter", [&] { file.header_hash(); });
}

TEST_F(Weights, CutBetweenListingAndOpening) {
  const Fault fault("open:w.safetensors:1:cut");
  expect_error(ErrorKind::kModel, "incomplete", [&] { TensorFile::open(path); });
}

TEST(Reading, ConfigurationsAndTokenizers) {
  TempDir dir;
  const std::string path = dir.write("config.json", R"({"a": [1, 2, 3], "b": "some text"})");
  for (const char* rule : {"open:config.json:1:EMFILE", "read:config.json:1:EIO"}) {
    const Fault fault(rule);
    expect_error(ErrorKind::kModel, "config.json: cannot be", [&] { read_json_file(path); });
    expect_error(ErrorKind::kModel, "config.json: cannot be",
                 [&] { SentencePieceTokenizer::load(path); });
  }
  const Fault fault("read:config.json:1:short");
  EXPECT_EQ(json_string(read_json_file(path), "b", path), "some text");
  EXPECT_GT(fault.hits(), 3);
}

TEST(Reading, PicturesAndClips) {
  TempDir dir;
  const std::string png = dir / "a.png", clip = dir / "a.mp4";
  const Frame frame(32, 16);
  write_png(png, frame, {}, Overwrite::kRefuse);
  const auto sink = make_sink(clip, small_clip(), Overwrite::kRefuse);
  for (int i = 0; i < 3; ++i) sink->push(frame);
  sink->finish();
  {
    const Fault fault("read:a.png:1:EIO");
    expect_error(ErrorKind::kMedia, "a.png", [&] { read_png(png); });
  }
  for (const char* rule : {"open:a.mp4:1:EMFILE", "read:a.mp4:1:EIO"}) {
    const Fault fault(rule);
    expect_error(ErrorKind::kMedia, "a.mp4", [&] { probe_media(clip); });
    expect_error(ErrorKind::kMedia, "a.mp4", [&] { read_video(clip); });
    EXPECT_GT(fault.hits(), 0) << rule;
  }
  for (const char* rule : {"read:a.png:1:short", "read:a.mp4:1:short"}) {
    const Fault fault(rule);
    EXPECT_EQ(read_png(png).rgb, frame.rgb);
    EXPECT_EQ(read_video(clip).size(), 3u);
    EXPECT_GT(fault.hits(), 0) << rule;
  }
}

}  // namespace
}  // namespace weft
