// Transformers whose matrices stay as their file stores them: the bits of the expanded weights,
// their memory, parts of the width, and LoRA products that are added when a matrix is used.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops.h"
#include "models/lora/lora.h"
#include "models/wan/transformer.h"
#include "tests/io/io_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/compare.h"
#include "tests/support/quantised_copy.h"

namespace weft::test {
namespace {

// Widths that are whole blocks of every type, for one rank and for two.
WanConfig block_config() {
  WanConfig config;
  config.heads = 4;
  config.head_dim = 128;
  config.layers = 2;
  config.ffn_dim = 512;
  config.in_channels = config.out_channels = 4;
  config.text_dim = 256;
  config.freq_dim = 256;
  return config;
}

const BlockType kTypes[] = {BlockType::kQ8_0, BlockType::kQ4_0,   BlockType::kQ4_K,
                            BlockType::kF16,  BlockType::kF8E4M3, BlockType::kI8};

class StoredWeights : public testing::Test {
 protected:
  void use(const WanConfig& config) {
    config_ = config;
    model_ = make_wan_model(config);
    write_file(dir_ / "base.safetensors", random_weights(model_->tensors(), 5));
    file_ = std::make_shared<const TensorFile>(TensorFile::open(dir_ / "base.safetensors"));
    latent_ = waves({config.in_channels, 2, 4, 6}, 0.37);
    embeds_ = waves({6, config.text_dim}, 0.73);
    grid_ = config.traits().grid(2, 4, 6);
  }
  Tensor forward(const TensorFile& file, const TransformerLoad& load, Reducer* reducer = nullptr,
                 const Ops& ops = cpu_ops()) const {
    Stream stream = Stream::cpu(1, Determinism::kFixed, &ops);
    const WanTransformer wan = WanTransformer::load(stream, file, config_, load);
    Arena arena(size_t{1} << 30);
    SerialSeams seams;
    const int64_t tokens = grid_[0] * grid_[1] * grid_[2];
    Context context{stream,
                    arena,
                    seams.mixer,
                    reducer ? *reducer : seams.reducer,
                    seams.halo,
                    {},
                    TokenRanges::all(tokens)};
    const WanText text = prepare_text(wan, context, embeds_, 10);
    Tensor out(DType::kF32, latent_.view().shape());
    const TimeSegment time{{0, tokens}, 500};
    test::forward(wan, context, BlockRange::all(config_.layers), latent_, {&time, 1}, text,
                  rope_of(wan, grid_), out);
    return out;
  }
  double error(const Tensor& is, const Tensor& wants) const {
    return relative_l2(to_f64(is), to_f64(wants));
  }

