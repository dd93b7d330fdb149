// A Wan transformer is split by width and by layers. The parts together equal the whole, each reads
// only its own bytes, and each holds the predicted memory.
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/ops.h"
#include "models/wan/transformer.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// A config with five heads and a hidden layer of odd width. Only one and five parts divide the
// heads, and no number of parts divides the hidden layer.
WanConfig uneven_config() {
  WanConfig config;
  config.heads = 5;
  config.head_dim = 12;
  config.layers = 3;
  config.ffn_dim = 67;
  config.in_channels = config.out_channels = 4;
  config.text_dim = 20;
  config.freq_dim = 16;
  return config;
}

bool is_held(const std::string& name, const BlockRange& blocks) {
  if (name.starts_with("blocks.")) {
    const int index = name[std::string("blocks.").size()] - '0';  // fewer than ten
    return blocks.begin <= index && index < blocks.end;
  }
  if (name.starts_with("patch_embedding")) return blocks.first();
  if (name.starts_with("proj_out") || name == "scale_shift_table") return blocks.last();
  return true;
}

// Runs one model and one request on any number of parts.
class WanSlices : public testing::Test {
 protected:
  void SetUp() override { use(uneven_config(), random_weights(wan_tensors(uneven_config()), 7)); }
  void TearDown() override {
    for (const std::string& path : files_) std::remove(path.c_str());
  }

  void use(const WanConfig& config, NamedTensors weights) {
    config_ = config;
    weights_ = std::move(weights);
    file_ = new_path();
    write_file(file_, weights_);
    latent_ = waves({config.in_channels, 3, 4, 6}, 0.37);
    embeds_ = waves({6, config.text_dim}, 0.73);
    grid_ = config.traits().grid(3, 4, 6);
    tokens_ = grid_[0] * grid_[1] * grid_[2];
  }
  std::string new_path() {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    files_.push_back(testing::TempDir() + "weft_slices_" + name + std::to_string(files_.size()) +
                     ".safetensors");
    return files_.back();
  }

  // Computes the velocity with a pipeline of stages, each split over `parts` ranks. Checks that all
  // ranks of the last stage have the same one, and returns it. `file_of` names the file of a rank.
  Tensor run(int parts, const std::vector<BlockRange>& stages, DType dtype = DType::kF32,
             const std::function<std::string(const TransformerLoad&)>& file_of = {},
             AllReduce algorithm = AllReduce::kRing) {
    std::vector<Tensor> in(static_cast<size_t>(parts)), out(static_cast<size_t>(parts));
    for (const BlockRange& blocks : stages) {
      std::vector<std::string> paths;
      for (int rank = 0; rank < parts; ++rank)
        paths.push_back(file_of ? file_of(load_of(parts, rank, blocks, dtype)) : file_);
      run_parts(
          parts,
          [&](int rank, Reducer& reducer) {
            const auto silent = silent_reducer(parts, rank, algorithm);
            const TransformerLoad load = load_of(parts, rank, blocks, dtype);
            const Footprint dry =
                dry_forward(*make_wan_model(config_), load, grid_, {6, 10}, *silent);
            out[rank] = forward(paths[rank], load, reducer, dry,
                                blocks.first() ? latent_.view() : in[rank].view());
          },
          algorithm);
      in = std::move(out);
      out = std::vector<Tensor>(static_cast<size_t>(parts));
    }
    for (const Tensor& other : in) EXPECT_TRUE(bitwise_equal(other, in[0]));
    return std::move(in[0]);
  }
  TransformerLoad load_of(int parts, int rank, const BlockRange& blocks, DType dtype) const {
    return {.dtype = dtype,
            .blocks = blocks,
            .width = width_part(config_.heads, config_.ffn_dim, parts, rank)};
  }
  // Runs one rank's forward, and checks that the memory it holds is as predicted.
  Tensor forward(const std::string& path, const TransformerLoad& load, Reducer& reducer,
                 const Footprint& dry, const TensorView& in) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
    const TensorFile file = TensorFile::open(path);
    const WanTransformer wan = WanTransformer::load(stream, file, config_, load);
    // Dry runs pack as this table does.
    Stream panels = Stream::cpu(1, Determinism::kFixed, &cpu_ops());
    EXPECT_EQ(WanTransformer::load(panels, TensorFile::open(path), config_, load).weights_bytes(),
              dry_weights(*make_wan_model(config_), load));

