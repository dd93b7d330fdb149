// Tests the causal window: it equals attention over an unbounded list of frames in f64, for
// segments of any sizes; rings per step, eviction, sinks, positions of long streams and bytes.
#include "parallel/methods/causal_window.h"

#include <map>
#include <random>

#include "kernels/row_code.h"
#include "parallel/methods/mixer_factory.h"
#include "tests/parallel/attention_by_definition.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"
#include "tests/support/compare.h"

namespace weft::test {
namespace {

constexpr int64_t kWindowRow = 2, kWindowColumn = 3, kWindowFrame = 6, kWindowHeads = 2,
                  kWindowHead = 12;
constexpr int kLayer = 3;
constexpr float kScale = 0.3f;

// The raw q, k, v of some frames; the same frames of the same step have the same values.
struct WindowQkv {
  Tensor q, k, v;
  WindowQkv(const Range& frames, int step, DType dtype = DType::kF32, uint64_t seed = 0)
      : q(values(frames, step, 0 + seed, dtype)),
        k(values(frames, step, 1 + seed, dtype)),
        v(values(frames, step, 2 + seed, dtype)) {}

  static Tensor values(const Range& frames, int step, uint64_t kind, DType dtype) {
    Tensor all(dtype, {frames.size() * kWindowFrame, kWindowHeads, kWindowHead});
    Stream stream = Stream::cpu(1);
    for (int64_t frame = frames.begin; frame < frames.end; ++frame) {
      const uint64_t seed = (uint64_t(frame + 1000) * 64 + step) * 16 + kind;
      const Tensor one =
          random_values(DType::kF32, {kWindowFrame, kWindowHeads, kWindowHead}, seed, 1);
      copy(stream, one, all.view().slice(0, (frame - frames.begin) * kWindowFrame, kWindowFrame));
    }
    return all;
  }
};

CausalWindowShape window(int64_t frames, int steps = 1, int64_t sink_frames = 1, int sinks = 1) {
  return {.layers = {kLayer, kLayer + 1, kLayer + 1},
          .steps = {0, steps},
          .frames = frames,
          .frame_tokens = kWindowFrame,
          .sink_tokens = sink_frames * kWindowFrame,
          .sinks = sinks};
}

constexpr Range kSinkFrames{-100, -99};

// One rank's passes over a window.
class WindowPasses {
 public:
  explicit WindowPasses(CausalWindow& window, std::unique_ptr<TokenMixer> mixer = nullptr)
      : window_(window),
        mixer_(mixer ? std::move(mixer) : std::make_unique<CausalWindowMixer>(window)) {}

  Tensor sink(const WindowQkv& x, int number = 0) {
    window_.begin_sink(number);
    return attend(x, make_rope({1, kWindowRow, kWindowColumn}, {}, kWindowHead));
  }
  // A sink of two frames, whose second one is tokens or replicated rows, and a segment that sees
  // it.
  std::pair<Tensor, Tensor> two_sinks(const WindowQkv& sink, const WindowQkv& segment,
                                      bool replicated) {
    const auto at = [](int64_t frames, int64_t first) {
      return make_rope({frames, kWindowRow, kWindowColumn}, {first, 0, 0}, kWindowHead);
    };
    const int64_t tokens = replicated ? 1 : 2;
    const Rope first = at(tokens, 30), second = at(1, 31), own = at(1, 0);
    window_.begin_sink(0);
    Tensor made = attend(sink, first, replicated ? &second : nullptr);
    window_.begin({.frames = {0, 1},
                   .keys = &own,
                   .sink_keys = &first,
                   .sink_replicated = replicated ? &second : nullptr});
    return {std::move(made), attend(segment, own)};
  }
  // `shift` is added to all positions.
  Tensor segment(const WindowQkv& x, const Range& frames, int64_t sink_at, int step = 0,
                 int number = 0, int64_t shift = 0) {
    Stream stream = Stream::cpu(1);
    const Range seen = window_.seen(frames);
    const auto positions = [&](int64_t count, int64_t first) {
      return make_rope({count, kWindowRow, kWindowColumn}, {first + shift, 0, 0}, kWindowHead);
    };
    std::vector<double> by_slot = window_.slot_positions(frames);
    for (double& position : by_slot) position += double(shift);
    const Rope keys = with_frame_positions(stream, positions(seen.size(), 0), by_slot);
    const Rope sink_keys = positions(1, sink_at - seen.begin);
    window_.begin(
        {.step = step, .frames = frames, .keys = &keys, .sink = number, .sink_keys = &sink_keys});
    return attend(x, positions(frames.size(), frames.begin - seen.begin));
  }

