// LayerWindow with a part of the layers in memory gives the requested layer, in any order and after
// any failure.
#include "models/offload/layer_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace weft {
namespace {

// A layer that counts how many exist in memory.
struct Layer {
  Layer(int index, std::atomic<int>& live) : index(index), live(&live) { ++live; }
  Layer(Layer&& other) noexcept : index(other.index), live(other.live) { other.live = nullptr; }
  Layer& operator=(Layer&& other) noexcept {
    std::swap(index, other.index);
    std::swap(live, other.live);
    return *this;
  }
  ~Layer() {
    if (live) --*live;
  }
  int index;
  std::atomic<int>* live;
};

struct Window {
  Window(int layers, int resident, ReadPolicy reading = ReadPolicy::kAhead)
      : window(
            layers, resident, [this](int index) { return load(index); },
            [this](int index) { return load(index); },
            [](const Layer& layer) { return size_of(layer.index); }, reading) {}
  Layer load(int index) {
    if (index == broken) throw std::runtime_error("layer " + std::to_string(index));
    ++loads;
    Layer layer(index, live);
    most = std::max(most.load(), live.load());
    return layer;
  }
  static size_t size_of(int index) { return static_cast<size_t>(100 + index); }
  void use(int index) {
    window.use(index, [&](const Layer& layer) { EXPECT_EQ(layer.index, index); });
  }

  std::atomic<int> live{0}, most{0}, loads{0}, broken{-1};
  LayerWindow<Layer> window;
};

TEST(LayerWindow, ServesAnyOrderWithinItsRoom) {
  for (int layers = 1; layers <= 7; ++layers)
    for (int resident = 2; resident <= layers + 1; ++resident) {
      Window window(layers, resident);
      for (int pass = 0; pass < 3; ++pass)
        for (int i = 0; i < layers; ++i) window.use(i);
      for (int i = layers - 1; i >= 0; --i) window.use(i);
      for (int i = 0; i < 40; ++i) window.use(i * i * 7 % layers);
      EXPECT_LE(window.most, std::min(layers, resident));
      if (resident >= layers) {
        EXPECT_EQ(window.loads, layers);
        EXPECT_EQ(window.window.counts().reads, 0);
      }
    }
}

TEST(LayerWindow, ReadsEveryStreamedLayerOncePerPassInOrder) {
  Window window(6, 3);
  for (int pass = 0; pass < 10; ++pass)
    for (int i = 0; i < 6; ++i) window.use(i);
  const int64_t streamed = 6 - (3 - 2);
  // The first two were there at the beginning, and two are read in advance.
  EXPECT_EQ(window.window.settled_counts().reads, 10 * streamed);
}

TEST(LayerWindow, CountsTheBytesOfLayersOfAnySize) {
  for (const ReadPolicy reading : {ReadPolicy::kAhead, ReadPolicy::kOnUse}) {
    Window window(6, 3, reading);
    EXPECT_EQ(window.loads, 3);
    EXPECT_EQ(window.live, 3);
    int64_t all = 0, kept = 0;
    for (int i = 0; i < 6; ++i) {
      all += static_cast<int64_t>(Window::size_of(i));
      if (layer_is_kept(i, 6, 1)) kept += static_cast<int64_t>(Window::size_of(i));
    }
    for (int pass = 0; pass < 4; ++pass)
      for (int i = 0; i < 6; ++i) window.use(i);
    EXPECT_EQ(window.window.settled_counts().bytes, 4 * (all - kept));
    EXPECT_EQ(static_cast<int64_t>(window.window.bytes_per_pass()), all - kept);
  }
}

// Without a thread a window holds as much as with one, in any order.
TEST(LayerWindow, ReadsOnUseInTheSameRoom) {
  for (int layers = 1; layers <= 7; ++layers)
    for (int resident = 2; resident <= layers + 1; ++resident) {
      Window window(layers, resident, ReadPolicy::kOnUse);
      EXPECT_EQ(window.live, std::min(layers, resident));
      for (int pass = 0; pass < 2; ++pass)
        for (int i = 0; i < layers; ++i) window.use(i);
      EXPECT_EQ(window.live, std::min(layers, resident));
      for (int i = 0; i < 40; ++i) window.use(i * i * 7 % layers);
      EXPECT_EQ(window.most, std::min(layers, resident));
    }
}

// A pass fails at any layer. The next pass starts again from the first.
TEST(LayerWindow, GoesOnBehindAFailedUse) {
  for (int at = 0; at < 6; ++at) {
    Window window(6, 2);
    for (int i = 0; i < at; ++i) window.use(i);
    EXPECT_THROW(window.window.use(at, [](const Layer&) { throw std::bad_alloc(); }),
                 std::bad_alloc);
    for (int pass = 0; pass < 2; ++pass)
      for (int i = 0; i < 6; ++i) window.use(i);
    EXPECT_LE(window.most, 2);
  }
}

TEST(LayerWindow, HandsOnWhatTheReaderMet) {
  Window window(4, 2);
  window.use(0);
  window.broken = 2;
  EXPECT_THROW(
      {
        for (int pass = 0; pass < 3; ++pass)
          for (int i = 0; i < 4; ++i) window.use(i);
      },
      std::runtime_error);
  window.broken = -1;  // the next passes read it again
  for (int pass = 0; pass < 2; ++pass)
    for (int i = 0; i < 4; ++i) {
      try {
        window.use(i);
      } catch (const std::runtime_error&) {
        EXPECT_EQ(pass, 0);  // it had been read again while it was broken
      }
    }
  for (int i = 0; i < 4; ++i) window.use(i);
}

}  // namespace
}  // namespace weft
