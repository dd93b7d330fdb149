#pragma once
// Meeting: the processes of a job find each other at a meeting point, and give each other texts
// while they start.
#include <memory>
#include <string>
#include <vector>

#include "parallel/bootstrap/addresses.h"
#include "parallel/bootstrap/meeting_point.h"

namespace weft {

class Meeting {
 public:
  // Every rank makes one: the first one listens, and the others connect to it. Error(kComm) where
  // they are not together within `limit_s` of this call, which names the ranks that did not come,
  // and where the port is taken.
  Meeting(int rank, int ranks, const MeetingPoint& point, double limit_s = 60);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Returns every rank's text, by rank. All ranks call it, equally often and within the limit.
  std::vector<std::string> exchange(const std::string& text);

  // The addresses of this host by which the process is connected to the first rank, or the first
  // rank to the others.
  std::vector<IpAddress> own_addresses() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
