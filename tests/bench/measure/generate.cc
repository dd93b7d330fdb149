#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/device.h"
#include "apps/generate/profile.h"
#include "apps/model_folder.h"
#include "engine/generation/generator.h"
#include "kernels/ops.h"
#include "tests/bench/measure/measure.h"

namespace weft {

int measure_generate(const Flags& flags, DType dtype, int repeat) {
  GeneratorOptions options;
  options.device = device_of(flags);
  options.dtype = dtype;
  options.threads = threads_per_rank(flags);
  Profiling profiling(flags, {});
  options.ops = profiling.ops();
  const auto recorded = profiling.record(0);
  const std::string path = flags.given("model") ? model_folder(flags) : find_model("pocket");
  Generator generator(path, options);
  Request request;
  request.prompt = "a big red ball, moving left on a navy background";
  request = generator.resolve(request);
  for (int i = 0; i <= repeat; ++i) {
    request.seed = static_cast<uint64_t>(i);
    profiling.restart();
    const RunResult result = generator.run(request, nullptr);
    nlohmann::json object{{"bench", "generate"},
                          {"model", generator.model_name()},
                          {"first", i == 0},
                          {"dtype", to_string(dtype)},
                          {"isa", cpu_isa()},
                          {"seconds", result.seconds},
                          {"framehash", result.framehash}};
    for (const StageSeconds& stage : result.stages) object["stages"][stage.stage] = stage.seconds;
    if (const nlohmann::json profile = profiling.result(); !profile.is_null())
      object["profile"] = profile;
    std::printf("%s\n", object.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace weft
