// The inputs of speech to video in the cases of `weft verify`.
#include "apps/verify/verify_run.h"

namespace weft {

Tensor signal_of(Bench& bench, const TransformerModel& model, const TensorView& features,
                 int64_t frames) {
  Tensor rows(DType::kF32, {frames, model.traits().signal_columns});
  model.signal_rows(features, rows);
  return on_device(bench.stream, std::move(rows));
}

SpeechInputs speech_inputs(Bench& bench, const Case& c, const TransformerModel& model,
                           int64_t frames) {
  const TransformerTraits& traits = model.traits();
  SpeechInputs given;
  if (traits.motion_frames == 0) return given;
  const std::string what = c.file("case.json");
  given.motion_scales = static_cast<int>(json_int_or(c.spec, "add_last_motion", what, 2, {0, 2}));
  given.reference = bench.load("reference_latents");
  if (!json_bool_or(c.spec, "drop_motion_frames", what, false))
    given.motion = bench.load("motion_latents");
  if (bench.inputs.contains("cond_states")) given.pose = bench.load("cond_states");
  given.signal =
      signal_of(bench, model, on_host(bench.stream, bench.load("audio_features")), frames);
  return given;
}

}  // namespace weft
