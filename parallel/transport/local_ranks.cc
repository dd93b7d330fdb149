// run_ranks(): threads that are the ranks of transports.
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel/transport/local.h"

namespace weft {
namespace {

// A usage error, a stop and a failed message are not the fault of one rank.
[[noreturn]] void rethrow(int rank, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const bool named = error.kind() != ErrorKind::kComm && error.kind() != ErrorKind::kUsage &&
                       error.kind() != ErrorKind::kStopped;
    throw Error(error.kind(), (named ? "rank " + std::to_string(rank) + ": " : "") + error.what());
  }
}

}  // namespace

void run_ranks(std::span<const std::shared_ptr<Transport>> transports,
               const std::function<void(Communicator&)>& work,
               const std::function<void(int rank, bool ended)>& note) {
  std::mutex lock;  // guards the first failure
  std::exception_ptr first;
  int first_rank = 0;
  const auto failed = [&](int rank) {
    const std::lock_guard guard(lock);
    if (first) return;
    first = std::current_exception();
    first_rank = rank;
  };
  const auto rank_main = [&](int rank) {
    if (note) note(rank, false);
    try {
      Communicator communicator(transports[rank]);
      work(communicator);
    } catch (const std::exception& error) {
      failed(rank);
      const auto* known = dynamic_cast<const Error*>(&error);
      // Ranks stop by agreement, and others may still need this rank's last messages.
      if (!known || known->kind() != ErrorKind::kStopped)
        transports[rank]->abort("rank " + std::to_string(rank) + " failed: " + error.what());
    } catch (...) {
      failed(rank);
      transports[rank]->abort("rank " + std::to_string(rank) + " failed");
    }
    if (note) note(rank, true);
  };
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < transports.size(); ++rank)
    threads.emplace_back(rank_main, static_cast<int>(rank));
  rank_main(0);
  for (std::thread& thread : threads) thread.join();
  if (first) rethrow(first_rank, first);
}

}  // namespace weft
