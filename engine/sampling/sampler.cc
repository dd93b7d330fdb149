#include "engine/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "io/nearest.h"
#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(SolverKind::kCount)> kSolverNames = {
    "unipc-diffusers", "unipc-original", "dpmpp-diffusers", "dpmpp-original", "euler", "distill-4"};

// Returns the values of numpy.linspace bit for bit: start + k * step, and exactly `stop` at the
// end.
std::vector<double> linspace(double start, double stop, int count) {
  std::vector<double> values(count);
  const double step = count > 1 ? (stop - start) / (count - 1) : 0.0;
  for (int k = 0; k < count; ++k) values[k] = k * step + start;
  if (count > 1) values.back() = stop;
  return values;
}

double shifted(double shift, double sigma) { return shift * sigma / (1 + (shift - 1) * sigma); }

// diffusers' flow-match Euler rounds its shifted bounds to f32, spaces the timesteps evenly between
// them, and then shifts them again.
std::vector<double> euler_grid(const SamplerConfig& config, int steps) {
  const double train = config.train_timesteps;
  const auto bound = [&](float sigma) {
    const float s = static_cast<float>(config.shift);
    return static_cast<double>(s * sigma / (1.0f + static_cast<float>(config.shift - 1) * sigma));
  };
  const double top = bound(1.0f), bottom = bound(static_cast<float>(1.0 / train));
  std::vector<double> grid = linspace(top * train, bottom * train, steps);
  for (double& sigma : grid) sigma = shifted(config.shift, sigma / train);
  return grid;
}

std::vector<double> grid_of(const SamplerConfig& config, int steps) {
  std::vector<double> grid;
  const double last = 1.0 / config.train_timesteps;
  switch (config.kind) {
    case SolverKind::kUniPCDiffusers:
      grid = linspace(1.0, last, steps + 1);
      break;
    case SolverKind::kUniPCOriginal:
      grid = linspace(static_cast<float>(1.0 - last), 0.0, steps + 1);
      break;
    case SolverKind::kDpmppOriginal:
      grid = linspace(1.0, 0.0, steps + 1);
      break;
    case SolverKind::kDpmppDiffusers:
      grid = linspace(1.0, last, steps + 1);
      for (double& value : grid) value = 1.0 - value;
      std::reverse(grid.begin(), grid.end());
      break;
    case SolverKind::kEuler:
      if (!config.even_sigmas) return euler_grid(config, steps);
      [[fallthrough]];
    case SolverKind::kDistill4:
      grid.resize(steps + 1);
      for (int k = 0; k < steps; ++k) grid[k] = 1.0 - static_cast<double>(k) / steps;
      break;
    case SolverKind::kCount:
      CHECK(false);
  }
  grid.pop_back();
  for (double& sigma : grid) sigma = shifted(config.shift, sigma);
  // A single step begins with sigma 1, which no stretch moves.
  if (config.shift_terminal && steps > 1) {
    const double factor = (1 - *config.shift_terminal) / (1 - grid.back());
    for (double& sigma : grid) sigma = 1 - (1 - sigma) * factor;
  }
  // lambda is infinite at sigma 1; diffusers steps just below it.
  constexpr double kBelowOne = 1e-6;
  if (config.kind == SolverKind::kUniPCDiffusers && std::abs(grid[0] - 1) < kBelowOne) {
    grid[0] -= kBelowOne;
  }
  return grid;
}

void check_grid(const std::vector<double>& sigmas) {
  double above = std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < sigmas.size(); ++k) {
    const double sigma = sigmas[k];
    if (sigma > 0 && sigma <= 1 && sigma < above) {
      above = sigma;
      continue;
    }
    throw Error(ErrorKind::kUsage, "sigmas: value " + std::to_string(k + 1) + " is " +
                                       std::to_string(sigma) +
                                       "; legal are strictly falling values above 0 and at most 1");
  }
}

}  // namespace

std::string_view to_string(SolverKind kind) { return kSolverNames[static_cast<size_t>(kind)]; }

SolverKind solver_from_name(std::string_view name) {
  return value_named<SolverKind>(kSolverNames, name, "solver");
}

double DynamicShift::at(int64_t tokens) const {
  const double slope = (max_shift - base_shift) / static_cast<double>(max_tokens - base_tokens);
  const double m = base_shift + slope * static_cast<double>(tokens - base_tokens);
  return of_exponent(m);
}

