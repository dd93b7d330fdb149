// LoKr and LoHa: deltas that are computed of other factors than a product of two.
#include <cstring>
#include <functional>
#include <optional>

#include "models/flux2/transformer.h"
#include "models/z_image/transformer.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

struct PlainMatrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values{};
  double at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * columns + column)];
  }
};

PlainMatrix plain(const std::shared_ptr<const Tensor>& tensor) {
  const TensorView view = *tensor;
  return {view[0], view.count() / view[0], {view.as<float>(), view.as<float>() + view.count()}};
}

PlainMatrix filled(int64_t rows, int64_t columns,
                   const std::function<double(int64_t, int64_t)>& value) {
  PlainMatrix out{rows, columns};
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) out.values.push_back(value(row, column));
  return out;
}

PlainMatrix times(const PlainMatrix& a, const PlainMatrix& b) {
  return filled(a.rows, b.columns, [&](int64_t row, int64_t column) {
    double sum = 0;
    for (int64_t k = 0; k < b.rows; ++k) sum += a.at(row, k) * b.at(k, column);
    return sum;
  });
}

PlainMatrix transposed(const PlainMatrix& a) {
  return filled(a.columns, a.rows, [&](int64_t row, int64_t column) { return a.at(column, row); });
}

// Block (i, j) is a(i, j) b.
PlainMatrix kronecker(const PlainMatrix& a, const PlainMatrix& b) {
  PlainMatrix out{a.rows * b.rows, a.columns * b.columns};
  out.values.resize(static_cast<size_t>(out.rows * out.columns));
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.columns; ++j)
      for (int64_t k = 0; k < b.rows; ++k)
        for (int64_t l = 0; l < b.columns; ++l)
          out.values[static_cast<size_t>((i * b.rows + k) * out.columns + j * b.columns + l)] =
              a.at(i, j) * b.at(k, l);
  return out;
}

constexpr const char kFeed[] = "diffusion_model.blocks.0.ffn.0";  // [40, 24]
constexpr const char kFeedTensor[] = "blocks.0.ffn.net.0.proj.weight";

class Lokr : public LoraTest {
 protected:
  // Expects W + factor * the delta's rows from `first` on, in the tensor.
  void expect_delta(const TensorFile& file, const std::string& name, double factor,
                    const PlainMatrix& delta, int64_t first = 0) {
    const std::vector<float> before = values(*base_, name), after = values(file, name);
    for (size_t i = 0; i < before.size(); ++i) {
      const auto at = static_cast<size_t>(first * delta.columns) + i;
      ASSERT_NEAR(after[i], before[i] + factor * delta.values[at], 2e-5) << name << " " << i;
    }
  }
  static Given lokr(const std::string& module, const std::vector<int64_t>& first,
                    const std::vector<int64_t>& second) {
    return {{module + ".lokr_w1", tensor_of(first, 1)},
            {module + ".lokr_w2", tensor_of(second, 2)}};
  }
  static PlainMatrix kronecker_of(const Given& tensors, const std::string& module) {
    return kronecker(plain(tensors.at(module + ".lokr_w1")),
                     plain(tensors.at(module + ".lokr_w2")));
  }
};

