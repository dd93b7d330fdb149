#include "tests/faults/inject.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

// Nothing below may allocate, because it runs inside of the calls that it replaces.
namespace {

struct Rule {
  char call[16] = "", path[200] = "";
  int64_t nth = 0;
  enum Act { kErrno, kShort, kCut, kMissing } act = kErrno;
  int error = 0;
};

Rule g_rule;
std::atomic<bool> g_armed{false};
std::atomic<int64_t> g_calls{0}, g_hits{0};

std::atomic<bool> g_counting{false};
std::atomic<int64_t> g_allocations{0}, g_failing{0}, g_live{0}, g_peak{0};

constexpr struct {
  const char* name;
  int value;
} kErrors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EDQUOT", EDQUOT},
               {"ENOMEM", ENOMEM}, {"EMFILE", EMFILE}, {"EROFS", EROFS}};

void arm(const char* text) {
  char act[16] = "";
  long long nth = 0;
  if (sscanf(text, "%15[^:]:%199[^:]:%lld:%15s", g_rule.call, g_rule.path, &nth, act) != 4) abort();
  g_rule.nth = nth;
  g_rule.act = !strcmp(act, "short")     ? Rule::kShort
               : !strcmp(act, "cut")     ? Rule::kCut
               : !strcmp(act, "missing") ? Rule::kMissing
                                         : Rule::kErrno;
  g_rule.error = 0;
  for (const auto& error : kErrors)
    if (!strcmp(act, error.name)) g_rule.error = error.value;
  if (g_rule.act == Rule::kErrno && !g_rule.error) abort();
  g_calls = g_hits = 0;
  g_armed = true;
}

__attribute__((constructor)) void arm_from_environment() {
  if (const char* text = getenv("INJECT_FAULT")) arm(text);
}

// Returns true if this call must fail.
bool struck(const char* call, const char* path) {
  if (!g_armed || strcmp(call, g_rule.call) || !strstr(path, g_rule.path)) return false;
  if (++g_calls < g_rule.nth) return false;
  ++g_hits;
  return true;
}

bool struck(const char* call, int fd) {
  if (!g_armed || strcmp(call, g_rule.call)) return false;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return false;
  path[size] = 0;
  return struck(call, path);
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

template <class R>
R fail() {
  errno = g_rule.error;
  return R(-1);
}

// Makes the call fail, or transfer half the size.
template <class F>
ssize_t transfer(const char* call, int fd, size_t size, F&& real) {
  if (!struck(call, fd)) return real(size);
  return g_rule.act == Rule::kShort ? real(size - size / 2) : fail<ssize_t>();
}

constexpr size_t kLeast = 1024;

bool allocation_fails(size_t size) {
  return g_counting && size >= kLeast && ++g_allocations == g_failing;
}

void* counted(void* data) {
  if (data && g_counting) {
    const int64_t live = g_live += static_cast<int64_t>(malloc_usable_size(data));
    int64_t peak = g_peak;
    while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
    }
  }
  return data;
}

void uncounted(void* data) {
  if (data && g_counting) g_live -= static_cast<int64_t>(malloc_usable_size(data));
}

void* make(size_t size) {
  return allocation_fails(size) ? nullptr : counted(malloc(size ? size : 1));
}

void* make(size_t size, size_t align) {
  if (allocation_fails(size)) return nullptr;
  static auto* const real = next<void*(size_t, size_t)>("aligned_alloc");
  return counted(real(align, (size + align - 1) / align * align));
}

void* or_throw(void* data) {
  if (!data) throw std::bad_alloc();
  return data;
}

int opened(const char* name, const char* path, int flags, mode_t mode) {
  const bool hit = struck("open", path);
  if (hit && g_rule.act != Rule::kCut) return fail<int>();
  const int fd = next<int(const char*, int, ...)>(name)(path, flags, mode);
  struct stat info;
  if (hit && fd >= 0 && stat(path, &info) == 0) (void)!truncate(path, info.st_size / 2);
  return fd;
}

