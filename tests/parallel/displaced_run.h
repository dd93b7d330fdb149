#pragma once
// Runs displaced patches (DistriFusion, PCPP) and PipeFusion over ranks, and states what they are
// by definition, slowly.
#include <numeric>

#include "parallel/mesh.h"
#include "parallel/methods/mixer_factory.h"
#include "tests/parallel/step_run.h"

namespace weft::test {

inline std::vector<int> everybody(int ranks) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

inline std::vector<Pass> passes(int steps, int branch = 0) {
  std::vector<Pass> all;
  for (int step = 0; step < steps; ++step) all.push_back({.branch = branch, .step = step});
  return all;
}

inline std::vector<Range> ranges_of(const std::vector<int64_t>& patches) {
  std::vector<Range> ranges;
  for (const int64_t size : patches) {
    const int64_t at = ranges.empty() ? 0 : ranges.back().end;
    ranges.push_back({at, at + size});
  }
  return ranges;
}

// Ranks that hold `patches_of[i]` patches each.
inline std::vector<Range> ranks_of(const Displaced& method, const std::vector<int>& patches_of) {
  std::vector<Range> ranks;
  auto patch = method.patches.begin();
  for (const int count : patches_of) {
    const int64_t at = ranks.empty() ? 0 : ranks.back().end;
    ranks.push_back({at, std::accumulate(patch, patch + count, at)});
    patch += count;
  }
  return ranks;
}

inline std::unique_ptr<TokenMixer> displaced_mixer(Communicator& world, const PatchRows& rows) {
  std::optional<Communicator> group;
  if (world.size() > 1) group = world.group(everybody(world.size()), 7);
  return std::make_unique<DisplacedMixer>(std::move(group), rows);
}

// Pass i has the features values[i].
inline StepRun displaced_run(const PatchRows& rows, const std::vector<Pass>& passes) {
  StepRun run{.ranks = rows.ranks(), .make = [rows](Communicator& world) {
                const TokenRanges own{{rows.rank(world.rank())}, rows.tokens()};
                return RankOfRun{displaced_mixer(world, rows), [own](const Pass&) { return own; }};
              }};
  for (const Pass& pass : passes) run.forwards.push_back({pass, run.forwards.size()});
  return run;
}

using After = std::function<void(Communicator&, const PatchRows&)>;

// The output of every pass, of ranks that hold `patches_of[i]` patches each.
inline std::vector<Tensor> run(const Shapes& shapes, const Displaced& method,
                               const std::vector<int>& patches_of, const std::vector<Pass>& passes,
                               const std::vector<Features>& values,
                               const LocalOptions& options = {}, const After& after = {}) {
  const PatchRows rows(method, ranks_of(method, patches_of));
  StepRun run = displaced_run(rows, passes);
  run.options = options;
  if (after) run.after = [&](Communicator& world) { after(world, rows); };
  return run_steps(shapes, run, values);
}

inline const std::vector<Displaced> kMethods = {
    {.patches = {8, 8, 8}, .warmup = 1},
    {.patches = {9, 7, 8}, .warmup = 2},
    {.patches = {8, 8, 8}, .window = 0.3, .warmup = 1},
    {.patches = {9, 7, 8}, .window = 0.25, .warmup = 0},
    {.patches = {5, 1, 11, 7}, .window = 1, .warmup = 2},
    {.patches = {9, 7, 8}, .windows = {1, 0.9, 0.6, 0.2, 0}, .warmup = 1, .steps = 5},
    {.patches = {24}, .warmup = 1}};

inline constexpr WireCode kCodes[] = {WireCode::kFp8, WireCode::kResidualFp8};

inline std::vector<Displaced> with_codes() {
  std::vector<Displaced> methods;
  for (const WireCode code : kCodes)
    for (Displaced method : kMethods) {
      method.code = code;
      methods.push_back(method);
      method.resync = 3;
      methods.push_back(method);
    }
  return methods;
}

// By definition: a token of patch i sees the present keys of its patch and, in a displaced step,
// those of the step before of the tokens that it sees of other patches; in an exact step the
// present ones of all. Replicated rows are rows of every patch; those of patch 0 are compared.
// `later` are the features as they are seen one step later.
inline Tensor by_definition(const Shapes& s, const Displaced& method,
                            const std::vector<Features>& values, const std::vector<Features>& later,
                            int step) {
  Tensor out(DType::kF32, values[0].q.view().shape());
  const bool exact = step == 0 || method.exact(step);
  const std::vector<Range> patches = ranges_of(method.patches);
  const auto patch_of = [&](int64_t token) {
    int patch = 0;
    while (token < s.tokens() && token >= patches[patch].end) ++patch;
    return patch;
  };
  const std::optional<double> window = method.window_of(step);
  const auto sees = [&](int patch, int64_t key) {
    if (exact || !window || key >= s.tokens() || patch_of(key) == patch) return true;
    const int other = patch_of(key);
    const auto nearest =
        static_cast<int64_t>(std::ceil(*window * static_cast<double>(patches[other].size())));
    if (other == patch - 1) return key >= patches[other].end - nearest;
    return other == patch + 1 && key < patches[other].begin + nearest;
  };
  const int64_t rows = s.tokens() + s.replicated;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<std::pair<int64_t, const Features*>> seen;
    for (int64_t key = 0; key < rows; ++key) {
      const bool fresh = exact || key >= s.tokens() || patch_of(key) == patch_of(row);
      if (sees(patch_of(row), key))
        seen.emplace_back(key, fresh ? &values[step] : &later[step - 1]);
    }
    for (int64_t head = 0; head < s.heads; ++head)
      attend_by_definition(s, values[step], row, head, seen, out);
  }
  return out;
}

