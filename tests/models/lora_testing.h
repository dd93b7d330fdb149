#pragma once
// LoraTest: a small model in a file, and LoRA files for it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/lora/lora.h"
#include "models/wan/transformer.h"
#include "tests/io/io_testing.h"
#include "tests/models/slices_testing.h"

namespace weft::test {

// A small transformer with f32 weights in a file, and LoRA files for it.
class LoraTest : public testing::Test {
 protected:
  using Shared = std::shared_ptr<const Tensor>;
  using Given = std::map<std::string, Shared>;

  static Shared tensor_of(const std::vector<int64_t>& shape, int seed) {
    auto out = std::make_shared<Tensor>(DType::kF32, shape);
    std::mt19937 random(static_cast<unsigned>(seed));
    std::uniform_real_distribution<float> unit(-1, 1);
    for (int64_t i = 0; i < out->count(); ++i) out->as<float>()[i] = unit(random);
    return out;
  }

  static Shared constant(const std::vector<int64_t>& shape, float value) {
    auto out = std::make_shared<Tensor>(DType::kF32, shape);
    std::fill_n(out->as<float>(), out->count(), value);
    return out;
  }

  static std::vector<float> values(const TensorFile& file, const std::string& name) {
    std::vector<float> out(static_cast<size_t>(file.describe(name).count()));
    file.read_run(name, 0, TensorView(out.data(), DType::kF32, {std::ssize(out)}));
    return out;
  }

  LoraTest() {
    config_.heads = 2;
    config_.head_dim = 12;
    config_.layers = 2;
    config_.ffn_dim = 40;
    config_.in_channels = config_.out_channels = 4;
    config_.text_dim = 20;
    config_.freq_dim = 16;
    open(make_wan_model(config_));
  }
  void open(std::shared_ptr<const TransformerModel> model) {
    model_ = std::move(model);
    write_file(dir_ / "base.safetensors", random_weights(model_->tensors(), 5));
    base_ = std::make_shared<const TensorFile>(TensorFile::open(dir_ / "base.safetensors"));
  }
  Lora write(const Given& tensors, double scale = 1, const std::string& name = "lora",
             const std::map<std::string, std::string>& metadata = {}) {
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [tensor, value] : tensors) list.emplace_back(tensor, value->view());
    const std::string path = dir_ / (name + ".safetensors");
    write_safetensors(path, list, metadata);
    return {.file = path, .scale = scale};
  }
  TensorFile merged(std::vector<Lora> loras) {
    notes_.clear();
    return with_loras(base_, *model_, loras, notes_);
  }
  void refused(const Given& tensors, const std::string& part) {
    SCOPED_TRACE(part);
    const Lora lora = write(tensors);
    expect_error(ErrorKind::kModel, part, [&] { merged({lora}); });
    expect_error(ErrorKind::kModel, "lora.safetensors", [&] { merged({lora}); });
  }
  // Expects W + factor * up * down in the tensor, and no other change.
  void expect_product(const TensorFile& file, const std::string& name, double factor,
                      const Shared& up, const Shared& down) {
    const std::vector<float> before = values(*base_, name), after = values(file, name);
    const int64_t rank = down->view()[0], columns = down->count() / rank;
    for (size_t i = 0; i < before.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / columns,
                    column = static_cast<int64_t>(i) % columns;
      double sum = 0, size = 0;
      for (int64_t k = 0; k < rank; ++k) {
        const double product = double{up->as<float>()[row * rank + k]} *
                               double{down->as<float>()[k * columns + column]};
        sum += product;
        size += std::abs(product);
      }
      const double bound = 0x1p-24 * (std::abs(double{before[i]}) + std::abs(factor) * size) *
                           static_cast<double>(rank + 3);
      ASSERT_NEAR(after[i], before[i] + factor * sum, bound) << name << " " << i;
    }
    expect_others_unchanged(file, {name});
  }
  void expect_others_unchanged(const TensorFile& file, const std::vector<std::string>& changed) {
    EXPECT_EQ(file.names(), base_->names());
    for (const std::string& name : file.names())
      if (std::ranges::count(changed, name) == 0) {
        EXPECT_EQ(values(file, name), values(*base_, name)) << name;
      }
  }

  TempDir dir_;
  WanConfig config_;
  std::shared_ptr<const TransformerModel> model_;
  std::shared_ptr<const TensorFile> base_;
  std::vector<std::string> notes_;
};

}  // namespace weft::test
