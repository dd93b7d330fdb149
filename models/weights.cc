#include "models/weights.h"

#include <algorithm>
#include <array>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

std::string section(const char* title, const std::vector<std::string>& faults) {
  if (faults.empty()) return "";
  std::string text = "; " + std::to_string(faults.size()) + " " + title + ": ";
  for (size_t i = 0; i < faults.size(); ++i) text += (i ? ", " : "") + faults[i];
  return text;
}

constexpr int64_t kStaging = int64_t{1} << 16;  // values converted at a time

}  // namespace

std::string to_string(WeightFormat format) {
  constexpr const char* kNames[] = {"compute", "int8", "fp8", "fp8-tensor"};
  return kNames[static_cast<int>(format)];
}

std::string to_string(AttentionFormat format) {
  return format == AttentionFormat::kFp8 ? "fp8" : "compute";
}

WidthSlice WidthSlice::of(int64_t all_heads, int64_t all_ffn) const {
  const auto written = [](const Range& part, int64_t all) {
    return part == Range{} ? Range{0, all} : part;
  };
  const WidthSlice out{.heads = written(heads, all_heads), .ffn = written(ffn, all_ffn)};
  for (const auto& [part, all] : {std::pair{out.heads, all_heads}, {out.ffn, all_ffn}})
    CHECK(0 <= part.begin && part.begin < part.end && part.end <= all, "part", to_string(part),
          "of", all);
  CHECK((out.heads.size() == all_heads) == (out.ffn.size() == all_ffn), "heads",
        to_string(out.heads), "ffn", to_string(out.ffn));
  return out;
}

int64_t TensorPart::count(const TensorSpec& tensor) const {
  int64_t count = range.size();
  for (size_t i = 0; i < tensor.shape.size(); ++i)
    if (static_cast<int>(i) != dim) count *= tensor.shape[i];
  return count;
}

HeldWeight::HeldWeight(Stream& stream, const TensorFile& file, const std::string& name,
                       const TensorPart& part, DType dtype)
    : file_(file), whole_(part.range == Range{0, file.describe(name)[part.dim]}) {
  const TensorView like = file.describe(name).slice(part.dim, part.range.begin, part.range.size());
  if (whole_) {
    mapped_ = file.view(name);
    return;
  }
  const bool dry = is_dry_run(stream);
  const Device place{dry ? Device::Kind::kMeasuredHost : Device::Kind::kCpu};
  memory_ = Tensor(dtype, like.shape(), place);
  Stream host = host_stream(stream);
  const bool straight = like.dtype == dtype;
  const int64_t rows = like[0], row_values = like.count() / rows;
  const int64_t step = straight ? rows : std::max<int64_t>(1, kStaging / row_values);
  Tensor staging;
  if (!straight) {
    TensorView shape = like;
    shape.extent[0] = std::min(step, rows);
    staging = Tensor(like.dtype, shape.shape(), place);
  }
  if (dry) return;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const TensorView out = memory_.view().slice(0, row, count);
    const TensorView in = straight ? out : staging.view().slice(0, 0, count);
    std::array<int64_t, kMaxRank> begin{};
    begin[part.dim] = part.range.begin;
    begin[0] += row;
    file.read(name, {begin.data(), static_cast<size_t>(like.rank)}, in);
    if (!straight) copy(host, in, out);
  }
}

HeldWeight::~HeldWeight() {
  if (mapped_) file_.drop_pages(mapped_);
}

WeightBinder::WeightBinder(const TensorFile& file, std::string component,
                           std::function<std::string(const std::string&)> rename)
    : file_(file), component_(std::move(component)), rename_(std::move(rename)) {}

bool WeightBinder::take(const std::string& name, std::span<const int64_t> shape) {
  const std::string spelled = rename_ ? rename_(name) : name;
  if (file_.contains(spelled)) return check(spelled, shape);
  missing_.push_back(spelled + " " + shape_text(shape));
  return false;
}

TensorView WeightBinder::take_any(std::initializer_list<std::string> names,
                                  std::initializer_list<int64_t> shape) {
  const std::span<const int64_t> extents(shape.begin(), shape.size());
  TensorView found;
  bool any = false;
  std::string all;
  for (const std::string& name : names) {
    const std::string spelled = rename_ ? rename_(name) : name;
    all += (all.empty() ? "" : " or ") + spelled;
    if (!file_.contains(spelled)) continue;
    if (any) {
      ignore(spelled);  // a second spelling of the same tensor
      continue;
    }
    any = true;
    if (check(spelled, extents)) found = file_.view(spelled);
  }
  if (!any) missing_.push_back(all + " " + shape_text(extents));
  return found;
}

void WeightBinder::ignore(const std::string& name) { used_.insert(name); }

void WeightBinder::ignore_without(const std::string& prefix) {
  for (const std::string& name : file_.names())
    if (!name.starts_with(prefix)) ignore(name);
}

bool WeightBinder::check(const std::string& spelled, std::span<const int64_t> shape) {
  used_.insert(spelled);
  const TensorView view = file_.describe(spelled);
  bool sound = true;
  if (!std::ranges::equal(view.shape(), shape)) {
    misshapen_.push_back(spelled + " " + shape_text(view.shape()) + " must be " +
                         shape_text(shape));
    sound = false;
  }
  if (!is_float(view.dtype)) {
    mistyped_.push_back(spelled + " is " + std::string(to_string(view.dtype)));
    sound = false;
  }
  return sound;
}

TensorFile without_values(const std::vector<TensorSpec>& tensors, DType dtype) {
  std::vector<TensorFile::Generated> list;
  for (const TensorSpec& tensor : tensors)
    list.push_back({.name = tensor.name, .dtype = dtype, .shape = tensor.shape});
  return TensorFile::generated(list, [](const std::string&, const TensorView&) {});
}

void WeightBinder::finish() {
  std::vector<std::string> extra;
  for (const std::string& name : file_.names())
    if (!used_.count(name)) extra.push_back(name);
  if (missing_.empty() && extra.empty() && misshapen_.empty() && mistyped_.empty()) return;
  const std::string where = file_.files().empty() ? "" : " (" + file_.files().front() + ")";
  throw Error(ErrorKind::kModel,
              "the weights of " + component_ + where + " do not fit its configuration" +
                  section("missing", missing_) + section("extra", extra) +
                  section("of the wrong shape", misshapen_) +
                  section("of a wrong type (legal: f32, bf16, f16, f64)", mistyped_));
}

}  // namespace weft
