// Stage queue of `weft verify`: the block queue of a long video.
#include <algorithm>
#include <filesystem>

#include "apps/verify/verify_run.h"
#include "engine/long_video/queue_denoiser.h"
#include "engine/sampling/guidance.h"
#include "engine/sampling/noise_pool.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kMostQueueFrames = 1 << 16;

// The numbers of the case.
struct QueueCase {
  BlockFrames frames;
  int blocks = 0, steps = 0;
  std::vector<double> guidance;  // by expert
  double boundary = 0;
  std::vector<int64_t> prompts;  // of each block
  std::array<int64_t, 4> shape;  // of a forward's latent

  explicit QueueCase(const Case& c) {
    const std::string what = c.file("case.json");
    frames.block = c.integer("block_frames", kMostQueueFrames);
    frames.context = json_int(c.spec, "context_frames", what, {0, frames.block});
    blocks = c.integer("blocks", kMostQueueFrames);
    steps = c.integer("steps", kMaxSteps);
    guidance = {json_number(c.spec, "guidance_scale", what)};
    if (std::filesystem::exists(c.part("transformer_2"))) {
      guidance.push_back(json_number_or(c.spec, "guidance_scale_2", what, guidance[0]));
      boundary = json_number(c.spec, "boundary_ratio", what);
    }
    prompts = json_ints(c.spec, "prompts", what, {0, kMostQueueFrames - 1});
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const TensorView noise = inputs.contains("noise") ? inputs.view("noise") : TensorView();
    if (noise.rank != 4 || noise[1] != frames.first(blocks) || std::ssize(prompts) != blocks)
      throw Error(ErrorKind::kModel,
                  c.folder +
                      ": noise is [C, blocks * block_frames + context_frames, H, W], and "
                      "prompts has a number per block");
    shape = {noise[0], frames.count(0), noise[2], noise[3]};
  }
};

std::string expert_name(int model) { return model ? "transformer_2" : "transformer"; }

std::shared_ptr<const TransformerModel> model_of(const Case& c, int model) {
  return open_transformer(c.part_file(expert_name(model), "config.json"));
}

bool guided(const QueueCase& of) {
  return std::ranges::any_of(of.guidance, [](double g) { return guidance_branches(g) == 2; });
}

// The experts of a case, all resident. Guidance is that of a ModelFamily without a row.
struct CaseExperts final : Experts {
  ModelFamily row{};
  DType compute;
  std::vector<std::unique_ptr<Transformer>> loaded;

  CaseExperts(Bench& bench, Case& c, int experts) : compute(c.options.dtype) {
    for (int model = 0; model < experts; ++model) {
      const auto described = model_of(c, model);
      loaded.push_back(described->load(
          bench.stream, open_part_weights(PartKind::kTransformer, c.part(expert_name(model))),
          c.placement.load(described->traits(), {.dtype = compute})));
    }
  }
  const ModelFamily& family() const override { return row; }
  const TransformerTraits& traits() const override { return loaded[0]->traits(); }
  DType dtype() const override { return compute; }
  int64_t text_length(int64_t rows) const override { return rows; }
  const Transformer& expert(Stream&, int model) override { return *loaded[model]; }
  void done_with_experts() override {}
};

// The queue of a case on one rank.
class QueueRun {
 public:
  explicit QueueRun(Case& c)
      : case_(c),
        bench_(c),
        of_(c),
        experts_(bench_, c, static_cast<int>(of_.guidance.size())),
        facts_{.request = {},
               .sampler = {SamplerConfig::from_json_file(
                               c.part_file("scheduler", "scheduler_config.json")),
                           of_.steps},
               .window = of_.shape,
               .guidance = of_.guidance},
        config_(queue_config(c.placement, experts_.traits(), c.options.dtype, of_.shape,
                             of_.frames.block)) {
    config_.steps = steps_of(facts_.sampler, of_.boundary, of_.guidance);
    config_.blocks = of_.blocks;
    config_.prompts.assign(of_.prompts.begin(), of_.prompts.end());
    for (const auto& expert : experts_.loaded) config_.layers.push_back(expert->traits().blocks);
  }

