#include "parallel/transport/matchmaker.h"

#include <map>
#include <mutex>
#include <vector>

#include "kernels/check.h"
#include "parallel/communicator.h"

namespace weft {

namespace {

class LocalMatchmaker final : public Matchmaker {
 public:
  explicit LocalMatchmaker(int ranks) : ranks_(ranks) {}

  void join(int rank, MatchReceiver& receiver) override {
    const std::lock_guard guard(lock_);
    ranks_[rank].receiver = &receiver;
    ranks_[rank].stage = Stage::kBegun;
    if (!why_.empty()) receiver.ended(why_);
  }

  void leave(int rank) override {
    const std::lock_guard guard(lock_);
    RankState& state = ranks_[rank];
    state.receiver = nullptr;
    state.stage = Stage::kLeft;
    state.open.clear();
    check_deadlock();
  }

  void offer(int rank, const Offer& mine) override {
    CHECK(mine.peer >= 0 && mine.peer < static_cast<int>(ranks_.size()), "peer", mine.peer);
    const std::lock_guard guard(lock_);
    if (!why_.empty()) return;
    std::map<uint64_t, Offer>& others = ranks_[mine.peer].open;
    for (auto at = others.begin(); at != others.end(); ++at) {
      const Offer other = at->second;
      if (other.peer != rank || other.receive == mine.receive ||
          other.header.tag != mine.header.tag)
        continue;
      others.erase(at);
      return match(rank, mine, mine.peer, other);
    }
    ranks_[rank].open.emplace(mine.number, mine);
  }

  void withdraw(int rank, uint64_t number) override {
    const std::lock_guard guard(lock_);
    RankState& state = ranks_[rank];
    if (state.waits_for == number) state.waits_for = 0;
    if (state.open.erase(number) && state.receiver) state.receiver->withdrawn(number);
  }

  void waiting(int rank, uint64_t number) override {
    const std::lock_guard guard(lock_);
    if (!ranks_[rank].open.contains(number)) return;
    ranks_[rank].waits_for = number;
    check_deadlock();
  }

  void ready(int rank) override {
    const std::lock_guard guard(lock_);
    ranks_[rank].stage = Stage::kReady;
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
  struct RankState {
    MatchReceiver* receiver = nullptr;
    Stage stage = Stage::kMissing;
    std::map<uint64_t, Offer> open;  // oldest first
    uint64_t waits_for = 0;
  };

  std::string list(Stage stage) const {
    std::string ranks;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].stage == stage) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    return ranks;
  }

  void match(int rank, const Offer& mine, int peer, const Offer& other) {
    const MessageHeader& sent = mine.receive ? other.header : mine.header;
    const bool moves = mine.header.bytes == other.header.bytes && sent.bytes > 0;
    const Match both[] = {{other.number, sent, moves}, {mine.number, sent, moves}};
    for (const auto& [at, number] : {std::pair{rank, mine.number}, std::pair{peer, other.number}})
      if (ranks_[at].waits_for == number) ranks_[at].waits_for = 0;
    if (rank == peer) {
      ranks_[rank].receiver->matched(both);
      return;
    }
    ranks_[peer].receiver->matched({both, 1});
    ranks_[rank].receiver->matched({both + 1, 1});
  }

  void check_deadlock() {
    if (!why_.empty()) return;
    std::string text = "deadlock:";
    bool anybody = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const RankState& state = ranks_[r];
      text += (r ? "; rank " : " rank ") + std::to_string(r);
      if (state.stage == Stage::kLeft) {
        text += " has ended";
        continue;
      }
      if (state.waits_for == 0) return;
      anybody = true;
      const Offer& offer = state.open.at(state.waits_for);
      text += std::string(offer.receive ? " receives from rank " : " sends to rank ") +
              std::to_string(offer.peer) + " " + tag_text(offer.header.tag);
    }
    if (anybody) end(text);
  }

  void end(const std::string& why) {
    if (!why_.empty()) return;
    why_ = why;
    for (RankState& state : ranks_)
      if (state.receiver) state.receiver->ended(why_);
  }

  std::mutex lock_;
  std::vector<RankState> ranks_;
  std::string why_;
};

}  // namespace

std::shared_ptr<Matchmaker> make_matchmaker(int ranks) {
  CHECK(ranks > 0, "ranks", ranks);
  return std::make_shared<LocalMatchmaker>(ranks);
}

}  // namespace weft