    Arena arena(size_t{1} << 28);
    SerialSeams seams;
    Context context{stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(tokens_)};
    const WanText text = prepare_text(wan, context, embeds_, 10);
    const Rope rope = rope_of(wan, grid_);
    const size_t held = text.bytes() + rope_bytes(rope);
    EXPECT_GE(dry.held, held);  // alignment adds up to 128 bytes to each tensor
    EXPECT_LE(dry.held, held + 128 * (4 + text.k.size() + text.v.size()));
    const TimeSegment time{.tokens = {0, tokens_}, .timestep = 321};
    Tensor out = load.blocks.last() ? Tensor(DType::kF32, {config_.out_channels, 3, 4, 6})
                                    : Tensor(DType::kF32, {tokens_, config_.width()});
    test::forward(wan, context, load.blocks, in, {&time, 1}, text, rope, out);
    EXPECT_EQ(arena.high_water(), dry.arena);
    return out;
  }
  // The bytes of the weights without any padding.
  size_t weights_bytes(const TransformerLoad& load) const {
    Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
    return WanTransformer::load(stream, TensorFile::open(file_), config_, load).weights_bytes();
  }
  void expect_close(const Tensor& got, const Tensor& whole) {
    EXPECT_LT(relative_l2(to_f64(got), to_f64(whole)), kParallelL2);
  }

  WanConfig config_;
  NamedTensors weights_;
  std::string file_;
  std::vector<std::string> files_;
  Tensor latent_, embeds_;
  std::array<int64_t, 3> grid_{};
  int64_t tokens_ = 0;
};

TEST_F(WanSlices, JoinedTheyAreTheWhole) {
  const BlockRange all = BlockRange::all(3);
  const Tensor whole = run(1, {all});
  for (int parts = 2; parts <= 5; ++parts) {
    SCOPED_TRACE(parts);
    expect_close(run(parts, {all}), whole);
    expect_close(run(parts, {{0, 2, 3}, {2, 3, 3}}), whole);
  }
  EXPECT_TRUE(bitwise_equal(run(1, {{0, 1, 3}, {1, 3, 3}}), whole));
  expect_close(run(3, {{0, 1, 3}, {1, 2, 3}, {2, 3, 3}}), whole);
  expect_close(run(4, {all}, DType::kF32, {}, AllReduce::kStar), whole);
}

// Partial sums are f32, so parts differ from the whole by less than bf16 itself does from f32.
TEST_F(WanSlices, Bf16StaysWithinItsOwnError) {
  const BlockRange all = BlockRange::all(3);
  const Tensor exact = run(1, {all}), whole = run(1, {all}, DType::kBF16);
  const double own = relative_l2(to_f64(whole), to_f64(exact));
  for (const int parts : {2, 3, 4})
    EXPECT_LT(relative_l2(to_f64(run(parts, {all}, DType::kBF16)), to_f64(whole)), own) << parts;
}

// Each rank has its own file, in which everything except its part is NaN.
TEST_F(WanSlices, NothingElseIsUsed) {
  const auto poisoned = [&](const TransformerLoad& load) {
    const std::string path = new_path();
    write_poisoned(path, wan_tensors(config_), weights_,
                   [&](const TensorSpec& tensor, TensorPart* part) {
                     *part = wan_part(config_, tensor, load.width);
                     return is_held(tensor.name, load.blocks);
                   });
    return path;
  };
  const Tensor whole = run(1, {BlockRange::all(3)});
  expect_close(run(1, {{0, 2, 3}, {2, 3, 3}}, DType::kF32, poisoned), whole);
  expect_close(run(3, {{0, 1, 3}, {1, 3, 3}}, DType::kF32, poisoned), whole);
}

TEST_F(WanSlices, ReadsItsBytesAlone) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  for (const BlockRange& blocks : {BlockRange{0, 3, 3}, {0, 1, 3}, {1, 3, 3}})
    for (int parts = 1; parts <= 5; ++parts) {
      uint64_t sliced = 0, read = 0;
      for (const TensorSpec& tensor : wan_tensors(config_))
        if (is_held(tensor.name, blocks) && parts > 1 &&
            !wan_part(config_, tensor, width_part(5, 67, parts, 0)).whole(tensor))
          sliced += static_cast<uint64_t>(parameter_count({&tensor, 1})) * sizeof(float);
      for (int rank = 0; rank < parts; ++rank) {
        const TensorFile file = TensorFile::open(file_);
        const TransformerLoad load = load_of(parts, rank, blocks, DType::kF32);
        WanTransformer::load(stream, file, config_, load);
        uint64_t own = 0;
        for (const TensorSpec& tensor : wan_tensors(config_)) {
          const TensorPart part = wan_part(config_, tensor, load.width);
          if (is_held(tensor.name, blocks) && !part.whole(tensor))
            own += static_cast<uint64_t>(part.count(tensor)) * sizeof(float);
        }
        EXPECT_EQ(file.bytes_read(), own) << parts << " " << rank;
        read += file.bytes_read();
      }
      EXPECT_EQ(read, sliced) << parts;  // every value of every matrix is read exactly once
    }
}

