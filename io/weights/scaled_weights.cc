#include "io/weights/scaled_weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "io/json.h"
#include "io/weights/safetensors_header.h"
#include "kernels/convert.h"

namespace weft {
namespace {

constexpr int64_t kScaledAtOnce = 16384;
constexpr const char* kLegal =
    "f8_e4m3 and f8_e5m2, plain or with a scale per tensor, row or 128 x 128 values, and int8 with "
    "such a scale";
constexpr int64_t kBlockSide = 128;

// The names that may stand beside `m.weight`. All scales are factors, those called inverse too.
constexpr const char* kScales[] = {".scale_weight", ".weight_scale", ".weight_scale_inv"};
// Scales that round activations, which are not rounded here.
constexpr const char* kOtherScales[] = {".scale_input",  ".input_scale", ".activation_scale",
                                        ".output_scale", ".k_scale",     ".v_scale"};
// The ends of names that only other formats have, and those formats.
constexpr std::pair<const char*, const char*> kOtherFormats[] = {
    {".weight_scale_2", "NVFP4"},
    {".weight_global_scale", "NVFP4"},
    {".input_global_scale", "NVFP4"},
    {".pre_quant_scale", "NVFP4 or AWQ"},
    {".qweight", "AWQ or GPTQ"},
    {".qzeros", "AWQ or GPTQ"},
    {".weight.absmax", "NF4 of bitsandbytes"}};
constexpr const char kDescription[] = ".comfy_quant", kWeight[] = ".weight";
constexpr const char kMarker[] = "scaled_fp8", kMetadata[] = "_quantization_metadata";

bool is_8bit(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kI8;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

void to_floats(const TensorView& in, float* out) {
  const int64_t count = in.count();
  if (const std::optional<BlockType> type = block_type(in.dtype))
    return expand_blocks(*type, static_cast<const uint8_t*>(in.data), count, out);
  visit_float(in.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < count; ++i) out[i] = convert<float>(static_cast<const T*>(in.data)[i]);
  });
}

struct Scaled {
  DType stored = DType::kF32;
  // The i-th value has the scale i / row; or where `columns` is not 0, it stands in a matrix of so
  // many columns, whose blocks of 128 x 128 have a scale each.
  int64_t row = 1, columns = 0;
  std::vector<float> scales;  // empty: none

  float scale_of(int64_t i) const {
    if (columns == 0) return scales[static_cast<size_t>(i / row)];
    const int64_t wide = (columns + kBlockSide - 1) / kBlockSide;
    return scales[static_cast<size_t>(i / columns / kBlockSide * wide + i % columns / kBlockSide)];
  }
};

class ScaledFile final : public StoredTensors {
 public:
  ScaledFile(TensorFile file, const TensorFile::Renaming& renamed) : file_(std::move(file)) {
    for (const std::string& name : file_.names())
      for (const auto& [suffix, format] : kOtherFormats)
        if (name.ends_with(suffix))
          refuse(name, std::string("belongs to the format ") + format + ", which is not read");
    for (const auto& [name, type] : file_.unread())
      for (const char* suffix : kScales)
        if (!weight_of(name, suffix).empty())
          refuse(name, "is a scale of the type " + type +
                           ", as MXFP8 and NVFP4 have, which are not read");
    for (const std::string& name : file_.names()) add(name);
    check_metadata(renamed);
    for (const auto& [name, scaled] : scaled_)
      if (scaled.stored == DType::kI8 && scaled.scales.empty())
        refuse(name, "is int8 and has no scale");
  }

  bool plain() const { return scaled_.empty() && hidden_.empty(); }
  TensorFile release() { return std::move(file_); }
  const TensorFile& file() const { return file_; }

  // The tensors as they appear.
  std::vector<TensorFile::Generated> tensors() const {
    std::vector<TensorFile::Generated> list;
    for (const std::string& name : file_.names()) {
      if (hidden_.contains(name)) continue;
      const TensorView view = file_.describe(name);
      list.push_back({.name = name,
                      .dtype = scaled_.contains(name) ? DType::kF32 : view.dtype,
                      .shape = {view.shape().begin(), view.shape().end()},
                      .stored = std::string(to_string(view.dtype))});
    }
    return list;
  }