double DynamicShift::of_exponent(double m) const { return exponential ? std::exp(m) : m; }

SamplerConfig SamplerConfig::for_tokens(int64_t tokens) const {
  SamplerConfig out = *this;
  if (!dynamic) return out;
  if (!even_sigmas)
    throw Error(ErrorKind::kModel,
                "scheduler_config.json: use_dynamic_shifting is true, but this model's pipeline "
                "does not say the number of tokens (legal: false, with a shift)");
  out.shift = dynamic->at(tokens);
  out.dynamic.reset();
  return out;
}

SamplerConfig SamplerConfig::for_exponent(double m) const {
  SamplerConfig out = *this;
  if (!dynamic) return out;
  out.shift = dynamic->of_exponent(m);
  out.dynamic.reset();
  return out;
}

SamplerConfig SamplerConfig::with_shift(double flow_shift) const {
  SamplerConfig out = *this;
  out.shift = flow_shift;
  out.dynamic.reset();
  out.shift_terminal.reset();
  return out;
}

std::string SamplerConfig::to_string() const {
  char text[64];
  std::snprintf(text, sizeof text, " shift %g order %d", shift, order);
  return std::string(weft::to_string(kind)) + text;
}

SamplerState::SamplerState(int64_t count, Device device)
    : count_(count),
      previous_x0_(DType::kF32, {count}, device),
      older_x0_(DType::kF32, {count}, device),
      base_(DType::kF32, {count}, device) {}

std::vector<std::pair<std::string, TensorView>> SamplerState::tensors() const {
  return {{"solver.previous_x0", previous_x0_.view()},
          {"solver.older_x0", older_x0_.view()},
          {"solver.base", base_.view()}};
}

int Sampler::steps_from(double sigma) const {
  const auto least = static_cast<float>(sigma);
  return static_cast<int>(
      std::count_if(sigmas_.begin(), sigmas_.end() - 1, [&](float own) { return own >= least; }));
}

Sampler::Sampler(const SamplerConfig& config, int steps, const std::vector<double>& sigmas)
    : config_(config) {
  if (config.dynamic && sigmas.empty())
    throw Error(
        ErrorKind::kUsage,
        "the flow shift depends on the size of the picture (use_dynamic_shifting), which is "
        "not given here; legal: a flow shift, or sigmas");
  if (!(config.shift > 0) || !std::isfinite(config.shift)) {
    throw Error(ErrorKind::kUsage, "flow shift " + std::to_string(config.shift) +
                                       " is not legal; legal are finite values above 0");
  }
  CHECK(config.order == 1 || config.order == 2, "order", config.order);
  std::vector<double> grid = sigmas;
  if (grid.empty()) {
    if (steps < 1 || steps > config.train_timesteps) {
      throw Error(ErrorKind::kUsage, "steps " + std::to_string(steps) +
                                         " is not legal; legal are 1 to " +
                                         std::to_string(config.train_timesteps));
    }
    grid = grid_of(config, steps);
  }
  check_grid(grid);
  const bool truncate = config.kind != SolverKind::kEuler && config.kind != SolverKind::kDistill4;
  for (double sigma : grid) {
    sigmas_.push_back(static_cast<float>(sigma));
    // The truncated solvers truncate the f64 product; the others scale the f32 sigma.
    timesteps_.push_back(truncate ? static_cast<float>(std::trunc(sigma * config.train_timesteps))
                                  : sigmas_.back() * static_cast<float>(config.train_timesteps));
  }
  sigmas_.push_back(0.0f);
}

SamplerState Sampler::state(int64_t count, Device device) const {
  if (!euler()) return SamplerState(count, device);
  SamplerState state;
  state.count_ = count;
  return state;
}

std::vector<std::pair<std::string, TensorView>> Sampler::history(const SamplerState& state) const {
  auto tensors = state.tensors();
  tensors.resize(unipc() ? tensors.size() : euler() ? 0 : 1);
  return tensors;
}

bool Sampler::euler() const {
  return config_.kind == SolverKind::kEuler || config_.kind == SolverKind::kDistill4;
}

bool Sampler::unipc() const {
  return config_.kind == SolverKind::kUniPCDiffusers || config_.kind == SolverKind::kUniPCOriginal;
}

