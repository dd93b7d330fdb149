// Previews: the file of the fit, the pictures of a job under every layout, and that they change
// nothing.
#include "engine/preview/preview.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/preview/preview_rows.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChannels = 16;

// A map whose values differ in every channel and colour.
ColourMap some_map(float sign) {
  ColourMap map;
  for (int64_t c = 0; c < kChannels; ++c) {
    const auto value = static_cast<float>(c);
    map.rgb.push_back(
        {sign * (0.02f * value - 0.1f), sign * (0.1f - 0.015f * value), c % 2 ? 0.05f : -0.04f});
  }
  map.constant = {0.1f, -0.2f, 0.3f};
  return map;
}

// The first frame has a map of its own.
PreviewFit some_fit() { return {.map = some_map(1), .first = some_map(-1)}; }

// Every value has the colour `later`, or `first` in the first frame.
PreviewFit fit_of_colours(std::array<float, 3> first, std::array<float, 3> later) {
  const auto of = [](std::array<float, 3> colour) {
    ColourMap map{.constant = colour};
    map.rgb.resize(kChannels);
    return map;
  };
  return {.map = of(later), .first = of(first)};
}

// The text of a fit's file.
std::string text_of(const PreviewFit& fit) {
  nlohmann::json file{
      {"schema", "weft.preview/v1"}, {"rgb", fit.map.rgb}, {"constant", fit.map.constant}};
  if (fit.first) file["first_frame"] = {{"rgb", fit.first->rgb}, {"constant", fit.first->constant}};
  return file.dump();
}

// The model of the small job, with a fit beside its VAE where one is given.
class PreviewModel {
 public:
  explicit PreviewModel(const std::string& fit) : path_(testing::TempDir() + "weft_preview_model") {
    fs::remove_all(path_);
    fs::copy(kModel, path_, fs::copy_options::recursive);
    if (!fit.empty()) std::ofstream(preview_fit_path(path_ / "vae")) << fit;
  }
  ~PreviewModel() { fs::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  fs::path path_;
};

struct PreviewEvents final : ProgressListener {
  std::vector<Preview> previews;
  std::vector<std::string> order;
  void progress(const Progress& p) override {
    if (p.stage == "denoise" && p.step > 0) order.push_back("step " + std::to_string(p.step));
  }
  void preview(const Preview& preview) override {
    previews.push_back(preview);
    order.push_back("preview " + std::to_string(preview.step));
  }
};

struct DrawnPreviews {
  PreviewEvents events;
  RunResult result;
  std::vector<int64_t> latent_bytes;  // sent, by rank
};

Request four_steps() {
  Request request = job();
  request.steps = 4;
  return request;
}

// Draws the small job with a preview of every `every`-th step, or none for 0.
DrawnPreviews draw_previews(const std::string& model, const Layout& layout, int every,
                            const Request& request) {
  DrawnPreviews drawn;
  drawn.latent_bytes.resize(static_cast<size_t>(layout.ranks()));
  const auto rank = [&](RankPlacement placement, int index) {
    GeneratorOptions options = options_of(DType::kF32);
    options.preview_every = every;
    options.preview_share = 1e9;  // there is time for every preview
    Generator generator(model, options, std::move(placement));
    RunOptions run;
    if (index == 0) run.listener = &drawn.events;
    RunResult result = generator.run(request, nullptr, run);
    if (index == 0) drawn.result = std::move(result);
  };
  if (layout.ranks() == 1) {
    rank({}, 0);
    return drawn;
  }
  run_ranks(layout.ranks(), [&](Communicator& world) {
    rank(RankPlacement::of(world, layout), world.rank());
    drawn.latent_bytes[static_cast<size_t>(world.rank())] =
        world.counters().sent[static_cast<size_t>(Payload::kLatent)].bytes;
  });
  return drawn;
}

TEST(PreviewFit, IsReadAsWritten) {
  const std::string path = testing::TempDir() + "preview.json";
  const auto expect_same = [](const ColourMap& is, const ColourMap& wants) {
    EXPECT_EQ(is.rgb, wants.rgb);
    EXPECT_EQ(is.constant, wants.constant);
  };
  std::ofstream(path) << text_of(some_fit());
  const PreviewFit read = read_preview_fit(path, kChannels);
  expect_same(read.map, some_map(1));
  ASSERT_TRUE(read.first);
  expect_same(*read.first, some_map(-1));
  std::ofstream(path) << text_of({.map = some_map(1)});  // of pictures
  const PreviewFit pictures = read_preview_fit(path, kChannels);
  expect_same(pictures.map, some_map(1));
  EXPECT_FALSE(pictures.first);
  fs::remove(path);
}

TEST(PreviewFit, FaultyFilesAreRefused) {
  const std::string path = testing::TempDir() + "faulty.json";
  const std::string whole =
      R"({"schema":"weft.preview/v1","rgb":[[1,2,3],[1,2,3]],"constant":[0,0,0],)";
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "object"},
           {R"({"schema":"other"})", "\"schema\" is \"other\" (legal: weft.preview/v1)"},
           {R"({"schema":"weft.preview/v1"})", "\"rgb\" is missing"},
           {R"({"schema":"weft.preview/v1","rgb":7})", "\"rgb\" is no list"},
           {R"({"schema":"weft.preview/v1","rgb":[[1,2,3]]})", "1 channels (legal: 2"},
           {R"({"schema":"weft.preview/v1","rgb":[[1,2],[1,2,3]]})",
            "2 numbers (legal: 3 numbers)"},
           {R"({"schema":"weft.preview/v1","rgb":[[1,2,1e9],[1,2,3]]})", "(legal: -1e4 ... 1e4)"},
           {R"({"schema":"weft.preview/v1","rgb":[[1,2,3],[1,2,3]]})", "\"constant\" is missing"},
           {whole + R"("first_frame":7})",
            "\"first_frame\" is no object (legal: an object with rgb and constant"},
           {whole + R"("first_frame":{"rgb":[[1,2,3],[1,2,3]]}})",
            "\"first_frame\": field \"constant\" is missing"},
           {whole + R"("first_frame":{"rgb":[[1,2,3]],"constant":[0,0,0]}})",
            "\"first_frame\": \"rgb\" is 1 channels (legal: 2"},
           {whole + R"("first_frame":{"rgb":[[1,2,3],[1,2,1e9]],"constant":[0,0,0]}})",
            "\"first_frame\": \"rgb\" is 1000000000"}}) {
    std::ofstream(path) << text;
    expect_error(ErrorKind::kModel, part, [&] { read_preview_fit(path, 2); });
  }
  fs::remove(path);
}

