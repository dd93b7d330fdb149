#include "parallel/transport/matchmaker.h"

#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/check.h"
#include "parallel/communicator.h"

namespace weft {

namespace {

// The messages from one rank to another with one tag.
struct Route {
  int from = 0, to = 0;
  TagBits tag{};
  bool operator==(const Route&) const = default;
};

struct RouteHash {
  size_t operator()(const Route& route) const {
    const auto ends = static_cast<uint64_t>(route.from) << 32 | static_cast<uint32_t>(route.to);
    return std::hash<TagBits>()(route.tag) * 31 + std::hash<uint64_t>()(ends);
  }
};

// An offer is found by its route, and the ranks that are busy are counted, so that the work of a
// call does not grow with the number of ranks.
class LocalMatchmaker final : public Matchmaker {
 public:
  explicit LocalMatchmaker(int ranks) : ranks_(ranks), busy_(ranks) {}

  void join(int rank, MatchReceiver& receiver) override {
    const std::lock_guard guard(lock_);
    ranks_[rank].receiver = &receiver;
    ranks_[rank].stage = Stage::kBegun;
    if (!why_.empty()) receiver.ended(why_);
  }

  void ask(int rank, const MatchRequest& request) override {
    const std::lock_guard guard(lock_);
    const uint64_t number = request.offer.number;
    switch (request.kind) {
      case Kind::kOffer:
        return take_offer(rank, request.offer);
      case Kind::kWithdraw:
        return take_back(rank, number);
      case Kind::kWaiting:
        return set_waiting_for(rank, number);
      case Kind::kBeginJob:
        return next_job_of(rank);
      case Kind::kReady:
        ranks_[rank].stage = Stage::kReady;
        return;
      case Kind::kLate:
        return end_start_up(request.seconds);
      case Kind::kAbort:
        return end(request.text.empty() ? "aborted" : request.text);
      case Kind::kLeave:
        return take_leave(rank);
    }
  }

  int64_t work() const override {
    const std::lock_guard guard(lock_);
    return work_;
  }

 private:
  enum class Stage : uint8_t { kMissing, kBegun, kReady, kLeft };
  struct RankState {
    MatchReceiver* receiver = nullptr;
    Stage stage = Stage::kMissing;
    std::unordered_map<uint64_t, Offer> open;
    uint64_t waits_for = 0;
    int job = 0;
  };

  void take_offer(int rank, const Offer& mine) {
    CHECK(mine.peer >= 0 && mine.peer < static_cast<int>(ranks_.size()), "peer", mine.peer);
    if (!why_.empty()) return;
    ++work_;
    if (!mine.receive && of_earlier_job(mine.header.tag, ranks_[mine.peer].job))
      return discard(rank, mine.number, mine.peer);
    const auto found = (mine.receive ? sends_ : receives_).find(route_of(rank, mine));
    if (found != (mine.receive ? sends_ : receives_).end())
      return match(rank, mine, mine.peer, take(mine.peer, found->second.front()));
    (mine.receive ? receives_ : sends_)[route_of(rank, mine)].push_back(mine.number);
    ranks_[rank].open.emplace(mine.number, mine);
  }

  void take_back(int rank, uint64_t number) {
    RankState& state = ranks_[rank];
    if (state.waits_for == number) set_waiting(state, 0);
    if (!state.open.contains(number)) return;
    take(rank, number);
    if (state.receiver) state.receiver->withdrawn(number);
  }

  void set_waiting_for(int rank, uint64_t number) {
    ++work_;
    if (!ranks_[rank].open.contains(number)) return;
    set_waiting(ranks_[rank], number);
    check_deadlock();
  }

  void next_job_of(int rank) {
    ranks_[rank].job = next_job(ranks_[rank].job);
    std::vector<std::pair<int, uint64_t>> stale;
    for (const auto& [route, numbers] : sends_)
      if (route.to == rank && of_earlier_job(route.tag, ranks_[rank].job))
        for (const uint64_t number : numbers) stale.emplace_back(route.from, number);
    for (const auto& [from, number] : stale) {
      take(from, number);
      discard(from, number, rank);
    }
  }

  void take_leave(int rank) {
    RankState& state = ranks_[rank];
    set_waiting(state, 0);
    state.receiver = nullptr;
    if (state.stage != Stage::kLeft) --busy_;
    state.stage = Stage::kLeft;
    while (!state.open.empty()) take(rank, state.open.begin()->first);
    check_deadlock();
  }

  void end_start_up(double seconds) {
    const std::string missing = list(Stage::kMissing), begun = list(Stage::kBegun);
    std::string text = "start-up:";
    if (!missing.empty()) text += " rank " + missing + " has not begun";
    if (!begun.empty())
      text += std::string(missing.empty() ? "" : ",") + " rank " + begun + " is not ready";
    char limit[32];
    std::snprintf(limit, sizeof limit, "%g", seconds);
    end(text + " within " + limit + " s");
  }

  static Route route_of(int rank, const Offer& offer) {
    if (offer.receive) return {offer.peer, rank, offer.header.tag};
    return {rank, offer.peer, offer.header.tag};
  }

  void set_waiting(RankState& state, uint64_t number) {
    busy_ += (state.waits_for != 0) - (number != 0);
    state.waits_for = number;
  }

  // Removes an open offer.
  Offer take(int rank, uint64_t number) {
    const auto at = ranks_[rank].open.find(number);
    const Offer offer = at->second;
    ranks_[rank].open.erase(at);
    Routes& routes = offer.receive ? receives_ : sends_;
    const auto found = routes.find(route_of(rank, offer));
    std::erase(found->second, number);
    if (found->second.empty()) routes.erase(found);
    return offer;
  }

  // Discards a send that is not open (any more).
  void discard(int rank, uint64_t number, int peer) {
    if (ranks_[rank].waits_for == number) set_waiting(ranks_[rank], 0);
    if (ranks_[rank].receiver) ranks_[rank].receiver->withdrawn(number);
    if (ranks_[peer].receiver) ranks_[peer].receiver->strayed();
  }

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
      if (ranks_[at].waits_for == number) set_waiting(ranks_[at], 0);
    if (rank == peer) {
      ranks_[rank].receiver->matched(both);
      return;
    }
    ranks_[peer].receiver->matched({both, 1});
    ranks_[rank].receiver->matched({both + 1, 1});
  }

  void check_deadlock() {
    if (!why_.empty() || busy_ > 0) return;
    work_ += static_cast<int64_t>(ranks_.size());
    std::string text = "deadlock:";
    bool anybody = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const RankState& state = ranks_[r];
      text += (r ? "; rank " : " rank ") + std::to_string(r);
      if (state.stage == Stage::kLeft) {
        text += " has ended";
        continue;
      }
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

  using Routes = std::unordered_map<Route, std::deque<uint64_t>, RouteHash>;  // oldest first

  mutable std::mutex lock_;
  std::vector<RankState> ranks_;
  Routes sends_, receives_;  // the numbers of open offers
  int64_t busy_;             // ranks that neither wait nor have left
  int64_t work_ = 0;
  std::string why_;
};

}  // namespace

std::shared_ptr<Matchmaker> make_matchmaker(int ranks) {
  CHECK(ranks > 0, "ranks", ranks);
  return std::make_shared<LocalMatchmaker>(ranks);
}

}  // namespace weft
