#include "parallel/message_board.h"

#include <map>
#include <mutex>
#include <vector>

#include "kernels/check.h"
#include "parallel/communicator.h"

namespace weft {

namespace {

class LocalBoard final : public MessageBoard {
 public:
  explicit LocalBoard(int ranks) : seats_(ranks) {}

  void join(int rank, BoardListener& listener) override {
    const std::lock_guard guard(lock_);
    seats_[rank].listener = &listener;
    seats_[rank].stage = Stage::kBegun;
    if (!why_.empty()) listener.ended(why_);
  }

  void leave(int rank) override {
    const std::lock_guard guard(lock_);
    Seat& seat = seats_[rank];
    seat.listener = nullptr;
    seat.stage = Stage::kLeft;
    seat.open.clear();
    look_for_deadlock();
  }

  void offer(int rank, const Offer& mine) override {
    CHECK(mine.peer >= 0 && mine.peer < static_cast<int>(seats_.size()), "peer", mine.peer);
    const std::lock_guard guard(lock_);
    if (!why_.empty()) return;
    std::map<uint64_t, Offer>& others = seats_[mine.peer].open;
    for (auto at = others.begin(); at != others.end(); ++at) {
      const Offer other = at->second;
      if (other.peer != rank || other.receive == mine.receive ||
          other.header.tag != mine.header.tag)
        continue;
      others.erase(at);
      return match(rank, mine, mine.peer, other);
    }
    seats_[rank].open.emplace(mine.number, mine);
  }

  void withdraw(int rank, uint64_t number) override {
    const std::lock_guard guard(lock_);
    Seat& seat = seats_[rank];
    if (seat.waits_for == number) seat.waits_for = 0;
    if (seat.open.erase(number) && seat.listener) seat.listener->withdrawn(number);
  }

  void waiting(int rank, uint64_t number) override {
    const std::lock_guard guard(lock_);
    if (!seats_[rank].open.contains(number)) return;
    seats_[rank].waits_for = number;
    look_for_deadlock();
  }

  void ready(int rank) override {
    const std::lock_guard guard(lock_);
    seats_[rank].stage = Stage::kReady;
  }

  void late(int, double seconds) override {
    const std::lock_guard guard(lock_);
    const std::string missing = list(Stage::kMissing), begun = list(Stage::kBegun);
    std::string text = "start-up:";
    if (!missing.empty()) text += " rank " + missing + " has not begun";
    if (!begun.empty())
      text += std::string(missing.empty() ? "" : ",") + " rank " + begun + " is not ready";
    char limit[32];
    std::snprintf(limit, sizeof limit, "%g", seconds);
    end(text + " within " + limit + " s");
  }

  void abort(const std::string& why) override {
    const std::lock_guard guard(lock_);
    end(why.empty() ? "aborted" : why);
  }

 private:
  enum class Stage : uint8_t { kMissing, kBegun, kReady, kLeft };
  struct Seat {
    BoardListener* listener = nullptr;
    Stage stage = Stage::kMissing;
    std::map<uint64_t, Offer> open;  // oldest first
    uint64_t waits_for = 0;
  };

  std::string list(Stage stage) const {
    std::string ranks;
    for (size_t r = 0; r < seats_.size(); ++r)
      if (seats_[r].stage == stage) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    return ranks;
  }

  void match(int rank, const Offer& mine, int peer, const Offer& other) {
    const MessageHeader& sent = mine.receive ? other.header : mine.header;
    const bool moves = mine.header.bytes == other.header.bytes && sent.bytes > 0;
    const Match both[] = {{other.number, sent, moves}, {mine.number, sent, moves}};
    for (const auto& [at, number] : {std::pair{rank, mine.number}, std::pair{peer, other.number}})
      if (seats_[at].waits_for == number) seats_[at].waits_for = 0;
    if (rank == peer) {
      seats_[rank].listener->matched(both);
      return;
    }
    seats_[peer].listener->matched({both, 1});
    seats_[rank].listener->matched({both + 1, 1});
  }

  void look_for_deadlock() {
    if (!why_.empty()) return;
    std::string text = "deadlock:";
    bool anybody = false;
    for (size_t r = 0; r < seats_.size(); ++r) {
      const Seat& seat = seats_[r];
      text += (r ? "; rank " : " rank ") + std::to_string(r);
      if (seat.stage == Stage::kLeft) {
        text += " has ended";
        continue;
      }
      if (seat.waits_for == 0) return;
      anybody = true;
      const Offer& offer = seat.open.at(seat.waits_for);
      text += std::string(offer.receive ? " receives from rank " : " sends to rank ") +
              std::to_string(offer.peer) + " " + tag_text(offer.header.tag);
    }
    if (anybody) end(text);
  }

  void end(const std::string& why) {
    if (!why_.empty()) return;
    why_ = why;
    for (Seat& seat : seats_)
      if (seat.listener) seat.listener->ended(why_);
  }

  std::mutex lock_;
  std::vector<Seat> seats_;
  std::string why_;
};

}  // namespace

std::shared_ptr<MessageBoard> make_message_board(int ranks) {
  CHECK(ranks > 0, "ranks", ranks);
  return std::make_shared<LocalBoard>(ranks);
}

}  // namespace weft
