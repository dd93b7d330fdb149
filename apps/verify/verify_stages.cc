#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ranges>

#include "apps/generate/request_flags.h"
#include "apps/verify/verify_run.h"
#include "engine/generation/generator.h"
#include "engine/sampling/guidance.h"
#include "engine/sampling/noise.h"
#include "engine/sampling/sampler.h"
#include "io/json.h"
#include "io/nearest.h"
#include "io/weights/weights_file.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/registry.h"

namespace weft {

namespace {

// Reads "seed", which may be any of the 64-bit seeds that --seed takes.
uint64_t json_seed(const nlohmann::json& object, const std::string& what) {
  const nlohmann::json& value = json_field(object, "seed", what);
  if (!value.is_number_unsigned())
    throw Error(ErrorKind::kModel, what + ": \"seed\" must be a whole number of at least 0");
  return value.get<uint64_t>();
}

// Joins bands of rows of [C, F, H, W] on the root, which may have none itself.
void join_bands(Bench& bench, const RankPlacement& placement, int64_t latent_rows,
                const TensorView& whole) {
  const int64_t scale = whole[2] / latent_rows;
  if (placement.alone()) return;
  const auto rows_of = [&](int rank) {
    const Range band = placement.band_of(rank, latent_rows);
    return whole.slice(2, band.begin * scale, band.size() * scale);
  };
  // A band's rows are not contiguous in the whole.
  Tensor dense;
  const auto landing = [&](int rank) {
    if (rank == 0 || placement.band_of(rank, latent_rows).size() == 0) return TensorView();
    dense = bench.tensor(DType::kF32, rows_of(rank).shape());
    return dense.view();
  };
  if (const TensorView own = landing(placement.rank()))
    copy(bench.stream, rows_of(placement.rank()), own);
  placement.communicator().gather_v(
      bench.stream, {.kind = Payload::kFrames, .topic = Topic::kCheck},
      dense ? dense.view() : TensorView(), landing,
      [&](int rank, const TensorView& rows) { copy(bench.stream, rows, rows_of(rank)); });
}

constexpr const char kPackedLatents[] = "packed_latents";

NamedTensors run_vae(Case& c, VaeParts part) {
  const ZoneScope zone(Zone::kDecode);
  Bench bench(c);
  const std::shared_ptr<const VaeModel> model = open_vae(c.part_file("vae", "config.json"));
  const VaeTraits& traits = model->traits;
  const std::unique_ptr<Vae> vae = model->load(
      bench.stream, open_part_weights(PartKind::kVae, c.part("vae")), c.options.dtype, part);
  const bool decode = part == VaeParts::kDecoder;
  const bool packed = decode && bench.inputs.contains(kPackedLatents);
  Tensor input = bench.load(packed ? kPackedLatents : decode ? "latents" : "video");
  if (packed) {  // as the transformer has them
    input = on_host(bench.stream, std::move(input));
    vae->denormalize(input, input);
    input = on_device(bench.stream, std::move(input));
  }
  const TensorView x = as_video(input);
  const int64_t scale = traits.spatial_factor, rows = decode ? x[2] : x[2] / scale;
  Tensor out = decode
                   ? bench.tensor(DType::kF32, {3, traits.frames(x[1]), x[2] * scale, x[3] * scale})
                   : bench.tensor(DType::kF32, {traits.channels, traits.latent_frames(x[1]),
                                                x[2] / scale, x[3] / scale});
  const Range band = c.placement.band(rows);
  if (band.size() > 0) {
    const auto part_of = [&](const TensorView& view, int64_t factor) {
      return view.slice(2, band.begin * factor, band.size() * factor);
    };
    BandSeams seams(c.placement, rows);
    Context context = seams.context(bench.stream, bench.arena, Pass{});
    if (decode)
      vae_decode(context, *vae, part_of(x, 1), part_of(out, scale));
    else
      vae_encode(context, *vae, part_of(x, scale), part_of(out, 1));
  }
  join_bands(bench, c.placement, rows, out);
  NamedTensors tensors;
  out = on_host(bench.stream, std::move(out));
  if (decode && input.view().rank == 3) {  // one picture
    tensors["image"] = f32_copy(bench.host, out, {3, out.view()[2], out.view()[3]});
  } else if (decode || model->cell == 1) {
    tensors[decode ? "video" : "mean"] = std::move(out);
  } else {
    const auto [channels, frames, h, w] = std::array{out.view()[0], int64_t{1}, rows, x[3] / scale};
    const int64_t cell = model->cell, own = channels / (cell * cell);
    Tensor& mean = tensors["mean"] = Tensor(DType::kF32, {own, frames, h * cell, w * cell});
    const TensorView packed_mean = out.view().reshape({channels, h, w});
    copy(bench.host, latent_places(packed_mean, cell).permute({4, 0, 1, 2, 3}),
         mean.view().reshape({own, h, cell, w, cell}));
    Tensor& normal = tensors[kPackedLatents] = Tensor(DType::kF32, {channels, h, w});
    vae->normalize(packed_mean, normal);
  }
  return tensors;
}

NamedTensors run_vae_decode(Case& c) { return run_vae(c, VaeParts::kDecoder); }
NamedTensors run_vae_encode(Case& c) { return run_vae(c, VaeParts::kEncoder); }

// The analytic model of the scheduler cases: v(x, sigma) = 0.3 x + sigma + 0.1 sin(3 x).
float analytic_velocity(float x, float sigma) {
  return static_cast<float>(0.3 * x + sigma + 0.1 * std::sin(3.0 * x));
}

NamedTensors run_scheduler(Case& c) {
  Bench bench(c);
  SamplerConfig config;
  if (c.spec.contains("scheduler")) {
    config.kind = solver_from_name(engine_solver(c.text("scheduler")));
    config.shift = c.number("shift");
  } else {
    config = SamplerConfig::from_json_file(c.part_file("scheduler", "scheduler_config.json"));
  }
  const int steps = c.integer("steps", kMaxSteps);
  const Sampler sampler(config, steps);
  const Tensor x = bench.load("x");
  const int64_t n = x.count();
  const Tensor velocity = bench.tensor(DType::kF32, {n});
  Tensor sigmas(DType::kF32, {steps + 1}), timesteps(DType::kF32, {steps}),
      trajectory(DType::kF32, {steps, n});
  SamplerState state(n, bench.stream.device());
  for (int i = 0; i < steps; ++i) {
    const HostCopy at(bench.stream, x);
    make_on_host(bench.stream, velocity, [&](const TensorView& v) {
      for (int64_t j = 0; j < n; ++j)
        v.as<float>()[j] = analytic_velocity(at.view().as<float>()[j], sampler.sigmas()[i]);
    });
    sampler.step(bench.stream, bench.arena, i, velocity, x, state);
    copy(bench.stream, x.view(), trajectory.view().select(0, i));
    timesteps.as<float>()[i] = sampler.timesteps()[i];
  }
  std::copy(sampler.sigmas().begin(), sampler.sigmas().end(), sigmas.as<float>());
  NamedTensors out;
  out["sigmas"] = std::move(sigmas);
  out["timesteps"] = std::move(timesteps);
  out["x"] = std::move(trajectory);
  return out;
}

NamedTensors run_noise(Case& c) {
  if (rng_from_name(c.text("generator")) != Rng::kTorchCpu)
    c.refuse("generator is '" + c.text("generator") + "', legal: torch-cpu");
  NamedTensors out;
  const std::string what = c.file("case.json");
  for (const auto& [index, draw] : json_field(c.spec, "draws", what).items()) {
    const uint64_t seed = json_seed(draw, what);
    const int64_t count = json_int(draw, "count", what, {1, 1 << 20});
    const std::vector<float> values = torch_cpu_randn(seed, count);
    Tensor tensor(DType::kF32, {count});
    std::copy(values.begin(), values.end(), tensor.as<float>());
    out[std::to_string(seed) + "." + std::to_string(count)] = std::move(tensor);
  }
  return out;
}

constexpr const char *kPictureStage = "pipeline_i2v", *kEditStage = "pipeline_edit";

// The request of a case, for a model with these limits. A case may have a guidance scale that the
// reference does not read, as a model that was distilled to none takes none.
Request pipeline_request(const Case& c, const ModelLimits& limits) {
  const std::string what = c.file("case.json");
  Request request;
  request.prompt = c.text("prompt");
  request.negative_prompt = json_string_or(c.spec, "negative_prompt", what, "");
  request.width = c.integer("width", IntRange{});
  request.height = c.integer("height", IntRange{});
  request.frames = c.integer("frames", IntRange{});
  request.steps = c.integer("steps", kMaxSteps);
  request.guidance_scale = c.number("guidance_scale");
  request.guidance_scale_2 =
      json_number_or(c.spec, "guidance_scale_2", what, *request.guidance_scale);
  if (!limits.guided) request.guidance_scale = request.guidance_scale_2 = 1;
  request.seed = json_seed(c.spec, what);
  request.rng = rng_from_name(c.text("rng"));
  return request;
}

// A tensor of a case's inputs as f32 on the host.
Tensor input_of(const Case& c, const std::string& name) {
  Bench bench(c);
  return bench.inputs.contains(name) ? on_host(bench.stream, bench.load(name)) : Tensor();
}

// The picture of a case of the stage pipeline_i2v, of the clip's size.
GivenPicture picture_of(const Case& c) {
  Tensor image = input_of(c, "image");
  if (!image)
    throw Error(ErrorKind::kModel, c.file("inputs.safetensors") + " lacks the tensor image");
  return {.path = "image", .pixels = std::make_shared<const Tensor>(std::move(image))};
}

// The reference pictures of a case of the stage pipeline_edit.
std::vector<GivenPicture> references_of(const Case& c) {
  std::vector<GivenPicture> out;
  while (true) {
    const std::string name = "image." + std::to_string(out.size());
    Tensor image = input_of(c, name);
    if (!image) return out;
    out.push_back({.path = name, .pixels = std::make_shared<const Tensor>(std::move(image))});
  }
}

NamedTensors run_pipeline(Case& c) {
  GeneratorOptions options;
  options.device = c.device();
  options.dtype = c.options.dtype;
  options.threads = c.options.threads;
  options.determinism = c.options.determinism;
  options.ops = c.options.ops;
  Generator generator(open_model(c), options, c.placement);
  Request request = pipeline_request(c, generator.limits());
  RunOptions run{.latents_path = {}, .listener = nullptr, .tap = nullptr, .stop = nullptr};
  Tensor rows;  // of the picture, in place of an image encoder
  if (c.text("stage") == kPictureStage) {
    request.image = picture_of(c);
    rows = input_of(c, "image_embeds");
    run.image_rows = rows;
  }
  if (c.text("stage") == kEditStage) request.references = references_of(c);

  struct Tap final : PipelineTap {
    NamedTensors tensors;
    Stream stream = Stream::cpu(1);
    void tap(const char* name, const TensorView& value) override {
      Tensor kept(value.dtype, value.shape());
      copy(stream, value, kept);
      tensors[name] = std::move(kept);
    }
  } tap;
  run.tap = &tap;
  generator.run(request, nullptr, run);
  return std::move(tap.tensors);
}

}  // namespace

double case_bound(const std::string& folder, const nlohmann::json& spec, DType dtype) {
  const std::string what = folder + "/case.json";
  return dtype == DType::kBF16 ? json_number_or(spec, "tolerance_bf16", what, 2e-2)
                               : json_number(spec, "tolerance", what);
}

LayoutLimits stage_limits(const std::string& folder, const nlohmann::json& spec) {
  const VerifyOptions options;
  std::vector<VerifyRow> rows;
  Case c{folder, spec, options, rows};
  const std::string stage = c.text("stage");
  if (stage == "pipeline" || stage == kPictureStage || stage == kEditStage) {
    const Generator generator(open_model(c), {});
    Request request = pipeline_request(c, generator.limits());
    if (stage == kPictureStage) request.image.path = "image";
    if (stage == kEditStage) request.references = references_of(c);
    try {
      LayoutLimits limits = generator.layout_limits(generator.resolve(request));
      limits.requests = 0;
      return limits;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUsage) c.refuse_spec(error.what());  // not the user's flags
      throw;
    }
  }
  LayoutLimits limits{.requests = 0, .guided = false};
  const bool clips = stage == "clips", displaced = stage == "displaced";
  if (stage == "transformer" || clips || displaced) {
    const TensorFile weights = open_part_weights(PartKind::kTransformer, c.transformer_path());
    const std::shared_ptr<const TransformerModel> model = c.transformer_model(weights);
    const TransformerTraits& traits = model->traits();
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const std::string latent = clips || displaced ? "noise" : "hidden_states";
    const TensorView x = inputs.contains(latent) ? as_video(inputs.view(latent)) : TensorView();
    if (x.rank != 4) c.refuse(latent + " is missing or not [C, F, H, W] or [C, H, W]");
    const auto grid = traits.grid(x[1], x[2], x[3]);
    limit_by(traits, limits);
    limits.tokens = grid[0] * grid[1] * grid[2];
    if (clips) limits.method = {SplitRule::kClips, grid[0]};
    if (displaced) limits.method = limit_displaced(c);
  }
  if (clips || displaced) limits.guided = guidance_branches(c.number("guidance_scale")) == 2;
  if (stage == "llm") return llm_limits(c);
  if (stage == "queue") return queue_limits(c);
  if (stage == "stream") return stream_limits(c);
  return limits;
}

