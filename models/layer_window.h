#pragma once
// LayerWindow: a model's layers, all or some of them in memory. A thread reads the others from
// their file before they are used (TPI-LLM, arXiv 2410.00531, section 3.4). Of `resident` layers in
// memory two are streamed, one in use and one being read. The others are kept; they are spread
// evenly over the model, so that there is something to compute while a layer is read.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/check.h"

namespace weft {

// Returns whether layer `i` of `layers` is one of the `kept` layers, which are spread evenly.
inline bool layer_is_kept(int i, int layers, int kept) {
  return int64_t{i + 1} * kept / layers > int64_t{i} * kept / layers;
}

struct WindowCounts {
  int64_t reads = 0;  // layers read
  double reading_s = 0, waited_s = 0;
};

template <class Layer>
class LayerWindow {
 public:
  using Load = std::function<Layer(int index)>;

  // `load` returns layer `index`. If layers are streamed, the window's thread calls it, too.
  LayerWindow(int layers, int resident, Load load) : load_(std::move(load)), slots_(layers) {
    const int kept = resident >= layers ? layers : resident - 2;
    CHECK(kept >= 0, "resident", resident, "of", layers);
    for (int i = 0; i < layers; ++i) {
      if (layer_is_kept(i, layers, kept))
        slots_[i].emplace(load_(i));
      else
        streamed_.push_back(i);
    }
    if (!streamed_.empty()) reader_ = std::thread([this] { read(); });
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
  // Any other order works too, but waits. An exception of the reading thread is rethrown here.
  template <class F>
  void use(int index, F&& f) {
    std::unique_lock lock(mutex_);
    if (!slots_[index]) {
      const auto start = Clock::now();
      ask_for(index);
      changed_.wait(lock, [&] { return slots_[index] || failure_; });
      counts_.waited_s += seconds_since(start);
    }
    if (failure_) std::rethrow_exception(failure_);
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

  WindowCounts counts() const {
    const std::lock_guard lock(mutex_);
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
      if (window.streamed_.empty() || window.place(index) < 0) return;
      {
        const std::lock_guard lock(window.mutex_);
        window.slots_[index].reset();
        --window.held_;
      }
      window.changed_.notify_all();
    }
  };

  int place(int index) const {  // index among the streamed layers; -1: it is kept
    for (size_t i = 0; i < streamed_.size(); ++i)
      if (streamed_[i] == index) return static_cast<int>(i);
    return -1;
  }

  // If the reader has read other layers, they are dropped and it continues from `index`.
  void ask_for(int index) {
    const int at = place(index);
    if (reading_ == index || (next_ == at && held_ < 2)) return;
    for (int other : streamed_)
      if (slots_[other]) {
        slots_[other].reset();
        --held_;
      }
    next_ = at;
    changed_.notify_all();
  }

  void read() {
    std::unique_lock lock(mutex_);
    while (!failure_) {
      changed_.wait(lock, [&] { return ended_ || (held_ < 2 && !slots_[streamed_[next_]]); });
      if (ended_) return;
      reading_ = streamed_[next_];
      next_ = (next_ + 1) % static_cast<int>(streamed_.size());
      ++held_;
      lock.unlock();
      const auto start = Clock::now();
      std::optional<Layer> layer;
      std::exception_ptr failure;
      try {
        layer.emplace(load_(reading_));
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      counts_.reading_s += seconds_since(start);
      ++counts_.reads;
      slots_[reading_] = std::move(layer);
      reading_ = -1;
      failure_ = failure;
      changed_.notify_all();
    }
  }

  Load load_;
  std::vector<std::optional<Layer>> slots_;
  std::vector<int> streamed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread reader_;
  std::exception_ptr failure_;
  WindowCounts counts_;
  int held_ = 0;                 // streamed layers in memory or being read
  int next_ = 0, reading_ = -1;  // place of the next layer to read; index of the one being read
  bool ended_ = false;
};

}  // namespace weft
