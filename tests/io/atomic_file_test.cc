#include "io/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/sha256.h"
#include "io/writable.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  TempDir dir;
  const std::string path = dir / "out.bin";
  {
    AtomicFile file(path);
    file.write("abc");
    EXPECT_FALSE(std::filesystem::exists(path));
    file.write("def");
    file.commit();
  }
  EXPECT_EQ(read_bytes(path), "abcdef");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, DestroyedUncommittedLeavesTheOldFileAlone) {
  TempDir dir;
  const std::string path = dir.write("out.bin", "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(dir.entries(), 1u);
  write_file(path, "new");
  EXPECT_EQ(read_bytes(path), "new");
  expect_error(ErrorKind::kOutput, "exists", [&] { write_file(path, "x", Overwrite::kRefuse); });
  EXPECT_EQ(read_bytes(path), "new");
}

TEST(AtomicFile, RefusesPlacesThatTakeNoFile) {
  TempDir dir;
  const std::string file = dir.write("file", "x");
  expect_error(ErrorKind::kOutput, "", [&] { write_file(file + "/below", "x"); });
  expect_error(ErrorKind::kOutput, "a folder", [&] { write_file(dir.path(), "x"); });
  expect_error(ErrorKind::kOutput, "names no file", [&] { write_file("", "x"); });
  expect_error(ErrorKind::kOutput, "names no file", [&] { write_file(dir / "new/", "x"); });
  expect_error(ErrorKind::kOutput, "no regular file", [&] { write_file("/dev/null", "x"); });
  expect_error(ErrorKind::kOutput, "too long",
               [&] { write_file(dir / std::string(300, 'n'), "x"); });
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::kOutput, "no regular file", [&] { write_file(dir / "pipe", "x"); });
  EXPECT_EQ(dir.entries(), 2u);
}

// The process's file size limit simulates a full disk: write() fails in the middle.
TEST(Writable, RefusesWhatAPartFileRefusesAndLeavesNothing) {
  TempDir dir;
  const std::string file = dir.write("file", "x");
  std::filesystem::create_directory(dir / "folder");
  const auto refused = [](const std::string& path, const std::string& words) {
    expect_error(ErrorKind::kOutput, words, [&] { check_writable(path, Overwrite::kRefuse); });
    expect_error(ErrorKind::kOutput, words, [&] { PartFile(path, Overwrite::kRefuse); });
  };
  refused(file, "exists");
  refused(file + "/below", "Not a directory");
  refused(file + "/", "is a file");
  refused(dir / "folder", "is a folder");
  refused(dir / std::string(300, 'n'), "too long");
  refused("/proc/weft", "'/proc/");
  refused("/proc/weft/below", "'/proc/weft");
  check_writable(file, Overwrite::kReplace);
  check_writable(dir / "folder/", Overwrite::kRefuse);  // it is empty
  check_writable(dir / "new/folder/file", Overwrite::kRefuse);
  EXPECT_EQ(dir.entries(), 2u);
}

TEST(AtomicFile, AFailedWriteLeavesNothing) {
  TempDir dir;
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::kOutput, "out.bin",
               [&] { write_file(dir / "out.bin", std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(dir.entries(), 0u);
}

TEST(Sha256, KnownDigests) {
  // FIPS 180-4 examples.
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 parts;
  parts.update("a");
  parts.update("");
  parts.update("bc");
  EXPECT_EQ(parts.hex(), sha256_hex("abc"));
  TempDir dir;
  EXPECT_EQ(file_hash(dir.write("abc", "abc")), sha256_hex("abc"));
}

}  // namespace
}  // namespace weft::test