  Arena arena{size_t{1} << 28};

 private:
  // The last frame's rows are replicated ones where they have a rope of their own.
  Tensor attend(const WindowQkv& x, const Rope& rope, const Rope* replicated = nullptr) {
    Stream stream = Stream::cpu(1);
    const int64_t joint = replicated ? kWindowFrame : 0, tokens = x.q.view()[0] - joint;
    Context context{stream, arena, *mixer_, reducer_, halo_, {}, TokenRanges::all(tokens)};
    const auto copied = [&](const Tensor& from) {
      Tensor to(from.view().dtype, from.view().shape());
      copy(stream, from, to);
      return to;
    };
    const Tensor q = copied(x.q), k = copied(x.k), v = copied(x.v);
    Tensor out(q.view().dtype, q.view().shape());
    mixer_->begin({});
    mixer_->attend(context, {.layer = kLayer,
                             .q = q,
                             .k = k,
                             .v = v,
                             .out = out,
                             .rope = &rope,
                             .scale = kScale,
                             .replicated = joint,
                             .replicated_rope = replicated});
    return out;
  }

  CausalWindow& window_;
  std::unique_ptr<TokenMixer> mixer_;
  IdentityReducer reducer_;
  IdentityHalo halo_;
};

// The reference: all frames that ever were, at their absolute positions, in f64. `sink` is empty
// where there is none.
Tensor window_by_definition(const Range& segment, const Range& seen, int step,
                            std::optional<int64_t> sink_at, uint64_t sink_seed = 0) {
  struct Key {
    std::vector<double> k;
    const float* v;
  };
  const WindowQkv own(segment, step), all(seen, step), sink(kSinkFrames, 0, DType::kF32, sink_seed);
  Tensor out(DType::kF32, own.q.view().shape());
  const auto at = [](const Tensor& x, int64_t token, int64_t head) {
    return x.as<float>() + (token * kWindowHeads + head) * kWindowHead;
  };
  const auto turned = [&](const Tensor& x, int64_t token, int64_t head, int64_t frame) {
    const int64_t place = token % kWindowFrame;
    return turned_head(
        at(x, token, head), kWindowHead,
        {double(frame), double(place / kWindowColumn), double(place % kWindowColumn)});
  };
  for (int64_t head = 0; head < kWindowHeads; ++head) {
    std::vector<Key> keys;
    for (int64_t token = 0; token < all.k.view()[0]; ++token)
      keys.push_back(
          {turned(all.k, token, head, seen.begin + token / kWindowFrame), at(all.v, token, head)});
    for (int64_t token = 0; sink_at && token < kWindowFrame; ++token)
      keys.push_back({turned(sink.k, token, head, *sink_at), at(sink.v, token, head)});
    for (int64_t token = 0; token < own.q.view()[0]; ++token) {
      const auto q = turned(own.q, token, head, segment.begin + token / kWindowFrame);
      std::vector<double> logits;
      std::vector<const float*> values;
      for (const Key& key : keys) {
        double dot = 0;
        for (int64_t i = 0; i < kWindowHead; ++i) dot += q[i] * key.k[i];
        logits.push_back(kScale * dot);
        values.push_back(key.v);
      }
      softmax_mean(logits, values, kWindowHead,
                   out.as<float>() + (token * kWindowHeads + head) * kWindowHead);
    }
  }
  return out;
}

// Replicated rows of a sink are kept with its tokens, and have positions of their own.
TEST(CausalWindow, KeepsReplicatedRowsOfSinks) {
  const WindowQkv sink({-100, -98}, 0), segment({0, 1}, 0);
  std::vector<std::pair<Tensor, Tensor>> runs;
  for (const bool replicated : {false, true}) {
    CausalWindow kept(window(4, 1, 2));
    runs.push_back(WindowPasses(kept).two_sinks(sink, segment, replicated));
  }
  EXPECT_TRUE(bitwise_equal(runs[0].first, runs[1].first));
  EXPECT_TRUE(bitwise_equal(runs[0].second, runs[1].second));
}

// Law 11, without its rejection: segments of any sizes.
TEST(CausalWindow, EqualsAttentionOverTheLastFramesOfAnEndlessList) {
  std::mt19937 random(5);
  for (int64_t capacity : {1, 3, 4, 7})
    for (bool even : {true, false}) {
      CausalWindow kept(window(capacity));
      WindowPasses passes(kept);
      passes.sink(WindowQkv(kSinkFrames, 0));
      int64_t first = 0;
      while (first < 3 * capacity + 2) {
        const int64_t most = std::min<int64_t>(capacity, 3);
        const Range segment{first, first + (even ? most : 1 + int64_t(random() % most))};
        const int64_t sink_at = sink_frame({.start = 6, .distance = {4, 9}}, first, 0, first);
        const Range seen{std::max<int64_t>(0, segment.end - capacity), segment.end};
        EXPECT_EQ(kept.seen(segment), seen);
        EXPECT_LE(relative_l2(passes.segment(WindowQkv(segment, 0), segment, sink_at),
                              window_by_definition(segment, seen, 0, sink_at)),
                  1e-6)
            << capacity << " " << to_string(segment);
        first = segment.end;
      }
    }
}

TEST(CausalWindow, WorksWithoutASink) {
  CausalWindow kept(window(4, 1, 0));
  WindowPasses passes(kept);
  for (const Range& segment : {Range{0, 3}, {3, 6}})
    EXPECT_LE(relative_l2(passes.segment(WindowQkv(segment, 0), segment, 0),
                          window_by_definition(segment, kept.seen(segment), 0, std::nullopt)),
              1e-6);
}

// Faults of careless implementations would be seen: another window, a sink at another place.
TEST(CausalWindow, TheReferenceTellsFaultsApart) {
  const Range segment{6, 9};
  const Tensor right = window_by_definition(segment, {3, 9}, 0, 30);
  EXPECT_GT(relative_l2(window_by_definition(segment, {2, 9}, 0, 30), right), 1e-2);
  EXPECT_GT(relative_l2(window_by_definition(segment, {3, 9}, 0, 31), right), 1e-3);
  EXPECT_GT(relative_l2(window_by_definition(segment, {3, 9}, 1, 30), right), 1e-2);
}

// Law 7: a step sees what that step has left, and steps may come in any order of the grid.
TEST(CausalWindow, EveryStepHasARingOfItsOwn) {
  CausalWindow by_block(window(4, 3)), by_step(window(4, 3));
  WindowPasses one(by_block), other(by_step);
  for (WindowPasses* passes : {&one, &other}) passes->sink(WindowQkv(kSinkFrames, 0));
  const auto run = [](WindowPasses& passes, int segment, int step) {
    const Range frames{2 * segment, 2 * segment + 2};
    return passes.segment(WindowQkv(frames, step), frames, 30, step);
  };
  std::map<std::pair<int, int>, Tensor> results;
  for (int segment = 0; segment < 4; ++segment)
    for (int step = 0; step < 3; ++step) {
      results[{segment, step}] = run(one, segment, step);
      const Range frames{2 * segment, 2 * segment + 2};
      EXPECT_LE(relative_l2(results[{segment, step}],
                            window_by_definition(frames, by_block.seen(frames), step, 30)),
                1e-6);
    }
  for (int step = 0; step < 3; ++step)
    for (int segment = 0; segment < 4; ++segment)
      EXPECT_TRUE(same_bits(run(other, segment, step), results[{segment, step}]));
}

// Law 12: a segment that is denoised again takes its own place, and nothing else leaves.
TEST(CausalWindow, ABlockThatIsWrittenAgainEvictsNothing) {
  CausalWindow once(window(4)), twice(window(4));
  WindowPasses one(once), two(twice);
  for (WindowPasses* passes : {&one, &two}) passes->sink(WindowQkv(kSinkFrames, 0));
  for (int64_t first : {0, 2, 4, 6}) {
    const Range segment{first, first + 2};
    two.segment(WindowQkv(segment, 5), segment, 30);
    EXPECT_TRUE(same_bits(two.segment(WindowQkv(segment, 0), segment, 30),
                          one.segment(WindowQkv(segment, 0), segment, 30)));
  }
  EXPECT_DEATH(one.segment(WindowQkv({9, 10}, 0), {9, 10}, 30), "after");
  EXPECT_DEATH(one.segment(WindowQkv({8, 13}, 0), {8, 13}, 30), "in a window of");
}

// Law 13: a sink stays as it is until another takes its place, and segments before and after the
// change may come in turn.
TEST(CausalWindow, SinksAreSeenByTheirBlocks) {
  CausalWindow kept(window(4, 1, 1, 2));
  WindowPasses passes(kept);
  passes.sink(WindowQkv(kSinkFrames, 0), 0);
  passes.sink(WindowQkv(kSinkFrames, 0, DType::kF32, 7), 1);
  for (int64_t first = 0; first < 20; first += 2) {
    const Range segment{first, first + 2};
    const bool second = first % 4 == 0;
    EXPECT_LE(relative_l2(passes.segment(WindowQkv(segment, 0), segment, 30, 0, second),
                          window_by_definition(segment, kept.seen(segment), 0, 30, second ? 7 : 0)),
              1e-6);
  }
}

// The sink's own pass sees the sink alone.
TEST(CausalWindow, ASinkSeesItself) {
  CausalWindow kept(window(4));
  WindowPasses passes(kept);
  const Range segment{0, 2};
  passes.sink(WindowQkv(kSinkFrames, 0));
  passes.segment(WindowQkv(segment, 0), segment, 30);
  SerialSeams seams;
  Stream stream = Stream::cpu(1);
  const WindowQkv x(kSinkFrames, 0);
  const Rope rope = make_rope({1, kWindowRow, kWindowColumn}, {}, kWindowHead);
  Context context = seams.context(stream, passes.arena, {}, TokenRanges::all(kWindowFrame));
  Tensor out(DType::kF32, x.q.view().shape());
  const Tensor again = passes.sink(x);
  seams.mixer.attend(
      context,
      {.layer = kLayer, .q = x.q, .k = x.k, .v = x.v, .out = out, .rope = &rope, .scale = kScale});
  EXPECT_TRUE(same_bits(again, out));
}

// Law 16, and law 15: positions count from the window, so a segment far down the stream sees the
// same numbers as one at its beginning, to the bit.
TEST(CausalWindow, PositionsDoNotGrowWithTheStream) {
  const auto last_of = [](int64_t first, int64_t shift) {
    CausalWindow kept(window(4));
    WindowPasses passes(kept);
    passes.sink(WindowQkv(kSinkFrames, 0));
    Tensor out;
    for (int64_t segment = 0; segment < 8; segment += 2)
      out =
          passes.segment(WindowQkv({segment, segment + 2}, 0),
                         {first + segment, first + segment + 2}, first + segment + 30, 0, 0, shift);
    return out;
  };
  const Tensor near = last_of(0, 0);
  EXPECT_LE(relative_l2(last_of(0, 1000), near), 1e-5);
  CausalWindow kept(window(4));
  const int64_t far = int64_t{4'000'000'000};
  EXPECT_EQ(kept.slot_positions({far, far + 2}), kept.slot_positions({4, 6}));
  EXPECT_EQ(kept.slot_positions({far + 2, far + 4}), (std::vector<double>{0, 1, 2, 3}));
}

// Law 17.
TEST(CausalWindow, TheSinkStaysAheadByItsDistance) {
  const SinkPosition seeded{.start = 30, .distance = {4, 31}, .seed = 9};
  std::map<int64_t, int> drawn;
  for (int64_t segment = 0; segment < 4000; ++segment) {
    const int64_t first = 3 * segment, at = sink_frame(seeded, segment, 2, first), d = at - first;
    EXPECT_GE(at, 30);
    if (first >= 30) ++drawn[d];
    EXPECT_EQ(at, sink_frame(seeded, segment, 2, first));
  }
  EXPECT_EQ(drawn.begin()->first, 4);
  EXPECT_EQ(drawn.rbegin()->first, 30);
  EXPECT_EQ(drawn.size(), 27u);
  int same_in_steps = 0;
  for (int64_t segment = 20; segment < 120; ++segment)
    same_in_steps += sink_frame(seeded, segment, 0, 60) == sink_frame(seeded, segment, 1, 60);
  EXPECT_LT(same_in_steps, 20);
  EXPECT_EQ(sink_frame({.start = 30, .distance = {30, 31}}, 0, 0, 0), 30);
  EXPECT_EQ(sink_frame({.start = 6, .distance = {4, 5}}, 0, 0, 3), 7);
}

// Laws 14 and 19: bytes by formula, all of them there after the first blocks.
TEST(CausalWindow, BytesFollowTheFormulaAndStay) {
  for (const auto& [dtype, rows] : {std::pair{DType::kF32, KeptRows::kCompute},
                                    {DType::kBF16, KeptRows::kCompute},
                                    {DType::kBF16, KeptRows::kFp8},
                                    {DType::kF32, KeptRows::kInt8}}) {
    CausalWindowShape shape = window(4, 2, 1, 2);
    shape.kept = rows;
    CausalWindow kept(shape);
    WindowPasses passes(kept);
    for (int number : {0, 1}) passes.sink(WindowQkv(kSinkFrames, 0, dtype), number);
    const auto run = [&](int64_t first) {
      for (int step : {0, 1})
        passes.segment(WindowQkv({first, first + 2}, step, dtype), {first, first + 2}, 30, step);
    };
    for (int64_t first = 0; first < 8; first += 2) run(first);
    const size_t bytes = kept.bytes(), live = tensor_bytes_live();
    EXPECT_EQ(bytes, causal_window_cache_bytes(shape, {.heads = kWindowHeads,
                                                       .kv_heads = kWindowHeads,
                                                       .head_dim = kWindowHead,
                                                       .dtype = dtype}));
    const size_t high = passes.arena.high_water();
    for (int64_t first = 8; first < 200; first += 2) run(first);
    EXPECT_EQ(kept.bytes(), bytes);
    EXPECT_EQ(tensor_bytes_live(), live);
    EXPECT_EQ(passes.arena.high_water(), high);
  }
}

// Law 18: the result is that of attention over rows that were coded and decoded. Values of four
// significant bits are exact.
void expect_rows_of_their_code(KeptRows rows, RowCode kind, double error) {
  const auto coded = [kind](const Tensor& x) {
    Stream stream = Stream::cpu(1);
    const TensorView& from = x.view();
    const Tensor code(DType::kI8, {from[0], from[1], from[2] + 1});
    Tensor out(from.dtype, from.shape());
    encode_rows(stream, x, {}, code, kind);
    decode_rows(stream, code, {}, out, kind);
    return out;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    CausalWindowShape eight = window(4);
    eight.kept = rows;
    CausalWindow kept(eight), exact(window(4));
    WindowPasses passes(kept), reference(exact);
    const auto changed = [&](const WindowQkv& x, const Range& frames) {
      WindowQkv y(frames, 0, dtype);
      y.k = coded(x.k);
      y.v = coded(x.v);
      return y;
    };
    passes.sink(WindowQkv(kSinkFrames, 0, dtype));
    reference.sink(changed(WindowQkv(kSinkFrames, 0, dtype), kSinkFrames));
    for (int64_t first = 0; first < 12; first += 3) {
      const Range segment{first, first + 3};
      const WindowQkv x(segment, 0, dtype);
      const Tensor out = passes.segment(x, segment, 30);
      EXPECT_TRUE(same_bits(out, reference.segment(changed(x, segment), segment, 30))) << first;
      EXPECT_LE(relative_l2(out, window_by_definition(segment, kept.seen(segment), 0, 30)), error);
    }
  }
  Tensor same(DType::kF32, {2, 1, kWindowHead});
  for (int64_t i = 0; i < same.count(); ++i) same.as<float>()[i] = i < kWindowHead ? 0.75f : -12.0f;
  EXPECT_TRUE(same_bits(coded(same), same));
}

TEST(CausalWindow, RowsOfEightBitsAreThoseOfTheirCode) {
  expect_rows_of_their_code(KeptRows::kFp8, RowCode::kE4m3, 0.0625);
  expect_rows_of_their_code(KeptRows::kInt8, RowCode::kInt8, 1.0 / 64);
}

TEST(CausalWindow, Bf16IsWithinItsRounding) {
  CausalWindow kept(window(4));
  WindowPasses passes(kept);
  passes.sink(WindowQkv(kSinkFrames, 0, DType::kBF16));
  for (int64_t first = 0; first < 12; first += 2) {
    const Range segment{first, first + 2};
    const Tensor out = passes.segment(WindowQkv(segment, 0, DType::kBF16), segment, 30);
    EXPECT_LE(relative_l2(out, window_by_definition(segment, kept.seen(segment), 0, 30)), 1e-2);
  }
}

}  // namespace
}  // namespace weft::test
