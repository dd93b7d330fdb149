#pragma once
// LayerWindow: a model's layers, all or some of them in memory. A thread reads the others from
// their file before they are used (TPI-LLM, arXiv 2410.00531, section 3.4). Of `resident` layers in
// memory two are streamed, one in use and one being read. The others are kept; they are spread
// evenly over the model, so that there is something to compute while a layer is read.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace weft {

// The number of layers in memory that are streamed.
inline constexpr int kWindowSlots = 2;

// Returns whether layer `i` of `layers` is one of the `kept` layers, which are spread evenly.
inline bool layer_is_kept(int i, int layers, int kept) {
  return int64_t{i + 1} * kept / layers > int64_t{i} * kept / layers;
}

struct WindowCounts {
  int64_t reads = 0;  // layers read since the window was made
  int64_t bytes = 0;  // of these layers in memory; 0 for a window that does not measure them
  double reading_s = 0, waited_s = 0;
};

// When streamed layers are read: by a thread ahead of their use, or by the caller when they are
// used. A dry run belongs to one thread; it holds as many layers as the other way.
enum class ReadPolicy : uint8_t { kAhead, kOnUse };

template <class Layer>
class LayerWindow {
 public:
  using Load = std::function<Layer(int index)>;
  using Measure = std::function<size_t(const Layer&)>;  // the bytes of a layer

  // `load` returns layer `index`. If layers are streamed, `read` returns them later; the window's
  // thread calls it. The constructor returns with `resident` layers in memory and nothing being
  // read.
  LayerWindow(int layers, int resident, const Load& load, Load read, Measure measure = {},
              ReadPolicy reading = ReadPolicy::kAhead)
      : read_(std::move(read)),
        measure_(std::move(measure)),
        slots_(layers),
        bytes_(layers),
        places_(layers, -1) {
    const int kept = resident >= layers ? layers : resident - kWindowSlots;
    CHECK(kept >= 0, "resident", resident, "of", layers);
    for (int i = 0; i < layers; ++i) {
      if (layer_is_kept(i, layers, kept)) {
        fill(i, load);
      } else {
        places_[i] = static_cast<int>(streamed_.size());
        streamed_.push_back(i);
      }
    }
    if (streamed_.empty()) return;
    for (; held_ < kWindowSlots; ++held_) fill(streamed_[next_++], load);
    if (reading == ReadPolicy::kAhead) reader_ = std::thread([this] { this->read(); });
  }
  ~LayerWindow() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    if (reader_.joinable()) reader_.join();
  }
  LayerWindow(const LayerWindow&) = delete;
  LayerWindow& operator=(const LayerWindow&) = delete;

  int size() const { return static_cast<int>(slots_.size()); }

  // Runs f(layer). If layers are used cyclically in their order, the next one is read meanwhile.
  // Any other order works too, but waits. An exception of the reading thread is rethrown here, and
  // the layer is read again when it is used again.
  template <class F>
  void use(int index, F&& f) {
    std::unique_lock lock(mutex_);
    if (!slots_[index]) {
      const auto start = Clock::now();
      ask_for(index);
      if (!reader_.joinable()) read_next(lock);
      changed_.wait(lock, [&] { return slots_[index] || failure_; });
      counts_.waited_s += seconds_since(start);
    }
    if (!slots_[index]) {
      changed_.notify_all();  // the reader tries again
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    lock.unlock();
    const Release release{*this, index};  // also where f throws
    f(*slots_[index]);
  }

  // Calls f for every layer that is in memory now. Call it only between uses.
  template <class F>
  void for_resident(F&& f) const {
    const std::lock_guard lock(mutex_);
    for (const std::optional<Layer>& slot : slots_)
      if (slot) f(*slot);
  }

  // The bytes that a pass over all layers reads. Until every streamed layer has been read once,
  // the ones that have not count like the largest that has.
  size_t bytes_per_pass() const {
    const std::lock_guard lock(mutex_);
    size_t total = 0, most = 0;
    for (const int index : streamed_) most = std::max(most, bytes_[index]);
    for (const int index : streamed_) total += bytes_[index] ? bytes_[index] : most;
    return total;
  }

  WindowCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  // The same, once every layer that is read ahead has been read.
  WindowCounts settled_counts() {
    std::unique_lock lock(mutex_);
    if (reader_.joinable()) changed_.wait(lock, [&] { return reading_ < 0 && !may_read(); });
    return counts_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Ends the use of a layer. A streamed layer is freed.
  struct Release {
    LayerWindow& window;
    int index;
    ~Release() {
      if (window.places_[index] < 0) return;
      {
        std::unique_lock lock(window.mutex_);
        window.slots_[index].reset();
        --window.held_;
        while (!window.reader_.joinable() && window.may_read()) window.read_next(lock);
      }
      window.changed_.notify_all();
    }
  };

  void fill(int index, const Load& load) {
    slots_[index].emplace(load(index));
    if (measure_) bytes_[index] = measure_(*slots_[index]);
  }

  // If the reader has read other layers, they are dropped and it continues from `index`.
  void ask_for(int index) {
    const int at = places_[index];
    if (reading_ == index || (next_ == at && held_ < kWindowSlots)) return;
    for (int other : streamed_)
      if (slots_[other]) {
        slots_[other].reset();
        --held_;
      }
    next_ = at;
    failure_ = nullptr;
    changed_.notify_all();
  }

  bool may_read() const { return held_ < kWindowSlots && !slots_[streamed_[next_]] && !failure_; }

  void read() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || may_read(); });
      if (ended_) return;
      read_next(lock);
    }
  }

  // Reads the next layer, for which there is room. The lock is not held meanwhile.
  void read_next(std::unique_lock<std::mutex>& lock) {
    const int index = reading_ = streamed_[next_];
    next_ = (next_ + 1) % static_cast<int>(streamed_.size());
    ++held_;
    lock.unlock();
    const auto start = Clock::now();
    std::optional<Layer> layer;
    std::exception_ptr failure;
    try {
      layer.emplace(read_(index));
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    reading_ = -1;
    counts_.reading_s += seconds_since(start);
    if (layer) {
      ++counts_.reads;
      if (measure_) bytes_[index] = measure_(*layer);
      counts_.bytes += static_cast<int64_t>(bytes_[index]);
      slots_[index] = std::move(layer);
    } else {
      --held_;
      next_ = places_[index];
      failure_ = failure;
    }
    changed_.notify_all();
  }

  Load read_;
  Measure measure_;
  std::vector<std::optional<Layer>> slots_;
  std::vector<size_t> bytes_;  // per layer; 0: it is not known yet
  std::vector<int> streamed_;
  std::vector<int> places_;  // per layer: index among the streamed layers; -1: it is kept
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread reader_;
  std::exception_ptr failure_;  // of the layer that is read next; nothing is read until it is seen
  WindowCounts counts_;
  int held_ = 0;                 // streamed layers in memory or being read
  int next_ = 0, reading_ = -1;  // place of the next layer to read; index of the one being read
  bool ended_ = false;
};

}  // namespace weft
