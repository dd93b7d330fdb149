#pragma once
// Method: the tokens that attention sees, and how old they may be. A method other than full
// attention changes the result, so it is a fact of the job: sidecars and checkpoints record it with
// its numbers.
#include "engine/methods/clips.h"
#include "engine/methods/displaced.h"
#include "engine/methods/pipefusion.h"
#include "engine/methods/queue.h"

namespace weft {

// Full attention within the length that the model was trained with, the queue beyond.
struct Auto final : AnyMethod {
  bool operator==(const Auto&) const = default;
  const char* name() const override { return "auto"; }
};
// Every frame sees every frame.
struct Full final : AnyMethod {
  bool operator==(const Full&) const = default;
  const char* name() const override { return "full"; }
};

// One of all methods that there are. `->` asks what every method answers.
struct Method : std::variant<Auto, Full, Clips, Queue, Distrifusion, Pcpp, Pipefusion> {
  using variant::variant;
  const AnyMethod* operator->() const;
  AnyMethod* operator->();
};

// "clips:window=8,global=4"; numbers that are not given are left out.
std::string to_string(Method method);
// The inverse. Error(kUsage) that begins with `label` and names the fault and the legal values.
Method parse_method(const std::string& text, const std::string& label);

// Chooses a method where it is Auto, and fills in its numbers. Error(kUsage) for clips and patches
// that cannot work; those of the queue are checked by `validate`.
Method resolve_method(Method method, const MethodFacts& facts);
// Refuses a resolved method that does not go with the job.
void validate(const Method& method, const MethodJob& job);

}  // namespace weft
