#pragma once
// Shared by the tests of the sequence methods: an attention with its one-rank result, and a run of
// a method over ranks that is compared with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/copy.h"
#include "kernels/dry_run.h"
#include "kernels/ops.h"
#include "kernels/philox.h"
#include "parallel/context.h"
#include "parallel/sequence_map.h"
#include "parallel/transport/local.h"
#include "parallel/transport/silent.h"
#include "tests/parallel/byte_formulas.h"

namespace weft::test {

struct AttentionCase {
  std::array<int64_t, 3> grid{3, 4, 5};  // tokens are its product
  int64_t heads = 4, kv_heads = 4, head_dim = 12;
  DType dtype = DType::kF32;
  Mask mask = Mask::kFull;
  float spread = 1;  // scales q and k; a large one makes log-sum-exps of +-1e4
  const Ops* ops = &reference_ops();
  AttentionFormat format = AttentionFormat::kCompute;
  int64_t replicated = 0;
  int64_t beside = 0;  // tokens after those of the grid, at places of their own

  int64_t grid_tokens() const { return grid[0] * grid[1] * grid[2]; }
  int64_t tokens() const { return grid_tokens() + beside; }
  AttendShape shape() const { return {heads, kv_heads, head_dim, dtype, replicated}; }
};

// Deterministic values of about unit variance.
inline Tensor random_values(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                            float spread) {
  Tensor x(DType::kF32, shape);
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (int64_t i = 0; i < x.count(); ++i) {
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      sum += static_cast<float>(state >> 40) / static_cast<float>(1 << 24) - 0.5f;
    }
    x.as<float>()[i] = spread * sum * 1.7320508f;
  }
  if (dtype == DType::kF32) return x;
  Tensor rounded(dtype, shape);
  Stream stream = Stream::cpu(1);
  copy(stream, x, rounded);
  return rounded;
}

inline double relative_l2(const TensorView& actual, const TensorView& expected) {
  Stream stream = Stream::cpu(1);
  Tensor a(DType::kF32, actual.shape()), b(DType::kF32, expected.shape());
  copy(stream, actual, a);
  copy(stream, expected, b);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double x = a.as<float>()[i], y = b.as<float>()[i];
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return std::isfinite(error) ? std::sqrt(error / norm) : error;
}

