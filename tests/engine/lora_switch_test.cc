// Generators whose jobs have other LoRAs than the ones before: they draw what fresh ones draw, read
// again what changed and nothing else, and leave the base as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "io/sha256.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Names = std::vector<std::string>;
using Loras = std::vector<Lora>;

std::string folder_of(const std::string& name) { return "tests/golden/" + name + "/model"; }

// A module that a LoKr changes, and the extents of its first factor; the second is [8, 4].
struct KroneckerShapes {
  const char *module, *tensor;
  int64_t rows, columns;
};
constexpr KroneckerShapes kKronecker[] = {
    {"blocks_0_attn1_to_q", "blocks.0.attn1.to_q.weight", 3, 6},
    {"blocks_0_attn1_to_out_0", "blocks.0.attn1.to_out.0.weight", 3, 6},
    {"blocks_1_self_attn_v", "blocks.1.attn1.to_v.weight", 3, 6},
    {"blocks_0_ffn_0", "blocks.0.ffn.net.0.proj.weight", 4, 6},
    {"blocks_1_ffn_net_2", "blocks.1.ffn.net.2.weight", 3, 8}};

class LoraSwitch : public testing::Test {
 protected:
  // Writes a LoRA that changes one matrix of a part of the model.
  Lora write_difference(const std::string& name, const std::string& weights,
                        const std::string& tensor, const std::string& module, float value) {
    const TensorFile file = TensorFile::open(weights);
    Tensor difference(DType::kF32, file.describe(tensor).shape());
    for (int64_t i = 0; i < difference.count(); ++i)
      difference.as<float>()[i] = value * static_cast<float>(i % 7 - 3);
    const std::string path = folder_ / (name + ".safetensors");
    write_safetensors(path, {{module + ".diff", difference}});
    return {.file = path};
  }
  Lora of_transformer(const std::string& name, float value) {
    return write_difference(name, folder_of("pipeline_two_experts") + "/transformer",
                            "blocks.0.attn1.to_q.weight", "diffusion_model.blocks.0.self_attn.q",
                            value);
  }
  Lora of_text(const std::string& name, float value) {
    const std::string module = "encoder.block.0.layer.1.DenseReluDense.wo";
    return write_difference(name, folder_of("pipeline_two_experts") + "/text_encoder",
                            module + ".weight", "text_encoder." + module, value);
  }
  // Writes a LoKr that changes matrices that ranks cut by rows and by columns.
  Lora write_lokr(const std::string& name) {
    std::vector<std::pair<std::string, Tensor>> factors;
    for (const KroneckerShapes& shapes : kKronecker) {
      const std::string module = std::string("lycoris_") + shapes.module;
      for (const auto& [end, rows, columns] :
           {std::tuple{".lokr_w1", shapes.rows, shapes.columns}, {".lokr_w2", 8l, 4l}}) {
        Tensor factor(DType::kF32, {rows, columns});
        for (int64_t i = 0; i < factor.count(); ++i)
          factor.as<float>()[i] = 0.125f * static_cast<float>((i * 5 + rows) % 7 - 3);
        factors.emplace_back(module + end, std::move(factor));
      }
    }
    const std::string path = folder_ / (name + ".safetensors");
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [tensor, factor] : factors) list.emplace_back(tensor, factor.view());
    write_safetensors(path, list);
    return {.file = path, .scale = 0.5};
  }

  // The kinds of jobs: none, two LoRAs, both, one expert's alone, one of the text encoder, and a
  // LoKr.
  void SetUp() override {
    const Lora a = of_transformer("a", 0.5f), b = of_transformer("b", -0.25f);
    Lora high = a;
    high.expert = LoraExpert::kHigh;
    kinds_ = {{}, {a}, {b}, {a, b}, {high}, {of_text("t", 0.25f)}, {write_lokr("k")}};
    model_ = std::make_shared<const OpenModel>(folder_of("pipeline_two_experts"));
    request_ = job();
    request_.steps = 2;
    request_.frames = 1;
  }
  Request with(const Loras& loras) const {
    Request request = request_;
    request.loras = loras;
    return request;
  }
  // Fresh generators on a model that was opened with these LoRAs.
  std::string fresh_hash(const Loras& loras, const Layout& layout) const {
    const auto model = std::make_shared<const OpenModel>(folder_of("pipeline_two_experts"), loras);
    std::string hash;
    run_ranks(layout.ranks(), [&](Communicator& world) {
      Generator fresh(model, options_of(DType::kF32), RankPlacement::of(world, layout));
      const RunResult result = fresh.run(request_, nullptr);
      if (world.rank() == 0) hash = result.framehash;
    });
    return hash;
  }
  // Hashes all values of the files that the base is loaded from.
  std::string base_hash() const {
    Sha256 hash;
    std::vector<OpenModel::File> files = model_->expert_files;
    files.insert(files.end(), {model_->text_files.rows, model_->vae_file});
    for (const OpenModel::File& file : files)
      for (const std::string& name : file->names()) {
        const Tensor values = load_tensor(*file, name);
        hash.update(values.view().data, static_cast<size_t>(values.view().bytes()));
      }
    return hash.hex();
  }

  TempDir folder_;
  std::vector<Loras> kinds_;
  std::shared_ptr<const OpenModel> model_;
  Request request_;
};

