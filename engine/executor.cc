#include "engine/executor.h"

#include <cstdio>

#include "engine/guidance.h"
#include "kernels/pointwise.h"

namespace weft {
namespace {

// Finds the first intermediate result that is not finite.
struct NonFiniteSearch final : Observer {
  std::string found;
  void see(Context& context, const char* name, int index, const TensorView& value) override {
    if (!found.empty() || !value.contiguous()) return;
    if (value.dtype != DType::kF32 && value.dtype != DType::kBF16) return;
    if (first_non_finite(context.stream, value) < 0) return;
    found = std::string(name) == "blocks" ? "block " + std::to_string(index) : name;
  }
};

}  // namespace

double guidance_of(const Request& request, int model) {
  return model ? *request.guidance_scale_2 : *request.guidance_scale;
}

DenoisePlanConfig plan_config(const Request& request, const Sampler& sampler,
                             const ModelDirectory& directory) {
  DenoisePlanConfig config;
  const double boundary = directory.boundary_ratio.value_or(0) * sampler.config().train_timesteps;
  for (float timestep : sampler.timesteps()) {
    const int model = directory.experts() > 1 && timestep < boundary ? 1 : 0;
    config.steps.push_back({model, guidance_branches(guidance_of(request, model))});
  }
  for (int model = 0; model < directory.experts(); ++model) {
    config.blocks.push_back(directory.expert_config(model).layers);
  }
  return config;
}

Executor::Executor(Stream& stream, Arena& arena, Components& parts)
    : stream_(stream), arena_(arena), parts_(parts) {}

void Executor::run(const Plan& plan, Job& job) {
  history_.emplace(job.latent.count());
  for (const Step& step : plan.steps) {
    switch (step.kind) {
      case Step::Kind::kLoad:
        load(job, step.pass.model);
        break;
      case Step::Kind::kCompute:
        if (job.stop && step.pass.branch == 0 && job.stop->load()) {
          throw Error(ErrorKind::kStopped, "stopped in denoise after step " +
                                               std::to_string(step.pass.step) + " of " +
                                               std::to_string(job.sampler.steps()));
        }
        compute(step, job);
        break;
      case Step::Kind::kUpdate:
        update(step, job);
        break;
      case Step::Kind::kDecode:
        texts_ = {};  // decoding needs the latents alone
        velocities_ = {};
        history_.reset();
        expert_ = nullptr;
        parts_.done_with_experts();
        job.decode();
        break;
      default:
        CHECK(false, "a serial plan has no", to_string(step));
    }
  }
}

void Executor::load(const Job& job, int model) {
  texts_ = {};  // keys and values belong to their expert
  expert_ = nullptr;
  expert_ = &parts_.expert(stream_, model);
  model_ = model;
  const auto grid = wan_grid(expert_->config(), job.latent[1], job.latent[2], job.latent[3]);
  rope_ = expert_->rope(grid);
}

void Executor::compute(const Step& step, const Job& job) {
  CHECK(expert_ && model_ == step.pass.model, "expert", step.pass.model, "is not loaded");
  const int branch = step.pass.branch;
  auto& text = texts_[branch];
  if (!text) {
    const Arena::Scope scope(arena_);
    Context context = seams_.context(stream_, arena_, step.pass, {});
    text = expert_->prepare_text(context, job.embeds[branch], parts_.text_length());
  }
  if (!velocities_[branch]) velocities_[branch] = Tensor(DType::kF32, job.latent.shape());
  forward(step, job, *text, nullptr);
  if (first_non_finite(stream_, velocities_[branch]) >= 0) explain_non_finite(step, job, *text);
}

void Executor::forward(const Step& step, const Job& job, const WanText& text, Observer* observer) {
  const Arena::Scope scope(arena_);
  const int64_t tokens = rope_->grid[0] * rope_->grid[1] * rope_->grid[2];
  Context context = seams_.context(stream_, arena_, step.pass, TokenRanges::all(tokens), observer);
  const TimeSegment time{{0, tokens}, job.sampler.timesteps()[step.pass.step]};
  expert_->forward(context, step.blocks, job.latent, {&time, 1}, text, *rope_,
                   velocities_[step.pass.branch]);
}

// Looking at every block costs a pass over every hidden state, so it is done once, when it is known
// that something is wrong.
void Executor::explain_non_finite(const Step& step, const Job& job, const WanText& text) {
  std::string where = "the latent";
  if (first_non_finite(stream_, job.latent) < 0) {
    NonFiniteSearch search;
    forward(step, job, text, &search);
    where = search.found.empty() ? "the output" : search.found;
  }
  char sigma[32];
  std::snprintf(sigma, sizeof sigma, "%.4f", job.sampler.sigmas()[step.pass.step]);
  throw Error(ErrorKind::kNonFinite,
              "NaN or infinity in denoise, step " + std::to_string(step.pass.step + 1) + " of " +
                  std::to_string(job.sampler.steps()) + " (sigma " + sigma + "), " +
                  (model_ ? "transformer_2, " : "transformer, ") +
                  (step.pass.branch ? "negative" : "positive") + " prompt: first in " + where +
                  ". Try --dtype f32, or check the weights with weft inspect");
}

void Executor::update(const Step& step, const Job& job) {
  const double scale = guidance_of(job.request, step.pass.model);
  if (guidance_branches(scale) == 2) guide(stream_, scale, velocities_[1], velocities_[0]);
  job.sampler.step(step.pass.step, velocities_[0], job.latent, *history_);
  if (job.on_update) job.on_update(step.pass.step);
}

}  // namespace weft