TEST(PreviewPictures, AreColoursEnlargedByAWholeFactor) {
  Tensor colours(DType::kF32, {3, 2, 4, 8});
  std::fill_n(colours.as<float>(), colours.count(), 0.0f);
  for (int64_t i = 0; i < 32; ++i) colours.as<float>()[i] = 7;  // red of the first picture: cut off
  const std::vector<Frame> pictures = preview_pictures(colours, 8);
  ASSERT_EQ(pictures.size(), 2u);
  EXPECT_EQ(pictures[0].width, 64);
  EXPECT_EQ(pictures[0].height, 32);
  EXPECT_EQ(pictures[0].at(9, 9)[0], 255);
  EXPECT_EQ(pictures[1].at(9, 9)[0], 128);
  EXPECT_EQ(preview_pictures(colours, 100)[0].width, 320);
  Tensor wide(DType::kF32, {3, 1, 1, 700});
  std::fill_n(wide.as<float>(), wide.count(), 0.0f);
  EXPECT_EQ(preview_pictures(wide, 8)[0].width, 700);
}

TEST(Preview, EventsComeBehindTheirStepsAndTheResultIsTheSame) {
  const PreviewModel model(text_of(some_fit()));
  const DrawnPreviews without = draw_previews(model.path(), Layout{}, 0, four_steps());
  const DrawnPreviews with = draw_previews(model.path(), Layout{}, 3, four_steps());
  EXPECT_EQ(with.events.order, (std::vector<std::string>{"step 1", "step 2", "step 3", "preview 3",
                                                         "step 4", "preview 4"}));
  EXPECT_TRUE(without.events.previews.empty());
  EXPECT_EQ(with.result.framehash, without.result.framehash);
  EXPECT_EQ(with.result.signature, without.result.signature);
  const Preview& preview = with.events.previews.front();
  EXPECT_EQ(preview.total, 4);
  ASSERT_EQ(preview.frames.size(), 3u);  // the latent frames of nine frames
  EXPECT_EQ(preview.fps, with.result.request.fps / 4);
  EXPECT_GT(preview.frames[0].width, 0);
}

// Rows of the first latent frame have its map, wherever they are.
TEST(Preview, TheFirstFrameHasItsOwnMap) {
  const PreviewModel model(text_of(fit_of_colours({1, -1, -1}, {-1, -1, 1})));
  for (const auto& [ranks, text] :
       {std::pair{1, ""}, {3, "ring=3"}, {2, "ulysses=2"}, {4, "layers=2,ring=2"}}) {
    const Layout layout = ranks == 1 ? Layout{} : parse_layout(text, ranks, {});
    const DrawnPreviews drawn = draw_previews(model.path(), layout, 4, four_steps());
    ASSERT_EQ(drawn.events.previews.size(), 1u) << text;
    const std::vector<Frame>& frames = drawn.events.previews[0].frames;
    ASSERT_EQ(frames.size(), 3u);
    for (size_t f = 0; f < frames.size(); ++f)
      for (size_t i = 0; i < frames[f].rgb.size(); ++i)
        ASSERT_EQ(frames[f].rgb[i], i % 3 == (f == 0 ? 0 : 2) ? 255 : 0) << text << " " << f;
  }
}

