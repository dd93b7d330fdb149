#pragma once
// Laws that every transformer of pictures keeps. Each is checked on the model of a golden case.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/models/footprint_testing.h"
#include "tests/models/picture_testing.h"
#include "tests/models/slices_testing.h"

namespace weft::test {

// The kernels and the dtype under which a golden case runs.
struct OpTable {
  const char* name;  // "reference" or "cpu"
  DType dtype;

  const Ops& ops() const { return std::string(name) == "cpu" ? cpu_ops() : reference_ops(); }
};

inline auto every_op_table() {
  return testing::Values(OpTable{"reference", DType::kF32}, OpTable{"reference", DType::kBF16},
                         OpTable{"cpu", DType::kF32}, OpTable{"cpu", DType::kBF16});
}

inline std::string op_table_name(const testing::TestParamInfo<OpTable>& info) {
  return std::string(info.param.name) + "_" + std::string(to_string(info.param.dtype));
}

// Everything that the reference recorded is met.
inline void expect_reference(const std::string& name, const TransformerModel& described,
                             const OpTable& run) {
  GoldenPicture model(name, described, {.dtype = run.dtype}, run.ops());
  Recorder recorder;
  const Tensor out = model.run(&recorder);
  recorder.seen["output"] = model.picture(out);
  for (const std::string& seen : model.expected.names()) {
    ASSERT_TRUE(recorder.seen.count(seen)) << seen;
    EXPECT_TRUE(model.matches(seen, recorder.seen[seen], run.dtype));
  }
  EXPECT_EQ(model.arena.used(), 0u);
}

inline void expect_same_bits_for_any_thread_count(const std::string& name,
                                                  const TransformerModel& described) {
  GoldenPicture model(name, described, {}, cpu_ops());
  const Tensor expected = model.run();
  for (const int threads : {1, 3}) {
    model.stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
    EXPECT_TRUE(bitwise_equal(model.run(), expected)) << threads;
  }
}

// Two halves of the width give the result of the whole, and each reads nothing but its half.
// `part_of` is what a slice of the width holds of a tensor. `heads` and `ffn` are the whole width.
using PartOf = std::function<TensorPart(const TensorSpec& tensor, const WidthSlice& width)>;
inline void expect_halves_sum_to_the_whole(const std::string& name,
                                           const TransformerModel& described, int64_t heads,
                                           int64_t ffn, const PartOf& part_of) {
  GoldenPicture whole(name, described);
  const Tensor expected = whole.run();
  const std::vector<TensorSpec> specs = described.tensors();
  const TensorFile source = TensorFile::open(whole.folder + "/model/transformer");
  NamedTensors tensors;
  for (const TensorSpec& spec : specs) tensors[spec.name] = load_tensor(source, spec.name);
  run_parts(2, [&](int rank, Reducer& reducer) {
    const WidthSlice width = width_part(heads, ffn, 2, rank);
    const std::string path =
        testing::TempDir() + "weft_" + name + "_half_" + std::to_string(rank) + ".safetensors";
    write_poisoned(path, specs, tensors, [&](const TensorSpec& tensor, TensorPart* part) {
      *part = part_of(tensor, width);
      return true;
    });
    PictureModel model(described, TensorFile::open(path), {.width = width});
    std::remove(path.c_str());
    model.take_inputs(whole, whole.latent);
    Context c{model.stream,
              model.arena,
              model.seams.mixer,
              reducer,
              model.seams.halo,
              {},
              TokenRanges::all(model.tokens)};
    const BlockRange all = BlockRange::all(model.traits.blocks);
    const Tensor out = model.run(c, all, model.rows, *model.prepare(c));
    EXPECT_LT(relative_l2(to_f64(out), to_f64(expected)), kParallelL2) << rank;
    const int64_t rows = whole.text.view()[0];
    EXPECT_EQ(model.arena.high_water(), dry_forward(described, {.width = width}, model.grid,
                                                    {rows, rows}, *silent_reducer(2, rank))
                                            .arena);
  });
}

// A dry run predicts the memory of a forward, in every dtype, for each range of blocks and each
// number of a prompt's rows.
inline void expect_memory_of_the_dry_run(const std::string& name, const TransformerModel& described,
                                         std::span<const BlockRange> ranges,
                                         std::span<const int64_t> lengths) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges)
      for (const int64_t length : lengths) {
        const TransformerLoad load{.dtype = dtype, .blocks = blocks};
        GoldenPicture model(name, described, load);
        model.text = Tensor(DType::kF32, {length, model.traits.text_columns});
        Context c = model.context();
        const size_t before = tensor_bytes_live();
        const auto conditioning = model.prepare(c);
        const Rope rope = model.transformer->rope(model.grid, {}, *conditioning);
        const size_t held = tensor_bytes_live() - before;
        const Footprint dry =
            dry_forward(described, load, model.grid, {length, length}, *silent_reducer(1, 0));
        EXPECT_EQ(held, dry.held);
        EXPECT_EQ(conditioning->joint_rows(), described.joint_rows(model.tokens, length));
        const Tensor hidden(DType::kF32,
                            {model.tokens + conditioning->joint_rows(), model.traits.width});
        model.run(c, blocks, blocks.first() ? model.rows.view() : hidden.view(), *conditioning);
        EXPECT_EQ(model.arena.high_water(), dry.arena)
            << to_string(dtype) << " blocks " << blocks.begin << " " << blocks.end << " prompt "
            << length;
      }
}

// The bytes of packed weights are those predicted for a model of three blocks. Packed matrices may
// be padded to the tiles of the GEMM, so its widths must not be tiny.
inline void expect_predicted_weights(const TransformerModel& described) {
  const std::string path = testing::TempDir() + "weft_picture_weights.safetensors";
  write_file(path, random_weights(described.tensors(), 5));
  for (const BlockRange& blocks : {BlockRange{0, 3, 3}, {0, 1, 3}, {1, 2, 3}, {2, 3, 3}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TransformerLoad load{.dtype = dtype, .blocks = blocks};
      const PictureModel model(described, TensorFile::open(path), load);
      const auto predicted = static_cast<double>(dry_weights(described, load));
      EXPECT_NEAR(static_cast<double>(model.transformer->weights_bytes()), predicted,
                  0.05 * predicted);
    }
  std::remove(path.c_str());
}

}  // namespace weft::test
