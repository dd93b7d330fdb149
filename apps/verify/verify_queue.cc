// Stage queue of `weft verify`: the block queue of a long video.
#include <algorithm>
#include <filesystem>

#include "apps/verify/verify_run.h"
#include "engine/generation/queue_denoiser.h"
#include "engine/sampling/guidance.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kMostFrames = 1 << 16;

// The numbers of the case.
struct QueueCase {
  int block = 0, context = 0, blocks = 0, steps = 0;
  std::vector<double> guidance;  // by expert
  double boundary = 0;
  std::vector<int64_t> prompts;  // of each block
  std::array<int64_t, 4> shape;  // of a forward's latent

  explicit QueueCase(const Case& c) {
    const std::string what = c.file("case.json");
    block = c.integer("block_frames", kMostFrames);
    context =
        static_cast<int>(json_int(c.spec, "context_frames", what, {0, block}));
    blocks = c.integer("blocks", kMostFrames);
    steps = c.integer("steps", kMaxSteps);
    guidance = {json_number(c.spec, "guidance_scale", what)};
    if (std::filesystem::exists(c.file("model/transformer_2"))) {
      guidance.push_back(json_number_or(c.spec, "guidance_scale_2", what, guidance[0]));
      boundary = json_number(c.spec, "boundary_ratio", what);
    }
    prompts = json_ints(c.spec, "prompts", what, {0, kMostFrames - 1});
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const TensorView noise = inputs.contains("noise") ? inputs.view("noise") : TensorView();
    if (noise.rank != 4 || noise[1] != int64_t{blocks} * block + context ||
        std::ssize(prompts) != blocks)
      throw Error(ErrorKind::kModel,
                  c.folder + ": noise is [C, blocks * block_frames + context_frames, H, W], and "
                             "prompts has a number per block");
    shape = {noise[0], block + context, noise[2], noise[3]};
  }
};

std::string folder_of(int model) { return model ? "model/transformer_2" : "model/transformer"; }

std::shared_ptr<const TransformerModel> model_of(const Case& c, int model) {
  return open_transformer(c.file(folder_of(model)) + "/config.json");
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
      loaded.push_back(described->load(bench.stream, TensorFile::open(c.file(folder_of(model))),
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

// The guided velocities that this rank has, by block and step: rows of its part of the block.
using Velocities = std::map<std::pair<int, int>, Tensor>;

// Joins a velocity on the root as [C, n, H, W]. Elsewhere it returns an empty tensor.
Tensor join_velocity(Bench& bench, Case& c, const QueuePlanConfig& config, const QueueCase& of,
                     const std::array<int64_t, 3>& patch, std::pair<int, int> block_step,
                     const TensorView& own) {
  const auto [block, step] = block_step;
  const Range all = config.own(block);
  const int last = c.placement.layout()[Axis::kLayers] - 1;
  Stream host = host_stream(bench.stream);
  Tensor rows;
  if (c.placement.root())
    rows = Tensor(DType::kF32, {all.size(), config.latent_bytes / int64_t{sizeof(float)}});
  const auto landing = [&](int rank) {
    const int part = c.placement.mesh().sequence_index(rank);
    const Range range = config.own(block, part);
    const bool sends = c.placement.rank_of(last, part) == rank && range.size() > 0;
    return sends ? rows.view().slice(0, range.begin - all.begin, range.size()) : TensorView();
  };
  const Tag tag{.kind = Payload::kControl, .pass = {.clip = block, .step = step}, .hop = 1 << 10};
  if (c.placement.alone())
    copy(host, own, rows);
  else
    c.placement.communicator().gather_v(host, tag, own, landing);
  if (!c.placement.root()) return {};
  const int64_t frames = all.size() / config.frame_tokens * patch[0];
  Tensor velocity(DType::kF32, {of.shape[0], frames, of.shape[2], of.shape[3]});
  unpatchify(host, rows, patch, TokenRanges::all(all.size()), velocity);
  return velocity;
}

}  // namespace

NamedTensors run_queue(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  Bench bench(c);
  const QueueCase of(c);
  CaseExperts experts(bench, c, static_cast<int>(of.guidance.size()));
  const TransformerTraits& traits = experts.traits();
  const Sampler sampler(
      SamplerConfig::from_json_file(c.file("model/scheduler/scheduler_config.json")), of.steps);
  const DType wire = c.options.dtype;
  QueuePlanConfig config = queue_config(c.placement, traits, wire, of.shape, of.block);
  config.steps = steps_of(sampler, of.boundary, of.guidance);
  config.blocks = of.blocks;
  config.prompts.assign(of.prompts.begin(), of.prompts.end());
  for (const auto& expert : experts.loaded) config.layers.push_back(expert->traits().blocks);

  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  Tensor noise = on_host(bench.stream, bench.load(inputs, "noise"));
  std::vector<Tensor> texts;
  std::vector<TensorView> prompts;
  for (int k = 0; k <= std::ranges::max(of.prompts); ++k) {
    texts.push_back(bench.load(inputs, "encoder_hidden_states." + std::to_string(k)));
    prompts.push_back(texts.back());
  }
  Tensor negative;
  if (guided(of)) negative = bench.load(inputs, "negative_encoder_hidden_states");
  const BlockFrames frames{of.block, of.context};
  const auto frames_of = [&](const Tensor& whole, int block) {
    return whole.view().slice(1, frames.first(block), frames.count(block));
  };
  Velocities velocities;
  NamedTensors out;
  Tensor latents(DType::kF32, noise.view().shape());
  Stream host = host_stream(bench.stream);
  QueueJob job{.sampler = sampler,
               .shape = of.shape,
               .guidance = {of.guidance.front(), of.guidance.back()},
               .prompts = prompts,
               .negative = negative,
               .noise = [&](int block,
                            const TensorView& to) { copy(host, frames_of(noise, block), to); },
               .decode =
                   [&](int block, const TensorView& latent) {
                     copy(host, HostCopy(bench.stream, latent).view(), frames_of(latents, block));
                   }};
  job.on_update = [&](const Pass& pass, const Range&, const TensorView& velocity) {
    Tensor& kept = velocities[{pass.clip, pass.step}] = Tensor(DType::kF32, velocity.shape());
    const HostCopy copied(bench.stream, velocity);
    copy(host, copied.view(), kept);
  };
  QueueDenoiser(bench.stream, bench.arena, experts, c.placement, wire).run(config, job);

  const int last = c.placement.layout()[Axis::kLayers] - 1;
  const int part = c.placement.mesh().sequence_index(c.placement.rank());
  const bool sends = c.placement.rank_of(last, part) == c.placement.rank();
  for (int block = 0; block < of.blocks; ++block)
    for (int step = 0; step < of.steps; ++step) {
      const auto own = velocities.find({block, step});
      Tensor whole = join_velocity(
          bench, c, config, of, traits.patch, {block, step},
          sends && own != velocities.end() ? own->second.view() : TensorView());
      const std::string name = "velocity." + std::to_string(block) + "." + std::to_string(step);
      if (whole) out[name] = std::move(whole);
    }
  out["latents"] = std::move(latents);
  return out;
}

LayoutLimits queue_limits(const Case& c) {
  const QueueCase of(c);
  LayoutLimits limits{.requests = 0, .guided = guided(of), .whole_frames = true};
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
