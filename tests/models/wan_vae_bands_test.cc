// The VAE's seams: bands of rows on threads, with a halo and a mixer that fetch from the neighbour,
// give the picture of one rank.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <thread>

#include "kernels/copy.h"
#include "kernels/ops.h"
#include "models/wan_vae.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// What two ranks show each other; the views are read between two meetings.
struct Board {
  std::barrier<> meeting{2};
  std::array<TensorView, 2> rows, k, v;
};

class TwoBandHalo final : public Halo {
 public:
  TwoBandHalo(Board& board, int rank) : board_(board), rank_(rank) {}
  HaloView exchange(Context& context, const TensorView& band, int dim, int64_t before,
                    int64_t after) override {
    EXPECT_EQ(dim, 1);
    board_.rows[rank_] = band;
    board_.meeting.arrive_and_wait();
    const TensorView other = board_.rows[1 - rank_];
    const int64_t above = rank_ == 1 ? before : 0, below = rank_ == 0 ? after : 0;
    const TensorView out =
        context.arena.alloc(band.dtype, {band[0], above + band[1] + below, band[2], band[3]});
    copy(context.stream, band, out.slice(1, above, band[1]));
    if (above)
      copy(context.stream, other.slice(1, other[1] - above, above), out.slice(1, 0, above));
    if (below) copy(context.stream, other.slice(1, 0, below), out.slice(1, band[1], below));
    board_.meeting.arrive_and_wait();
    return {out, above, below};
  }

 private:
  Board& board_;
  int rank_;
};

class TwoBandMixer final : public TokenMixer {
 public:
  TwoBandMixer(Board& board, int rank) : board_(board), rank_(rank) {}
  void begin(const Pass&) override {}
  void attend(Context& context, const Attend& attend) override {
    board_.k[rank_] = attend.k;
    board_.v[rank_] = attend.v;
    board_.meeting.arrive_and_wait();
    std::array<KVSegment, 2> segments;
    for (int rank = 0; rank < 2; ++rank) {
      segments[rank].k = board_.k[rank];
      segments[rank].v = board_.v[rank];
    }
    AttentionArgs args;
    args.q = attend.q;
    args.segments = segments;
    args.scale = attend.scale;
    args.out = attend.out;
    attention(context.stream, args);
    board_.meeting.arrive_and_wait();
  }

 private:
  Board& board_;
  int rank_;
};

// Runs work(context) as rank 0 and rank 1 on a thread each.
template <class Work>
void run_two_bands(Work&& work) {
  Board board;
  const auto rank_main = [&](int rank) {
    Stream stream = Stream::cpu(1, Determinism::kFast, &reference_ops());
    Arena arena(size_t{1} << 30);
    TwoBandMixer mixer(board, rank);
    TwoBandHalo halo(board, rank);
    IdentityReducer reducer;
    Context context{stream, arena, mixer, reducer, halo, {}, {}};
    work(context, rank);
  };
  std::thread other([&] { rank_main(1); });
  rank_main(0);
  other.join();
}

class VaeBands : public testing::TestWithParam<const char*> {
 protected:
  VaeBands()
      : folder_(std::string("tests/golden/") + GetParam() + "/model/vae"),
        config_(WanVaeConfig::from_json_file(folder_ + "/config.json")),
        vae_(WanVae::load(TensorFile::open(folder_), config_, stream_, DType::kF32,
                          VaeParts::kBoth)) {}
  Context context() { return seams_.context(stream_, arena_, {}, {}); }

  std::string folder_;
  Stream stream_ = Stream::cpu(1, Determinism::kFast, &reference_ops());
  Arena arena_{size_t{1} << 30};
  SerialSeams seams_;
  WanVaeConfig config_;
  WanVae vae_;
};

constexpr int64_t kRows = 3, kColumns = 2, kLatentFrames = 3;
constexpr std::array<Range, 2> kBands{{{0, 2}, {2, 3}}};

TEST_P(VaeBands, DecodingEqualsOneRank) {
  const int64_t scale = config_.spatial_factor();
  const std::array<int64_t, 4> shape{3, config_.frames(kLatentFrames), kRows * scale,
                                     kColumns * scale};
  Tensor latents(DType::kF32, {16, kLatentFrames, kRows, kColumns}), whole(DType::kF32, shape),
      joined(DType::kF32, shape);
  for (int64_t i = 0; i < latents.count(); ++i)
    latents.as<float>()[i] = static_cast<float>(std::sin(0.7 * i));
  Context serial = context();
  vae_decode(serial, vae_, latents, whole);
  run_two_bands([&](Context& context, int rank) {
    const Range band = kBands[rank];
    vae_decode(context, vae_, latents.view().slice(2, band.begin, band.size()),
               joined.view().slice(2, band.begin * scale, band.size() * scale));
  });
  EXPECT_TRUE(bitwise_equal(joined, whole));
}

TEST_P(VaeBands, EncodingEqualsOneRank) {
  const int64_t scale = config_.spatial_factor();
  Tensor video(DType::kF32, {3, config_.frames(kLatentFrames), kRows * scale, kColumns * scale});
  Tensor whole(DType::kF32, {16, kLatentFrames, kRows, kColumns}),
      joined(DType::kF32, {16, kLatentFrames, kRows, kColumns});
  for (int64_t i = 0; i < video.count(); ++i)
    video.as<float>()[i] = static_cast<float>(std::sin(0.07 * i));
  Context serial = context();
  vae_encode(serial, vae_, video, whole);
  run_two_bands([&](Context& context, int rank) {
    const Range band = kBands[rank];
    vae_encode(context, vae_, video.view().slice(2, band.begin * scale, band.size() * scale),
               joined.view().slice(2, band.begin, band.size()));
  });
  EXPECT_TRUE(bitwise_equal(joined, whole));
}

INSTANTIATE_TEST_SUITE_P(Cases, VaeBands,
                         testing::Values("vae21_tiny_decode3", "vae_patch2_decode3"));

}  // namespace
}  // namespace weft::test
