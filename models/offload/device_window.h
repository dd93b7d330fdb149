#pragma once
// DeviceWindow: weight offload for a model whose layers do not all fit on the device. Some layers
// are kept on the device. The others are in pinned host memory and are copied into one of two slots
// on the device when needed. A separate queue copies the next layer while the current one computes
// (LayerWindow does the same between files and memory). Events order the copies and the work, so
// the host never waits.
#include <functional>
#include <optional>
#include <vector>

#include "kernels/check.h"
#include "kernels/copy.h"
#include "kernels/device_memory.h"
#include "kernels/device_plan.h"
#include "kernels/meter.h"
#include "models/offload/layer_window.h"
#include "models/offload/weight_offload.h"

namespace weft {

// Layer owns tensors on one device. `pieces(layer)` lists them. All layers must have the same
// number of tensors with the same extents and dtypes, in the same order.
template <class Layer>
class DeviceWindow {
 public:
  using Load = std::function<Layer(Stream& stream, int index)>;
  using Pieces = std::function<std::vector<TensorView>(const Layer&)>;

  // `load` loads layer `index` to the device through `copies`, a queue that only this window uses.
  // `resident` is at least 2 and less than `layers`.
  DeviceWindow(Stream copies, int layers, int resident, const Load& load, Pieces pieces)
      : copies_(std::move(copies)), pieces_(std::move(pieces)), kept_(layers), places_(layers, -1) {
    const int kept = resident - kWindowSlots;
    CHECK(kept >= 0 && resident < layers, "resident", resident, "of", layers);
    for (int i = 0; i < layers; ++i) {
      Layer layer = load(copies_, i);
      if (layer_is_kept(i, layers, kept)) {
        kept_[i].emplace(std::move(layer));
        continue;
      }
      places_[i] = static_cast<int>(streamed_.size());
      streamed_.push_back(store(layer));
      if (slots_.size() < kWindowSlots) slots_.push_back({std::move(layer), places_[i], {}, {}});
    }
    copies_.sync();
    if (copies_.queue()) copies_.queue()->trim();  // only loading needs memory for conversions
  }

  int size() const { return static_cast<int>(kept_.size()); }
  // The bytes that one pass over all layers copies to the device.
  size_t bytes_per_pass() const { return streamed_.size() * layer_bytes_; }
  int64_t copies() const { return count_; }  // layers copied so far
  // Waits for pending copies and returns the totals so far.
  WeightOffload streamed() {
    copies_.sync();
    return {count_ * static_cast<int64_t>(layer_bytes_), copying_.seconds(), waiting_.seconds()};
  }

  // Runs f(layer), which enqueues work on `stream`. If layers are used cyclically in their order,
  // the next offloaded layer is copied meanwhile. Any other order works too, but waits for copies.
  template <class F>
  void use(Stream& stream, int index, F&& f) {
    if (kept_[index]) return f(*kept_[index]);
    const int place = places_[index];
    Slot& slot = slot_of(place);
    waiting_.begin(stream);
    slot.filled.wait_on(stream);
    waiting_.end(stream);
    try {
      f(slot.layer);
    } catch (...) {
      stream.sync();  // work that is already enqueued reads the slot
      throw;
    }
    slot.used.record(stream);
    // This slot is for the offloaded layer after the next one. Its copy waits for the work above.
    const int next = (place + kWindowSlots) % static_cast<int>(streamed_.size());
    if (!held(next)) fill(slot, next);
  }

  // Calls f(layer, is_slot) for every layer on the device. is_slot is true for the two slots.
  template <class F>
  void for_resident(F&& f) const {
    for (const std::optional<Layer>& layer : kept_)
      if (layer) f(*layer, false);
    for (const Slot& slot : slots_) f(slot.layer, true);
  }

 private:
  struct Slot {
    Layer layer;
    int place;                 // index among the offloaded layers of the one it holds
    DeviceEvent filled, used;  // recorded after the copy; after the work that reads it
  };

  bool held(int place) const {
    for (const Slot& slot : slots_)
      if (slot.place == place) return true;
    return false;
  }

  Slot& slot_of(int place) {
    for (Slot& slot : slots_)
      if (slot.place == place) return slot;
    // Used out of order: the slot that was not filled last is replaced.
    Slot& slot = slots_[newest_ == 0 ? 1 : 0];
    fill(slot, place);
    return slot;
  }

  void fill(Slot& slot, int place) {
    slot.used.wait_on(copies_);
    copying_.begin(copies_);
    const char* from = static_cast<const char*>(streamed_[place].data());
    for (const TensorView& piece :
         is_dry_run(copies_) ? std::vector<TensorView>() : pieces_(slot.layer)) {
      copy(copies_, TensorView(const_cast<char*>(from), piece.dtype, piece.shape()), piece);
      from += movable_piece(piece.bytes());
    }
    copying_.end(copies_);
    slot.filled.record(copies_);
    slot.place = place;
    newest_ = static_cast<size_t>(&slot - slots_.data());
    ++count_;
  }

  // Copies a layer's weights to pinned memory.
  PinnedMemory store(const Layer& layer) {
    size_t bytes = 0;
    for (const TensorView& piece : pieces_(layer)) bytes += movable_piece(piece.bytes());
    CHECK(streamed_.empty() || bytes == layer_bytes_, "layers of", bytes, "and", layer_bytes_);
    layer_bytes_ = bytes;
    if (is_dry_run(copies_)) return {};
    PinnedMemory memory(bytes);
    char* to = static_cast<char*>(memory.data());
    for (const TensorView& piece : pieces_(layer)) {
      copy(copies_, piece, TensorView(to, piece.dtype, piece.shape()));
      to += movable_piece(piece.bytes());
    }
    copies_.sync();
    return memory;
  }

  Stream copies_;
  Pieces pieces_;
  std::vector<std::optional<Layer>> kept_;
  std::vector<int> places_;  // per layer: index among the offloaded layers; -1: it is kept
  std::vector<PinnedMemory> streamed_;
  std::vector<Slot> slots_;
  DeviceClock copying_, waiting_;
  size_t layer_bytes_ = 0, newest_ = 1;
  int64_t count_ = 0;
};

}  // namespace weft
