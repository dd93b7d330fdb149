#pragma once
// LambdaHost: the host of a small job, of functions. Those that are empty do what JobHost does.
#include <functional>

#include "engine/latents/job.h"

namespace weft::test {

struct LambdaHost final : JobHost {
  std::function<void(const Segment&, const TensorView&)> on_noise{}, on_signal{}, on_take{};
  std::function<NextSegment(int64_t number)> on_next{};
  std::function<void(const Channels&)> on_channels{};
  std::function<StepAction(int turn, int64_t word)> on_turn{};
  std::function<int64_t(int turn)> on_decide{};
  std::function<void(int turn, Snapshot)> on_keep{};
  std::function<void(const Pass&, const Range& own, const TensorView&)> on_velocity{};
  std::function<void(const Pass&, Change&)> on_first_block{};

  void noise(const Segment& segment, const TensorView& latent) override {
    if (on_noise) on_noise(segment, latent);
  }
  NextSegment next(int64_t number, int64_t most) override {
    return on_next ? on_next(number) : JobHost::next(number, most);
  }
  void signal(const Segment& block, const TensorView& signal) override {
    on_signal ? on_signal(block, signal) : JobHost::signal(block, signal);
  }
  void take(const Segment& segment, const TensorView& latent) override {
    if (on_take) on_take(segment, latent);
  }
  void take_channels(const Channels& each) override {
    if (on_channels) on_channels(each);
  }
  StepAction before_turn(int turn, int64_t word) override {
    return on_turn ? on_turn(turn, word) : JobHost::before_turn(turn, word);
  }
  int64_t decide(int turn) override { return on_decide ? on_decide(turn) : 0; }
  void keep(int turn, Snapshot snapshot) override {
    if (on_keep) on_keep(turn, std::move(snapshot));
  }
  void velocity(const Pass& pass, const Range& own, const TensorView& velocity) override {
    if (on_velocity) on_velocity(pass, own, velocity);
  }
  void first_block(const Pass& pass, Change& change) override {
    if (on_first_block) on_first_block(pass, change);
  }
};

}  // namespace weft::test
