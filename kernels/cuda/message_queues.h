#pragma once
// The queues whose work may wait for other ranks. What waits for a whole device, as freeing memory
// does, may wait for a rank that waits for this one.
#include "kernels/cuda/queue.h"

namespace weft {

// Says that the queue carries messages, until it ends.
void carry_messages(const CudaQueue& queue);
// True while a queue of the device that carries messages has work left.
bool messages_wait(int index);
// The same as wait_for_queues() without the queues that carry messages.
void wait_for_computing(int index);

}  // namespace weft