// The parts that a job loads after one with other LoRAs, by hand: those whose files differ, and the
// VAE after a transformer.
Names reloaded(const Generator& generator, const Request& before, const Request& now) {
  const auto had = generator.model_of(before), has = generator.model_of(now);
  Names out;
  if (had->text_files.rows != has->text_files.rows) out.emplace_back("text_encoder");
  for (size_t i = 0; i < has->expert_files.size(); ++i)
    if (had->expert_files[i] != has->expert_files[i])
      out.emplace_back(i ? "transformer_2" : "transformer");
  if (!out.empty() && out.back() != "text_encoder") out.emplace_back("vae");
  return out;
}

TEST_F(LoraSwitch, AHundredJobsDrawWhatFreshGeneratorsDraw) {
  const std::string base = base_hash();
  for (const auto& [ranks, text] : {std::pair{1, ""}, {2, "ulysses=2"}, {2, "tensor=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    std::vector<std::string> hashes;
    for (const Loras& loras : kinds_) hashes.push_back(fresh_hash(loras, layout));
    Names sorted = hashes;
    std::ranges::sort(sorted);
    EXPECT_EQ(std::ranges::unique(sorted).begin(), sorted.end()) << "the LoRAs change nothing";
    run_ranks(ranks, [&](Communicator& world) {
      Generator generator(model_, options_of(DType::kF32), RankPlacement::of(world, layout));
      std::mt19937 random(7);
      size_t before = kinds_.size();
      for (int i = 0; i < 100; ++i) {
        const size_t kind = random() % kinds_.size();
        const RunResult result = generator.run(with(kinds_[kind]), nullptr);
        const std::string about = std::string(text) + " job " + std::to_string(i);
        if (world.rank() == 0) {
          EXPECT_EQ(result.framehash, hashes[kind]) << about;
        }
        EXPECT_EQ(*result.request.loras, kinds_[kind]);
        if (before < kinds_.size()) {
          EXPECT_EQ(result.loaded, reloaded(generator, with(kinds_[before]), with(kinds_[kind])))
              << about;
        }
        before = kind;
      }
    });
  }
  EXPECT_EQ(base_hash(), base);
}

// The frames are those of weights to which the Kronecker products were added by hand.
TEST_F(LoraSwitch, KroneckerProductsAreAddedUnderAllLayouts) {
  const Loras loras = kinds_.back();
  const TensorFile lokr = TensorFile::open(loras[0].file);
  const std::string copy = folder_ / "model";
  std::filesystem::copy(folder_of("pipeline_two_experts"), copy,
                        std::filesystem::copy_options::recursive);
  for (const char* expert : {"/transformer", "/transformer_2"}) {
    const TensorFile base = TensorFile::open(folder_of("pipeline_two_experts") + expert);
    std::map<std::string, Tensor> weights;
    for (const std::string& name : base.names()) weights.emplace(name, load_tensor(base, name));
    for (const KroneckerShapes& shapes : kKronecker) {
      const std::string module = std::string("lycoris_") + shapes.module;
      const Tensor one = load_tensor(lokr, module + ".lokr_w1"),
                   two = load_tensor(lokr, module + ".lokr_w2");
      float* matrix = weights.at(shapes.tensor).as<float>();
      for (int64_t i = 0; i < shapes.rows; ++i)
        for (int64_t j = 0; j < shapes.columns; ++j)
          for (int64_t k = 0; k < 8; ++k)
            for (int64_t l = 0; l < 4; ++l)
              matrix[(i * 8 + k) * shapes.columns * 4 + j * 4 + l] +=
                  0.5f * one.as<float>()[i * shapes.columns + j] * two.as<float>()[k * 4 + l];
    }
    for (const auto& entry : std::filesystem::directory_iterator(copy + expert))
      if (entry.path().extension() == ".safetensors") {
        std::vector<std::pair<std::string, TensorView>> list;
        for (const auto& [name, tensor] : weights) list.emplace_back(name, tensor.view());
        write_safetensors(entry.path(), list);
      }
  }
  const auto by_hand = std::make_shared<const OpenModel>(copy);
  for (const auto& [ranks, text] :
       {std::pair{1, ""}, {2, "tensor=2"}, {2, "layers=2"}, {4, "layers=2,tensor=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    std::string hash;
    run_ranks(ranks, [&](Communicator& world) {
      Generator generator(by_hand, options_of(DType::kF32), RankPlacement::of(world, layout));
      const RunResult result = generator.run(request_, nullptr);
      if (world.rank() == 0) hash = result.framehash;
    });
    EXPECT_EQ(fresh_hash(loras, layout), hash) << text;
    EXPECT_NE(fresh_hash({}, layout), hash) << text;
  }
}

TEST_F(LoraSwitch, PartsThatDoNotChangeStayLoaded) {
  Generator generator(model_, options_of(DType::kF32));
  generator.run(with({}), nullptr);
  EXPECT_EQ(generator.run(with(kinds_[4]), nullptr).loaded, (Names{"transformer", "vae"}));
  // A file that changes a text encoder is one of the experts' files, too.
  const Names all{"text_encoder", "transformer", "transformer_2", "vae"};
  EXPECT_EQ(generator.run(with(kinds_[5]), nullptr).loaded, all);
  EXPECT_EQ(generator.run(with(kinds_[5]), nullptr).loaded, Names());
  EXPECT_EQ(generator.run(with({}), nullptr).loaded, all);
}

// The record of a job states its own LoRAs and weights, whatever the generator was opened with.
TEST_F(LoraSwitch, RecordsAreThoseOfAModelOpenedWithThem) {
  const Generator base(model_, options_of(DType::kF32));
  for (const Loras& loras : kinds_) {
    const Generator own(std::make_shared<const OpenModel>(folder_of("pipeline_two_experts"), loras),
                        options_of(DType::kF32));
    EXPECT_EQ(base.job_record(base.resolve(with(loras))), own.job_record(own.resolve(request_)));
    EXPECT_EQ(own.job_record(own.resolve(with({}))), base.job_record(base.resolve(request_)));
    EXPECT_EQ(base.plan(base.resolve(with(loras))).high_water,
              own.plan(own.resolve(request_)).high_water);
  }
}

// A changed tensor is f32 where it is held as it is read, and the plan knows it.
TEST_F(LoraSwitch, PlansAreThoseOfTheJobsLoras) {
  GeneratorOptions options = options_of(DType::kF32);
  Generator generator(model_, options);
  const MemoryPlan plain = generator.plan(generator.resolve(with({})));
  for (const Loras& loras : kinds_) {
    const MemoryPlan plan = generator.plan(generator.resolve(with(loras)));
    const RunResult result = generator.run(with(loras), nullptr);
    EXPECT_LE(result.memory_high_water, plan.high_water);
    EXPECT_GE(plan.high_water, plain.high_water);
  }
}

TEST_F(LoraSwitch, WhatFitsNothingIsRefusedAndChangesNothing) {
  Tensor other(DType::kF32, {4, 4});
  std::fill_n(other.as<float>(), 16, 1.0f);
  const std::string path = folder_ / "other.safetensors";
  write_safetensors(path, {{"unet.down.diff", other}});
  Generator generator(model_, options_of(DType::kF32));
  const std::string before = generator.run(with({}), nullptr).framehash;
  const auto refused = [&](const Loras& loras) {
    return error_of([&] { generator.run(with(loras), nullptr); });
  };
  EXPECT_NE(refused({{.file = path}}).find("lacks 1 modules: \"unet.down\""), std::string::npos);
  EXPECT_NE(refused({{.file = folder_ / "none.safetensors"}}).find("no such file"),
            std::string::npos);
  const RunResult after = generator.run(with({}), nullptr);
  EXPECT_EQ(after.framehash, before);
  EXPECT_EQ(after.loaded, Names());
}

}  // namespace
}  // namespace weft::test
