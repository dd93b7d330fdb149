#include "models/lora/lora_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/weights/safetensors_header.h"
#include "io/weights/weights_file.h"
#include "kernels/convert.h"

namespace weft {
namespace {

constexpr const char kFactorTypes[] = "f32, bf16, f16, f64, f8_e4m3, f8_e5m2";

bool is_float_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

constexpr const char kLegalForms[] =
    "lora_A and lora_B, lora_down and lora_up, with alpha; LoKr's lokr_w1, lokr_w2, their _a and "
    "_b, and lokr_t2; LoHa's hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b; diff, diff_b, diff_m "
    "and set_weight";

// Returns whether all values of a tensor meet the condition.
template <class F>
bool all_values(const TensorFile& file, const std::string& name, F&& meets) {
  constexpr int64_t kAtOnce = 1 << 16;
  const int64_t count = file.describe(name).count();
  std::vector<float> values(static_cast<size_t>(std::min(kAtOnce, count)));
  for (int64_t first = 0; first < count; first += kAtOnce) {
    values.resize(static_cast<size_t>(std::min(kAtOnce, count - first)));
    read_floats(file, name, first, std::ssize(values), values.data());
    if (!std::ranges::all_of(values, meets)) return false;
  }
  return true;
}

}  // namespace

void read_floats(const TensorFile& file, const std::string& name, int64_t first, int64_t count,
                 float* out) {
  const DType dtype = file.describe(name).dtype;
  if (dtype == DType::kF32) return file.read_run(name, first, TensorView(out, dtype, {count}));
  constexpr int64_t kAtOnce = 16384;
  std::vector<char> stored(static_cast<size_t>(std::min(kAtOnce, count)) * size_of(dtype));
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t some = std::min(kAtOnce, count - done);
    file.read_run(name, first + done, TensorView(stored.data(), dtype, {some}));
    visit_float(dtype, [&]<class T>(T) {
      for (int64_t i = 0; i < some; ++i)
        out[done + i] = convert<float>(reinterpret_cast<const T*>(stored.data())[i]);
    });
  }
}

std::vector<float> read_floats(const TensorFile& file, const std::string& name) {
  const int64_t count = file.describe(name).count();
  std::vector<float> out(static_cast<size_t>(count));
  if (count > 0) read_floats(file, name, 0, count, out.data());
  return out;
}

LoraFile::LoraFile(const Lora& lora, std::vector<std::string>& notes)
    : file(open_weights(lora.file)), path(lora.file), scale(static_cast<float>(lora.scale)) {
  for (const std::string& name : file.names()) add(name);
  if (modules.empty()) refuse("holds no tensors");
  read_config(notes);
}

void LoraFile::refuse(const std::string& reason) const {
  throw Error(ErrorKind::kModel, path + ": " + reason);
}

bool LoraFile::is_zero(const std::string& name) const {
  return all_values(file, name, [](float value) { return value == 0; });
}

bool LoraFile::is_zero(const LoraModule& module) const {
  return std::ranges::all_of(module.tensors, [&](const auto& tensor) {
    const bool difference = tensor.first == LoraRole::kDiff ||
                            tensor.first == LoraRole::kDiffBias ||
                            tensor.first == LoraRole::kDiffModulation;
    return difference && is_zero(tensor.second);
  });
}

float LoraFile::factor(const LoraModule& module, int64_t rank) const {
  const std::string* tensor = module.find(LoraRole::kAlpha);
  if (!tensor && !module.scale.alpha) return scale;
  const double alpha = tensor ? number(*tensor) : *module.scale.alpha;
  if (rank == 0) return scale;
  const auto ranks = static_cast<double>(rank);
  const auto factor =
      static_cast<float>(scale * alpha / (module.scale.root ? std::sqrt(ranks) : ranks));
  if (!std::isfinite(factor))
    refuse((tensor ? quoted_name(*tensor) : "the alpha of " + quoted_name(module.name.module)) +
           " is " + std::to_string(static_cast<float>(alpha)) + ", must be a finite number of f32");
  return factor;
}

void LoraFile::check_values(const LoraModule& module) const {
  for (const auto& [role, name] : module.tensors)
    if (role != LoraRole::kAlpha &&
        !all_values(file, name, [](float value) { return std::isfinite(value); }))
      refuse(quoted_name(name) + " holds NaN or infinity, must be finite numbers of f32");
}

double LoraFile::number(const std::string& name) const {
  const TensorView like = file.describe(name);
  if (like.count() != 1)
    refuse(quoted_name(name) + " is " + like.to_string_shape() + ", must be one number");
  if (is_float_type(like.dtype)) return read_floats(file, name)[0];
  int64_t value = 0;
  const size_t size = size_of(like.dtype);
  file.read_run(name, 0, TensorView(&value, like.dtype, {1}));
  if (like.dtype == DType::kU8) return static_cast<double>(value);
  const auto unused =
      static_cast<int>(8 * (sizeof value - size));  // bits above those that are read
  return static_cast<double>(static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >>
                             unused);
}

void LoraFile::add(const std::string& name) {
  const DType dtype = file.describe(name).dtype;
  const std::optional<LoraName> parsed = parse_lora_name(name);
  if (!parsed)
    refuse("tensor " + quoted_name(name) + " is of a kind that is not read (legal: " + kLegalForms +
           "; DoRA and the other methods of LyCORIS are not)");
  const bool alpha = parsed->role == LoraRole::kAlpha;
  if (!is_float_type(dtype) && (!alpha || dtype == DType::kBool))
    refuse(quoted_name(name) + " is " + std::string(to_string(dtype)) + " (legal: " + kFactorTypes +
           (alpha ? " and integers)" : ")"));
  LoraModule& module = modules[parsed->module];
  module.name = *parsed;
  if (!module.tensors.emplace(parsed->role, name).second)
    refuse(quoted_name(parsed->module) + " has two tensors of one kind, " + quoted_name(name) +
           " and another");
}

void LoraFile::read_config(std::vector<std::string>& notes) {
  const bool from_peft = modules.begin()->first.starts_with("base_model.model.");
  PeftConfig config(file, path, from_peft);
  const bool unscaled = std::ranges::any_of(modules, [](const auto& entry) {
    const LoraModule& module = entry.second;
    const LoraMethod method = method_of(module.tensors.begin()->first);
    return !module.find(LoraRole::kAlpha) && method != LoraMethod::kNone &&
           method != LoraMethod::kLora;
  });
  if (from_peft && unscaled)
    notes.push_back(path +
                    ": states no alpha, so its changes are taken whole; PEFT keeps the "
                    "alpha of LoKr and LoHa in adapter_config.json, which is not read");
  constexpr size_t kMostBytes = 1'000'000;  // ten seconds of matching
  size_t bytes = 0;
  for (const auto& [name, module] : modules) bytes += name.size();
  const SplitPattern::TimeLimit limit(std::min(kMostBytes, bytes * config.keys()));
  for (auto& [name, module] : modules) {
    module.scale = config.scale(module.name, limit);
    const std::string* down = module.find(LoraRole::kDown);
    if (!down || !module.scale.rank) continue;
    const TensorView a = file.describe(*down);
    if (a.rank == 0 || static_cast<double>(a[0]) != *module.scale.rank)
      refuse(quoted_name(*down) + " is " + a.to_string_shape() + ", but rank_pattern of " +
             config.what() + " gives it " + std::to_string(std::llround(*module.scale.rank)) +
             " rows");
  }
  config.tell_unused(notes);
}

}  // namespace weft
