// Runs whole jobs with the processes of mpirun under every layout, which the same generators are
// given one after the other. The memory that each rank takes in each stage agrees with its plan: a
// plan is at most 5 % too large and 1 % too small.
// usage: mpi_plan_test MODEL FRAMESxHEIGHTxWIDTH [method:METHOD] [cache:CACHE] [steps:N]
// [LAYOUT...]
//                                     under mpirun; layouts without a name are all legal ones
//        mpi_plan_test language FOLDER [LAYOUT...]   under mpirun, completes prompts with a
//                                                    language model
//        mpi_plan_test widen MODEL FOLDER    copies a small model and gives its transformer the
//                                            true width of its family, two blocks and random values
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "engine/decoding/frame_writer.h"
#include "engine/generation/generator.h"
#include "engine/language/language.h"
#include "models/random_weights/random_weights.h"
#include "tests/engine/small_job.h"
#include "tests/support/process_rank.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

constexpr double kOver = 1.05, kUnder = 0.99;

void widen(const std::string& model, const std::string& folder) {
  fs::remove_all(folder);
  fs::copy(model, folder, fs::copy_options::recursive);
  const std::string path = folder + "/transformer/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  if (config["_class_name"] == "WanTransformer3DModel")
    config.update({{"num_layers", 2},
                   {"num_attention_heads", 12},
                   {"attention_head_dim", 128},
                   {"ffn_dim", 8960}});
  else
    config.update({{"n_layers", 2},
                   {"n_refiner_layers", 1},
                   {"dim", 3840},
                   {"n_heads", 30},
                   {"n_kv_heads", 30},
                   {"axes_dims", {32, 48, 48}},
                   {"axes_lens", {1536, 512, 512}}});
  std::ofstream(path) << config;
  const std::string weights = folder + "/transformer/diffusion_pytorch_model.safetensors";
  fs::remove(weights);
  write_random(weights, random_tensors(open_transformer(path)->tensors()));
}

// Takes a frame so late that as many wait as ever can: the first one when the last is decoded, or
// where the decoder waits for it, as a queue's does.
struct LateSink final : FrameSink, ProgressListener {
  std::promise<void> decoded;
  uint64_t frames = 0, frame_bytes = 0;
  bool told = false;
  void push(const Frame& frame) override {
    if (frames == 0) decoded.get_future().wait_for(std::chrono::milliseconds(500));
    ++frames;
    frame_bytes = frame.rgb.size();
  }
  // Those that have waited: in the queue, with the decoder and here.
  uint64_t bytes() const { return std::min<uint64_t>(frames, kFramesWaiting + 2) * frame_bytes; }
  std::string finish() override { return {}; }
  void progress(const Progress& at) override {
    if (at.stage != "decode" || at.step < at.total || told) return;
    told = true;
    decoded.set_value();
  }
};

// The bytes of each stage, first by the plan, then as taken beside `live` bytes.
std::vector<int64_t> plan_rank(Generator& generator, const Request& open, size_t live) {
  const Request request = generator.resolve(open);
  const MemoryPlan plan = generator.plan(request);
  LateSink sink;
  RunOptions options;
  options.listener = &sink;
  const RunResult result = generator.run(request, &sink, options);
  std::vector<int64_t> bytes;
  for (const uint64_t planned : {plan.encode_text, plan.denoise, plan.decode})
    bytes.push_back(static_cast<int64_t>(planned));
  for (const uint64_t taken : result.stage_high_water)
    bytes.push_back(static_cast<int64_t>(taken - live));
  // A queue decodes while it denoises.
  const size_t decodes = request.method->in_segments() ? 1 : 2;
  bytes[3 + decodes] += static_cast<int64_t>(sink.bytes());
  if (request.method->in_segments()) bytes[2] = bytes[5] = 1;
  return bytes;
}

// A language model's job: several sequences at once, or more requests than fit in a batch.
struct LanguageJob {
  const char* name;
  std::vector<int64_t> prompts;
  int64_t max_tokens;
  CompletionOptions how;
};

std::vector<LanguageJob> language_jobs() {
  return {{"3 prompts of 96 tokens", {96, 96, 96}, 8, {.chunk = 32}},
          {"5 prompts of 20 to 150 tokens, 2 at once",
           {150, 20, 75, 40, 96},
           30,
           {.batch = 2, .chunk = 16}}};
}

// The bytes of a language model's job, first by the plan, then as taken.
std::vector<int64_t> complete_on_rank(RankPlacement placement, const std::string& folder,
                                      DType dtype, const LanguageJob& job) {
  std::vector<CompletionRequest> requests;
  for (const int64_t tokens : job.prompts) {
    CompletionRequest& request = requests.emplace_back();
    request.max_tokens = job.max_tokens;
    for (int id = 0; id < tokens; ++id) request.prompt.push_back(3 + id);
  }
  const LanguageOptions options =
      sized_for(requests, job.how.batch, {.dtype = dtype, .threads = 1, .page_rows = 16});
  const LanguageBytes plan =
      LanguageModel::predict(LanguageModel::read_config(folder), options, placement.layout(),
                             placement.rank(), requests, job.how);
  const size_t live = tensor_bytes_live();
  reset_tensor_bytes_peak();
  LanguageModel model(folder, options, std::move(placement));
  model.complete(requests, job.how);
  return {static_cast<int64_t>(plan.total()),
          static_cast<int64_t>(tensor_bytes_peak() - live + model.rank().arena_high_water())};
}

