// The checks of `weft doctor` that concern the machine and not Weft.
#include <langinfo.h>
#include <locale.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps/device.h"
#include "apps/doctor/doctor.h"
#include "engine/memory/memory_plan.h"
#include "io/atomic_file.h"
#include "kernels/check.h"

extern char** environ;

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

void warn(HealthCheck& check, const std::string& remedy) {
  check.health = Health::kWarn;
  check.remedy = remedy;
}

// The CPUs of this machine and of a rank of this job, whose launcher is tried.
HealthChecks cores_checks(const Flags& flags) {
  HealthChecks out{{.name = "cores", .detail = {}, .remedy = {}}};
  Ranks ranks;
  try {
    ranks = ranks_of(flags);
  } catch (const Error& error) {
    out.push_back(
        {.health = Health::kFail,
         .name = "launcher",
         .detail = error.what(),
         .remedy = "start with mpirun, srun, torchrun or --nodes, or one process with --ranks N"});
  }
  const int online = static_cast<int>(std::thread::hardware_concurrency());
  const int usable = affinity().count;
  HealthCheck& check = out.front();
  check.detail = std::to_string(online) + " online, " + std::to_string(usable) + " usable, " +
                 to_string(thread_count(flags, ranks));
  if (usable < online && ranks.alone() && !std::getenv("SLURM_JOB_ID")) {
    warn(check,
         "this process is bound to some cores; lift it with taskset where the others are free");
  }
  return out;
}

HealthCheck memory_check() {
  const uint64_t available = available_memory();
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t total = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page;
  HealthCheck check{.name = "memory", .detail = {}, .remedy = {}};
  check.detail = format_bytes(available) + " available (with what control groups leave) of " +
                 format_bytes(total);
  if (available < kGiB) {
    warn(check,
         "end other programs, or raise the control group's memory.max; weft generate "
         "--dry-run tells what a job needs");
  }
  return check;
}

std::string limit_text(rlim_t limit, uint64_t unit, const char* name) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit / unit) + name;
}

HealthCheck limits_check() {
  rlimit files{}, locked{}, size{};
  getrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_MEMLOCK, &locked);
  getrlimit(RLIMIT_FSIZE, &size);
  HealthCheck check{.name = "limits", .detail = {}, .remedy = {}};
  check.detail = "open files " + limit_text(files.rlim_cur, 1, "") + ", locked memory " +
                 limit_text(locked.rlim_cur, 1024, " KiB") + ", file size " +
                 limit_text(size.rlim_cur, kMiB, " MiB");
  if (files.rlim_cur < 1024) {
    warn(check, "ulimit -n 1024: sharded weights and ranks hold many files open");
  } else if (size.rlim_cur != RLIM_INFINITY) {
    warn(check, "ulimit -f unlimited: larger results fail");
  }
  return check;
}

HealthCheck shared_memory_check() {
  HealthCheck check{.name = "/dev/shm", .detail = {}, .remedy = {}};
  struct statvfs info;
  if (statvfs("/dev/shm", &info) != 0) {
    check.detail = "not there";
    warn(check, "mount a tmpfs at /dev/shm: processes of one job exchange through it");
    return check;
  }
  const uint64_t size = uint64_t{info.f_blocks} * info.f_frsize;
  check.detail =
      format_bytes(size) + ", " + format_bytes(uint64_t{info.f_bavail} * info.f_frsize) + " free";
  if (size <= 64 * kMiB) {
    warn(check,
         "a container's default of 64 MiB stops jobs of several processes; start it with "
         "--shm-size=1g");
  }
  return check;
}

HealthCheck locale_check() {
  HealthCheck check{.name = "locale", .detail = {}, .remedy = {}};
  const locale_t locale = newlocale(LC_CTYPE_MASK, "", nullptr);
  const std::string codeset = locale ? nl_langinfo_l(CODESET, locale) : "";
  if (locale) freelocale(locale);
  check.detail = codeset.empty() ? "the one that LANG or LC_ALL names is not installed" : codeset;
  if (codeset != "UTF-8") {
    warn(check, "export LANG=C.UTF-8; prompts are read as UTF-8, whatever the terminal sends");
  }
  return check;
}

// True for variables that this program or a library in it reads; the table of flags has the WEFT_*.
bool is_read(const std::string& name) {
  for (const char* known : {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TMPDIR",
                            "CUDA_VISIBLE_DEVICES", "LANG", "LC_ALL", "LC_CTYPE"})
    if (name == known) return true;
  return name.starts_with("WEFT_") || name.starts_with("OMPI_") || name.starts_with("SLURM_");
}

HealthChecks environment_checks() {
  HealthChecks out{{.name = "environment", .detail = {}, .remedy = {}}};
  std::vector<std::string> set;
  for (char** entry = environ; *entry; ++entry)
    if (is_read(std::string(*entry, std::strcspn(*entry, "=")))) set.push_back(*entry);
  std::sort(set.begin(), set.end());
  for (const std::string& entry : set) out[0].detail += (out[0].detail.empty() ? "" : ", ") + entry;
  if (set.empty()) out[0].detail = "nothing set that is read here";
  for (const std::string& warning : unknown_environment())
    out.push_back({.health = Health::kWarn,
                   .name = "environment",
                   .detail = warning,
                   .remedy = "unset it, or correct its name"});
  return out;
}

}  // namespace

HealthChecks host_checks(const Flags& flags) {
  HealthChecks out = cores_checks(flags);
  for (const auto check : {memory_check, limits_check, shared_memory_check, locale_check})
    out.push_back(check());
  for (HealthCheck& check : environment_checks()) out.push_back(std::move(check));
  return out;
}

HealthCheck output_check(const std::string& folder) {
  fs::path place = fs::absolute(folder.empty() ? "." : folder);
  while (!fs::exists(place) && place.has_relative_path()) place = place.parent_path();
  HealthCheck check{.name = "output", .detail = place.string(), .remedy = {}};
  try {
    if (!fs::is_directory(place)) throw Error(ErrorKind::kOutput, place.string() + " is no folder");
    const fs::path file = place / (".weft-doctor-" + std::to_string(getpid()));
    write_file(file.string(), std::string(kMiB, 'x'), Overwrite::kRefuse);  // and renames it
    fs::remove(file);
  } catch (const std::exception& error) {
    check.health = Health::kFail;
    check.detail = error.what();
    check.remedy = "choose another --output, or make this one writable";
    return check;
  }
  const fs::space_info space = fs::space(place);
  check.detail += ": writable, renames work, " + format_bytes(space.available) + " free";
  constexpr long kNfs = 0x6969;  // statfs(2)
  struct statfs info;
  if (space.available < kGiB) {
    warn(check, "free some space: a GIF's frames wait on disk, three bytes per pixel");
  } else if (statfs(place.c_str(), &info) == 0 && info.f_type == kNfs) {
    warn(check, "NFS: two jobs that write one name may not see each other; prefer a local disk");
  }
  return check;
}

}  // namespace weft
