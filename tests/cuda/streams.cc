// Devices, streams, events and copies. Work is enqueued and only runs when something waits for it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/cuda/machine.h"

namespace weft::emulated {

namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

constexpr int kToolkit = 13000;  // 13.0

int driver_version() {
  static const int version = [] {
    const char* text = std::getenv("WEFT_EMULATED_DRIVER");
    return text ? std::atoi(text) : kToolkit;
  }();
  return version;
}

int& device_count() {
  static int count = [] {
    const char* text = std::getenv("WEFT_EMULATED_DEVICES");
    return text ? std::atoi(text) : 1;
  }();
  return count;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CUstream_st* make_stream(int device) {
  machine().streams.push_back(std::make_unique<CUstream_st>());
  machine().streams.back()->device = device;
  return machine().streams.back().get();
}

constexpr size_t kStagedBytes = 64 << 10;  // cudaMemcpy returns before so few bytes have arrived

struct Rows {  // of a copy; a copy that is not 2D has one row
  size_t to_pitch, from_pitch, width, height;
};

void copy_rows(char* to, const char* from, const Rows& rows) {
  for (size_t y = 0; y < rows.height; ++y)
    std::memcpy(to + y * rows.to_pitch, from + y * rows.from_pitch, rows.width);
}

cudaError_t copy(void* to, const void* from, Rows rows, cudaMemcpyKind kind, CUstream_st& stream) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  if (rows.height > 1 && (rows.to_pitch < rows.width || rows.from_pitch < rows.width))
    return cudaErrorInvalidValue;
  const Where to_where = where(to), from_where = where(from);
  const bool to_device = to_where == Where::kDevice, from_device = from_where == Where::kDevice;
  const bool wanted_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wanted_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (wanted_to != to_device || wanted_from != from_device))
    return cudaErrorInvalidValue;
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  if (to_device && from_device && !(reaches(stream.device, to) && reaches(stream.device, from)))
    ++machine().copies_through_host;
  if (to_where != Where::kPageable && from_where != Where::kPageable)
    return submit(stream, at_once([=] { copy_rows(out, in, rows); }));
  if (stream.capture) {
    stream.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  // Pageable memory is read now.
  if (from_where == Where::kPageable && to_where != Where::kPageable) {
    auto kept = std::make_shared<std::vector<char>>(rows.width * rows.height);
    copy_rows(kept->data(), in, {rows.width, rows.from_pitch, rows.width, rows.height});
    return submit(
        stream, at_once([=] {
          copy_rows(out, kept->data(), {rows.to_pitch, rows.width, rows.width, rows.height});
        }));
  }
  if (const cudaError_t no = submit(stream, at_once([=] { copy_rows(out, in, rows); }))) return no;
  await(stream, stream.issued);
  return machine().status;
}

cudaError_t may_wait_for(CUstream_st& stream) {
  if (stream.capture) {
    stream.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream.legacy && forbidden_on_device(stream.device)) return cudaErrorStreamCaptureImplicit;
  return forbidden_in_capture();
}

cudaError_t may_wait_for(const CUevent_st& event) {
  if (!event.capture) return forbidden_in_capture();
  event.capture->invalid = true;
  return cudaErrorCapturedEvent;
}

cudaError_t wait_for(CUstream_st& stream) {
  if (const cudaError_t no = may_wait_for(stream)) return no;
  await(stream, stream.issued);
  return machine().status;
}

// Answers a query: false if the work cannot end yet.
bool ends_now(CUstream_st& stream, uint64_t position) {
  if (run_until(stream, position)) return true;
  run_on_its_own();
  return run_until(stream, position);
}

}  // namespace

Machine& machine() {
  static auto* made = new Machine;
  return *made;
}

int current_device() { return device_of_thread; }

const void* this_thread_id() { return &device_of_thread; }

