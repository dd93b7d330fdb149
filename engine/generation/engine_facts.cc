#include "engine/generation/engine_facts.h"

#include "kernels/ops.h"
#include "kernels/transfer.h"

namespace weft {

Json engine_facts(const GeneratorOptions& options, const OpenModel& model, const Layout& layout) {
  Json facts{{"numerics_epoch", kNumericsEpoch},
             {"model", model.directory.defaults.name},
             {"weights_sha256", model.weights_hash},
             {"dtype", to_string(options.dtype)},
             {"weights", to_string(options.weights)},
             {"attention", to_string(options.attention)},
             {"vae_dtype", to_string(options.vae_dtype)},
             {"device", to_string(options.device.kind)},
             {"isa", cpu_isa()},
             {"threads", options.threads},
             {"deterministic", options.determinism == Determinism::kFixed},
             {"layout", to_string(layout)}};
  if (options.text_weights != WeightFormat::kCompute)
    facts["text_encoder_weights"] = to_string(options.text_weights);
  if (options.wire_dtype) facts["wire_dtype"] = to_string(*options.wire_dtype);
  return facts;
}

}  // namespace weft