  TempDir dir_;
  WanConfig config_;
  std::shared_ptr<const TransformerModel> model_;
  std::shared_ptr<const TensorFile> file_;
  Tensor latent_, embeds_;
  std::array<int64_t, 3> grid_{};
};

TEST_F(StoredWeights, ForwardsHaveTheBitsOfExpandedWeights) {
  use(block_config());
  for (const BlockType type : kTypes) {
    const TensorFile file = quantised_copy(file_, type);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Ops* ops : {&simd_ops(), &cpu_ops()}) {
        if (ops == &simd_ops() && type != BlockType::kQ4_K) continue;
        const TransformerLoad plain{.dtype = dtype},
            stored{.dtype = dtype, .weights = WeightFormat::kFile};
        const Tensor wants = forward(file, plain, nullptr, *ops),
                     is = forward(file, stored, nullptr, *ops);
        EXPECT_TRUE(bitwise_equal(is, wants))
            << shape_of(type).name << " " << to_string(dtype) << " " << ops->name;
      }
    // The types differ from the original weights by their rounding alone.
    const double off = error(forward(file, {}), forward(*file_, {}));
    EXPECT_GT(off, 0) << shape_of(type).name;
    EXPECT_LT(off, shape_of(type).bytes * 8 < 6 * shape_of(type).values ? 0.2 : 0.04)
        << shape_of(type).name;
  }
}

// Matrices whose columns are no whole blocks are expanded when they are read.
TEST_F(StoredWeights, OtherWidthsAreExpanded) {
  WanConfig config = block_config();
  config.text_dim = 40;
  config.ffn_dim = 1000;
  use(config);
  const TensorFile file = quantised_copy(file_, BlockType::kQ4_K);
  EXPECT_FALSE(file.blocks("blocks.0.ffn.net.2.weight"));
  EXPECT_TRUE(bitwise_equal(forward(file, {.weights = WeightFormat::kFile}), forward(file, {})));
}

TEST_F(StoredWeights, TheirMemoryIsThatOfTheFileAndOneMatrix) {
  use(block_config());
  for (const BlockType type : kTypes)
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TensorFile file = quantised_copy(file_, type);
      const TransformerLoad load{.dtype = dtype, .weights = WeightFormat::kFile};
      Stream stream = Stream::cpu(1);
      const size_t before = tensor_bytes_live();
      const std::unique_ptr<Transformer> wan = model_->load(stream, file, load);
      const size_t taken = tensor_bytes_live() - before;
      // The largest matrix in the layout that computes, here that of the timestep in f32.
      const auto scratch = static_cast<size_t>(6 * 512 * 512) * sizeof(float);
      EXPECT_LE(taken, file.bytes() + scratch + (size_t{128} << 10)) << shape_of(type).name;
      EXPECT_GE(taken, wan->weights_bytes());
      DryRun dry;
      const DryTransformer planned = dry_load(dry, *model_, file, load);
      EXPECT_EQ(planned.weights.held, taken) << shape_of(type).name << " " << to_string(dtype);
    }
}

TEST_F(StoredWeights, PartsOfTheWidthHaveTheBitsOfExpandedParts) {
  use(block_config());
  for (const BlockType type : kTypes) {
    const TensorFile file = quantised_copy(file_, type);
    std::array<Tensor, 2> is, wants;
    for (auto* out : {&is, &wants})
      run_parts(2, [&](int rank, Reducer& reducer) {
        const WeightFormat format = out == &is ? WeightFormat::kFile : WeightFormat::kCompute;
        (*out)[static_cast<size_t>(rank)] = forward(
            file, {.width = width_part(config_.heads, config_.ffn_dim, 2, rank), .weights = format},
            &reducer);
      });
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(bitwise_equal(is[rank], wants[rank])) << shape_of(type).name;
    EXPECT_LT(error(is[0], forward(file, {})), kParallelL2);
  }
}

TEST_F(StoredWeights, APartThatCutsBlocksIsRefusedByName) {
  WanConfig config = block_config();
  config.ffn_dim = 768;  // half of it is no multiple of 256
  use(config);
  const TensorFile file = quantised_copy(file_, BlockType::kQ4_K);
  const TransformerLoad load{.width = width_part(config.heads, config.ffn_dim, 2, 0),
                             .weights = WeightFormat::kFile};
  Stream stream = Stream::cpu(1);
  expect_error(ErrorKind::kUsage, "blocks.0.ffn.net.2.weight is stored in blocks of 256 columns",
               [&] { model_->load(stream, file, load); });
}

TEST_F(StoredWeights, AreRepackedTo8BitIntegers) {
  use(block_config());
  for (const BlockType type : kTypes) {
    const TensorFile file = quantised_copy(file_, type);
    // The same values as floats in a file of their own.
    NamedTensors floats;
    for (const std::string& name : file.names()) {
      Tensor& tensor = floats[name] = Tensor(DType::kF32, file.describe(name).shape());
      file.read_run(name, 0, TensorView(tensor.view().data, DType::kF32, {tensor.count()}));
    }
    write_file(dir_ / "floats.safetensors", floats);
    const TransformerLoad load{.weights = WeightFormat::kInt8};
    EXPECT_TRUE(bitwise_equal(forward(file, load),
                              forward(TensorFile::open(dir_ / "floats.safetensors"), load)))
        << shape_of(type).name;
  }
}