inline Tensor by_definition(const Shapes& s, const Displaced& method,
                            const std::vector<Features>& values, int step) {
  return by_definition(s, method, values, values, step);
}

inline Layout split(int ring, int ulysses) {
  Layout layout;
  layout[Axis::kRing] = ring;
  layout[Axis::kUlysses] = ulysses;
  return layout;
}

// Patches of the forwards of a step, in order.
inline std::vector<int> patches_of(const PipeFusion& method, int step) {
  if (step < std::max(1, method.warmup)) return {kAllPatches};
  std::vector<int> all(method.patches.size());
  std::iota(all.begin(), all.end(), 1);
  return all;
}

inline MixerDescription describe(const PipeFusion& method, const Layout& layout, int rank) {
  return {.mesh = Mesh(layout),
          .rank = rank,
          .tokens = PatchParts(method, layout.sequence()).map(kAllPatches),
          .patches = {.pipefusion = method}};
}

// Step i has the features values[i]. Behind the tokens each patch has replicated rows of its own;
// in a step of all tokens the first patch's count.
inline StepRun pipefusion_run(const Shapes& s, const PipeFusion& method, const Layout& layout,
                              int steps) {
  StepRun run{.ranks = layout.ranks(), .make = [=](Communicator& world) {
                const int rank = world.rank();
                const auto group = [&](const std::vector<int>& ranks, int number) {
                  return world.group(ranks, 1 + number);
                };
                const PatchParts parts(method, layout.sequence());
                return RankOfRun{make_mixer(describe(method, layout, rank), group),
                                 [=](const Pass& pass) { return parts.map(pass.micro)[rank]; }};
              }};
  for (int step = 0; step < steps; ++step)
    for (const int patch : patches_of(method, step))
      run.forwards.push_back({{.step = step, .micro = patch},
                              static_cast<size_t>(step),
                              std::max(patch - 1, 0) * s.replicated});
  return run;
}

inline int patch_of(const Shapes& s, const PipeFusion& method, int64_t row) {
  if (row >= s.tokens()) return static_cast<int>((row - s.tokens()) / s.replicated) + 1;
  int patch = 1;
  for (int64_t end = method.patches[0]; row >= end; end += method.patches[patch++]) continue;
  return patch;
}

// By definition: a row of patch m sees the present keys of patches 1 ... m, those of the step
// before of the patches after it, and the replicated rows of its own patch. In an exact step it
// sees the present keys of all tokens, and all have the replicated rows of the first patch.
inline Tensor by_definition(const Shapes& s, const PipeFusion& method,
                            const std::vector<Features>& values, int step) {
  Tensor out(DType::kF32, values[0].q.view().shape());
  std::memset(out.view().data, 0, out.view().bytes());
  const bool exact = patches_of(method, step)[0] == kAllPatches;
  const int64_t rows = values[0].q.view()[0];
  for (int64_t row = 0; row < rows; ++row) {
    const int patch = patch_of(s, method, row), text = exact ? 1 : patch;
    if (exact && row >= s.tokens() && patch > 1) continue;
    std::vector<std::pair<int64_t, const Features*>> seen;
    for (int64_t key = 0; key < rows; ++key) {
      const int of = patch_of(s, method, key);
      if (key < s.tokens() || of == text)
        seen.emplace_back(key, &values[exact || of <= patch ? step : step - 1]);
    }
    for (int64_t head = 0; head < s.heads; ++head)
      attend_by_definition(s, values[step], row, head, seen, out);
  }
  return out;
}

}  // namespace weft::test
