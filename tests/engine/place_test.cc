// Generators whose ranks are given one layout after another (Generator::place): they draw what
// fresh ones draw, load what the new layout holds otherwise and nothing else, and take the memory
// that is planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Names = std::vector<std::string>;

std::string golden_model(const std::string& name) { return "tests/golden/" + name + "/model"; }

// The parts of a model that a rank holds under a layout, with their slices, by name. They are made
// by the rules of ranks.md, not by the code under test.
using Parts = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Parts parts_of(const OpenModel& model, const Layout& layout, int rank) {
  const Mesh mesh(layout);
  const int ranks = layout.ranks();
  Parts out;
  const auto add_encoder = [&](const char* name, const EncoderTraits& traits) {
    const int64_t most = layout.text_ranks > 0 ? layout.text_ranks : ranks;
    const int64_t parts = std::min({most, traits.heads, traits.ffn_columns});
    if (rank < parts) out.push_back({name, {rank, parts}});
  };
  const ModelDirectory& directory = model.directory;
  add_encoder("text_encoder", directory.text_model->traits());
  if (directory.pooled_model) add_encoder("pooled_encoder", directory.pooled_model->traits());
  for (int expert = 0; expert < directory.experts(); ++expert)
    out.push_back({expert ? "transformer_2" : "transformer",
                   {mesh.at(Axis::kLayers, rank), layout[Axis::kLayers],
                    mesh.at(Axis::kTensor, rank), layout[Axis::kTensor]}});
  const int decoders = layout.vae_ranks > 0 ? layout.vae_ranks : ranks;
  if (layout.decode_rank >= 0 ? rank == layout.decode_rank : rank < decoders)
    out.push_back({"vae", {}});
  return out;
}

// The parts that a rank which holds `had` loads to hold `has`. The VAE comes after transformers.
Names missing(const Parts& had, const Parts& has) {
  Names out;
  bool again = false;  // a transformer is loaded
  for (const auto& part : has) {
    const bool is_new = !std::ranges::count(had, part);
    again |= is_new && part.first.starts_with("transformer");
    if (is_new || (again && part.first == "vae")) out.push_back(part.first);
  }
  return out;
}

