// weft bench load: loading and packing weights, compared with read(2) of the same files.
//
// Loads the parts of --model, or a transformer of Wan 1.3B's widths with random weights and
// --blocks blocks in the temporary folder. Each of `repeat` rounds first reads every byte of the
// files with the job's threads into fresh memory, then loads; the result is the ratio of the
// medians, and on a device also the rate compared with a copy from pinned memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "apps/model_folder.h"
#include "apps/scratch_folder.h"
#include "engine/parts/components.h"
#include "engine/planning/calibrate.h"
#include "io/json.h"
#include "kernels/transfer.h"
#include "models/random_weights/random_weights.h"

namespace weft {
namespace {

// The anonymous memory of this process, in bytes.
uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  return 0;
}

// Measures the highest anonymous memory during its lifetime, above that at its start.
class AnonymousPeak {
 public:
  AnonymousPeak() : before_(anonymous_bytes()), thread_([this] { watch(); }) {}
  uint64_t stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_ > before_ ? peak_ - before_ : 0;
  }
  // Takes a sample by hand, where the thread may be asleep.
  void look() {
    const uint64_t bytes = anonymous_bytes();
    const std::lock_guard lock(mutex_);
    peak_ = std::max(peak_, bytes);
  }
  ~AnonymousPeak() { stop(); }

 private:
  void watch() {
    for (; !done_; std::this_thread::sleep_for(std::chrono::milliseconds(5))) look();
    look();
  }
  std::mutex mutex_;
  uint64_t before_, peak_ = 0;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Reads every byte of the files with read(2) into fresh memory: the time of a loader that does no
// other work.
double read_seconds(const std::vector<std::string>& files, int threads) {
  constexpr uint64_t kPiece = uint64_t{4} << 20;
  struct Piece {
    int fd;
    uint64_t begin, bytes, to;
  };
  std::vector<Piece> pieces;
  uint64_t total = 0;
  std::vector<int> open_files;
  for (const std::string& path : files) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || fstat(fd, &info) != 0) throw Error(ErrorKind::kModel, path + ": cannot be read");
    open_files.push_back(fd);
    const auto size = static_cast<uint64_t>(info.st_size);
    for (uint64_t at = 0; at < size; at += kPiece)
      pieces.push_back({fd, at, std::min(kPiece, size - at), total + at});
    total += size;
  }
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorKind::kMemory, "no memory to read the files into");
  std::atomic<size_t> next{0};
  std::atomic<bool> whole{true};
  const auto work = [&] {
    for (size_t i; (i = next++) < pieces.size();)
      for (uint64_t done = 0; done < pieces[i].bytes;) {
        const ssize_t got =
            pread(pieces[i].fd, static_cast<char*>(memory) + pieces[i].to + done,
                  pieces[i].bytes - done, static_cast<off_t>(pieces[i].begin + done));
        if (got <= 0) {
          whole = false;
          return;
        }
        done += static_cast<uint64_t>(got);
      }
  };
  const double seconds = seconds_of([&] {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
  });
  munmap(memory, total);
  for (const int fd : open_files) close(fd);
  if (!whole) throw Error(ErrorKind::kModel, "a weights file became shorter while it was read");
  return seconds;
}

// The files that are loaded, and a function that loads them and returns the bytes it then holds.
struct Loaded {
  std::string name;
  std::vector<std::string> files;
  std::function<uint64_t(AnonymousPeak&)> load;  // and lets go of it
};

std::vector<std::string> files_of(const ModelDirectory& directory) {
  std::vector<std::string> files;
  for (const std::string& part : directory.weights_folders()) {
    const TensorFile file = TensorFile::open(part);
    files.insert(files.end(), file.files().begin(), file.files().end());
  }
  return files;
}

Loaded parts_of(const std::string& model, Stream& stream, DType dtype) {
  const ModelDirectory directory = open_model_directory(model);
  return {directory.defaults.name, files_of(directory), [=, &stream](AnonymousPeak& peak) {
            const RankPlacement alone;
            Components parts(std::make_shared<OpenModel>(model), {.dtype = dtype}, DType::kF32,
                             alone);
            uint64_t bytes = parts.text_encoder(stream).bytes();
            if (parts.pooled_model()) bytes += parts.pooled_encoder(stream).bytes();
            for (int expert = 0; expert < parts.experts(); ++expert)
              bytes += parts.expert(stream, expert).weights_bytes();
            bytes += parts.vae(stream).bytes();
            stream.sync();
            peak.look();
            return bytes;
          }};
}

