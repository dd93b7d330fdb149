// weft doctor: checks whether this machine and this build can do the work.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "apps/commands.h"
#include "apps/device.h"
#include "apps/doctor/device_checks.h"
#include "apps/doctor/self_test.h"
#include "apps/model_folder.h"
#include "apps/scratch_folder.h"
#include "engine/generation/generator.h"
#include "io/json.h"
#include "parallel/transport/nccl.h"
#include "parallel/transport/processes/mpi.h"
#include "parallel/transport/processes/ucx.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const char* to_string(Health health) {
  constexpr const char* kNames[] = {"PASS", "WARN", "FAIL"};
  return kNames[static_cast<size_t>(health)];
}

HealthCheck cpu_check() {
  HealthCheck check{.name = "cpu", .detail = {}, .remedy = {}};
  const std::string isa = cpu_isa();
  check.detail = isa + "; op table " + cpu_ops().name + ", bf16 multiplication in " +
                 (cpu_has_bf16() ? "hardware" : "software, so f32 is the default");
  if (const char* cap = std::getenv("WEFT_CPU"); cap && *cap) {
    check.health = Health::kWarn;
    check.detail += "; WEFT_CPU=" + std::string(cap) + " caps it";
    check.remedy = "unset WEFT_CPU for full speed";
  } else if (isa == "baseline") {
    check.health = Health::kWarn;
    check.remedy = "this processor has no AVX2: expect ten times the seconds";
  }
  return check;
}

// One check per op family: every op in both precisions, compared with the reference.
HealthChecks op_checks() {
  std::map<std::string, HealthCheck> families;
  for (const OpCheck& op : self_test(cpu_ops(), reference_ops())) {
    HealthCheck& check = families[op.family];
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%s %s %.2g of %.2g", op.op.c_str(),
                  std::string(to_string(op.dtype)).c_str(), op.error, op.bound);
    check.name = "ops " + op.family;
    check.detail += (check.detail.empty() ? "" : ", ") + std::string(numbers);
    if (op.pass()) continue;
    check.health = Health::kFail;
    check.remedy = "wrong results: set WEFT_CPU=avx2 (or ref) and report this line";
  }
  HealthChecks out;
  for (auto& [family, check] : families) out.push_back(std::move(check));
  return out;
}

// Writes a picture or a short clip and reads it back.
HealthCheck encoder_check(const ScratchFolder& scratch, const std::string& extension) {
  HealthCheck check{.name = "encoder " + extension, .detail = {}, .remedy = {}};
  constexpr int kSide = 64;
  const int frames = extension == ".png" ? 1 : 3;
  try {
    VideoSettings settings;
    settings.width = settings.height = kSide;
    settings.threads = 1;
    const std::string path = scratch.file("doctor" + extension);
    const auto sink = make_sink(path, settings, Overwrite::kReplace);
    for (int i = 0; i < frames; ++i) sink->push(Frame(kSide, kSide));
    sink->finish();
    const size_t back = extension == ".png" ? 1 : read_video(path).size();
    check.detail = std::to_string(frames) + " frames written, " + std::to_string(back) + " read";
    if (back != static_cast<size_t>(frames)) check.health = Health::kFail;
  } catch (const Error& error) {
    check.health = Health::kFail;
    check.detail = error.what();
  }
  if (check.health != Health::kPass)
    check.remedy =
        "bash apps/setup.sh installs FFmpeg's libraries; a folder of PNG frames needs "
        "no encoder";
  return check;
}

HealthChecks encoder_checks() {
  if (!media_built())
    return {{.name = "encoders", .detail = "not built: no clip can be written", .remedy = {}}};
  const ScratchFolder scratch;
  HealthChecks checks;
  for (const char* extension : {".mp4", ".webm", ".gif", ".png"})
    checks.push_back(encoder_check(scratch, extension));
  return checks;
}

// Says how messages in the memory of a GPU reach a library.
std::string device_messages(std::optional<bool> takes_device_memory) {
  if (!takes_device_memory) return "; a job finds out whether it takes device memory";
  return *takes_device_memory ? "; takes device memory"
                              : "; takes host memory, through which a GPU's messages go";
}

HealthCheck mpi_check() {
  HealthCheck check{.name = "mpi", .detail = {}, .remedy = {}};
  if (!mpi_built()) {
    check.detail = "not built: mpirun starts no ranks";
    return check;
  }
  const std::string library = mpi_library();
  check.detail = library.substr(0, library.find(',')) + device_messages(mpi_takes_device_memory());
  std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
  for (const std::string& folder : split(path, ':'))
    if (access((folder + "/mpirun").c_str(), X_OK) == 0) return check;
  check.health = Health::kWarn;
  check.detail += "; mpirun is not in PATH";
  check.remedy = "apt-get install openmpi-bin, for jobs of several processes";
  return check;
}