// Alpha counts only where a factor is a product of two, and is divided by that product's rank.
TEST_F(Lokr, EveryFormOfFactorsIsTheKroneckerProduct) {
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  const std::string m = kFeed;
  for (const auto& [shapes, rank] :
       {std::pair{Shapes{{"lokr_w1", {4, 2}}, {"lokr_w2", {10, 12}}}, 0},
        {Shapes{{"lokr_w1", {40, 1}}, {"lokr_w2", {1, 24}}}, 0},
        {Shapes{{"lokr_w1", {1, 24}}, {"lokr_w2", {40, 1}}}, 0},
        {Shapes{{"lokr_w1_a", {4, 3}}, {"lokr_w1_b", {3, 2}}, {"lokr_w2", {10, 12}}}, 3},
        {Shapes{{"lokr_w1", {5, 6}}, {"lokr_w2_a", {8, 2}}, {"lokr_w2_b", {2, 4}}}, 2},
        {Shapes{{"lokr_w1_a", {2, 3}},
                {"lokr_w1_b", {3, 8}},
                {"lokr_w2_a", {20, 2}},
                {"lokr_w2_b", {2, 3}}},
         2},
        {Shapes{{"lokr_w1", {4, 2}},
                {"lokr_t2", {3, 2}},
                {"lokr_w2_a", {3, 10}},
                {"lokr_w2_b", {2, 12}}},
         2},
        {Shapes{{"lokr_w1", {4, 2}},
                {"lokr_t2", {2, 5, 1, 1}},
                {"lokr_w2_a", {2, 10}},
                {"lokr_w2_b", {5, 12}}},
         5}})
    for (const std::optional<double> alpha : {std::optional<double>(), {7.0}}) {
      Given tensors;
      std::map<std::string, PlainMatrix> given;
      for (const auto& [name, shape] : shapes) {
        const Shared tensor = tensor_of(shape, static_cast<int>(given.size()) + 3);
        tensors[m + "." + name] = tensor;
        given[name] = plain(tensor);
      }
      if (alpha) tensors[m + ".alpha"] = constant({}, static_cast<float>(*alpha));
      const auto factor = [&](const std::string& name) {
        if (given.contains(name)) return given.at(name);
        const PlainMatrix &a = given.at(name + "_a"), &b = given.at(name + "_b");
        if (!given.contains("lokr_t2")) return times(a, b);
        return times(transposed(a), times(given.at("lokr_t2"), b));
      };
      const TensorFile file = merged({write(tensors, 0.5)});
      SCOPED_TRACE(rank);
      expect_delta(file, kFeedTensor, 0.5 * (alpha && rank ? *alpha / rank : 1),
                   kronecker(factor("lokr_w1"), factor("lokr_w2")));
      expect_others_unchanged(file, {kFeedTensor});
      EXPECT_TRUE(notes_.empty());
    }
}

TEST_F(Lokr, HadamardProductsOfTwoProducts) {
  const std::string m = kFeed;
  Given tensors{{m + ".hada_w1_a", tensor_of({40, 3}, 1)},
                {m + ".hada_w1_b", tensor_of({3, 24}, 2)},
                {m + ".hada_w2_a", tensor_of({40, 3}, 3)},
                {m + ".hada_w2_b", tensor_of({3, 24}, 4)}};
  const auto product = [&](const std::string& name) {
    return times(plain(tensors.at(m + name + "_a")), plain(tensors.at(m + name + "_b")));
  };
  const PlainMatrix one = product(".hada_w1"), two = product(".hada_w2");
  const PlainMatrix delta = filled(40, 24, [&](int64_t row, int64_t column) {
    return one.at(row, column) * two.at(row, column);
  });
  expect_delta(merged({write(tensors)}), kFeedTensor, 1, delta);
  tensors[m + ".alpha"] = constant({}, 6);
  const TensorFile file = merged({write(tensors, 0.5)});
  expect_delta(file, kFeedTensor, 0.5 * 6 / 3, delta);
  expect_others_unchanged(file, {kFeedTensor});
}

// Ranks read rows of a matrix, or columns of them.
TEST_F(Lokr, PartsHaveTheBitsOfTheWhole) {
  const std::string m = kFeed;
  const Given loha{{m + ".hada_w1_a", tensor_of({40, 2}, 1)},
                   {m + ".hada_w1_b", tensor_of({2, 24}, 2)},
                   {m + ".hada_w2_a", tensor_of({40, 5}, 3)},
                   {m + ".hada_w2_b", tensor_of({5, 24}, 4)}};
  for (const Given& tensors : {lokr(m, {8, 4}, {5, 6}), loha}) {
    const TensorFile file = merged({write(tensors, 0.7)});
    const std::vector<float> whole = values(file, kFeedTensor);
    std::mt19937 random(3);
    for (int draw = 0; draw < 200; ++draw) {
      const auto first = static_cast<int64_t>(random() % whole.size());
      const auto count = 1 + static_cast<int64_t>(random() % (whole.size() - first));
      std::vector<float> part(static_cast<size_t>(count));
      file.read_run(kFeedTensor, first, TensorView(part.data(), DType::kF32, {count}));
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + first, part.size() * sizeof(float)), 0);
    }
    const Tensor columns = file.read(kFeedTensor, 1, 7, 9);
    for (int64_t row = 0; row < 40; ++row)
      for (int64_t i = 0; i < 9; ++i)
        ASSERT_EQ(columns.as<float>()[row * 9 + i], whole[static_cast<size_t>(row * 24 + 7 + i)]);
  }
}

