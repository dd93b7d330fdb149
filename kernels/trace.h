#pragma once
// The Recorder is the meter behind profiles and traces. It adds up every stage's op families and,
// if asked, keeps every zone with its times. NVIDIA's profilers see the same zones as ranges
// (NVTX).
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/meter.h"

namespace weft {

// A Profile says where the time of one thread went. A stage's `seconds` leave out the stages inside
// it (a load). The `seconds` of steps, forwards, chunks and blocks include everything inside them.
struct Profile {
  using Total = TimingMeter::Total;
  // Indexed by stage (kCount: outside any stage), then by zone; a stage's own time is of(stage,
  // stage).
  std::array<std::array<Total, kZones>, kZones + 1> totals{};

  const Total& of(Zone stage, Zone zone) const {
    return totals[static_cast<int>(stage)][static_cast<int>(zone)];
  }
  double family_seconds(Zone stage) const;
};

// A Recorder belongs to one thread and owns the recorders of its helpers. It is called on that
// thread, or after the thread has ended.
class Recorder final : public Meter {
 public:
  enum class Keep : uint8_t { kTotals, kEvents };
  explicit Recorder(Keep keep) : keep_(keep) {}

  struct Event {
    Zone zone;
    int index;                 // -1: none
    const char* what;          // the op's or the traffic's name, or ""
    int64_t begin_ns, end_ns;  // by the steady clock
    double flop, bytes;
  };
  struct Sample {
    const char* name;
    int64_t at_ns;
    double value;
  };

  bool runs() const override { return true; }
  void op(const Work& work, const std::function<void()>& run) override;
  void begin(Zone zone, int index, const char* what, double bytes) override;
  void end() override;
  void counter(const char* name, double value) override;
  Meter* helper(const char* name) override;

  // Sets the totals to zero, the helpers' too; events stay. No zone may be open.
  void restart();
  const Profile& profile() const { return profile_; }           // since restart()
  const std::vector<Event>& events() const { return events_; }  // in order of their ends
  const std::vector<Sample>& samples() const { return samples_; }
  const std::map<std::string, std::unique_ptr<Recorder>>& helpers() const { return helpers_; }

 private:
  struct Open {
    Event event;
    Zone stage;  // the stage it is in, or itself
    int64_t inner_stages_ns;
  };
  Zone stage() const { return open_.empty() ? Zone::kCount : open_.back().stage; }
  void book(Zone stage, const Event& event, int64_t ns);

  Keep keep_;
  bool in_op_ = false;
  Profile profile_;
  std::vector<Open> open_;
  std::vector<Event> events_;
  std::vector<Sample> samples_;
  std::map<std::string, std::unique_ptr<Recorder>> helpers_;
};

}  // namespace weft