NamedTensors run_stage(const std::string& folder, const nlohmann::json& spec,
                       const VerifyOptions& options, std::vector<VerifyRow>& rows,
                       RankPlacement placement) {
  static const std::map<std::string, NamedTensors (*)(Case&)> kStages = {
      {"transformer", run_transformer},
      {"vae_decode", run_vae_decode},
      {"vae_encode", run_vae_encode},
      {"text_encoder", run_text_encoder},
      {"image_encoder", run_image_encoder},
      {"audio_encoder", run_audio_encoder},
      {"tokenizer", run_tokenizer},
      {"text_clean", run_text_clean},
      {"scheduler", run_scheduler},
      {"noise", run_noise},
      {"pipeline", run_pipeline},
      {kPictureStage, run_pipeline},
      {kEditStage, run_pipeline},
      {"llm", run_llm},
      {"clips", run_clips},
      {"displaced", run_displaced},
      {"queue", run_queue},
      {"stream", run_stream}};
  Case c{folder, spec, options, rows, std::move(placement)};
  const auto stage = kStages.find(c.text("stage"));
  if (stage == kStages.end())
    c.refuse_spec("stage is '" + c.text("stage") +
                  "', legal: " + listed(std::views::keys(kStages)));
  return stage->second(c);
}

}  // namespace weft
