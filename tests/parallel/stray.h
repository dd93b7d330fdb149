#pragma once
// Values for the tests of transports, and the law of strays, which holds for each transport: a
// message that an ended job has left behind is never taken for one of the next job. It is discarded
// and counted.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "parallel/communicator.h"

namespace weft::test {

inline Stream& cpu_stream() {
  thread_local Stream one = Stream::cpu(1);
  return one;
}

inline Tensor ramp(int64_t count, float first, float step) {
  Tensor x(DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) x.as<float>()[i] = first + step * static_cast<float>(i);
  return x;
}

// Two ranks or more; ranks beyond the second only take part in the barriers.
inline void expect_strays_are_discarded(Communicator& world) {
  Stream stream = Stream::cpu(1);
  const Tag tag{.kind = Payload::kHidden, .pass = {.step = 3}, .layer = 2};
  const Tag meeting{.kind = Payload::kControl, .hop = 99};
  const int64_t before = world.strays();
  if (world.rank() > 1) {
    for (int i = 0; i < 3; ++i) world.barrier(stream, meeting);
    return;
  }
  Communicator pair = world.group({0, 1}, 7);
  float value = 0;
  const TensorView view(&value, DType::kF32, {1});
  if (world.rank() == 0) {
    float early = 1, late = 2;
    const Message first{1, tag, {&early, DType::kF32, {1}}},
        second{1, tag, {&late, DType::kF32, {1}}};
    pair.begin_job();
    Communicator::Pending stray = pair.post(stream, {&first, 1}, {});
    world.barrier(stream, meeting);  // the stray lies with rank 1, which ends its job
    world.barrier(stream, meeting);  // rank 1 has begun two jobs more
    pair.begin_job();
    Communicator::Pending another = pair.post(stream, {&second, 1}, {});
    pair.begin_job();
    value = 3;
    pair.send(stream, 1, tag, view);
    pair.wait(stray);  // ends although nobody has received it
    pair.wait(another);
    world.barrier(stream, meeting);
    EXPECT_EQ(world.strays(), before);
    return;
  }
  pair.begin_job();
  world.barrier(stream, meeting);
  pair.begin_job();
  pair.begin_job();
  world.barrier(stream, meeting);
  pair.receive(stream, 0, tag, view);
  EXPECT_EQ(value, 3) << "a message of an earlier job";
  world.barrier(stream, meeting);
  for (int i = 0; i < 100 && world.strays() < before + 2; ++i)  // a count may travel
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(world.strays(), before + 2);
  world.end_job();
  for (int i = 0; i < 100 && world.held_bytes() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(world.held_bytes(), 0);
}

}  // namespace weft::test
