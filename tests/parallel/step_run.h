#pragma once
// Shared by the tests of methods whose attention differs from step to step: the features of a job's
// steps, and a run of one layer over ranks, forward by forward.
#include "tests/parallel/attention_by_definition.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {

struct Shapes {
  std::array<int64_t, 3> grid{4, 3, 2};  // tokens are its product
  int64_t heads = 4, kv_heads = 2, head_dim = 12;
  int64_t replicated = 0;
  bool rope = true;
  DType dtype = DType::kF32;
  const Ops* ops = &reference_ops();

  int64_t tokens() const { return grid[0] * grid[1] * grid[2]; }
  AttendShape shape() const { return {heads, kv_heads, head_dim, dtype, replicated}; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// The queries, keys and values of one step: of the tokens, then of as many copies of the replicated
// rows.
struct Features {
  Tensor q, k, v;
  Features(const Shapes& s, int step, int64_t copies = 1)
      : q(values(s, copies, s.heads, 100 * step + 1, 1.5f)),
        k(values(s, copies, s.kv_heads, 100 * step + 2, 1.5f)),
        v(values(s, copies, s.kv_heads, 100 * step + 3, 1)) {}

 private:
  static Tensor values(const Shapes& s, int64_t copies, int64_t heads, int seed, float spread) {
    return random_values(s.dtype, {s.tokens() + copies * s.replicated, heads, s.head_dim},
                         static_cast<uint64_t>(seed), spread);
  }
};

inline std::vector<Features> features(const Shapes& shapes, int steps, int64_t copies = 1) {
  std::vector<Features> all;
  for (int step = 0; step < steps; ++step) all.emplace_back(shapes, step, copies);
  return all;
}

// A row of x turned to its position in f64. Replicated rows are not turned.
inline std::vector<double> turned(const Shapes& s, const Tensor& x, int64_t row, int64_t head) {
  const float* in = x.as<float>() + (row * x.view()[1] + head) * s.head_dim;
  if (row >= s.tokens() || !s.rope) return {in, in + s.head_dim};
  return turned_head(
      in, s.head_dim,
      {static_cast<double>(row / (s.grid[1] * s.grid[2])),
       static_cast<double>(row / s.grid[2] % s.grid[1]), static_cast<double>(row % s.grid[2])});
}

// One softmax of a query's row over the rows of keys that it sees, and the features that each is
// of.
inline void attend_by_definition(const Shapes& s, const Features& own, int64_t row, int64_t head,
                                 const std::vector<std::pair<int64_t, const Features*>>& seen,
                                 const Tensor& out) {
  const int64_t shared = head / (s.heads / s.kv_heads);
  const auto query = turned(s, own.q, row, head);
  std::vector<double> logits;
  std::vector<const float*> values;
  for (const auto& [key, from] : seen) {
    const auto turned_key = turned(s, from->k, key, shared);
    double logit = 0;
    for (int64_t i = 0; i < s.head_dim; ++i) logit += query[i] * turned_key[i];
    logits.push_back(logit * s.scale());
    values.push_back(from->v.as<float>() + (key * s.kv_heads + shared) * s.head_dim);
  }
  softmax_mean(logits, values, s.head_dim, out.as<float>() + (row * s.heads + head) * s.head_dim);
}

// A forward has the features of `values`, by its number, and writes the output of that number.
struct Forward {
  Pass pass;
  size_t values = 0;
  int64_t replicated_at = 0;  // the first of its replicated rows, after the tokens
};

// One rank of a run. `own` are the tokens that it holds in a forward.
struct RankOfRun {
  std::unique_ptr<TokenMixer> mixer;
  std::function<TokenRanges(const Pass&)> own;
};

struct StepRun {
  int ranks = 1;
  std::function<RankOfRun(Communicator&)> make;
  std::vector<Forward> forwards{};
  LocalOptions options{};
  // Called as every rank, after each forward, and at the end.
  std::function<void(Communicator&, TokenMixer&, const Arena&)> after_forward{};
  std::function<void(Communicator&)> after{};
};

// One layer's attention in every forward of one rank.
inline void run_rank(const Shapes& s, const StepRun& run, const std::vector<Features>& values,
                     const std::vector<Tensor>& out, Communicator& world) {
  const Rope rope = make_rope(s.grid, {}, static_cast<int>(s.head_dim));
  const RankOfRun rank = run.make(world);
  Stream stream = Stream::cpu(1, Determinism::kFast, s.ops);
  SerialSeams seams;
  for (const Forward& forward : run.forwards) {
    const TokenRanges own = rank.own(forward.pass);
    // Moves this rank's rows between the whole and a part.
    const auto move = [&](const TensorView& whole, const TensorView& part, bool in) {
      int64_t row = 0;
      const auto rows = [&](int64_t begin, int64_t count) {
        const TensorView there = whole.slice(0, begin, count), here = part.slice(0, row, count);
        copy(stream, in ? there : here, in ? here : there);
        row += count;
      };
      for (const Range& range : own.ranges) rows(range.begin, range.size());
      if (in || world.rank() == 0) rows(s.tokens() + forward.replicated_at, s.replicated);
    };
    const auto cut = [&](const TensorView& x) {
      Tensor part(x.dtype, {own.size() + s.replicated, x[1], x[2]});
      move(x, part, true);
      return part;
    };
    Arena arena(size_t{1} << 26);
    Context context{stream, arena, *rank.mixer, seams.reducer, seams.halo, forward.pass, own};
    rank.mixer->begin(forward.pass);
    const Features& of = values[forward.values];
    const Tensor q = cut(of.q), k = cut(of.k), v = cut(of.v);
    const Tensor result(s.dtype, q.view().shape());
    rank.mixer->attend(context, {.layer = 3,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = result,
                                 .rope = s.rope ? &rope : nullptr,
                                 .scale = s.scale(),
                                 .replicated = s.replicated});
    move(out[forward.values], result, false);
    if (run.after_forward) run.after_forward(world, *rank.mixer, arena);
  }
  rank.mixer->finish();
  if (run.after) run.after(world);
}

// The outputs: of the tokens, then of the first rank's replicated rows. Rows that no forward writes
// are zeros.
inline std::vector<Tensor> run_steps(const Shapes& s, const StepRun& run,
                                     const std::vector<Features>& values) {
  std::vector<Tensor> out;
  for (const Features& one : values) {
    out.emplace_back(s.dtype, one.q.view().shape());
    std::memset(out.back().view().data, 0, out.back().view().bytes());
  }
  run_ranks(
      run.ranks, [&](Communicator& world) { run_rank(s, run, values, out, world); }, run.options);
  return out;
}

}  // namespace weft::test
