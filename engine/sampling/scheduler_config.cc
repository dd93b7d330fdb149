// SamplerConfig::from_json reads diffusers' scheduler_config.json. Every field that would
// change a number is either honoured or refused by name.
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/sampling/sampler.h"
#include "io/json.h"

namespace weft {
namespace {

class SchedulerFields {
 public:
  SchedulerFields(const std::string& text, const std::string& what)
      : path_(what), object_(parse_json(text, what)) {}

  [[noreturn]] void refuse(const char* field, const std::string& value,
                           const std::string& legal) const {
    throw Error(ErrorKind::kModel, path_ + ": \"" + field + "\" is " + value +
                                       ", which is not supported; legal here: " + legal);
  }

  std::string text(const char* field, const std::string& fallback) const {
    return json_string_or(object_, field, path_, fallback);
  }
  bool flag(const char* field, bool fallback) const {
    return json_bool_or(object_, field, path_, fallback);
  }
  int64_t integer(const char* field, int64_t fallback, int64_t low, int64_t high) const {
    return json_int_or(object_, field, path_, fallback, {low, high});
  }
  bool has(const char* field) const { return json_has(object_, field); }
  double number(const char* field, double fallback, double low, double high) const {
    const double value = json_number_or(object_, field, path_, fallback);
    if (!(value >= low && value <= high))
      refuse(field, nlohmann::json(value).dump(),
             nlohmann::json(low).dump() + " to " + nlohmann::json(high).dump());
    return value;
  }
  double shift(const char* field) const {
    const double value = json_number_or(object_, field, path_, 1.0);
    if (!(value > 0) || !std::isfinite(value)) {
      refuse(field, std::to_string(value), "finite numbers above 0");
    }
    return value;
  }
  std::vector<int> steps(const char* field) const {
    if (!json_has(object_, field)) return {};
    const std::vector<int64_t> values = json_ints(object_, field, path_, {0, 1 << 20});
    return {values.begin(), values.end()};
  }

  // Checks a field with one legal value. `fallback` is the value that diffusers assumes if the
  // field is absent.
  void only_text(const char* field, const std::string& fallback, const std::string& legal) const {
    const std::string value = text(field, fallback);
    if (value != legal) refuse(field, "\"" + value + "\"", "\"" + legal + "\"");
  }
  void only_flag(const char* field, bool fallback, bool legal) const {
    if (flag(field, fallback) == legal) return;
    refuse(field, legal ? "false" : "true", legal ? "true" : "false");
  }
  void only_null(const char* field) const {
    if (json_has(object_, field)) refuse(field, json_field(object_, field, path_).dump(), "null");
  }

 private:
  std::string path_;
  nlohmann::json object_;
};

// Reads the fields that UniPC and DPM-Solver++ have in common.
void read_multistep(const SchedulerFields& fields, SamplerConfig& config) {
  fields.only_text("prediction_type", "epsilon", "flow_prediction");
  fields.only_flag("use_flow_sigmas", false, true);
  fields.only_text("final_sigmas_type", "zero", "zero");
  fields.only_flag("thresholding", false, false);
  config.shift = fields.shift("flow_shift");
  config.order = static_cast<int>(fields.integer("solver_order", 2, 1, 2));
  config.lower_order_final = fields.flag("lower_order_final", true);
}

void read_unipc(const SchedulerFields& fields, SamplerConfig& config) {
  config.kind = SolverKind::kUniPCDiffusers;
  read_multistep(fields, config);
  fields.only_text("solver_type", "bh2", "bh2");
  fields.only_flag("predict_x0", true, true);
  fields.only_null("solver_p");
  config.disable_corrector = fields.steps("disable_corrector");
}

void read_dpmpp(const SchedulerFields& fields, SamplerConfig& config) {
  config.kind = SolverKind::kDpmppDiffusers;
  read_multistep(fields, config);
  fields.only_text("solver_type", "midpoint", "midpoint");
  fields.only_text("algorithm_type", "dpmsolver++", "dpmsolver++");
  fields.only_flag("use_lu_lambdas", false, false);
}

void read_dynamic_shift(const SchedulerFields& fields, SamplerConfig& config) {
  DynamicShift shift;
  shift.base_shift = fields.number("base_shift", shift.base_shift, 0, 100);
  shift.max_shift = fields.number("max_shift", shift.max_shift, 0, 100);
  constexpr int64_t kMost = int64_t{1} << 40;
  shift.base_tokens = fields.integer("base_image_seq_len", shift.base_tokens, 0, kMost);
  shift.max_tokens = fields.integer("max_image_seq_len", shift.max_tokens, 1, kMost);
  if (shift.max_tokens <= shift.base_tokens)
    fields.refuse("max_image_seq_len", std::to_string(shift.max_tokens),
                  "above base_image_seq_len, " + std::to_string(shift.base_tokens));
  const std::string type = fields.text("time_shift_type", "exponential");
  if (type != "exponential" && type != "linear")
    fields.refuse("time_shift_type", "\"" + type + "\"", "\"exponential\", \"linear\"");
  shift.exponential = type == "exponential";
  config.dynamic = shift;
}

void read_euler(const SchedulerFields& fields, SamplerConfig& config) {
  config.kind = SolverKind::kEuler;
  config.shift = fields.shift("shift");
  if (fields.flag("use_dynamic_shifting", false)) read_dynamic_shift(fields, config);
  if (fields.has("shift_terminal"))
    config.shift_terminal = fields.number("shift_terminal", 0, 1e-6, 0.999);
  fields.only_flag("invert_sigmas", false, false);
  fields.only_flag("stochastic_sampling", false, false);
}

}  // namespace

SamplerConfig SamplerConfig::from_json_file(const std::string& path) {
  return from_json(read_json_file(path).dump(), path);
}

SamplerConfig SamplerConfig::from_json(const std::string& text, const std::string& what) {
  const SchedulerFields fields(text, what);
  SamplerConfig config;
  const std::string name = fields.text("_class_name", "");
  if (name == "UniPCMultistepScheduler") {
    read_unipc(fields, config);
  } else if (name == "FlowUniPCMultistepScheduler") {
    read_unipc(fields, config);
    config.kind = SolverKind::kUniPCOriginal;
  } else if (name == "DPMSolverMultistepScheduler") {
    read_dpmpp(fields, config);
  } else if (name == "FlowMatchEulerDiscreteScheduler") {
    read_euler(fields, config);
  } else {
    fields.refuse("_class_name", "\"" + name + "\"",
                  "UniPCMultistepScheduler, FlowUniPCMultistepScheduler, "
                  "DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler");
  }
  for (const char* field : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"})
    fields.only_flag(field, false, false);
  if (config.kind != SolverKind::kEuler) {
    fields.only_flag("use_dynamic_shifting", false, false);
    fields.only_null("shift_terminal");
  }
  config.train_timesteps =
      static_cast<int>(fields.integer("num_train_timesteps", 1000, 1, 1000000));
  return config;
}

}  // namespace weft
