#pragma once
// Causal window: the segments of an endless video are generated one after the other. A segment sees
// its own keys, those that the segments before it left in the same denoising step, as far as a
// window of frames reaches, and a sink: keys of reference frames that never leave.
//
// Split: none; this mixer sees all tokens of its heads, alone or inside Ulysses. It does not serve
//   a ring.
// Talk: none; bytes sent: 0.
// Past keys (Attend::past): refused. Replicated rows: only of a sink, whose keys stay with it.
// Memory: for every layer and step 2 C S Akv E elements for a window of C frames of S tokens; for
//   every layer 2 R Akv E per sink of R tokens. Arena: (C S + R) Akv E.
//   In 8 bits a kept row has E + 1 bytes, and the arena takes as much again for the values.
// Exact, but for kept rows in 8 bits (kernels/row_code.h): as fp8, a value changes by at most 2^-4
// of itself or 2^-17 of its row's largest; as int8, by at most 1/128 of its row's largest. Keys are
// kept after their norm and before rope. Whoever reads them gives them positions that count from
// the first frame of the window, so no position grows with the stream. Frame f lies in slot f mod C
// of a ring, so the segment that is written replaces the oldest frames,
//   and segments may have any number of frames up to C.
// Paper: Live Avatar (2025, arXiv 2512.04677).
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "parallel/partition.h"
#include "parallel/token_mixer.h"

namespace weft {

// The frame at which a segment sees the sink: `start`, or so far after the segment's first frame,
// where that is later. A range of several distances is drawn from by segment and step.
struct SinkPosition {
  int64_t start = 30;
  Range distance{30, 31};
  uint64_t seed = 0;
};
int64_t sink_frame(const SinkPosition& position, int64_t segment, int step, int64_t first_frame);

// Kept rows have the dtype of the keys, or are coded in 8 bits (kernels/row_code.h).
enum class KeptRows : uint8_t { kCompute, kFp8, kInt8 };
constexpr bool is_coded(KeptRows kept) { return kept != KeptRows::kCompute; }

struct CausalWindowShape {
  BlockRange layers{};
  Range steps{};            // the denoising steps that this rank computes
  int64_t frames = 1;       // C, the frames of the present segment among them
  int64_t frame_tokens{};   // S
  int64_t sink_tokens = 0;  // R, replicated rows among them
  int sinks = 1;            // how many are kept at a time
  KeptRows kept = KeptRows::kCompute;
};

// The keys and values of one layer and step, or of a sink.
struct WindowRing {
  Tensor rows;      // [2, tokens, Akv, E]: keys, values; coded [2, tokens, Akv, E + 1]
  Range written{};  // the frames of the last segment
};

// The rings of all ranks of a process between two runs of one stream, by layer and step, so that
// the next run may split them otherwise. Any thread may use it.
class WindowStore {
 public:
  void put(int layer, int step, WindowRing ring);
  WindowRing take(int layer, int step);  // empty where there is none

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, WindowRing> rings_;
};

// The keys and values that a rank keeps. The mixers that RankPlacement makes share them.
class CausalWindow {
 public:
  explicit CausalWindow(const CausalWindowShape& shape);

  // Says what the next forward does: one of a segment, or one that makes the keys of a sink.
  struct WindowSegment {
    int step = 0;
    Range frames{};              // of the stream: those after the last segment, or its own again
    const Rope* keys = nullptr;  // the positions of the frames in the slots (slot_positions)
    int sink = 0;                // which one it sees
    const Rope* sink_keys = nullptr;
    const Rope* sink_replicated = nullptr;  // the positions of its replicated rows; null: none
  };
  void begin(const WindowSegment& segment);
  void begin_sink(int sink);

  // The frames that a segment sees in the window.
  Range seen(const Range& segment) const;
  // The positions of the frames that it sees, by slot. They count from the first of seen().
  std::vector<double> slot_positions(const Range& segment) const;

  size_t bytes() const;

  // Moves the rings of segments to a store and from there. Sinks are made anew. All ranks have the
  // same device.
  void leave(WindowStore& store);
  void take(WindowStore& store);

 private:
  friend class CausalWindowMixer;
  using Ring = WindowRing;
  // Returns the store of keys like `keys`, with room for `tokens`.
  Ring& made(Ring& ring, int64_t tokens, const TensorView& keys) const;
  Ring& ring(int layer, int64_t step) {
    return rings_[(layer - shape_.layers.begin) * shape_.steps.size() + step - shape_.steps.begin];
  }
  // Calls each(layer, step, ring) for every ring of segments.
  template <class F>
  void for_each_ring(F&& each);
  Ring& sink(int layer, int sink) {
    return sinks_[(layer - shape_.layers.begin) * shape_.sinks + sink];
  }
  void write(Context& context, Ring& ring, const TensorView& k, const TensorView& v) const;
  // Keeps rows [n, Akv, E], and makes them readable.
  void keep(Context& context, const TensorView& from, const TensorView& to) const;
  TensorView rows_of(Context& context, const TensorView& kept, DType dtype) const;

  CausalWindowShape shape_;
  WindowSegment segment_{};
  int makes_sink_ = -1;
  std::vector<Ring> rings_, sinks_;  // allocated when they are first written
};

class CausalWindowMixer final : public TokenMixer {
 public:
  explicit CausalWindowMixer(CausalWindow& window) : window_(window) {}
  void attend(Context& context, const Attend& attend) override;

 private:
  void make_sink(Context& context, const Attend& attend);

  CausalWindow& window_;
};

}  // namespace weft
