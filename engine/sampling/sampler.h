#pragma once
// Sampler: the noise schedule and the update rule of a flow-matching solver. They are pure
// functions of the step and work on any slice of the latent, given the same slice of its history.
//
// Convention: x_sigma = (1 - sigma) x0 + sigma eps, the model predicts v = eps - x0, hence
// x0 = x - sigma v; alpha = 1 - sigma, lambda = ln alpha - ln sigma. Coefficients are computed in
// f64 from the grid's f32 sigmas; the state is f32.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/stream.h"

namespace weft {

enum class SolverKind : uint8_t {
  kUniPCDiffusers,  // UniPC order 2, bh2 (Zhao et al. 2023), sigmas 1 .. 0.001 shifted
  kUniPCOriginal,   // same rule on the grid of the original repository, 0.999 .. 0
  kDpmppDiffusers,  // DPM-Solver++ 2M (Lu et al. 2022), midpoint
  kDpmppOriginal,   // same rule, grid 1 .. 0
  kEuler,           // flow-match Euler, shifted twice as diffusers does
  kDistill4,        // Euler on indices 0, 250, 500, 750 of the 1000-step grid
  kCount,
};

std::string_view to_string(SolverKind kind);
// Throws Error(kUsage) that lists the legal names if `name` is none of them.
SolverKind solver_from_name(std::string_view name);

// The shift of models whose noise depends on the size of a picture: m grows evenly from base_shift
// at base_tokens tokens to max_shift at max_tokens, and beyond. The flow shift is e^m, or m itself.
struct DynamicShift {
  double base_shift = 0.5, max_shift = 1.15;
  int64_t base_tokens = 256, max_tokens = 4096;
  bool exponential = true;

  double at(int64_t tokens) const;
  double of_exponent(double m) const;
};

struct SamplerConfig {
  SolverKind kind = SolverKind::kUniPCDiffusers;
  double shift = 1;                      // sigma' = s sigma / (1 + (s - 1) sigma)
  int order = 2;                         // 1 or 2
  bool lower_order_final = true;         // UniPC: order 1 in the last step
  std::vector<int> disable_corrector{};  // UniPC: steps after which the corrector is not applied
  int train_timesteps = 1000;
  // Euler: the pipeline names the sigmas 1, 1 - 1/N ... 1/N, and they are shifted once.
  bool even_sigmas = false;
  std::optional<DynamicShift> dynamic{};   // in place of `shift`; for_tokens() resolves it
  std::optional<double> shift_terminal{};  // the shifted sigmas are stretched to end with this one

  // True if with_shift(shift) changes nothing.
  bool only_shifts() const { return !dynamic && !shift_terminal; }
  // Returns the same for a latent of so many tokens, with `shift` in place of `dynamic`.
  SamplerConfig for_tokens(int64_t tokens) const;
  // The same with the shift of this exponent.
  SamplerConfig for_exponent(double m) const;
  // Returns the same with this shift, for any size and without the stretch.
  SamplerConfig with_shift(double flow_shift) const;

  // Reads scheduler_config.json of a UniPCMultistepScheduler, DPMSolverMultistepScheduler or
  // FlowMatchEulerDiscreteScheduler. A setting that is not supported is an Error(kModel) that names
  // the field, its value and the legal ones.
  static SamplerConfig from_json_file(const std::string& path);
  // The same from JSON text. Messages begin with `what`.
  static SamplerConfig from_json(const std::string& text, const std::string& what);
  std::string to_string() const;
};

// The tensors that a step needs from earlier steps, for one slice of the latent.
class SamplerState {
 public:
  explicit SamplerState(int64_t count, Device device = {});  // elements of the slice

  int64_t count() const { return count_; }
  // All tensors of the state, in a fixed order, f32 [count].
  std::vector<std::pair<std::string, TensorView>> tensors() const;

 private:
  friend class Sampler;
  SamplerState() = default;
  int64_t count_ = 0;
  Tensor previous_x0_, older_x0_;  // x0 predictions of steps i - 1 and i - 2
  Tensor base_;                    // UniPC: x before step i - 1 moved it (after its correction)
};

class Sampler {
 public:
  // `sigmas`, if not empty, is the grid itself: strictly falling values in (0, 1]. It is used
  // without a shift, and a final 0 is appended. Throws Error(kUsage) where steps or sigmas are not
  // legal, or where the shift of a size that is not given would be needed.
  Sampler(const SamplerConfig& config, int steps, const std::vector<double>& sigmas = {});

  const SamplerConfig& config() const { return config_; }
  int steps() const { return static_cast<int>(sigmas_.size()) - 1; }
  const std::vector<float>& sigmas() const { return sigmas_; }  // steps + 1, the last is 0
  const std::vector<float>& timesteps() const {
    return timesteps_;
  }  // one per step; whole numbers
     // except for Euler

  // Counts the steps of at least `sigma`, which are the first ones.
  int steps_from(double sigma) const;

  // The state of a slice with so many elements; without tensors where the rule reads none.
  SamplerState state(int64_t count, Device device) const;
  // The tensors of SamplerState::tensors() that this rule reads in a later step. A checkpoint
  // stores them with the latent and the number of steps done.
  std::vector<std::pair<std::string, TensorView>> history(const SamplerState& state) const;

  // Advances x from sigma[i] to sigma[i + 1], given the model's velocity at sigma[i]. velocity and
  // x hold state.count() contiguous f32. Steps must run in order on one state. Sums are computed in
  // f64, so the bits are the same on every device.
  void step(Stream& stream, Arena& arena, int i, const TensorView& velocity, const TensorView& x,
            SamplerState& state) const;

 private:
  // A step is a linear combination of tensors. These are the coefficients of the corrector and of
  // the predictor.
  struct Correct {
    double base = 0, m = 0, previous = 0, older = 0;
  };
  struct Predict {
    double x = 0, m = 0, previous = 0;
  };
  bool unipc() const;
  bool euler() const;
  int order_at(int i) const;
  double lambda(int i) const;
  Correct correct(int i) const;
  Predict predict(int i) const;

  SamplerConfig config_;
  std::vector<float> sigmas_, timesteps_;
};

}  // namespace weft