  void part(const std::string& name, int64_t first, const TensorView& out) const {
    const auto found = scaled_.find(name);
    if (found == scaled_.end()) return file_.read_run(name, first, out);
    const Scaled& scaled = found->second;
    std::vector<char> packed(kScaledAtOnce * size_of(scaled.stored));
    float* to = out.as<float>();
    for (int64_t done = 0; done < out.count(); done += kScaledAtOnce) {
      const int64_t count = std::min(kScaledAtOnce, out.count() - done);
      const TensorView in(packed.data(), scaled.stored, {count});
      file_.read_run(name, first + done, in);
      to_floats(in, to + done);
      if (scaled.scales.empty()) continue;
      for (int64_t i = done; i < done + count; ++i) to[i] *= scaled.scale_of(first + i);
    }
  }

  std::optional<BlockType> blocks(const std::string& name) const override {
    const auto found = scaled_.find(name);
    const bool in_segments = found != scaled_.end() && found->second.columns > 0;
    return in_segments ? std::nullopt : block_type(file_.describe(name).dtype);
  }
  void read_blocks(const std::string& name, int64_t first, const TensorView& out) const override {
    file_.read_blocks(name, first, out);
  }
  std::vector<float> scales(const std::string& name) const override {
    const auto found = scaled_.find(name);
    return found == scaled_.end() ? std::vector<float>() : found->second.scales;
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const {
    throw Error(ErrorKind::kModel, file_.files().front() + ": tensor " + quoted_name(name) + " " +
                                       reason + " (legal: " + kLegal + ")");
  }
  // Returns the weight beside which `name` stands, if it ends in `suffix` and there is one.
  std::string weight_of(const std::string& name, const std::string& suffix) const {
    if (!name.ends_with(suffix)) return "";
    const std::string weight = name.substr(0, name.size() - suffix.size()) + kWeight;
    return file_.contains(weight) ? weight : "";
  }

  void add(const std::string& name) {
    const DType dtype = file_.describe(name).dtype;
    if (name == kMarker || name.ends_with(std::string(".") + kMarker)) {
      hidden_.insert(name);
      return;
    }
    if (is_8bit(dtype) && name.ends_with(kWeight)) scaled_[name].stored = dtype;
    if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) scaled_[name].stored = dtype;
    for (const char* suffix : kScales)
      if (const std::string weight = weight_of(name, suffix); !weight.empty())
        add_scale(name, weight);
    for (const char* suffix : kOtherScales)
      if (!weight_of(name, suffix).empty()) hidden_.insert(name);
    if (const std::string weight = weight_of(name, kDescription); !weight.empty()) {
      hidden_.insert(name);
      check_description(name, weight);
    }
  }

  void add_scale(const std::string& name, const std::string& weight) {
    const TensorView like = file_.describe(weight), scale = file_.describe(name);
    if (!is_8bit(like.dtype) && !is_float(like.dtype))
      refuse(weight, "is " + std::string(to_string(like.dtype)) + " and has a scale");
    const int64_t rows = like.rank ? like[0] : 1;
    if (scale.rank == 2 && scale[0] == rows && scale[1] > 1 && !is_float(scale.dtype))
      refuse(name, "has a scale per block, as MXFP8 and NVFP4 have, which are not read");
    const auto blocks = [&](int dim) { return (like[dim] + kBlockSide - 1) / kBlockSide; };
    const bool per_block =
        like.rank == 2 && scale.rank == 2 && scale[0] == blocks(0) && scale[1] == blocks(1);
    if (!is_float(scale.dtype) || (scale.count() != 1 && scale.count() != rows && !per_block))
      refuse(name, "is " + scale.to_string_shape() +
                       ", must be one float, one per row or one per 128 x 128 values of " +
                       like.to_string_shape());
    Scaled& scaled = scaled_[weight];
    if (!scaled.scales.empty()) refuse(weight, "has two scales");
    scaled.stored = like.dtype;
    scaled.columns = per_block && scale.count() > 1 ? like[1] : 0;
    scaled.row = std::max<int64_t>(1, scale.count() == 1 ? like.count() : like.count() / rows);
    scaled.scales.resize(static_cast<size_t>(scale.count()));
    std::vector<char> bytes(scale.bytes());
    const TensorView in(bytes.data(), scale.dtype, {scale.count()});
    file_.read_run(name, 0, in);
    to_floats(in, scaled.scales.data());
    if (!std::ranges::all_of(scaled.scales, [](float s) { return std::isfinite(s); }))
      refuse(name, "holds a scale that is not finite");
    hidden_.insert(name);
  }

