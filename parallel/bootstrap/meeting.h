#pragma once
// Meeting: the processes of a job find each other at a meeting point, and give each other texts
// while they start.
#include <memory>
#include <string>
#include <vector>

#include "parallel/bootstrap/meeting_point.h"
#include "parallel/host/addresses.h"

namespace weft {

class Meeting {
 public:
  // Every rank makes one: the first one listens, and the others connect to it. Error(kComm) where
  // they are not together within `limit_s` of this call, which names the ranks that did not come,
  // and where the port is taken, or a rank has ended with an error of its own; Error(kUsage) where
  // the first one has.
  Meeting(int rank, int ranks, const MeetingPoint& point, double limit_s = 60);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Returns every rank's text, by rank. All ranks call it, equally often and within the limit.
  std::vector<std::string> exchange(const std::string& text);

  // The addresses of this host by which the process is connected to the first rank, or the first
  // rank to the others.
  std::vector<IpAddress> own_addresses() const;

  // For a process that ends with an error before it has met the others, in place of a meeting. The
  // first rank, which has told its error, tells those that come so too, until all have come or the
  // limit is over. The others ask it: true where it has an error, too; false where it has none,
  // which ends its meeting, or does not answer.
  static bool share_failure(int rank, int ranks, const MeetingPoint& point,
                            double limit_s = 2) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