// The kernel of the patches is a matrix whose columns are channels times the kernel's places.
TEST_F(Lokr, PatchesAreMatrices) {
  const std::string m = "diffusion_model.patch_embedding";
  const Given tensors = lokr(m, {4, 2}, {6, 2, 1, 2, 2});
  const TensorFile file = merged({write(tensors)});
  const Shared &one = tensors.at(m + ".lokr_w1"), &two = tensors.at(m + ".lokr_w2");
  const std::vector<float> before = values(*base_, "patch_embedding.weight"),
                           after = values(file, "patch_embedding.weight");
  for (int64_t out = 0; out < 24; ++out)
    for (int64_t in = 0; in < 4; ++in)
      for (int64_t place = 0; place < 4; ++place) {
        const float delta = one->as<float>()[out / 6 * 2 + in / 2] *
                            two->as<float>()[(out % 6 * 2 + in % 2) * 4 + place];
        const auto at = static_cast<size_t>((out * 4 + in) * 4 + place);
        ASSERT_EQ(after[at], before[at] + delta);
      }
}

// The delta of a joined matrix is no join of Kronecker products: its rows are cut.
TEST_F(Lokr, JoinedMatricesTakeTheirRows) {
  ZImageConfig config;
  config.dim = 48;
  config.heads = 2;
  config.layers = config.refiner_layers = 1;
  config.caption_dim = 16;
  config.axes_dims = {8, 8, 8};
  open(make_z_image_model(config));
  // The factor's 36 rows and the parts' 48 do not end together.
  const std::string m = "diffusion_model.layers.0.attention.qkv";
  const Given tensors = lokr(m, {4, 6}, {36, 8});
  const PlainMatrix delta = kronecker_of(tensors, m);
  const TensorFile file = merged({write(tensors)});
  std::vector<std::string> changed;
  for (const char* to : {"to_q", "to_k", "to_v"}) {
    const std::string name = std::string("layers.0.attention.") + to + ".weight";
    expect_delta(file, name, 1, delta, 48 * std::ssize(changed));
    changed.push_back(name);
  }
  expect_others_unchanged(file, changed);
}

// The halves of FLUX.2's last modulation stand the other way round in single files.
TEST_F(Lokr, HalvesAreExchanged) {
  Flux2Config config;
  config.heads = 2;
  config.head_dim = 16;
  config.axes_dims = {4, 4, 4, 4};
  config.double_blocks = config.single_blocks = 1;
  config.text_dim = 24;
  config.channels = 8;
  config.ffn = 3 * config.width();
  open(make_flux2_model(config));
  const std::string m = "diffusion_model.final_layer.adaLN_modulation.1";
  const Given tensors = lokr(m, {4, 4}, {16, 8});
  const PlainMatrix theirs = kronecker_of(tensors, m);
  const PlainMatrix ours = filled(
      64, 32, [&](int64_t row, int64_t column) { return theirs.at((row + 32) % 64, column); });
  expect_delta(merged({write(tensors)}), "norm_out.linear.weight", 1, ours);
}

TEST_F(Lokr, FactorsThatDoNotFit) {
  const std::string m = kFeed;
  Given tensors = lokr(m, {4, 2}, {10, 13});
  refused(tensors,
          "\"" + m + ".lokr_w1\" is [4, 2] f32, \"" + m +
              ".lokr_w2\" is [10, 13] f32, which make [40, 26]; the model's matrix is [40, 24]");
  refused(lokr(m, {40}, {1, 24}), "lokr_w1\" is [40] f32, must be a matrix");
  refused(lokr(m, {0, 2}, {10, 12}), "must be a matrix");
  tensors = lokr(m, {4, 2}, {10, 12});
  tensors.erase(m + ".lokr_w1");
  refused(tensors, "\"" + m + "\" has no lokr_w1, must have lokr_w1, or lokr_w1_a and lokr_w1_b");
  tensors[m + ".lokr_w1_a"] = tensor_of({4, 3}, 3);
  refused(tensors, "has \"" + m + ".lokr_w1_a\", must have lokr_w1, or lokr_w1_a and lokr_w1_b");
  tensors[m + ".lokr_w1_b"] = tensor_of({2, 2}, 3);
  refused(tensors, "\"" + m + ".lokr_w1_a\" is [4, 3] f32 and \"" + m +
                       ".lokr_w1_b\" is [2, 2] f32, must be [rows, rank] and [rank, columns]");
  tensors[m + ".lokr_w1"] = tensor_of({4, 2}, 3);
  refused(tensors, "lokr_w1_b\", must have lokr_w1, or");
  tensors = lokr(m, {4, 2}, {10, 12});
  tensors[m + ".lokr_t2"] = tensor_of({3, 3}, 3);
  refused(tensors, "must have lokr_w2, or lokr_w2_a and lokr_w2_b");
  tensors.erase(m + ".lokr_w2");
  tensors[m + ".lokr_w2_a"] = tensor_of({3, 10}, 3);
  tensors[m + ".lokr_w2_b"] = tensor_of({3, 12}, 3);
  (void)merged({write(tensors)});
  tensors[m + ".lokr_t2"] = tensor_of({3, 4}, 3);
  refused(tensors, "must be [rank, rank], [rank, rows] and [rank, columns]");
  tensors[m + ".lokr_t2"] = tensor_of({3, 3, 1, 2}, 3);
  refused(tensors, "lokr_t2\" is [3, 3, 1, 2] f32, the core of a convolution, legal: [rank, rank]");
}

