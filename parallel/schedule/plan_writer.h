#pragma once
// PlanWriter: the base of the classes that make plans. It writes one rank's steps turn by turn, and
// remembers the slots that are still being sent.
#include <utility>

#include "parallel/schedule/plan.h"

namespace weft {

class PlanWriter {
 public:
  PlanWriter(int rank, int ranks);
  virtual ~PlanWriter() = default;

  // The steps of `turns`, a window of the schedule's turns `all`.
  Plan write(const Range& turns, const Range& all);

 protected:
  virtual void write_turn(int turn) = 0;
  virtual std::vector<SlotVersion> begins() const = 0;
  virtual std::vector<SlotVersion> ends() const = 0;

  int rank() const { return plan_.rank; }
  int ranks() const { return plan_.ranks; }
  void add(Step step);
  // `message` has pass, tokens, peer, payload and bytes.
  void send(Step message, const SlotVersion& from);
  // `kind` is kPost, kAwait or kReceive.
  void receive(Step::Kind kind, Step message, const SlotVersion& to);
  // Waits until the slot is no longer sent, so that it may be written again.
  void wait_for_send(const Pass& pass, const SlotId& slot);
  void wait_for_sends(const Pass& pass);

 private:
  void wait_for_older_sends(const Pass& pass);

  Plan plan_;
  int turn_ = 0;
  std::vector<std::pair<SlotVersion, int>> sending_;  // what is sent from a slot, and since when
};

}  // namespace weft
