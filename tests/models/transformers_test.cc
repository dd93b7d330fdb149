// Laws that the transformers of all families keep, on their golden cases.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "models/flux/transformer.h"
#include "models/flux2/transformer.h"
#include "models/krea2/transformer.h"
#include "models/qwen_image/transformer.h"
#include "models/wan_s2v/transformer.h"
#include "models/z_image/transformer.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_cases.h"

namespace weft::test {
namespace {

constexpr const char* kCases[] = {
    "dit_wan_tiny",
    "dit_wan_tiny_image",
    "dit_wan_tiny_sharded",
    "dit_wan_hd128_bf16_weights",
    "dit_wan_original_names",
    "dit_wan_i2v21",
    "dit_wan_flf2v",
    "s2v_first_clip",
    "s2v_motion",
    "s2v_pose_bf16_weights",
    "dit_flux",
    "dit_flux2_dev",
    "dit_flux2_references",
    "dit_krea2",
    "dit_krea2_twelve_taps",
    "dit_qwen_image",
    "dit_zimage",
};
// Those whose pictures and motion are as many as a dry run plans for.
constexpr const char* kPlannedCases[] = {"dit_wan_tiny",
                                         "dit_wan_tiny_sharded",
                                         "dit_wan_hd128_bf16_weights",
                                         "dit_wan_original_names",
                                         "dit_wan_flf2v",
                                         "s2v_motion",
                                         "dit_flux",
                                         "dit_flux2_dev",
                                         "dit_krea2",
                                         "dit_krea2_twelve_taps",
                                         "dit_qwen_image",
                                         "dit_zimage"};

bool is_planned(const std::string& name) { return std::ranges::count(kPlannedCases, name) > 0; }

// The part of a tensor that a slice of the width holds.
using PartOf = std::function<TensorPart(const TensorSpec& tensor, const WidthSlice& width)>;

template <class Config>
PartOf by(TensorPart (*part)(const Config&, const TensorSpec&, const WidthSlice&),
          const std::string& config) {
  return std::bind_front(part, Config::from_json_file(config));
}

TensorPart first_flux_part(const FluxConfig& config, const TensorSpec& tensor,
                           const WidthSlice& width) {
  const auto [first, second] = flux_part(config, tensor, width);
  return second.range.size() > 0 ? TensorPart{0, {0, tensor.shape[0]}} : first;
}

// A tensor that joins several matrices is given as a whole.
TensorPart first_flux2_part(const Flux2Config& config, const TensorSpec& tensor,
                            const WidthSlice& width) {
  const std::vector<Flux2Piece> pieces = flux2_pieces(config, tensor, width);
  return pieces.size() > 1 ? TensorPart{0, {0, tensor.shape[0]}} : pieces.front().part;
}

PartOf part_of(const std::string& name, const std::string& config) {
  if (name.starts_with("dit_wan")) return by<WanConfig>(wan_part, config);
  if (name.starts_with("s2v")) return by<WanS2vConfig>(wan_s2v_part, config);
  if (name.starts_with("dit_flux2")) return by<Flux2Config>(first_flux2_part, config);
  if (name.starts_with("dit_krea2")) return by<Krea2Config>(krea2_part, config);
  if (name == "dit_flux") return by<FluxConfig>(first_flux_part, config);
  if (name == "dit_qwen_image") return by<QwenImageConfig>(qwen_image_part, config);
  return by<ZImageConfig>(z_image_part, config);
}

NamedTensors weights_of(const TransformerCase& c) {
  NamedTensors weights;
  for (const TensorSpec& spec : c.model->tensors())
    for (const TensorPlace& place : c.model->spellings(spec.name))
      if (c.file.contains(place.name) && !weights.count(spec.name))
        weights[spec.name] = load_tensor(c.file, place.name);
  return weights;
}

void expect_reference(const TransformerCase& c, std::map<std::string, Tensor>& seen, DType dtype) {
  for (const std::string& name : c.expected.names()) {
    ASSERT_TRUE(seen.count(name)) << name;
    EXPECT_TRUE(c.matches(name, seen[name], dtype));
  }
}

class Transformers : public testing::TestWithParam<const char*> {
 protected:
  TransformerCase c{GetParam()};
};

// Everything that the reference recorded is met.
TEST_P(Transformers, MatchTheReference) {
  for (const OpsRun& table : kOpsRuns) {
    SCOPED_TRACE(std::string(table.ops) + " " + std::string(to_string(table.dtype)));
    TransformerRun run(c, {.dtype = table.dtype}, table.table());
    Recorder recorder;
    recorder.seen["output"] = run.run(&recorder);
    expect_reference(c, recorder.seen, table.dtype);
    EXPECT_EQ(run.arena.used(), 0u);
  }
}

// Parts of the width give the result of the whole, and each reads nothing but its part.
TEST_P(Transformers, PartsGiveTheWhole) {
  const NamedTensors weights = weights_of(c);
  for (const OpsRun& run_of : kOpsRuns)
    for (int parts = 2; parts <= c.traits.heads; ++parts) {
      const DType dtype = run_of.dtype;
      const Ops& table = run_of.table();
      const Tensor whole = TransformerRun(c, {.dtype = dtype}, table).run();
      const PartOf part_of_width = part_of(GetParam(), c.config());
      run_parts(parts, [&](int rank, Reducer& reducer) {
        const TransformerLoad load{.dtype = dtype, .width = c.traits.width_part(parts, rank)};
        const std::string path = testing::TempDir() + "weft_" + GetParam() + "_part_" +
                                 std::to_string(rank) + ".safetensors";
        write_poisoned(path, c.model->tensors(), weights,
                       [&](const TensorSpec& tensor, TensorPart* part) {
                         *part = part_of_width(tensor, load.width);
                         return true;
                       });
        TransformerRun run(c, TensorFile::open(path), load, table);
        std::remove(path.c_str());
        if (&table == &cpu_ops()) {  // as which dry runs pack
          EXPECT_EQ(run.transformer->weights_bytes(), dry_weights(*c.model, load));
        }
        run.reducer = &reducer;
        const Tensor out = run.run();
        if (dtype == DType::kF32) {
          EXPECT_LT(relative_l2(to_f64(out), to_f64(whole)), kParallelL2) << rank;
        }
        const int64_t rows = c.conditions.text[0];
        if (is_planned(GetParam())) {
          EXPECT_EQ(run.arena.high_water(),
                    dry_forward(*c.model, load, c.grid, {rows, rows}, *silent_reducer(parts, rank))
                        .arena);
        }
        Recorder recorder;
        recorder.seen["output"] = run.run(&recorder);
        EXPECT_EQ(run.arena.used(), 0u);
        if (rank == 0) expect_reference(c, recorder.seen, dtype);
      });
    }
}

// A pipeline that splits the blocks only moves data.
TEST_P(Transformers, BlockRangesComposeBitwise) {
  const int n = c.traits.blocks;
  TransformerRun whole(c);
  const Tensor expected = whole.run();
  for (int split = 1; split < n; ++split) {
    TransformerRun a(c, {.blocks = {0, split, n}}), b(c, {.blocks = {split, n, n}});
    EXPECT_LT(a.transformer->weights_bytes(), whole.transformer->weights_bytes());
    EXPECT_LT(b.transformer->weights_bytes(), whole.transformer->weights_bytes());
    Context ca = a.context(), cb = b.context();
    const Tensor hidden = a.run(ca, c.latent, *a.prepare(ca));
    EXPECT_TRUE(bitwise_equal(b.run(cb, hidden, *b.prepare(cb)), expected)) << split;
  }
}

TEST_P(Transformers, SameBitsForAnyThreadCount) {
  TransformerRun run(c, {}, cpu_ops());
  const Tensor expected = run.run();
  for (const int threads : {1, 3}) {
    run.stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
    EXPECT_TRUE(bitwise_equal(run.run(), expected)) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Transformers, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param); });

// A dry run predicts the memory of a forward, in every dtype, for ranges of blocks and any number
// of a prompt's rows.
class TransformerMemory : public Transformers {};

TEST_P(TransformerMemory, IsThatOfTheDryRun) {
  const int n = c.traits.blocks;
  std::vector<BlockRange> ranges{{0, n, n}};
  for (int i = 0; n > 1 && i < n; ++i) ranges.push_back({i, i + 1, n});
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges)
      for (const int64_t length : {1, 3, 7, 32, 70}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " blocks " + std::to_string(blocks.begin) +
                     " to " + std::to_string(blocks.end) + " prompt " + std::to_string(length));
        const TransformerLoad load{.dtype = dtype, .blocks = blocks};
        const Tensor text(DType::kF32, {length, c.traits.text_columns});
        c.conditions.text = text;
        c.conditions.text_length = length;
        TransformerRun run(c, load, cpu_ops());
        EXPECT_EQ(run.transformer->weights_bytes(), dry_weights(*c.model, load));
        Context context = run.context();
        const size_t before = tensor_bytes_live();
        const auto conditioning = run.prepare(context);
        EXPECT_LE(conditioning->bytes(), tensor_bytes_live() - before);
        // Alignment adds up to 128 bytes to each tensor: some, and four of each layer.
        EXPECT_GE(conditioning->bytes() + 128 * static_cast<size_t>(3 + 4 * n),
                  tensor_bytes_live() - before);
        const Rope rope = run.transformer->rope(c.grid, {}, *conditioning);
        const size_t held = tensor_bytes_live() - before;
        const Footprint dry =
            dry_forward(*c.model, load, c.grid, {length, length}, *silent_reducer(1, 0));
        EXPECT_EQ(held, dry.held);
        EXPECT_EQ(conditioning->joint_rows(),
                  c.model->joint_rows(c.tokens, length) + c.model->motion_rows(c.grid) +
                      c.traits.reference_frames * c.grid[1] * c.grid[2]);
        const Tensor hidden = run.hidden(*conditioning);
        run.run(context, blocks.first() ? c.latent : hidden.view(), *conditioning);
        EXPECT_EQ(run.arena.high_water(), dry.arena);
      }
}

INSTANTIATE_TEST_SUITE_P(Cases, TransformerMemory, testing::ValuesIn(kPlannedCases),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::test
