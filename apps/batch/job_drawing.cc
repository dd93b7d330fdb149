#include "apps/batch/job_drawing.h"

#include "apps/generate/client_job.h"
#include "apps/generate/output_name.h"
#include "engine/job/job_spec.h"
#include "io/sha256.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

std::string path_of(const JobSpec& spec, const std::string& model, const JobPlace& place) {
  const Request& request = spec.request;
  const std::string name =
      spec.output.empty() ? request.frames == 1 ? "{id}.png" : "{id}.mp4" : spec.output;
  const std::string pattern = output_pattern(
      {.output = place.folder + name, .label = place.where + ": output", .frames = request.frames});
  return output_path(pattern, {.seed = request.seed,
                               .model = model,
                               .prompt = request.prompt,
                               .width = request.width,
                               .height = request.height,
                               .frames = request.frames,
                               .id = spec.id,
                               .index = place.index,
                               .date = {},
                               .time = {}});
}

}  // namespace

PlacedJob placed_job(const GivenJob& job, const Generator& generator, const JobPlace& place) {
  const std::string model = generator.model_name();
  if (!job.model.empty() && model_id(path_of_text(job.model)) != model_id(model))
    throw Error(ErrorKind::kUsage, place.where + ": model is '" + job.model + "', legal: " + model +
                                       ", which --model is");
  PlacedJob placed;
  JobSpec& spec = placed.drawing.spec;
  spec = job.spec;
  take_preset(spec, generator.model()->directory, job.label);
  spec.request =
      generator.resolve(request_of(spec, generator.defaults(), generator.limits(), job.label));
  spec.seconds = 0;  // the request has the frames now
  // A job without a seed keeps its own, whatever run draws it.
  if (!spec.seeded) spec.request.seed = std::stoull(sha256_hex(spec.id).substr(0, 8), nullptr, 16);
  placed.drawing.path = path_of(spec, model, place);
  placed.hash = job_hash(generator.job_record(spec.request));
  return placed;
}

}  // namespace weft