  // `m.comfy_quant` is a JSON text in bytes.
  void check_description(const std::string& name, const std::string& weight) {
    constexpr int64_t kLongest = 4096;
    const TensorView view = file_.describe(name);
    if (view.dtype != DType::kU8 || view.count() > kLongest)
      refuse(name, "is " + view.to_string_shape() + ", must be at most 4096 bytes");
    std::string text(static_cast<size_t>(view.count()), '\0');
    file_.read_run(name, 0, TensorView(text.data(), DType::kU8, {view.count()}));
    check_format(parse_json(text, file_.files().front() + ": " + name), weight);
  }

  void check_metadata(const TensorFile::Renaming& renamed) {
    const auto found = file_.metadata().find(kMetadata);
    if (found == file_.metadata().end()) return;
    const std::string what = file_.files().front() + ": " + kMetadata;
    const nlohmann::json all = parse_json(found->second, what);
    const nlohmann::json& layers = json_field(all, "layers", what);
    if (!layers.is_object()) throw Error(ErrorKind::kModel, what + ": layers is not an object");
    for (const auto& [layer, format] : layers.items()) {
      std::set<std::string> weights{layer + kWeight};
      for (const char* prefix : {"", "diffusion_model.", "model.diffusion_model."}) {
        const std::string weight = prefix + layer + kWeight;
        weights.insert(renamed ? renamed(weight) : weight);
      }
      for (const std::string& weight : weights)
        if (file_.contains(weight)) check_format(format, weight);
    }
  }

  void check_format(const nlohmann::json& layer, const std::string& weight) const {
    const std::string what = file_.files().front() + ": " + weight;
    if (!layer.is_object()) throw Error(ErrorKind::kModel, what + ": its format is not an object");
    const std::string format = json_string(layer, "format", what);
    const DType dtype = file_.describe(weight).dtype;
    const bool known = (format == "float8_e4m3fn" && dtype == DType::kF8E4M3) ||
                       (format == "float8_e5m2" && dtype == DType::kF8E5M2) ||
                       (format == "int8_tensorwise" && dtype == DType::kI8);
    if (!known)
      refuse(weight, "is " + std::string(to_string(dtype)) + " in the format " +
                         quoted_name(format) + ", which is not read");
    if (json_bool_or(layer, "convrot", what, false))
      refuse(weight, "is rotated (convrot), which is not read");
  }

  TensorFile file_;
  std::map<std::string, Scaled> scaled_;
  std::set<std::string> hidden_;
};

}  // namespace

TensorFile expand_scaled(TensorFile file, const TensorFile::Renaming& renamed) {
  const auto scaled = std::make_shared<ScaledFile>(std::move(file), renamed);
  if (scaled->plain()) return scaled->release();
  const TensorFile& stored = scaled->file();
  TensorFile::Origin origin{.format = stored.format() + " with 8-bit weights",
                            .files = stored.files(),
                            .metadata = stored.metadata(),
                            .header_hash = stored.header_hash(),
                            .bytes = stored.bytes(),
                            .unread = stored.unread()};
  return TensorFile::derived(
      scaled->tensors(),
      [scaled](const std::string& name, int64_t first, const TensorView& out) {
        scaled->part(name, first, out);
      },
      std::move(origin), scaled);
}

}  // namespace weft
