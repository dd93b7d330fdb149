#pragma once
// Work buffers of one thread. They are kept from call to call, so that nothing allocates in the
// loop.
#include <cstddef>
#include <cstdint>

namespace weft::cpu {

// There is one buffer per use; code that uses a slot never calls code that takes the same slot.
enum class Scratch : uint8_t {
  kLeft,
  kRight,
  kSums,
  kQuery,
  kKeys,
  kValues,
  kLogits,
  kState,
  kStageIn,
  kStageOut,
  kVendor,
  kPacked,
  kKeyTerms,
  kStarts,
  kRowTerms,
  kExpanded,
  kExpandedPairs,
  kCount
};

// Returns at least `bytes` of 64-byte aligned memory with undefined contents, valid until the
// thread asks for more in the same slot. The buffer grows on demand and stays until the thread
// ends.
void* thread_scratch_bytes(Scratch slot, size_t bytes);

template <class T>
T* thread_scratch(Scratch slot, int64_t count) {
  return static_cast<T*>(thread_scratch_bytes(slot, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace weft::cpu