int Sampler::order_at(int i) const {
  int order = std::min(config_.order, i + 1);
  if (config_.lower_order_final || !unipc()) order = std::min(order, steps() - i);
  return order;
}

double Sampler::lambda(int i) const {
  const double sigma = sigmas_[i];
  return std::log(1.0 - sigma) - std::log(sigma);  // -inf at sigma 1, +inf at sigma 0
}

// UniC (Zhao et al. 2023, algorithm 1) with data prediction: computes x_i again from the saved
// x_{i-1} and from the prediction m_i that was made at the uncorrected x_i.
Sampler::Correct Sampler::correct(int i) const {
  const double alpha = 1.0 - sigmas_[i];
  const double h = lambda(i) - lambda(i - 1), hh = -h;
  const double phi = std::expm1(hh);
  // hh is -inf where sigma_{i-1} is 1: every term over hh is then 0.
  const double phi1 = phi / hh - 1.0;
  double rho_last = 0.5, weight = 0;  // weight = rho0 / r
  if (order_at(i - 1) == 2) {
    const double b1 = phi1 / phi, b2 = 2.0 * (phi1 / hh - 0.5) / phi;
    const double r = (lambda(i - 2) - lambda(i - 1)) / h;
    const double rho0 = (b1 - b2) / (1.0 - r);
    rho_last = b1 - rho0;
    weight = rho0 / r;
  }
  Correct c;
  c.base = static_cast<double>(sigmas_[i]) / sigmas_[i - 1];
  c.m = -alpha * phi * rho_last;
  c.previous = -alpha * phi + alpha * phi * (weight + rho_last);
  c.older = -alpha * phi * weight;
  return c;
}

// UniP or DPM-Solver++ 2M. The two differ only in the sign convention of r.
Sampler::Predict Sampler::predict(int i) const {
  Predict p;
  const double next = sigmas_[i + 1], alpha = 1.0 - next;
  if (next == 0) return {.x = 0, .m = 1, .previous = 0};  // lambda = inf: x0 itself
  const double h = lambda(i + 1) - lambda(i);
  const double phi = std::expm1(-h);
  p.x = next / sigmas_[i];
  p.m = -alpha * phi;
  if (order_at(i) == 2) {
    const double r = (lambda(i) - lambda(i - 1)) / h;  // inf where sigma_{i-1} is 1
    p.m -= alpha * phi * 0.5 / r;
    p.previous = alpha * phi * 0.5 / r;
  }
  return p;
}

void Sampler::step(Stream& stream, Arena& arena, int i, const TensorView& velocity,
                   const TensorView& x, SamplerState& state) const {
  CHECK(i >= 0 && i < steps(), "step", i, "of", steps());
  CHECK(velocity.contiguous() && x.contiguous(), "sampler tensors must be contiguous");
  CHECK(velocity.count() == state.count_ && x.count() == state.count_, "elements", x.count(),
        velocity.count(), state.count_);
  const TensorView v = velocity.reshape({state.count_}), sample = x.reshape({state.count_});
  const auto sum = [&](std::initializer_list<Term> terms, const TensorView& out) {
    combine(stream, {terms.begin(), terms.size()}, out);
  };
  const double sigma = sigmas_[i];
  if (euler()) {
    sum({{1, sample}, {sigmas_[i + 1] - sigma, v}}, sample);
    return;
  }
  const auto& off = config_.disable_corrector;
  const bool corrected = unipc() && i > 0 && std::find(off.begin(), off.end(), i - 1) == off.end();
  const Predict p = predict(i);
  const TensorView previous = state.previous_x0_, base = state.base_;
  const Arena::Scope scope(arena);
  const TensorView m = arena.alloc(DType::kF32, {state.count_});
  sum({{1, sample}, {-sigma, v}}, m);  // x0, predicted at the sample before its correction
  if (corrected) {
    const Correct c = correct(i);
    sum({{c.base, base}, {c.m, m}, {c.previous, previous}, {c.older, state.older_x0_}}, base);
  } else {
    copy(stream, sample, base);
  }
  sum({{p.x, base}, {p.m, m}, {p.previous, previous}}, sample);
  std::swap(state.previous_x0_, state.older_x0_);
  copy(stream, m, state.previous_x0_);
}

}  // namespace weft