HealthCheck ucx_check() {
  HealthCheck check{.name = "ucx", .detail = {}, .remedy = {}};
  try {
    check.detail = ucx_built() ? ucx_library() + device_messages(ucx_takes_device_memory())
                               : "not built: processes without mpirun are no ranks";
  } catch (const Error& error) {
    check.health = Health::kWarn;
    check.detail = error.what();
    check.remedy = error.kind() == ErrorKind::kUsage
                       ? "apt-get install libucx0, for jobs of processes without mpirun"
                       : "UCX's own variables, such as UCX_TLS, limit what it finds";
  }
  return check;
}

HealthCheck nccl_check() {
  return {.name = "nccl",
          .detail = nccl_built() ? nccl_library() : "not built: the hosts carry GPUs' messages",
          .remedy = {}};
}

// Measures how fast up to 1 GiB of a model's weights is read.
HealthCheck read_check(const std::string& model) {
  HealthCheck check{.name = "weights", .detail = {}, .remedy = {}};
  constexpr uint64_t kMost = uint64_t{1} << 30;
  std::vector<char> buffer(size_t{8} << 20);
  uint64_t bytes = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& entry : fs::recursive_directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : 1;
    while (bytes < kMost && count > 0)
      if ((count = read(fd, buffer.data(), buffer.size())) > 0)
        bytes += static_cast<uint64_t>(count);
    if (fd >= 0) close(fd);
    if (count < 0) {
      check.health = Health::kFail;
      check.detail = entry.path().string() + " cannot be read";
      check.remedy = "check its permissions and the disk";
      return check;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-9);
  char text[128];
  std::snprintf(
      text, sizeof text, "%s read in %.3g s (%s/s, from memory where they were read before)",
      format_bytes(bytes).c_str(), seconds, format_bytes(static_cast<uint64_t>(rate)).c_str());
  check.detail = text;
  if (bytes > kMost / 8 && rate < 1e8) {
    check.health = Health::kWarn;
    check.remedy = "a slow disk: copy the model to a local one";
  }
  return check;
}

HealthChecks model_checks(const Flags& flags) {
  HealthCheck check{.name = "model", .detail = {}, .remedy = {}};
  try {
    const Generator generator(model_folder(flags),
                              {.dtype = cpu_has_bf16() ? DType::kBF16 : DType::kF32});
    Request request;
    request.prompt = "a cat";
    const MemoryPlan plan = generator.plan(generator.resolve(request));
    check.detail = generator.model_name() + "; its default job: " + plan.to_string();
    if (!plan.fits()) {
      check.health = Health::kWarn;
      check.remedy = "a smaller --size or --num-frames; weft generate --dry-run tells what fits";
    }
  } catch (const Error& error) {
    check.health = Health::kFail;
    check.detail = error.what();
    check.remedy = "--model takes a diffusers folder, complete and of a model known here";
    return {check};
  }
  return {check, read_check(model_folder(flags))};
}

void print(const HealthCheck& check, bool json) {
  if (json) {
    const Json object{{"check", check.name},
                      {"status", to_string(check.health)},
                      {"detail", check.detail},
                      {"remedy", check.remedy}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s  %-14s %s\n", to_string(check.health), check.name.c_str(),
              printable(check.detail).c_str());
  if (!check.remedy.empty()) std::printf("      %-14s %s\n", "  try", check.remedy.c_str());
}

}  // namespace

int run_doctor(const Flags& flags) {
  int counts[3] = {};
  const auto take = [&](const HealthCheck& check) {
    ++counts[static_cast<size_t>(check.health)];
    print(check, flags.on("json"));
  };
  take({.name = "build", .detail = version_text(), .remedy = {}});
  take(cpu_check());
  for (const HealthCheck& check : op_checks()) take(check);
  for (const HealthCheck& check : host_checks(flags)) take(check);
  const std::string output = flags.text("output");
  take(output_check(output.ends_with('/') || fs::is_directory(output)
                        ? output
                        : fs::path(output).parent_path().string()));
  for (const HealthCheck& check : encoder_checks()) take(check);
  take(mpi_check());
  take(ucx_check());
  take(nccl_check());
  for (const HealthCheck& check : device_checks(flags)) take(check);
  if (!flags.text("model").empty())
    for (const HealthCheck& check : model_checks(flags)) take(check);
  if (!flags.on("json"))
    std::printf("%d passed, %d warned, %d failed\n", counts[0], counts[1], counts[2]);
  return counts[2] ? 1 : 0;
}

}  // namespace weft
