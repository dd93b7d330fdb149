#include "engine/memory/blank_job.h"

#include <algorithm>

#include "engine/schedules/denoiser.h"
#include "engine/schedules/queue_denoiser.h"

namespace weft {

BlankJob::BlankJob(const Rank& on, const JobFacts& facts) : rank(on) {
  const Components& parts = rank.parts();
  const TransformerTraits& traits = parts.traits();
  const SpeechChunks& chunks = parts.directory().chunks;
  const auto [channels, frames, height, width] = facts.latent;
  const auto tensor = [&](std::initializer_list<int64_t> shape) {
    return Tensor(DType::kF32, shape, rank.stream.device());
  };
  const int64_t columns = parts.text_model().traits().columns;
  for (size_t branch = 0; branch < texts.size(); ++branch) {
    if (facts.prompt_rows[branch] == 0) continue;
    texts[branch] = tensor({facts.prompt_rows[branch], columns});
    if (chunks.any()) signal[branch] = tensor({frames / traits.patch[0], traits.signal_columns});
  }
  if (!facts.later_rows.empty()) later = tensor({std::ranges::max(facts.later_rows), columns});
  if (traits.pooled_columns > 0) pooled = tensor({1, traits.pooled_columns});
  if (!pictures_of(facts.request).empty()) pictures = PictureEncoder(rank, facts).blank();
  if (facts.chunks > 1)
    motion = tensor(
        {channels, parts.vae_model().traits.latent_frames(chunks.motion_frames), height, width});
}

size_t BlankJob::run(const JobFacts& few, const std::function<void(const Step& step)>& did,
                     const PreviewFit* preview) const {
  struct Host final : JobHost {
    const std::function<void(const Step& step)>& did;
    const bool updates;  // alone are seen
    Host(const std::function<void(const Step& step)>& sees, bool alone)
        : did(sees), updates(alone) {}
    void stepped(const Step& step) override {
      if (did && (!updates || step.kind == Step::Kind::kUpdate)) did(step);
    }
  } host(did, few.segments() == 0);
  const Components& parts = rank.parts();
  Job job{.facts = few,
          .host = host,
          .prompts = {texts[0]},
          .negative = texts[1],
          .pooled = {pooled, pooled},
          .conditions = pictures.conditions(),
          .given_frames = pictures.given_frames,
          .signal = {signal[0], signal[1]},
          .preview = {preview}};
  job.conditions.motion = motion;
  if (few.segments() == 0) {
    Denoiser(rank).run(plan_config(few, parts, rank.placement, few.chunks > 1), job);
    return 0;
  }
  job.prompts.resize(few.segment_prompts.back() + 1, later);
  QueueDenoiser denoiser(rank, parts.wire_dtype());
  denoiser.run(queue_plan(few, parts, rank.placement), job);
  return denoiser.set_bytes();
}

}  // namespace weft