  NamedTensors run() {
    const TensorFile inputs = TensorFile::open(case_.file("inputs.safetensors"));
    const Tensor noise = on_host(bench_.stream, bench_.load(inputs, "noise"));
    std::vector<Tensor> texts;
    for (int k = 0; k <= std::ranges::max(of_.prompts); ++k)
      texts.push_back(bench_.load(inputs, "encoder_hidden_states." + std::to_string(k)));
    const std::vector<TensorView> prompts(texts.begin(), texts.end());
    Tensor negative;
    if (guided(of_)) negative = bench_.load(inputs, "negative_encoder_hidden_states");
    NamedTensors out;
    const Tensor& latents = out["latents"] = Tensor(DType::kF32, noise.view().shape());
    const auto frames = [&](const Tensor& whole, int block) {
      return whole.view().slice(1, of_.frames.first(block), of_.frames.count(block));
    };
    QueueJob job{
        .facts = facts_,
        .prompts = prompts,
        .negative = negative,
        .noise = [&](int block, const TensorView& to) { copy(host_, frames(noise, block), to); },
        .decode =
            [&](int block, const TensorView& latent) {
              const HostCopy copied(bench_.stream, latent);
              copy(host_, copied.view(), frames(latents, block));
            }};
    job.on_update = [&](const Pass& pass, const Range&, const TensorView& velocity) {
      const HostCopy copied(bench_.stream, velocity);
      copy(host_, copied.view(),
           velocities_[{pass.clip, pass.step}] = Tensor(DType::kF32, velocity.shape()));
    };
    QueueDenoiser({bench_.stream, bench_.arena, experts_, case_.placement}, case_.options.dtype)
        .run(config_, job);
    for (int block = 0; block < of_.blocks; ++block)
      for (int step = 0; step < of_.steps; ++step)
        if (Tensor whole = join_velocity(block, step))
          out["velocity." + std::to_string(block) + "." + std::to_string(step)] = std::move(whole);
    return out;
  }

 private:
  // Returns the guided velocity of a step as [C, n, H, W] on the root, elsewhere an empty tensor.
  // Each rank of the last stage has the rows of its part.
  Tensor join_velocity(int block, int step) {
    const RankPlacement& placement = case_.placement;
    const Range all = config_.own(block);
    const int last = placement.layout()[Axis::kLayers] - 1;
    const auto rows_of = [&](int rank) {
      const int part = placement.mesh().sequence_index(rank);
      const Range own = config_.own(block, part);
      return placement.rank_of(last, part) == rank
                 ? Range{own.begin - all.begin, own.end - all.begin}
                 : Range{};
    };
    Tensor rows;
    if (placement.root()) rows = Tensor(DType::kF32, {all.size(), experts_.traits().row()});
    const auto landing = [&](int rank) {
      const Range range = rows_of(rank);
      return range.size() > 0 ? rows.view().slice(0, range.begin, range.size()) : TensorView();
    };
    TensorView own;
    if (rows_of(placement.rank()).size() > 0) own = velocities_.at({block, step});
    const Tag tag{
        .kind = Payload::kControl, .pass = {.clip = block, .step = step}, .topic = Topic::kCheck};
    if (placement.alone())
      copy(host_, own, rows);
    else
      placement.communicator().gather_v(host_, tag, own, landing);
    if (!placement.root()) return {};
    const std::array<int64_t, 3>& patch = experts_.traits().patch;
    Tensor velocity(DType::kF32,
                    {of_.shape[0], of_.frames.count(block), of_.shape[2], of_.shape[3]});
    unpatchify(host_, rows, patch, TokenRanges::all(all.size()), velocity);
    return velocity;
  }

  Case& case_;
  Bench bench_;
  Stream host_ = host_stream(bench_.stream);
  QueueCase of_;
  CaseExperts experts_;
  JobFacts facts_;
  QueuePlanConfig config_;
  std::map<std::pair<int, int>, Tensor> velocities_;  // guided, of this rank, by block and step
};

}  // namespace

NamedTensors run_queue(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  return QueueRun(c).run();
}

LayoutLimits queue_limits(const Case& c) {
  const QueueCase of(c);
  LayoutLimits limits{.requests = 0, .method = {SplitRule::kBlocks}, .guided = guided(of)};
  for (int model = 0; model < std::ssize(of.guidance); ++model) {
    const TransformerTraits traits = model_of(c, model)->traits();
    const auto grid = traits.grid(of.shape[1], of.shape[2], of.shape[3]);
    const auto least = [](int64_t& limit, int64_t value) {
      limit = limit ? std::min(limit, value) : value;
    };
    least(limits.heads, traits.heads);
    least(limits.layers, traits.blocks);
    least(limits.ffn, traits.ffn_columns);
    least(limits.tokens, grid[0] * grid[1] * grid[2]);
  }
  return limits;
}

}  // namespace weft