void* mapped(const char* name, void* at, size_t size, int protection, int flags, int fd,
             off_t offset) {
  const bool hit = flags & MAP_ANONYMOUS ? allocation_fails(size) : struck("mmap", fd);
  if (hit && (flags & MAP_ANONYMOUS || g_rule.act != Rule::kCut)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  using Real = void*(void*, size_t, int, int, int, off_t);
  void* const data = next<Real>(name)(at, size, protection, flags, fd, offset);
  if (hit && !(flags & MAP_ANONYMOUS)) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    (void)!truncate(link, static_cast<off_t>(size / 2));
  }
  return data;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return opened("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return opened("open64", path, flags, mode);
}

ssize_t read(int fd, void* data, size_t size) {
  static auto* const real = next<ssize_t(int, void*, size_t)>("read");
  return transfer("read", fd, size, [&](size_t some) { return real(fd, data, some); });
}
ssize_t pread(int fd, void* data, size_t size, off_t at) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  return transfer("pread", fd, size, [&](size_t some) { return real(fd, data, some, at); });
}
ssize_t pread64(int fd, void* data, size_t size, off_t at) { return pread(fd, data, size, at); }
ssize_t write(int fd, const void* data, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return transfer("write", fd, size, [&](size_t some) { return real(fd, data, some); });
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  return mapped("mmap", at, size, protection, flags, fd, offset);
}
void* mmap64(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  return mapped("mmap64", at, size, protection, flags, fd, offset);
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  return struck("fsync", fd) ? fail<int>() : real(fd);
}
int close(int fd) {
  static auto* const real = next<int(int)>("close");
  const bool hit = struck("close", fd);
  const int result = real(fd);  // the descriptor is closed in any case
  return hit ? fail<int>() : result;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return struck("rename", from) ? fail<int>() : real(from, to);
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return struck("rename", from) ? fail<int>() : real(from_fd, from, to_fd, to, flags);
}
int link(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("link");
  return struck("rename", from) ? fail<int>() : real(from, to);
}

void* aligned_alloc(size_t align, size_t size) {
  static auto* const real = next<void*(size_t, size_t)>("aligned_alloc");
  return allocation_fails(size) ? nullptr : real(align, size);
}
int posix_memalign(void** out, size_t align, size_t size) noexcept {
  static auto* const real = next<int(void**, size_t, size_t)>("posix_memalign");
  return allocation_fails(size) ? ENOMEM : real(out, align, size);
}

const void* avcodec_find_encoder_by_name(const char* name) {
  static auto* const real = next<const void*(const char*)>("avcodec_find_encoder_by_name");
  return struck("encoder", name) || !real ? nullptr : real(name);
}

}  // extern "C"

void* operator new(size_t size) { return or_throw(make(size)); }
void* operator new[](size_t size) { return or_throw(make(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return make(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return make(size); }
void* operator new(size_t size, std::align_val_t align) {
  return or_throw(make(size, static_cast<size_t>(align)));
}
void* operator new[](size_t size, std::align_val_t align) {
  return or_throw(make(size, static_cast<size_t>(align)));
}
void operator delete(void* data) noexcept {
  uncounted(data);
  free(data);
}
void operator delete[](void* data) noexcept { operator delete(data); }
void operator delete(void* data, size_t) noexcept { operator delete(data); }
void operator delete[](void* data, size_t) noexcept { operator delete(data); }
void operator delete(void* data, std::align_val_t) noexcept { operator delete(data); }
void operator delete[](void* data, std::align_val_t) noexcept { operator delete(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { operator delete(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { operator delete(data); }

namespace weft::test {

Fault::Fault(const std::string& rule) { arm(rule.c_str()); }
Fault::~Fault() { g_armed = false; }
int64_t Fault::hits() const { return g_hits; }

AllocationFault::AllocationFault(int64_t nth) {
  g_allocations = g_live = g_peak = 0;
  g_failing = nth;
  g_counting = true;
}
AllocationFault::~AllocationFault() { g_counting = false; }
int64_t AllocationFault::seen() const { return g_allocations; }
size_t AllocationFault::peak_bytes() const {
  return static_cast<size_t>(std::max<int64_t>(g_peak, 0));
}

}  // namespace weft::test