// All ranks together hold the model once, plus the replicated parts once for every other rank.
TEST_F(WanSlices, SumOfThePartsIsTheWholeAndTheReplicas) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (int parts = 1; parts <= 5; ++parts) {
      size_t held = 0, replicated = 0;
      for (int rank = 0; rank < parts; ++rank)
        held += weights_bytes(load_of(parts, rank, BlockRange::all(3), dtype));
      const TransformerLoad one = load_of(2, 0, BlockRange::all(3), dtype);
      for (const TensorSpec& tensor : wan_tensors(config_))
        if (wan_part(config_, tensor, one.width).whole(tensor)) {
          const bool text = tensor.name.find("text_embedder") != tensor.name.npos &&
                            tensor.name.ends_with("weight");
          replicated += static_cast<size_t>(parameter_count({&tensor, 1})) *
                        size_of(text ? dtype : DType::kF32);
        }
      EXPECT_EQ(held, weights_bytes({.dtype = dtype, .blocks = {}}) + (parts - 1) * replicated)
          << parts;
    }
}

// Loading needs, besides the packed weights, at most the memory of one part of one matrix in the
// compute dtype.
TEST_F(WanSlices, LoadingTakesLittleMoreThanTheWeights) {
  WanConfig config = uneven_config();
  config.head_dim = 48;
  config.ffn_dim = 1001;
  config.layers = 4;
  use(config, random_weights(wan_tensors(config), 11));
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int parts : {1, 2, 3})
      for (const BlockRange& blocks : {BlockRange{0, 4, 4}, {1, 2, 4}}) {
        const TransformerLoad load = load_of(parts, parts - 1, blocks, dtype);
        const TensorFile file = TensorFile::open(file_);
        const auto weights = static_cast<double>(weights_bytes(load));
        const size_t before = tensor_bytes_live();
        reset_tensor_bytes_peak();
        const WanTransformer wan = WanTransformer::load(stream, file, config, load);
        EXPECT_LT(tensor_bytes_peak() - before, 1.15 * weights);
        EXPECT_LT(tensor_bytes_live() - before, 1.05 * weights);
      }
}

TEST_F(WanSlices, ImpossibleSlicesAndSumsAreBugs) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  const TensorFile file = TensorFile::open(file_);
  const auto load = [&](const WidthSlice& width) {
    return WanTransformer::load(stream, file, config_,
                                {.dtype = DType::kF32, .blocks = {}, .width = width});
  };
  EXPECT_DEATH(load({.heads = {5, 5}, .ffn = {10, 20}}), "part");  // a sixth rank of six
  EXPECT_DEATH(load({.heads = {1, 2}, .ffn = {67, 67}}), "part");
  EXPECT_DEATH(load({.heads = {4, 6}, .ffn = {10, 20}}), "part");
  EXPECT_DEATH(load({.heads = {1, 2}, .ffn = {}}), "heads");
  EXPECT_DEATH(load({.heads = {}, .ffn = {0, 66}}), "heads");
  // A part needs a reducer that sums, and a whole model must not have one.
  const WanTransformer part = load({.heads = {0, 2}, .ffn = {0, 9}}), whole = load({});
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  Context alone = seams.context(stream, arena, {}, TokenRanges::all(tokens_));
  EXPECT_DEATH(prepare_text(part, alone, embeds_, 10), "a sum over 1 parts");
  struct TwoParts final : Reducer {
    int parts() const override { return 2; }
    void sum(Context&, const TensorView&) override {}
    void gather(Context&, const TensorView&, int, const TensorView&) override {}
  } reducer;
  Context two{stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(tokens_)};
  EXPECT_DEATH(prepare_text(whole, two, embeds_, 10), "a sum over 2 parts");
}

}  // namespace
}  // namespace weft::test
