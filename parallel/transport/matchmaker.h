#pragma once
// Matchmaker: pairs the sends and receives of a job by rank and tag before a byte moves, for wires
// that have no tags (parallel/transport/nccl.h). It tells every rank its matches in one order for
// the whole job, so ranks that carry them out in that order never wait in a circle.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "parallel/transport/transport.h"

namespace weft {

// One end of a message, as its rank announces it. Numbers rise from 1 on every rank.
struct Offer {
  uint64_t number = 0;
  bool receive = false;
  int peer = 0;
  MessageHeader header{};
};

// Both ends of a message have been offered.
struct Match {
  uint64_t number = 0;   // the number of the rank's own offer
  MessageHeader header;  // the sender's
  bool moves = false;    // both ends agree on the bytes, and there are some
};

// Receives what the matchmaker tells one rank. It is called under the matchmaker's lock, so an
// implementation only notes the call and returns.
struct MatchReceiver {
  virtual ~MatchReceiver() = default;
  // A rank that sends to itself gets two matches at once; they must be carried out together.
  virtual void matched(std::span<const Match> matches) = 0;
  virtual void withdrawn(uint64_t number) = 0;
  virtual void strayed() = 0;  // a message to this rank was discarded (Transport::begin_job)
  virtual void ended(const std::string& why) = 0;  // the job has failed; called at most once
};

// A rank's request.
struct MatchRequest {
  enum class Kind : uint8_t {
    kOffer,
    kWithdraw,
    kWaiting,
    kBeginJob,
    kReady,
    kLate,
    kAbort,
    kLeave
  };
  Kind kind = Kind::kOffer;
  Offer offer{};       // kWithdraw, kWaiting: its number alone
  double seconds = 0;  // kLate
  std::string text{};  // kAbort: why
};

class Matchmaker {
 public:
  virtual ~Matchmaker() = default;
  virtual void join(int rank, MatchReceiver& receiver) = 0;
  virtual void ask(int rank, const MatchRequest& request) = 0;
  // Counts the offers and ranks that calls have looked at.
  virtual int64_t work() const = 0;

  // The requests by name.
  using Kind = MatchRequest::Kind;
  void offer(int rank, const Offer& offer) { ask(rank, {.kind = Kind::kOffer, .offer = offer}); }
  // The answer is withdrawn(), or nothing where the match was told before.
  void withdraw(int rank, uint64_t number) {
    ask(rank, {.kind = Kind::kWithdraw, .offer = {.number = number}});
  }
  // The rank does nothing before this offer is matched. Once every rank waits like this, the job
  // ends with the list of who waits for what.
  void waiting(int rank, uint64_t number) {
    ask(rank, {.kind = Kind::kWaiting, .offer = {.number = number}});
  }
  // Sends to this rank that belong to jobs before its present one are discarded: the sender is told
  // withdrawn(), and the rank strayed().
  void begin_job(int rank) { ask(rank, {.kind = Kind::kBeginJob}); }
  // At start-up a rank calls ready() when it can move messages, and late() when it has waited
  // `seconds` for the others; late() ends the job with the list of missing ranks.
  void ready(int rank) { ask(rank, {.kind = Kind::kReady}); }
  void late(int rank, double seconds) { ask(rank, {.kind = Kind::kLate, .seconds = seconds}); }
  // Ends the job of all ranks. The first call wins.
  void abort(const std::string& why) { ask(0, {.kind = Kind::kAbort, .text = why}); }
  void leave(int rank) { ask(rank, {.kind = Kind::kLeave}); }  // ends the calls of the receiver
};

// The ranks are threads of this process.
std::shared_ptr<Matchmaker> make_matchmaker(int ranks);

// The ranks are processes: the first rank runs the matchmaker and the others reach it over TCP.
// `share` gives every rank the first one's text (parallel/bootstrap/share.h); `interfaces` is as
// for open_listener (parallel/bootstrap/listener.h). A process that disappears without leave() ends
// the job. The first rank's matchmaker is destroyed after the others have left. `note` is copied
// from the first rank to all. Error(kComm) where no connection can be made in `seconds`.
std::shared_ptr<Matchmaker> connect_matchmaker(
    int rank, int ranks, const std::string& interfaces, double seconds, std::string& note,
    const std::function<std::string(const std::string&)>& share);

}  // namespace weft