cudaError_t told(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

void fault(cudaError_t status, const std::string& what) {
  std::fprintf(stderr, "emulator: %s\n", what.c_str());
  if (machine().status != cudaSuccess) return;  // keeps the first fault
  machine().status = status;
  machine().error = what;
}

CUstream_st& stream_of(cudaStream_t stream) {
  if (stream) return *stream;
  auto& defaults = machine().default_streams;
  while (static_cast<int>(defaults.size()) <= device_of_thread)
    (defaults.emplace_back(make_stream(static_cast<int>(defaults.size()))))->legacy = true;
  return *defaults[device_of_thread];
}

bool run_until(CUstream_st& stream, uint64_t position) {
  const DeviceWork opened;
  while (stream.done < position) {
    // After a fault nothing runs any more.
    if (machine().status == cudaSuccess && !stream.queue.front().run()) return false;
    stream.queue.pop_front();
    ++stream.done;
    ++machine().changes;
  }
  return true;
}

void run_on_its_own() {
  for (size_t i = 0; i < machine().streams.size(); ++i) {
    CUstream_st& stream = *machine().streams[i];
    if (stream.done < stream.on_its_own) run_until(stream, stream.on_its_own);
  }
}

void block_until(const std::function<bool()>& done) {
  constexpr std::chrono::microseconds kNap{50}, kLongNap{500};
  constexpr int kShortNaps = 40;
  const auto idle = [](uint64_t seen, double since) {
    return machine().changes == seen && machine().status == cudaSuccess &&
           now() - since < most_seconds();
  };
  uint64_t seen = 0;
  double since = now();
  for (int naps = 0; !done(); ++naps) {
    run_on_its_own();
    if (machine().changes != seen) {
      seen = machine().changes;
      since = now();
      naps = 0;
      continue;
    }
    // Without a change, only other processes can have moved anything.
    do machine().mutex.sleep_without(naps < kShortNaps ? kNap : kLongNap);
    while (idle(seen, since) && !machine().watches);
    if (machine().changes == seen && !idle(seen, since))
      fault(cudaErrorLaunchFailure, "no message moves: " + waiting_messages());
  }
}

void await(CUstream_st& stream, uint64_t position) {
  if (run_until(stream, position)) return;
  block_until([&] { return run_until(stream, position); });
}

void await_device(int device) {
  for (size_t i = 0; i < machine().streams.size(); ++i) {
    CUstream_st& stream = *machine().streams[i];
    if (stream.device == device) await(stream, stream.issued);
  }
}

void MachineMutex::sleep_without(std::chrono::microseconds time) {
  const int depth = depth_;
  for (int i = 0; i < depth; ++i) unlock();
  std::this_thread::sleep_for(time);
  for (int i = 0; i < depth; ++i) lock();
}

cudaError_t forbidden_in_capture() {
  for (const auto& capture : machine().captures) {
    const bool own = capture->thread == this_thread_id();
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && own)) {
      capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  return cudaSuccess;
}

cudaError_t forbidden_on_device(int device) {
  cudaError_t status = cudaSuccess;
  for (const auto& capture : machine().captures)
    if (capture->origin->device == device) {
      capture->invalid = true;
      status = cudaErrorStreamCaptureUnsupported;
    }
  return status;
}

cudaError_t submit(CUstream_st& stream, Work work) {
  if (machine().status != cudaSuccess) return machine().status;
  if (stream.legacy && forbidden_on_device(stream.device)) return cudaErrorStreamCaptureImplicit;
  if (stream.capture) {
    if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    auto& nodes = stream.capture->nodes;
    nodes.push_back({std::move(work), stream.frontier});
    stream.frontier = {static_cast<int>(nodes.size()) - 1};
    return cudaSuccess;
  }
  ++stream.issued;
  if (work.on_its_own) stream.on_its_own = stream.issued;
  stream.queue.push_back(std::move(work));
  ++machine().changes;
  stream.asked = false;
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(machine().mutex);
  return submit(stream_of(stream), at_once(std::move(work)));
}

void set_device_count(int count) {
  const Lock lock(machine().mutex);
  device_count() = count;
  machine().peers.clear();  // another machine, on which nobody has asked for access
}
void set_shared_per_block(size_t bytes) { machine().shared_per_block = bytes; }

std::string device_error() {
  const Lock lock(machine().mutex);
  return machine().error;
}

uint64_t launches() { return machine().launches; }
uint64_t graph_launches() { return machine().graph_launches; }
uint64_t copies_through_host() { return machine().copies_through_host; }

}  // namespace weft::emulated

