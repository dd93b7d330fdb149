#pragma once
// DeviceWindow: a model's layers on a device that cannot hold them all: some are kept there, the
// others lie in pinned host memory and pass through two slots, each copied by a queue of its own
// while the layer before it computes (as LayerWindow does between files and memory). The host never
// waits: events order the copies and the work.
#include <functional>
#include <optional>
#include <vector>

#include "kernels/check.h"
#include "kernels/copy.h"
#include "kernels/device_memory.h"
#include "kernels/device_plan.h"
#include "models/layer_window.h"
#include "models/streamed_weights.h"

namespace weft {

// Through which the layers pass that are not kept.
inline constexpr int kWindowSlots = 2;

// Layer: owns tensors of one device; `pieces(layer)` names them, of all layers alike: the same
// number, extents and dtypes in the same order.
template <class Layer>
class DeviceWindow {
 public:
  using Load = std::function<Layer(Stream& stream, int index)>;
  using Pieces = std::function<std::vector<TensorView>(const Layer&)>;

  // `load` puts layer `index` on the device by work of `copies`, a queue for this window alone. At
  // least 2 of `layers` are resident, and fewer than all.
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
    if (copies_.queue()) copies_.queue()->trim();  // loading converts, copying does not
  }

  int size() const { return static_cast<int>(kept_.size()); }
  // Bytes that one pass over all layers copies to the device.
  size_t bytes_per_pass() const { return streamed_.size() * layer_bytes_; }
  int64_t copies() const { return count_; }  // layers copied so far
  // Waits for what is under way.
  StreamedWeights streamed() {
    copies_.sync();
    return {count_ * static_cast<int64_t>(layer_bytes_), copying_.seconds(), waiting_.seconds()};
  }

  // Runs f(layer), which puts work into `stream`. In the order of the layers, again and again, the
  // next streamed layer is under way meanwhile; any other order is served too, later.
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
      stream.sync();  // what was given reads the slot
      throw;
    }
    slot.used.record(stream);
    // The slot is the next but one's, whose copy waits for what was given just now.
    const int next = (place + kWindowSlots) % static_cast<int>(streamed_.size());
    if (!held(next)) fill(slot, next);
  }

  // Calls f(layer, whether others pass through its place) for every layer that lies on the device.
  template <class F>
  void for_resident(F&& f) const {
    for (const std::optional<Layer>& layer : kept_)
      if (layer) f(*layer, false);
    for (const Slot& slot : slots_) f(slot.layer, true);
  }

 private:
  struct Slot {
    Layer layer;
    int place;                 // of the streamed layer whose weights it has
    DeviceEvent filled, used;  // by copies_; by the stream of the work
  };

  bool held(int place) const {
    for (const Slot& slot : slots_)
      if (slot.place == place) return true;
    return false;
  }

  Slot& slot_of(int place) {
    for (Slot& slot : slots_)
      if (slot.place == place) return slot;
    // Out of order: whichever was not filled last.
    Slot& slot = slots_[newest_ == 0 ? 1 : 0];
    fill(slot, place);
    return slot;
  }

  void fill(Slot& slot, int place) {
    slot.used.wait_on(copies_);
    copying_.begin(copies_);
    const char* from = static_cast<const char*>(streamed_[place].data());
    for (const TensorView& piece : pieces_(slot.layer)) {
      copy(copies_, TensorView(const_cast<char*>(from), piece.dtype, piece.shape()), piece);
      from += movable_piece(piece.bytes());
    }
    copying_.end(copies_);
    slot.filled.record(copies_);
    slot.place = place;
    newest_ = static_cast<size_t>(&slot - slots_.data());
    ++count_;
  }

  // A layer's weights in pinned memory.
  PinnedMemory store(const Layer& layer) {
    size_t bytes = 0;
    for (const TensorView& piece : pieces_(layer)) bytes += movable_piece(piece.bytes());
    CHECK(streamed_.empty() || bytes == layer_bytes_, "layers of", bytes, "and", layer_bytes_);
    layer_bytes_ = bytes;
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
  std::vector<int> places_;  // among the streamed layers, -1: it is kept
  std::vector<PinnedMemory> streamed_;
  std::vector<Slot> slots_;
  DeviceClock copying_, waiting_;
  size_t layer_bytes_ = 0, newest_ = 1;
  int64_t count_ = 0;
};

}  // namespace weft
