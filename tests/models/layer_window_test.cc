// LayerWindow with a part of the layers in memory gives the requested layer, in any order and after
// any failure.
#include "models/layer_window.h"

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
  Window(int layers, int resident)
      : window(layers, resident, [this](int index) {
          if (index == broken) throw std::runtime_error("layer " + std::to_string(index));
          ++loads;
          Layer layer(index, live);
          most = std::max(most.load(), live.load());
          return layer;
        }) {}
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
  EXPECT_GE(window.window.counts().reads, 10 * streamed);
  EXPECT_LE(window.window.counts().reads, 10 * streamed + 2);  // two may be read in advance
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
}

}  // namespace
}  // namespace weft