// A LoRA with factors for matrices of every kind, in the original names.
class StoredLora : public StoredWeights {
 protected:
  StoredLora() {
    use(block_config());
    const int64_t d = config_.width();
    for (const auto& [module, out, in] : std::vector<std::tuple<std::string, int64_t, int64_t>>{
             {"blocks.0.self_attn.q", d, d},
             {"blocks.0.self_attn.o", d, d},
             {"blocks.1.cross_attn.k", d, d},
             {"blocks.0.ffn.0", config_.ffn_dim, d},
             {"blocks.1.ffn.2", d, config_.ffn_dim},
             {"time_projection.1", 6 * d, d},
             {"text_embedding.0", d, config_.text_dim}})
      add(module, out, in, "first");
    for (const char* module : {"blocks.0.self_attn.q", "blocks.1.self_attn.v"})
      add(module, d, d, "second");
    for (const char* name : {"first", "second"}) {
      write_file(dir_ / (std::string(name) + ".safetensors"), given_[name]);
      loras_.push_back({.file = dir_ / (std::string(name) + ".safetensors"), .scale = 0.75});
    }
  }
  void add(const std::string& module, int64_t out, int64_t in, const std::string& file) {
    constexpr int64_t kRank = 4;
    const auto seed = static_cast<double>(given_[file].size() + 1);
    const auto small = [&](std::initializer_list<int64_t> shape, double step, float scale) {
      Tensor tensor = waves(shape, step);
      for (int64_t i = 0; i < tensor.count(); ++i) tensor.as<float>()[i] *= scale;
      return tensor;
    };
    given_[file]["diffusion_model." + module + ".lora_A.weight"] =
        small({kRank, in}, 0.61 * seed, 1 / std::sqrt(static_cast<float>(in)));
    given_[file]["diffusion_model." + module + ".lora_B.weight"] =
        small({out, kRank}, 0.43 * seed, 0.5f);
  }
  TensorFile changed(const TensorFile& base, std::span<const Lora> loras) const {
    std::vector<std::string> notes;
    TensorFile copy = quantised_copy(file_, type_of(base));
    return with_loras(std::make_shared<const TensorFile>(std::move(copy)), *model_, loras, notes);
  }
  static BlockType type_of(const TensorFile& file) {
    return *file.blocks("blocks.0.attn1.to_q.weight");
  }

  std::map<std::string, NamedTensors> given_;
  std::vector<Lora> loras_;
};

TEST_F(StoredLora, ProductsAreAddedAsIfTheyWereMerged) {
  for (const BlockType type : kTypes) {
    const TensorFile base = quantised_copy(file_, type), file = changed(base, loras_);
    const Tensor merged = forward(file, {});
    EXPECT_GT(error(merged, forward(base, {})), 1e-2);
    // In f32 the order of additions alone differs.
    const Tensor added = forward(file, {.weights = WeightFormat::kFile});
    EXPECT_LT(error(added, merged), 2e-6) << shape_of(type).name;
    const Tensor in_bf16 = forward(file, {.dtype = DType::kBF16, .weights = WeightFormat::kFile});
    const double bf16 = error(forward(file, {.dtype = DType::kBF16}), merged);
    EXPECT_LT(error(in_bf16, merged), 1.5 * bf16) << shape_of(type).name;
  }
}

TEST_F(StoredLora, ProductsAreAddedToIntegers) {
  const TensorFile base = quantised_copy(file_, BlockType::kQ8_0), file = changed(base, loras_);
  const Tensor exact = forward(file, {});
  const TransformerLoad int8{.weights = WeightFormat::kInt8};
  const double format = error(forward(base, int8), forward(base, {}));
  EXPECT_GT(error(exact, forward(base, {})), 1e-2);
  EXPECT_LT(error(forward(file, int8), exact), 1.5 * format);
}