// The pictures of one rank, from the rows of each; a rank that owns the newest rows and is not the
// root sends four bytes for each of a latent pixel's three colours.
TEST(Preview, EveryLayoutShowsTheSameAndSendsWhatTheFormulaSays) {
  const PreviewModel model(text_of(some_fit()));
  const DrawnPreviews whole = draw_previews(model.path(), Layout{}, 2, four_steps());
  ASSERT_EQ(whole.events.previews.size(), 2u);
  for (const auto& [ranks, text] :
       {std::pair{2, "cfg=2"}, std::pair{2, "ulysses=2"}, std::pair{3, "ring=3"},
        std::pair{2, "tensor=2"}, std::pair{2, "layers=2"}, std::pair{4, "layers=2,ring=2"},
        std::pair{4, "cfg=2,token_ring=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    const DrawnPreviews with = draw_previews(model.path(), layout, 2, four_steps());
    const DrawnPreviews without = draw_previews(model.path(), layout, 0, four_steps());
    EXPECT_EQ(with.result.framehash, without.result.framehash) << text;
    EXPECT_EQ(with.result.signature, without.result.signature) << text;
    ASSERT_EQ(with.events.previews.size(), 2u) << text;
    for (size_t i = 0; i < 2; ++i)
      for (size_t f = 0; f < whole.events.previews[i].frames.size(); ++f) {
        const Frame &a = with.events.previews[i].frames[f], &b = whole.events.previews[i].frames[f];
        ASSERT_EQ(a.rgb.size(), b.rgb.size());
        int most = 0;
        for (size_t k = 0; k < a.rgb.size(); ++k)
          most = std::max(most, std::abs(a.rgb[k] - b.rgb[k]));
        EXPECT_LE(most, 1) << text;
      }
    const Generator generator(model.path(), options_of(DType::kF32));
    const Request request = generator.resolve(four_steps());
    const Mesh mesh(layout);
    int64_t more = 0, expected = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const RankPlacement placement(layout, rank);
      const int last = placement.rank_of(layout[Axis::kLayers] - 1, mesh.sequence_index(rank));
      const int64_t tokens = placement.tokens_of(rank, generator.facts(request).sequence()).size();
      if (rank == last && rank > 0) expected += 2 * tokens * 4 * 3 * 4;  // patches of 2 x 2
      const auto index = static_cast<size_t>(rank);
      more += with.latent_bytes[index] - without.latent_bytes[index];
    }
    EXPECT_EQ(more, expected) << text;
  }
}

TEST(Preview, TheMemoryPlanCountsThem) {
  const PreviewModel model(text_of(some_fit()));
  Request request = four_steps();
  request.width = 160;
  request.height = 128;
  for (const int every : {0, 1}) {
    const size_t live = tensor_bytes_live();
    GeneratorOptions options = options_of(DType::kF32);
    options.preview_every = every;
    options.preview_share = 1e9;
    Generator generator(model.path(), options);
    PreviewEvents events;
    RunOptions run;
    run.listener = &events;
    const Request resolved = generator.resolve(request);
    const auto planned = static_cast<double>(generator.plan(resolved).high_water);
    const RunResult result = generator.run(resolved, nullptr, run);
    EXPECT_EQ(events.previews.size(), every ? 4u : 0u);
    EXPECT_NEAR(planned / static_cast<double>(result.memory_high_water - live), 1, 0.05) << every;
  }
}

TEST(Preview, AQueueDrawsTheSameWithoutThem) {
  const PreviewModel model(text_of(some_fit()));
  Request request = job();
  request.steps = 10;
  request.frames = 17;
  request.method = parse_method("queue:block=2,context=1", "method");
  const DrawnPreviews drawn = draw_previews(model.path(), {}, 1, request);
  EXPECT_TRUE(drawn.events.previews.empty());
  EXPECT_EQ(drawn.result.framehash, draw_previews(model.path(), {}, 0, request).result.framehash);
}

TEST(Preview, AModelWithoutAFitIsRefusedWithTheScriptThatMakesIt) {
  const PreviewModel model("");
  GeneratorOptions options = options_of(DType::kF32);
  options.preview_every = 1;
  expect_error(ErrorKind::kUsage, "fit_preview.py",
               [&] { const Generator generator(model.path(), options); });
}

TEST(PreviewBudget, LeavesOutWhatWouldTakeMoreThanItsShare) {
  using namespace std::chrono_literals;
  int made = 0;
  PreviewBudget none(0);
  for (int i = 0; i < 3; ++i) none.spend(false, [&] { ++made; });
  EXPECT_EQ(made, 1);  // the first is made
  none.spend(true, [&] { ++made; });
  EXPECT_EQ(made, 2);  // somebody waits for it
  PreviewBudget rich(0.5, PreviewBudget::Clock::now() - 1h);
  for (int i = 0; i < 3; ++i) rich.spend(false, [&] { ++made; });
  EXPECT_EQ(made, 5);
}

}  // namespace
}  // namespace weft::test