// A transformer of random weights in a file of `folder`.
Loaded random_transformer(int blocks, const ScratchFolder& folder, Stream& stream, DType dtype) {
  const std::shared_ptr<const TransformerModel> model =
      published_transformer("wan2.1-1.3b")->with_blocks(blocks);
  const std::string path = folder.file("model.safetensors");
  write_random(path, random_tensors(model->tensors()));
  return {"wan 1.3b, " + std::to_string(model->traits().blocks) + " blocks",
          {path},
          [=, &stream](AnonymousPeak& peak) {
            const TensorFile file = TensorFile::open(path);
            const auto weights = model->load(stream, file, {.dtype = dtype, .blocks = {}});
            stream.sync();
            peak.look();
            return weights->weights_bytes();
          }};
}

// The medians of the rounds, and the most memory that any of them took.
struct LoadTimes {
  uint64_t source = 0, weights = 0, peak = 0, device_peak = 0;
  double read = 0, load = 0;  // seconds
};

LoadTimes measure(const Loaded& loaded, const Stream& stream, int repeat) {
  LoadTimes all;
  for (const std::string& path : loaded.files) all.source += std::filesystem::file_size(path);
  std::vector<double> reads, loads;
  for (int round = 0; round <= repeat; ++round) {  // the first warms the page cache
    const double read = read_seconds(loaded.files, stream.threads());
    AnonymousPeak watch;
    const double load = seconds_of([&] { all.weights = loaded.load(watch); });
    all.peak = std::max(all.peak, watch.stop());
    if (round == 0) continue;
    reads.push_back(read);
    loads.push_back(load);
  }
  all.read = median(reads);
  all.load = median(loads);
  if (stream.queue()) all.device_peak = tensor_bytes_peak(stream.device().kind);
  return all;
}

}  // namespace

int bench_load(const Flags& flags, DType dtype, int repeat) {
  Stream stream = stream_of(flags);
  std::optional<ScratchFolder> scratch;
  const Loaded loaded =
      flags.given("model")
          ? parts_of(model_folder(flags), stream, dtype)
          : random_transformer(static_cast<int>(flags.integer("blocks").value_or(30)),
                               scratch.emplace(), stream, dtype);
  const LoadTimes all = measure(loaded, stream, repeat);
  const double bytes = static_cast<double>(all.source), held = static_cast<double>(all.weights);
  const double upload = stream.queue() ? upload_rate(stream) : 0;
  if (flags.on("json")) {
    Json object{{"bench", "load"},
                {"model", loaded.name},
                {"dtype", to_string(dtype)},
                {"isa", cpu_isa()},
                {"threads", stream.threads()},
                {"source_bytes", all.source},
                {"seconds", all.load},
                {"read_seconds", all.read},
                {"ratio", all.read / all.load},
                {"weights_bytes", all.weights},
                {"peak_anonymous_bytes", all.peak}};
    if (stream.queue()) {
      object["device"] = to_string(stream.device());
      object["device_tensor_bytes"] = all.device_peak;
      object["weights_gbs"] = held / all.load * 1e-9;
      object["upload_gbs"] = upload * 1e-9;
      object["of_upload"] = held / all.load / upload;
    }
    std::printf("%s\n", object.dump().c_str());
    return 0;
  }
  std::printf("%s as %s, %d threads: %.3f GB in files, %.3f GB of weights\n", loaded.name.c_str(),
              std::string(to_string(dtype)).c_str(), stream.threads(), bytes * 1e-9, held * 1e-9);
  std::printf("  read(2) into fresh memory   %7.3f s  %6.2f GB/s\n", all.read,
              bytes * 1e-9 / all.read);
  std::printf("  load and pack               %7.3f s  %6.2f GB/s   ratio %.2f\n", all.load,
              bytes * 1e-9 / all.load, all.read / all.load);
  if (stream.queue())
    std::printf("  to %s at %.2f GB/s of %.2f from pinned memory; there at most %.3f GB\n",
                to_string(stream.device()).c_str(), held / all.load * 1e-9, upload * 1e-9,
                static_cast<double>(all.device_peak) * 1e-9);
  std::printf("  anonymous memory, at most   %7.3f GB", static_cast<double>(all.peak) * 1e-9);
  if (!stream.queue())
    std::printf("   %+.1f %% of the weights", 100 * (static_cast<double>(all.peak) / held - 1));
  std::printf("\n");
  return 0;
}

}  // namespace weft
