#pragma once
// MessageBoard: brings the sends and receives of a job together by rank and tag before a byte
// moves, for wires that have no tags (parallel/nccl.h). Every rank hears of its matches in one
// order for the whole job, so ranks that carry them out in that order never wait in a circle.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "parallel/transport.h"

namespace weft {

// One end of a message, as its rank puts it up. Numbers rise from 1 on every rank.
struct Offer {
  uint64_t number = 0;
  bool receive = false;
  int peer = 0;
  MessageHeader header;
};

// The other end has come.
struct Match {
  uint64_t number = 0;   // of the rank's own offer
  MessageHeader header;  // the sender's
  bool moves = false;    // both ends agree on the bytes, and there are some
};

// What one rank hears. Called under the board's lock: note it and return.
struct BoardListener {
  virtual ~BoardListener() = default;
  // Two at once where a rank sends to itself: they must be carried out together.
  virtual void matched(std::span<const Match> matches) = 0;
  virtual void withdrawn(uint64_t number) = 0;
  virtual void ended(const std::string& why) = 0;  // at most once: the job has failed
};

struct MessageBoard {
  virtual ~MessageBoard() = default;
  virtual void join(int rank, BoardListener& listener) = 0;
  virtual void leave(int rank) = 0;  // the listener is not called any more once this returns
  virtual void offer(int rank, const Offer& offer) = 0;
  // Answered by withdrawn(), or not at all where the match was told before.
  virtual void withdraw(int rank, uint64_t number) = 0;
  // The rank does nothing before this offer is matched. Once that holds for all of them, the job
  // ends with the list of who waits for what.
  virtual void waiting(int rank, uint64_t number) = 0;
  // Start-up: the rank can move messages; it has waited for the others for `seconds`, which ends
  // the job with the ranks that are missing.
  virtual void ready(int rank) = 0;
  virtual void late(int rank, double seconds) = 0;
  // The first call wins.
  virtual void abort(const std::string& why) = 0;
};

// For ranks that are threads of this process.
std::shared_ptr<MessageBoard> make_message_board(int ranks);

// For processes: the first rank keeps the board and the others reach it over TCP. `share` gives
// every rank the first one's text (parallel/share.h); the listening address is that of one of
// `interfaces` ("eth0,eth1"), any that others can reach where it has none of them. A process that
// goes without leaving ends the job. The first rank's board goes when the others have left. `note`
// travels from the first rank to all. Error(kComm) where no connection can be made in `seconds`.
std::shared_ptr<MessageBoard> connect_message_board(
    int rank, int ranks, const std::string& interfaces, double seconds, std::string& note,
    const std::function<std::string(const std::string&)>& share);

}  // namespace weft
