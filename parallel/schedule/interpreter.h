#pragma once
// Interpreter: runs one rank's plan, of whatever schedule. It sends, receives, posts, awaits and
// waits, makes the tags and opens the zones; a Program computes. Nothing is sent that is not in the
// plan, so a trace and a plan correspond one to one.
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "parallel/communicator.h"
#include "parallel/schedule/plan_check.h"

namespace weft {

// The memory of a rank's slots: rows [n, columns] of one dtype each.
class Slots {
 public:
  // Makes the slot's rows. Keeps them where the slot has rows of this shape, dtype and device, and
  // its memory where they fit into it.
  const TensorView& make(const SlotId& slot, DType dtype, int64_t rows, int64_t columns,
                         Device device = {});
  // Lets the slot be `rows`, which somebody else owns.
  void lend(const SlotId& slot, const TensorView& rows);
  const TensorView& operator[](const SlotId& slot) const;
  bool has(const SlotId& slot) const { return slots_.count(slot) > 0; }
  void clear();
  void clear_but(const SlotId& slot);  // forgets all other slots that no message uses

 private:
  friend class Interpreter;  // notes the slots of pending messages; their memory may not change
  struct Slot {
    Tensor owned{};
    TensorView rows{};
  };
  void check_idle(const SlotId& slot) const;

  std::map<SlotId, Slot> slots_;
  std::set<SlotId> pending_;
};

// The steps of a schedule as one rank carries them out.
struct Program {
  virtual ~Program() = default;

  Slots slots;

  // Called before every turn, also before those in which this rank has no steps. False stops the
  // run; it must answer the same on all ranks.
  virtual bool begin_turn(int /*turn*/) { return true; }
  virtual void load(const Step&) {}
  virtual void compute(const Step& step) = 0;
  virtual void update(const Step&) {}
  virtual void decode(const Step&) {}
  virtual void enter(const Step&) {}
  virtual void word(const Step&) {}
  // Called before a message: its slot must have rows of the plan's bytes, or of fewer where these
  // are upper bounds. Messages of no rows are neither sent nor received.
  virtual void prepare(const Step& message) = 0;
  virtual void received(const Step& /*message*/) {}  // called when the slot holds what was sent
  virtual void taken(const Step&) {}                 // called after every step
  // The index of the zone (Zone::kStep) that the step belongs to, or -1.
  virtual int zone(const Step&) const { return -1; }
};

class Interpreter {
 public:
  // `communicator` is null for a single rank. `ranks` holds the communicator's rank of every rank
  // of a plan; empty where they are the same.
  Interpreter(Stream& stream, Communicator* communicator, std::vector<int> ranks = {});

  // Meets the ranks of the messages of this rank's plan, so that devices can move them
  // (Communicator::open_messages). Every rank calls it before a run.
  void open(const Plan& own);

  // Opens and runs plans[rank]. The first rank checks the plans of all before. Returns false where
  // begin_turn stopped the run; no message is pending then, nor after the last step.
  bool run(std::span<const Plan> plans, int rank, const PlanRules& rules, Program& program);
  // Runs the windows of a rank's plan that `next` returns one after the other, until it returns
  // none. Messages may be pending from one to the next. The caller has checked plans of the same
  // configuration (require_sound), and opened them.
  bool run(const std::function<std::optional<Plan>()>& next, Program& program);

 private:
  struct Run;
  Stream& stream_;
  Communicator* communicator_;
  std::vector<int> ranks_;
};

}  // namespace weft
