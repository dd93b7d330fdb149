#include "io/media/frame_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

Frame numbered(int value) {
  Frame frame(1, 1);
  frame.rgb[0] = static_cast<uint8_t>(value);
  return frame;
}

TEST(FrameQueue, HandsOutEveryFrameInOrderThenEnds) {
  FrameQueue queue(3);
  std::thread producer([&] {
    for (int i = 0; i < 200; ++i) queue.push(numbered(i));
    queue.close();
  });
  for (int i = 0; i < 200; ++i) {
    const auto frame = queue.pop();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->rgb[0], i);
  }
  EXPECT_FALSE(queue.pop());
  EXPECT_FALSE(queue.pop());
  producer.join();
}

TEST(FrameQueue, PushWaitsWhileFull) {
  FrameQueue queue(2);
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    for (int i = 0; i < 4; ++i) {
      queue.push(numbered(i));
      ++pushed;
    }
  });
  while (pushed < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(pushed, 2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.pop()->rgb[0], i);
  producer.join();
}

TEST(FrameQueue, CancelReachesAWaitingProducer) {
  FrameQueue queue(1);
  queue.push(numbered(0));
  std::string seen;
  std::thread producer([&] { seen = error_of([&] { queue.push(numbered(1)); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  queue.cancel(std::make_exception_ptr(Error(ErrorKind::kOutput, "the disk is full")));
  producer.join();
  EXPECT_EQ(seen, "the disk is full");
  EXPECT_THROW(queue.push(numbered(2)), Error);
}

TEST(FrameQueue, CancelReachesAWaitingConsumerAndTheFirstOneCounts) {
  FrameQueue queue(1);
  std::string seen;
  std::thread consumer([&] { seen = error_of([&] { queue.pop(); }); });
  queue.cancel(std::make_exception_ptr(Error(ErrorKind::kNonFinite, "first")));
  queue.cancel(std::make_exception_ptr(Error(ErrorKind::kOutput, "second")));
  consumer.join();
  EXPECT_EQ(seen, "first");
}

}  // namespace
}  // namespace weft::test