inline bool same_bits(const TensorView& a, const TensorView& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

class SequenceRun {
 public:
  explicit SequenceRun(const AttentionCase& given)
      : c(given),
        rope(make_rope(c.grid, {}, c.head_dim)),
        // The last two of several replicated rows have no position.
        replicated_rope(make_rope({c.replicated > 2 ? c.replicated - 2 : 1, 1, 1}, {11, 0, 0},
                                  static_cast<int>(c.head_dim))),
        beside_rope(make_rope({std::max<int64_t>(c.beside, 1), 1, 1}, {23, 0, 0},
                              static_cast<int>(c.head_dim))),
        q(random_values(c.dtype, {rows(), c.heads, c.head_dim}, 1, c.spread)),
        k(random_values(c.dtype, {rows(), c.kv_heads, c.head_dim}, 2, c.spread)),
        v(random_values(c.dtype, {rows(), c.kv_heads, c.head_dim}, 3, 1)) {}

  using Make = std::function<std::unique_ptr<TokenMixer>(Communicator&)>;
  using After = std::function<void(Communicator&)>;

  // The joined result of a method over `ranks` ranks; rank r holds the tokens map[r]. A dry run
  // takes as much of the arena as each rank does. The replicated rows must be the same bits on
  // every rank.
  Tensor run(int ranks, const SequenceMap& map, const Make& make, const LocalOptions& options = {},
             const After& after = {}) const {
    Tensor out(c.dtype, q.view().shape());
    std::vector<Tensor> replicated(ranks);
    run_ranks(
        ranks,
        [&](Communicator& world) {
          const std::unique_ptr<TokenMixer> mixer = make(world);
          const int rank = world.rank();
          size_t arena = 0;
          mixer->begin({.step = 2});
          replicated[rank] = attend(*mixer, map[rank], out, &arena);
          if (after) after(world);
          if (options.delay_seed == 0) {
            EXPECT_EQ(dry_arena(make, rank, map), arena) << "rank " << rank << " of " << ranks;
          }
        },
        options);
    Stream stream = Stream::cpu(1);
    if (c.replicated > 0)
      copy(stream, replicated[0], out.view().slice(0, c.tokens(), c.replicated));
    for (int rank = 1; rank < ranks; ++rank)
      EXPECT_TRUE(same_bits(replicated[rank], replicated[0])) << "rank " << rank << " of " << ranks;
    return out;
  }

  // 100 random orders of arrival on four ranks, half of them with rendezvous sends, change no bit.
  void expect_delays_change_no_bit(const SequenceMap& map, const Make& make) const {
    const Tensor plain = run(4, map, make);
    for (uint64_t seed = 1; seed <= 100; ++seed)
      EXPECT_TRUE(same_bits(
          run(4, map, make, {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50}),
          plain))
          << seed;
  }

  // The same attention on the same values, computed in f32.
  Tensor whole_f32() const {
    AttentionCase wide = c;
    wide.dtype = DType::kF32;
    SequenceRun run(wide);
    Stream stream = Stream::cpu(1);
    copy(stream, q, run.q);
    copy(stream, k, run.k);
    copy(stream, v, run.v);
    return run.whole();
  }

  // One rank's attention over all tokens: the oracle.
  Tensor whole() const {
    Tensor out(c.dtype, q.view().shape());
    FullMixer mixer;
    const Tensor replicated = attend(mixer, TokenRanges::all(c.tokens()), out);
    Stream stream = Stream::cpu(1);
    if (c.replicated > 0) copy(stream, replicated, out.view().slice(0, c.tokens(), c.replicated));
    return out;
  }

  int64_t rows() const { return c.tokens() + c.replicated; }

  // One attend of a mixer that has begun. Writes the rows of `tokens` to `out` and returns the
  // replicated rows.
  Tensor attend(TokenMixer& mixer, const TokenRanges& tokens, const TensorView& out,
                size_t* arena_bytes = nullptr) const {
    Stream stream = Stream::cpu(1, Determinism::kFast, c.ops);
    Arena arena(size_t{1} << 28);
    IdentityReducer reducer;
    IdentityHalo halo;
    Context context{stream, arena, mixer, reducer, halo, Pass{.step = 2}, tokens};
    // Moves the rows of the tokens between the whole and a part.
    const auto move = [&](const TensorView& whole, const TensorView& part, bool in) {
      int64_t row = 0;
      for (const Range& range : tokens.ranges) {
        const TensorView there = whole.slice(0, range.begin, range.size()),
                         here = part.slice(0, row, range.size());
        copy(stream, in ? there : here, in ? here : there);
        row += range.size();
      }
    };
    const int64_t n = tokens.size(), every = c.replicated;
    const auto own = [&](const Tensor& x) {
      Tensor part(c.dtype, {n + every, x.view()[1], x.view()[2]});
      move(x, part, true);
      copy(stream, x.view().slice(0, c.tokens(), every), part.view().slice(0, n, every));
      return part;
    };
    const Tensor own_q = own(q), own_k = own(k), own_v = own(v);
    const Tensor own_out(c.dtype, own_q.view().shape());
    mixer.attend(context,
                 call({own_q, own_k, own_v, own_out}, {&rope, &beside_rope, &replicated_rope}));
    move(out, own_out, false);
    if (arena_bytes) *arena_bytes = arena.high_water();
    Tensor replicated(c.dtype, {every, c.heads, c.head_dim});
    copy(stream, own_out.view().slice(0, n, every), replicated);
    return replicated;
  }

 private:
  // `x` holds q, k, v and the result, `ropes` those of the grid, of what is beside it and of the
  // replicated rows.
  Attend call(const std::array<TensorView, 4>& x, const std::array<const Rope*, 3>& ropes) const {
    return {.layer = 3,
            .q = x[0],
            .k = x[1],
            .v = x[2],
            .out = x[3],
            .rope = ropes[0],
            .beside_rope = c.beside > 0 ? ropes[1] : nullptr,
            .mask = c.mask,
            .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
            .format = c.format,
            .past = nullptr,
            .replicated = c.replicated,
            .replicated_rope = ropes[2]};
  }

  // The bytes of the arena that one attend of a rank takes in a dry run.
  size_t dry_arena(const Make& make, int rank, const SequenceMap& map) const {
    DryRun dry;
    Communicator world(std::make_shared<SilentTransport>(rank, map.size()));
    const std::unique_ptr<TokenMixer> mixer = make(world);
    mixer->begin({.step = 2});
    const int64_t n = map[rank].size() + c.replicated;
    const Tensor own_q = dry.tensor(c.dtype, {n, c.heads, c.head_dim}),
                 own_k = dry.tensor(c.dtype, {n, c.kv_heads, c.head_dim}),
                 own_v = dry.tensor(c.dtype, {n, c.kv_heads, c.head_dim}),
                 out = dry.tensor(c.dtype, {n, c.heads, c.head_dim});
    const Rope all = on_device(dry.stream(), rope), beside = on_device(dry.stream(), beside_rope),
               every = on_device(dry.stream(), replicated_rope);
    SerialSeams seams;
    Context context{dry.stream(), dry.arena(),     *mixer,   seams.reducer,
                    seams.halo,   Pass{.step = 2}, map[rank]};
    return dry
        .measure([&] {
          mixer->attend(context, call({own_q, own_k, own_v, out}, {&all, &beside, &every}));
        })
        .arena;
  }

  AttentionCase c;
  Rope rope, replicated_rope, beside_rope;
  Tensor q, k, v;
};

inline std::vector<Range> contiguous(int64_t total, int ranks) {
  std::vector<Range> ranges;
  for (int rank = 0; rank < ranks; ++rank) ranges.push_back(partition(total, ranks, rank));
  return ranges;
}

// f32 must be within 1e-5. In bf16 one rank rounds once, and so does a ring: the error against the
// same attention in f32 is one rank's, plus or minus the bound of the f32 states.
inline void expect_method_equal(const Tensor& out, const Tensor& whole, const Tensor& exact,
                                int ranks) {
  if (out.view().dtype == DType::kF32) {
    EXPECT_LE(relative_l2(out, whole), 1e-5) << ranks << " ranks";
  } else {
    EXPECT_LE(relative_l2(out, exact), relative_l2(whole, exact) + 1e-5) << ranks << " ranks";
  }
}

}  // namespace weft::test