using namespace weft::emulated;  // NOLINT: CUDA's functions are global

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver_version() < kToolkit) return told(cudaErrorInsufficientDriver);
  *count = device_count();
  return *count > 0 ? cudaSuccess : told(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return told(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return told(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  size_t free = 0;
  cudaMemGetInfo(&free, &properties->totalGlobalMem);
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = machine().shared_per_block;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->multiProcessorCount = 3;  // few, so that persistent kernels loop
  properties->uuid.bytes[0] = static_cast<char>(1 + device);
  properties->pciBusID = 1 + device;
  properties->l2CacheSize = 1 << 20;
  properties->major = 9;
  properties->minor = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t no = cudaGetDeviceProperties(&properties, device)) return no;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return told(cudaErrorInvalidValue);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kToolkit;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const Lock lock(machine().mutex);
  if (const cudaError_t no = forbidden_on_device(device_of_thread)) return told(no);
  await_device(device_of_thread);
  return told(machine().status);
}

cudaError_t cudaDeviceReset() {
  const Lock lock(machine().mutex);
  await_device(device_of_thread);
  std::erase_if(machine().peers, [](const auto& pair) {
    return pair.first == device_of_thread || pair.second == device_of_thread;
  });
  machine().status = last_error = cudaSuccess;
  machine().error.clear();
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const Lock lock(machine().mutex);
  if (peer < 0 || peer >= device_count() || peer == device_of_thread)
    return told(cudaErrorInvalidDevice);
  const bool made = machine().peers.insert({device_of_thread, peer}).second;
  return made ? cudaSuccess : told(cudaErrorPeerAccessAlreadyEnabled);
}

const char* cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }
const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      break;
  }
  thread_local std::string text;
  const Lock lock(machine().mutex);
  text = "error " + std::to_string(status);
  if (status == machine().status) text += ": " + machine().error;
  return text.c_str();
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  const Lock lock(machine().mutex);
  return told(copy(to, from, {to_pitch, from_pitch, width, height}, kind, stream_of(stream)));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpy2D(to, bytes, from, bytes, bytes, 1, kind);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  const Lock lock(machine().mutex);
  if (const cudaError_t no = forbidden_in_capture()) return told(no);
  const Rows rows{to_pitch, from_pitch, width, height};
  if (const cudaError_t no = copy(to, from, rows, kind, stream_of(nullptr))) return told(no);
  // Small pageable memory has been read, and is still on its way.
  const bool late = where(from) == Where::kPageable && where(to) == Where::kDevice &&
                    width * height <= kStagedBytes;
  return late ? cudaSuccess : told(wait_for(stream_of(nullptr)));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemset2DAsync(void* data, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (where(data) == Where::kPageable) return told(cudaErrorInvalidValue);
  return told(submit(stream_of(stream), at_once([=] {
                       for (size_t y = 0; y < height; ++y)
                         std::memset(static_cast<char*>(data) + y * pitch, value, width);
                     })));
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(data, bytes, value, bytes, 1, stream);
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  const Lock lock(machine().mutex);
  if (const cudaError_t no = forbidden_in_capture()) return told(no);
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(machine().mutex);
  *stream = make_stream(device_of_thread);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// Work in the queue still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  await(stream_of(stream), stream_of(stream).issued);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  return told(wait_for(stream_of(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const Lock lock(machine().mutex);
  CUstream_st& stream = stream_of(handle);
  if (!stream.capture && stream.done < stream.issued && !std::exchange(stream.asked, true))
    return cudaErrorNotReady;
  if (const cudaError_t no = may_wait_for(stream)) return told(no);
  return ends_now(stream, stream.issued) ? told(machine().status) : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return told(submit(stream, [=] {
    const HostWork closed;
    function(data);
  }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  (*event)->device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const Lock lock(machine().mutex);
  CUstream_st& stream = stream_of(handle);
  if (event->device != stream.device) return told(cudaErrorInvalidResourceHandle);
  event->stream = &stream;
  event->asked = false;
  event->capture = stream.capture;
  if (stream.capture) {
    event->frontier = stream.frontier;
    return cudaSuccess;
  }
  auto seconds = event->seconds = std::make_shared<double>(0);
  if (const cudaError_t no = submit(stream, at_once([seconds] { *seconds = now(); })))
    return told(no);
  event->position = stream.issued;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  CUstream_st& stream = stream_of(handle);
  if (!event->stream) return cudaSuccess;  // never recorded
  if (event->capture) {
    if (event->capture->ended) return told(cudaErrorCapturedEvent);
    if (stream.capture && stream.capture != event->capture)
      return told(cudaErrorStreamCaptureIsolation);
    if (!stream.capture) {  // the stream forks into the capture
      stream.capture = event->capture;
      stream.frontier.clear();
      stream.capture->streams.push_back(&stream);
    }
    stream.frontier.insert(stream.frontier.end(), event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  }
  if (stream.capture) {
    stream.capture->invalid = true;
    return told(cudaErrorStreamCaptureIsolation);
  }
  return told(submit(stream, {[of = event->stream, position = event->position] {
                       return run_until(*of, position);
                     }}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  if (!event->stream) return cudaSuccess;
  if (const cudaError_t no = may_wait_for(*event)) return told(no);
  await(*event->stream, event->position);
  return told(machine().status);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  if (event->stream && !event->capture && event->stream->done < event->position &&
      !std::exchange(event->asked, true))
    return cudaErrorNotReady;
  if (!event->stream) return cudaSuccess;
  if (const cudaError_t no = may_wait_for(*event)) return told(no);
  return ends_now(*event->stream, event->position) ? told(machine().status) : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Lock lock(machine().mutex);
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->stream || !event->seconds) return told(cudaErrorInvalidResourceHandle);
    if (event->stream->done < event->position) return told(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>((*end->seconds - *begin->seconds) * 1e3);
  return cudaSuccess;
}
