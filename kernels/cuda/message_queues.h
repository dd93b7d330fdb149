#pragma once
// The queues whose work may wait for other ranks. What waits for a whole device, as freeing memory
// does, may wait for a rank that waits for this one.
#include <vector>

#include "kernels/cuda/queue.h"

namespace weft {

// Says that the queue carries messages, until it ends.
void carry_messages(const CudaQueue& queue);
// True while a queue of the device that carries messages has work left.
bool messages_wait(int index);
// The work that the queues of a device without messages have been given so far, without those that
// are being recorded.
class ComputingSoFar {
 public:
  explicit ComputingSoFar(int index);
  bool done() const;  // does not wait

 private:
  std::vector<std::shared_ptr<CUevent_st>> events_;
};

}  // namespace weft
