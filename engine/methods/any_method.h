#pragma once
// AnyMethod: the questions that the methods of attention answer, with the answers of one that asks
// for nothing special.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/methods/step_cache.h"
#include "engine/sampling/sampler.h"
#include "parallel/mesh.h"
#include "parallel/methods/dual_scope.h"
#include "parallel/methods/mixer_factory.h"

namespace weft {

// Displaced patches are cut between rows of tokens, frame by frame, or between latent frames.
enum class PatchSplit : uint8_t { kRows, kFrames };

// A number of a method, which lies in the method. An enumerator stands for its place in `legal`,
// "a|b|c".
struct MethodNumber {
  const char *name, *legal;
  std::variant<std::optional<int64_t>*, std::optional<double>*, std::optional<PatchSplit>*,
               std::optional<WireCode>*>
      value;
};
std::string shortest(double value);  // that is read as the same value

using TokenGrid = std::array<int64_t, 3>;  // frames, rows and columns of a job's tokens

// The facts that the defaults of a method depend on, and its limits.
struct MethodFacts {
  int64_t latents = 0;          // frames of the job's latent
  int64_t trained_latents = 0;  // that the model was trained with
  double flow_shift = 1;
  TokenGrid grid{};
};

// The facts of a job that its method has to go with.
struct MethodJob {
  int steps = 0;
  int64_t token_frames = 1;  // latent frames per token
  bool scheduled = false, endless = false;
  std::string joint{};  // the model's name, if it has its text among the tokens
};

// A number that is not given means the model's default (resolve). The answers below `refuse` are
// those of a resolved method. Lengths are in latent frames.
struct AnyMethod {
  // Every resync-th step sees present patches. It is here because a flag gives it before the method
  // is known; methods without such patches go with none.
  std::optional<int64_t> resync{};

  virtual ~AnyMethod() = default;
  bool operator==(const AnyMethod&) const = default;

  virtual const char* name() const = 0;
  virtual std::vector<MethodNumber> numbers() { return {}; }
  // The number of patches, if it is that of the ranks where it is not given.
  virtual std::optional<int64_t>* open_patches() { return nullptr; }
  // Fills in the numbers. Returns why the method cannot work, in words that follow its text, or "".
  virtual std::string resolve(const MethodFacts& facts) { return ""; }

  // The video is made in blocks that follow each other, and each is decoded when it is done.
  virtual bool in_segments() const { return false; }
  virtual bool has_old_patches() const { return false; }  // as they were in the step before
  virtual bool long_videos() const { return false; }  // longer than those of the model's training
  virtual bool takes_joint_text() const { return true; }  // goes with text among the tokens
  // The reason why the method does not go with the job, with so many frames, or with a step cache
  // (and what does), or "".
  virtual std::string refuse(const MethodJob& job) const { return ""; }
  virtual std::string refuse_frames(int64_t frames) const { return ""; }
  virtual std::pair<std::string, std::string> refuse_cache(const StepCache& cache) const {
    return {};
  }
  // The reason why no checkpoint between two steps is enough to go on from, or "".
  virtual std::string why_not_between_steps(const StepCache& cache) const { return ""; }
  // A job can go on from a checkpoint after so many steps, if there is no such reason.
  virtual bool goes_on_after(int steps) const { return true; }
  // A line for the user of a job of so many steps, or "".
  virtual std::string remark(int steps) const { return ""; }

  // The rule of its layouts. `joint`: the model has its text among the tokens.
  virtual MethodLimit limit(const TokenGrid& grid, bool joint) const { return {}; }
  // The attention and the patches that a rank's mixer is made for, in a job of so many steps.
  virtual std::optional<DualScope> dual_scope(const Sampler& sampler) const { return {}; }
  virtual StalePatches stale_patches(const TokenGrid& grid, int steps) const { return {}; }
};

}  // namespace weft
