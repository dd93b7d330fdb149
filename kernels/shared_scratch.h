#pragma once
// SharedScratch: memory that the weights of a model share, because a thread uses one of them at a
// time. It is made when weights are packed, so that a memory plan counts it among them.
#include <atomic>
#include <mutex>

#include "kernels/tensor.h"

namespace weft {

class SharedScratch {
 public:
  // Makes it hold at least `bytes` of the device's memory.
  void reserve(Device device, int64_t bytes) {
    if (bytes <= bytes_) return;
    const std::lock_guard lock(mutex_);
    if (bytes <= bytes_) return;
    memory_ = {};
    memory_ = Tensor(DType::kU8, {bytes}, device);
    content_ = 0;
    bytes_ = bytes;
  }

  // Runs use(data), and make(data) before it unless the memory still holds this content. `content`
  // is a number of new_content(). Another thread waits meanwhile.
  template <class Make, class Use>
  void with(uint64_t content, Make&& make, Use&& use) {
    const std::lock_guard lock(mutex_);
    void* const data = memory_.view().data;
    if (content_ != content) {
      content_ = 0;
      make(data);
      content_ = content;
    }
    use(data);
  }

  static uint64_t new_content() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

 private:
  std::mutex mutex_;  // guards the members below; `bytes_` is only written under it
  Tensor memory_;
  uint64_t content_ = 0;  // 0: nothing
  std::atomic<int64_t> bytes_{0};
};

}  // namespace weft