std::string list_of(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

struct PlacedJob {
  std::shared_ptr<const OpenModel> model;
  Request request{};
  std::vector<Layout> layouts{};
};

// A job, and those of the layouts that are legal for it.
PlacedJob placed_job(const std::string& model, int ranks, const std::vector<const char*>& layouts) {
  PlacedJob out{.model = std::make_shared<const OpenModel>(golden_model(model))};
  const Generator planner(out.model, options_of(DType::kF32));
  out.request = job();
  if (planner.limits().max_frames == 1) out.request.frames = 1;
  if (!planner.limits().guided) out.request.negative_prompt.reset();
  if (!planner.limits().guided) out.request.guidance_scale = 1;
  out.request = planner.resolve(out.request);
  for (const char* text : layouts) {
    const Layout layout = parse_layout(text, ranks, {});
    if (refuse(layout, planner.layout_limits(out.request)).empty()) out.layouts.push_back(layout);
  }
  return out;
}

std::string fresh_hash(const PlacedJob& job, const Layout& layout) {
  std::string hash;
  run_ranks(layout.ranks(), [&](Communicator& world) {
    Generator fresh(job.model, options_of(DType::kF32), RankPlacement::of(world, layout));
    const RunResult result = fresh.run(job.request, nullptr);
    EXPECT_EQ(list_of(result.loaded),
              list_of(missing({}, parts_of(*job.model, layout, world.rank()))));
    if (world.rank() == 0) hash = result.framehash;
  });
  return hash;
}

// Draws under every layout after every other one: i, i + 1, i, i + 2, i ...
void expect_all_pairs(const PlacedJob& job) {
  std::vector<Layout> order;
  std::vector<std::string> hashes;
  for (size_t i = 0; i < job.layouts.size(); ++i) {
    hashes.push_back(fresh_hash(job, job.layouts[i]));
    for (size_t j = i + 1; j < job.layouts.size(); ++j)
      order.insert(order.end(), {job.layouts[i], job.layouts[j]});
  }
  ASSERT_GE(order.size(), 20u);
  run_ranks(order[0].ranks(), [&](Communicator& world) {
    Generator generator(job.model, options_of(DType::kF32), RankPlacement::of(world, order[0]));
    Parts had;
    Layout before = order[0];
    for (const Layout& layout : order) {
      generator.place(world, layout);
      const RunResult result = generator.run(job.request, nullptr);
      const Parts has = parts_of(*job.model, layout, world.rank());
      const std::string about = job.model->directory.path + ": " + to_string(before) + " -> " +
                                to_string(layout) + ", rank " + std::to_string(world.rank());
      EXPECT_EQ(list_of(result.loaded), list_of(missing(had, has))) << about;
      const auto at = std::ranges::find(job.layouts, layout) - job.layouts.begin();
      if (world.rank() == 0) {
        EXPECT_EQ(result.framehash, hashes[at]) << about;
      }
      had = has;
      before = layout;
    }
  });
}

TEST(Place, TwoRanksDrawAsFreshOnesAndLoadWhatDiffers) {
  for (const char* model :
       {"pipeline_t2v", "pipeline_two_experts", "pipeline_zimage_cfg", "pipeline_flux_dev"})
    expect_all_pairs(placed_job(
        model, 2,
        {"cfg=2", "ulysses=2", "ring=2", "token_ring=2", "tensor=2", "layers=2",
         "ulysses=2,text_ranks=1,vae_ranks=1", "ring=2,decode_rank=1", "tensor=2,decode_rank=0"}));
}

TEST(Place, FourRanksDrawAsFreshOnesAndLoadWhatDiffers) {
  for (const char* model : {"pipeline_t2v", "pipeline_qwen_image"})
    expect_all_pairs(placed_job(
        model, 4,
        {"cfg=2,ulysses=2", "cfg=2,ring=2", "ulysses=2,ring=2", "tensor=2,cfg=2", "tensor=2,ring=2",
         "layers=2,ring=2", "cfg=2,ulysses=2,text_ranks=2,vae_ranks=3",
         "layers=2,ulysses=2,decode_rank=3"}));
}

// The same for two layouts by hand.
TEST(Place, LayoutsThatShareWeightsLoadNone) {
  const PlacedJob job = placed_job("pipeline_t2v", 2, {"ulysses=2", "cfg=2", "layers=2"});
  run_ranks(2, [&](Communicator& world) {
    Generator generator(job.model, options_of(DType::kF32),
                        RankPlacement::of(world, job.layouts[0]));
    const auto loaded_under = [&](const Layout& layout) {
      generator.place(world, layout);
      return generator.run(job.request, nullptr).loaded;
    };
    EXPECT_EQ(loaded_under(job.layouts[0]), (Names{"text_encoder", "transformer", "vae"}));
    EXPECT_EQ(loaded_under(job.layouts[1]), Names());
    EXPECT_EQ(loaded_under(job.layouts[0]), Names());
    EXPECT_EQ(loaded_under(job.layouts[2]), (Names{"transformer", "vae"}));
  });
}

// The sum of the ranks' values, on all of them.
uint64_t sum_over(Communicator& world, uint64_t value) {
  Stream host = Stream::cpu(1);
  std::vector<int64_t> values(world.size());
  std::vector<TensorView> views;
  for (int64_t& one : values) views.push_back({&one, DType::kI64, {1}});
  values[world.rank()] = static_cast<int64_t>(value);
  world.all_gather_v(host, {.topic = Topic::kCheck}, views[world.rank()], views);
  return static_cast<uint64_t>(std::accumulate(values.begin(), values.end(), int64_t{0}));
}

// The bytes of all ranks together.
struct Taken {
  uint64_t planned = 0, most = 0, held = 0;  // by a job, and after it
};
Taken taken_by(Communicator& world, Generator& generator, const Request& request, uint64_t live) {
  if (world.rank() == 0) reset_tensor_bytes_peak();
  Taken taken{.planned = sum_over(world, generator.plan(request).high_water)};
  const RunResult result = generator.run(request, nullptr);
  const uint64_t arenas = sum_over(world, result.arena_high_water);
  taken.most = tensor_bytes_peak() - live + arenas;
  taken.held = tensor_bytes_live() - live;
  sum_over(world, 0);  // no rank goes on before all have read
  return taken;
}

// Ranks that had another layout take the memory that is planned, and hold what fresh ones hold.
TEST(Place, TakesTheMemoryOfFreshRanks) {
  const auto model = std::make_shared<const OpenModel>("models/pocket");  // weights dominate
  Request request = job();
  request.width = request.height = 64;
  request.frames = 1;
  request = Generator(model, options_of(DType::kF32)).resolve(request);
  std::vector<Layout> layouts;
  for (const char* text : {"tensor=2", "layers=2", "ulysses=2", "ring=2,text_ranks=1,decode_rank=1",
                           "layers=2,decode_rank=0", "tensor=2,text_ranks=1"})
    layouts.push_back(parse_layout(text, 2, {}));
  const uint64_t live = tensor_bytes_live();
  std::vector<uint64_t> fresh;
  for (const Layout& layout : layouts)
    run_ranks(2, [&](Communicator& world) {
      Generator generator(model, options_of(DType::kF32), RankPlacement::of(world, layout));
      const Taken taken = taken_by(world, generator, request, live);
      if (world.rank() == 0) fresh.push_back(taken.held);
      sum_over(world, 0);
    });
  run_ranks(2, [&](Communicator& world) {
    Generator generator(model, options_of(DType::kF32), RankPlacement::of(world, layouts[0]));
    for (size_t i = 0; i < layouts.size(); ++i) {
      generator.place(world, layouts[i]);
      const Taken taken = taken_by(world, generator, request, live);
      EXPECT_EQ(taken.held, fresh[i]) << to_string(layouts[i]);
      EXPECT_LE(static_cast<double>(taken.most), 1.05 * static_cast<double>(taken.planned))
          << to_string(layouts[i]);
    }
  });
}

// An expert that an earlier job has left, and that this rank does not compute with now, stays where
// there is room for it beside what the job is planned to take, and else goes.
TEST(Place, AnUnusedExpertStaysWhereThereIsRoom) {
  const PlacedJob placed =
      placed_job("pipeline_two_experts", 2,
                 {"ulysses=2,text_ranks=1,vae_ranks=1", "cfg=2,text_ranks=1,vae_ranks=1"});
  Request small = job();
  small.steps = 5;  // the last ones are the second expert's
  small.frames = 1;
  Request large = small;
  large.frames = 33;
  large.width = large.height = 96;
  large.guidance_scale_2 = 1;  // so that the second rank under cfg=2 has one expert
  const auto loaded_again = [&](uint64_t limit) {
    Names names;
    run_ranks(2, [&](Communicator& world) {
      GeneratorOptions options = options_of(DType::kF32);
      if (world.rank() == 1) options.memory_limit = limit;
      Generator generator(placed.model, options, RankPlacement::of(world, placed.layouts[0]));
      EXPECT_EQ(generator.plan(generator.resolve(small)).residency, Residency::kAll);
      generator.run(small, nullptr);
      generator.place(world, placed.layouts[1]);
      EXPECT_EQ(generator.run(large, nullptr).loaded, Names());
      generator.place(world, placed.layouts[0]);
      const RunResult result = generator.run(small, nullptr);
      if (world.rank() == 1) names = result.loaded;
    });
    return names;
  };
  EXPECT_EQ(loaded_again(0), Names());
  const Generator planner(placed.model, options_of(DType::kF32),
                          RankPlacement(placed.layouts[1], 1));
  EXPECT_EQ(loaded_again(planner.plan(planner.resolve(large)).high_water), Names{"transformer_2"});
}

// The replicas of a layout draw different numbers of jobs, so that their messages have other
// numbers when they become one replica.
TEST(Place, ReplicasThatDrewUnequallyBecomeOne) {
  const PlacedJob job = placed_job("pipeline_t2v", 4, {"cfg=2,ulysses=2", "layers=2,ulysses=2"});
  const Layout replicas = parse_layout("data=2,ulysses=2", 4, {.requests = 4}),
               alone = parse_layout("data=4", 4, {.requests = 4});
  std::vector<std::string> hashes;
  for (const Layout& layout : job.layouts) hashes.push_back(fresh_hash(job, layout));
  run_ranks(4, [&](Communicator& world) {
    Generator generator(job.model, options_of(DType::kF32), RankPlacement::of(world, replicas));
    const bool first = world.rank() < 2;
    for (int drawn = 0; drawn < (first ? 3 : 1); ++drawn) generator.run(job.request, nullptr);
    for (size_t i = 0; i < job.layouts.size(); ++i) {
      generator.place(world, job.layouts[i]);
      const RunResult result = generator.run(job.request, nullptr);
      if (world.rank() == 0) {
        EXPECT_EQ(result.framehash, hashes[i]);
      }
      generator.place(world, i == 0 ? replicas : alone);
      for (int drawn = 0; drawn < (first ? 0 : 2); ++drawn) generator.run(job.request, nullptr);
    }
    generator.place(world, job.layouts[0]);
    const RunResult result = generator.run(job.request, nullptr);
    if (world.rank() == 0) {
      EXPECT_EQ(result.framehash, hashes[0]);
    }
  });
}

TEST(Place, RefusesWhatAConstructorRefuses) {
  const PlacedJob job = placed_job("pipeline_t2v", 2, {"ulysses=2", "tensor=2"});
  run_ranks(2, [&](Communicator& world) {
    GeneratorOptions options = options_of(DType::kF32);
    options.weights = WeightFormat::kInt8;
    Generator generator(job.model, options, RankPlacement::of(world, job.layouts[0]));
    const std::string hash = generator.run(job.request, nullptr).framehash;
    expect_error(ErrorKind::kUsage, "tensor=2", [&] { generator.place(world, job.layouts[1]); });
    const RunResult again = generator.run(job.request, nullptr);  // it has changed nothing
    EXPECT_EQ(again.loaded, Names());
    EXPECT_EQ(again.framehash, hash);
  });
}

}  // namespace
}  // namespace weft::test