TEST_F(StoredLora, PartsOfTheWidthAddTheirPartsOfProducts) {
  const TensorFile base = quantised_copy(file_, BlockType::kQ4_K), file = changed(base, loras_);
  const Tensor whole = forward(file, {.weights = WeightFormat::kFile});
  run_parts(2, [&](int rank, Reducer& reducer) {
    const Tensor part = forward(file,
                                {.width = width_part(config_.heads, config_.ffn_dim, 2, rank),
                                 .weights = WeightFormat::kFile},
                                &reducer);
    EXPECT_LT(error(part, whole), kParallelL2);
  });
}

// A Kronecker product is no product of two factors and cannot be added to blocks, so its matrix is
// merged.
TEST_F(StoredLora, KroneckerProductsAreMerged) {
  const std::string module = "diffusion_model.blocks.0.self_attn.k";
  given_["lokr"][module + ".lokr_w1"] = waves({8, 4}, 0.3);
  given_["lokr"][module + ".lokr_w2"] = waves({64, 128}, 0.7);
  for (int64_t i = 0; i < 64 * 128; ++i)
    given_["lokr"].at(module + ".lokr_w2").as<float>()[i] *= 0.05f;
  write_file(dir_ / "lokr.safetensors", given_["lokr"]);
  loras_.push_back({.file = dir_ / "lokr.safetensors"});
  const TensorFile base = quantised_copy(file_, BlockType::kQ8_0), file = changed(base, loras_);
  EXPECT_FALSE(file.blocks("blocks.0.attn1.to_k.weight"));
  EXPECT_TRUE(file.blocks("blocks.0.attn1.to_q.weight"));
  const Tensor exact = forward(file, {});
  EXPECT_GT(error(exact, forward(changed(base, std::span(loras_).first(2)), {})), 1e-3);
  EXPECT_LT(error(forward(file, {.weights = WeightFormat::kFile}), exact), 2e-6);
  const TransformerLoad int8{.weights = WeightFormat::kInt8};
  const double format = error(forward(base, int8), forward(base, {}));
  EXPECT_LT(error(forward(file, int8), exact), 1.5 * format);
  run_parts(2, [&](int rank, Reducer& reducer) {
    const Tensor part = forward(file,
                                {.width = width_part(config_.heads, config_.ffn_dim, 2, rank),
                                 .weights = WeightFormat::kFile},
                                &reducer);
    EXPECT_LT(error(part, exact), kParallelL2);
  });
}

// Nor can a full difference.
TEST_F(StoredLora, FullDifferencesAreMerged) {
  given_["diff"]["diffusion_model.blocks.0.self_attn.k.diff"] = waves({512, 512}, 0.3);
  for (int64_t i = 0; i < 512 * 512; ++i) given_["diff"].begin()->second.as<float>()[i] *= 0.02f;
  write_file(dir_ / "diff.safetensors", given_["diff"]);
  loras_.push_back({.file = dir_ / "diff.safetensors"});
  const TensorFile base = quantised_copy(file_, BlockType::kQ8_0), file = changed(base, loras_);
  EXPECT_FALSE(file.blocks("blocks.0.attn1.to_k.weight"));
  EXPECT_TRUE(file.blocks("blocks.0.attn1.to_q.weight"));
  EXPECT_LT(error(forward(file, {.weights = WeightFormat::kFile}), forward(file, {})), 2e-6);
}

TEST_F(StoredLora, TheirMemoryIsPlanned) {
  for (const WeightFormat format : {WeightFormat::kFile, WeightFormat::kInt8}) {
    const TensorFile file = changed(quantised_copy(file_, BlockType::kQ8_0), loras_);
    const TransformerLoad load{.dtype = DType::kBF16, .weights = format};
    Stream stream = Stream::cpu(1);
    const size_t before = tensor_bytes_live();
    const std::unique_ptr<Transformer> wan = model_->load(stream, file, load);
    const size_t taken = tensor_bytes_live() - before;
    DryRun dry;
    EXPECT_NEAR(static_cast<double>(dry_load(dry, *model_, file, load).weights.held),
                static_cast<double>(taken), 0.01 * static_cast<double>(taken))
        << to_string(format);
  }
}

}  // namespace
}  // namespace weft::test