TEST_F(Lokr, MethodsAreNotMixed) {
  const std::string m = kFeed;
  Given tensors = lokr(m, {4, 2}, {10, 12});
  tensors[m + ".lora_A.weight"] = tensor_of({3, 24}, 1);
  tensors[m + ".lora_B.weight"] = tensor_of({40, 3}, 1);
  refused(tensors, "\"" + m + "\" has \"" + m + ".lora_A.weight\" and \"" + m +
                       ".lokr_w1\", must have the factors of one of LoRA, LoKr and LoHa");
  tensors = lokr(m, {4, 2}, {10, 12});
  tensors[m + ".hada_w1_a"] = tensor_of({40, 3}, 1);
  refused(tensors, "must have the factors of one of");
  // Other modules of the file may have another method, and biases are differences.
  tensors = lokr(m, {4, 2}, {10, 12});
  tensors["diffusion_model.blocks.1.ffn.0.lora_A.weight"] = tensor_of({3, 24}, 1);
  tensors["diffusion_model.blocks.1.ffn.0.lora_B.weight"] = tensor_of({40, 3}, 1);
  tensors[m + ".diff_b"] = tensor_of({40}, 1);
  expect_others_unchanged(merged({write(tensors)}), {kFeedTensor, "blocks.0.ffn.net.0.proj.bias",
                                                     "blocks.1.ffn.net.0.proj.weight"});
  tensors = {{m + ".hada_w1_a", tensor_of({40, 3}, 1)},
             {m + ".hada_w1_b", tensor_of({3, 24}, 2)},
             {m + ".hada_w2_a", tensor_of({40, 3}, 3)}};
  refused(tensors, "must have hada_w2_a and hada_w2_b");
  tensors[m + ".hada_w2_b"] = tensor_of({3, 23}, 3);
  refused(tensors, "must be products of the same extents");
  tensors[m + ".hada_w1_b"] = tensor_of({3, 23}, 3);
  refused(tensors, "which make [40, 23]; the model's matrix is [40, 24]");
}

// Weights of a norm, which a file may change as LyCORIS's `full`, have no such factors.
TEST_F(Lokr, WhatIsNotFiniteOrNotThereIsRefused) {
  Given tensors = lokr(kFeed, {4, 2}, {10, 12});
  auto wrong = std::make_shared<Tensor>(DType::kF32, std::vector<int64_t>{4, 2});
  std::fill_n(wrong->as<float>(), 8, NAN);
  tensors[std::string(kFeed) + ".lokr_w1"] = wrong;
  refused(tensors, "lokr_w1\" holds NaN or infinity");
  refused(lokr("diffusion_model.blocks.7.ffn.0", {4, 2}, {10, 12}),
          "1 modules: \"diffusion_model.blocks.7.ffn.0\"");
  for (const char* name : {".dora_scale", ".lora_magnitude_vector.weight", ".hada_t1",
                           ".oft_blocks", ".a1.weight", ".w_norm", ".on_input"}) {
    tensors = lokr(kFeed, {4, 2}, {10, 12});
    tensors[kFeed + std::string(name)] = tensor_of({24}, 3);
    refused(tensors, kFeed + std::string(name) + "\" is of a kind that is not read");
    refused(tensors, "DoRA and the other methods of LyCORIS are not");
  }
}

TEST_F(Lokr, TheFamilyIsTold) {
  const auto family = [&](const Given& tensors) {
    return lora_family(TensorFile::open(write(tensors).file)).value_or("");
  };
  Given tensors = lokr(kFeed, {4, 2}, {10, 12});
  tensors[std::string(kFeed) + ".alpha"] = constant({}, 1);
  EXPECT_EQ(family(tensors), "LoKr");
  EXPECT_EQ(family({{"lycoris_blocks_0_ffn_0.hada_w1_a", tensor_of({40, 3}, 1)}}), "LoHa");
}

}  // namespace
}  // namespace weft::test