std::vector<std::string> language_work(Communicator& world, const std::string& folder,
                                       const std::vector<std::string>& names) {
  const LayoutLimits limits = LanguageRank::limits(LanguageModel::read_config(folder), 32);
  std::vector<Layout> layouts;
  for (const std::string& name : names) layouts.push_back(parse_layout(name, world.size(), limits));
  if (names.empty()) layouts = legal_layouts(world.size(), limits);
  std::erase_if(layouts, [](const Layout& layout) { return layout[Axis::kData] > 1; });
  std::vector<std::pair<LanguageJob, DType>> cases;
  for (const LanguageJob& job : language_jobs())
    for (const DType dtype : {DType::kF32, DType::kBF16}) cases.emplace_back(job, dtype);
  std::vector<std::string> faults;
  for (const Layout& layout : layouts)
    for (const auto& [job, dtype] : cases) {
      const auto all =
          gather(world, complete_on_rank(RankPlacement::of(world, layout), folder, dtype, job));
      for (int rank = 0; rank < (world.rank() == 0 ? world.size() : 0); ++rank) {
        const auto planned = static_cast<double>(all[rank][0]),
                   taken = static_cast<double>(all[rank][1]);
        char line[200];
        std::snprintf(line, sizeof line,
                      "%s, %s %s, rank %d: %.3f MiB planned, %.3f taken (%+.2f %%)", job.name,
                      to_string(layout).c_str(), std::string(to_string(dtype)).c_str(), rank,
                      planned / 0x1p20, taken / 0x1p20, 100 * (planned / taken - 1));
        std::printf("%s\n", line);
        if (!(planned >= kUnder * taken && planned <= kOver * taken)) faults.emplace_back(line);
      }
    }
  return faults;
}

std::vector<std::string> work_plan(Communicator& world, const std::string& model,
                                   const Request& open, const std::vector<std::string>& names) {
  const Generator generator(model, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(open));
  std::vector<Layout> layouts;
  for (const std::string& name : names) layouts.push_back(parse_layout(name, world.size(), limits));
  if (names.empty()) layouts = legal_layouts(world.size(), limits);
  for (Layout& layout : layouts)
    if (open.method->in_segments()) layout.text_ranks = 1, layout.decode_rank = 0;
  std::vector<std::string> faults;
  double most = 0, least = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const size_t live = tensor_bytes_live();
    Generator placed(model, options_of(dtype), RankPlacement::of(world, layouts.front()));
    for (const Layout& layout : layouts) {
      placed.place(world, layout);
      const auto all = gather(world, plan_rank(placed, open, live));
      for (int rank = 0; rank < (world.rank() == 0 ? world.size() : 0); ++rank)
        for (int stage = 0; stage < 3; ++stage) {
          const auto planned = static_cast<double>(all[rank][stage]),
                     taken = static_cast<double>(all[rank][3 + stage]);
          char line[200];
          std::snprintf(line, sizeof line, "%s %s, rank %d, stage %d: %.3f MiB planned, %.3f taken",
                        to_string(layout).c_str(), std::string(to_string(dtype)).c_str(), rank,
                        stage, planned / 0x1p20, taken / 0x1p20);
          if (!names.empty()) std::printf("%s (%+.2f %%)\n", line, 100 * (planned / taken - 1));
          most = std::max(most, planned / taken);
          least = std::min(least, planned / taken);
          if (!(planned >= kUnder * taken && planned <= kOver * taken)) faults.emplace_back(line);
        }
    }
  }
  if (world.rank() == 0)
    std::printf("%s, %d ranks, %zu layouts, f32 and bf16: planned / taken from %.4f to %.4f\n",
                model.c_str(), world.size(), layouts.size(), least, most);
  return faults;
}

// Takes what `names` say of the job and leaves the layouts among them.
void take_settings(std::vector<std::string>& names, Request& request) {
  std::erase_if(names, [&](const std::string& name) {
    const size_t colon = name.find(':');
    if (colon == std::string::npos) return false;
    const std::string key = name.substr(0, colon), value = name.substr(colon + 1);
    if (key == "method")
      request.method = parse_method(value, "method");
    else if (key == "cache")
      request.cache = parse_step_cache(value, "cache");
    else if (key == "steps")
      request.steps = std::stoi(value);
    else
      throw Error(ErrorKind::kUsage, "setting \"" + key + "\": legal are method, cache and steps");
    return true;
  });
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string model = argv[1];
  if (model == "widen") {
    weft::test::widen(argv[2], argv[3]);
    return 0;
  }
  if (model == "language")
    return weft::test::process_main([&](weft::Communicator& world) {
      return weft::test::language_work(world, argv[2], {argv + 3, argv + argc});
    });
  weft::Request request = weft::test::job();
  long frames = 0, height = 0, width = 0;
  if (std::sscanf(argv[2], "%ldx%ldx%ld", &frames, &height, &width) != 3) return 2;
  request.frames = frames;
  request.height = height;
  request.width = width;
  std::vector<std::string> names(argv + 3, argv + argc);
  weft::test::take_settings(names, request);
  return weft::test::process_main([&](weft::Communicator& world) {
    return weft::test::work_plan(world, model, request, names);
  });
}
