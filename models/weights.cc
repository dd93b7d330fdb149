#include "models/weights.h"

#include <algorithm>
#include <array>

#include "kernels/copy.h"
#include "kernels/host_tasks.h"
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

std::vector<int64_t> without_ones(std::span<const int64_t> shape) {
  std::vector<int64_t> out(shape.begin(), shape.end());
  std::erase(out, 1);
  return out;
}

constexpr int64_t kStaging = int64_t{1} << 16;  // values converted at a time

}  // namespace

std::string to_string(WeightFormat format) {
  constexpr const char* kNames[] = {"compute", "int8", "fp8", "fp8-tensor", "file"};
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

bool same_values(std::span<const int64_t> is, std::span<const int64_t> wants) {
  std::vector<int64_t> stored = without_ones(is), own = without_ones(wants);
  if (stored == own) return true;
  if (wants.size() < 4 || stored.empty() || stored.size() >= own.size()) return false;
  const auto merged = static_cast<std::ptrdiff_t>(own.size() - stored.size()) + 1;
  for (std::ptrdiff_t i = 1; i < merged; ++i) own[0] *= own[static_cast<size_t>(i)];
  own.erase(own.begin() + 1, own.begin() + merged);
  return stored == own;
}

HeldWeight::HeldWeight(Stream& stream, const TensorFile& file, const std::string& name,
                       const TensorPart& part, std::span<const int64_t> shape, DType dtype)
    : file_(file),
      shape_(shape.begin(), shape.end()),
      whole_(part.range == Range{0, shape[part.dim]}) {
  if (whole_ && !file.is_derived()) {
    const TensorView stored = file.view(name);
    mapped_ = TensorView(stored.data, stored.dtype, shape);
    return;
  }
  read(stream, name, part, dtype);
}

void HeldWeight::read(Stream& stream, const std::string& name, const TensorPart& part,
                      DType dtype) {
  const TensorView like = TensorView(nullptr, file_.describe(name).dtype, shape_)
                              .slice(part.dim, part.range.begin, part.range.size());
  const bool dry = is_dry_run(stream);
  const Device place{dry ? Device::Kind::kMeasuredHost : Device::Kind::kCpu};
  memory_ = Tensor(dtype, like.shape(), place);
  const Stream host = host_stream(stream);
  const bool straight = like.dtype == dtype;
  const int64_t rows = like[0], row_values = like.count() / rows;
  const bool at_once = straight && !file_.is_derived();
  const int64_t step = at_once ? rows : std::clamp<int64_t>(kStaging / row_values, 1, rows);
  // Values that are computed are worth a thread for each of several pieces.
  const int64_t pieces = (rows + step - 1) / step,
                tasks = file_.is_derived() ? std::min<int64_t>(pieces, host.threads()) : 1;
  Tensor staging;
  if (!straight) {
    TensorView shape = like;
    shape.extent[0] = tasks * step;
    staging = Tensor(like.dtype, shape.shape(), place);
  }
  if (dry) return;
  host_tasks(host, tasks, [&](int64_t task) {
    Stream own = Stream::cpu(1);
    for (int64_t row = task * step; row < rows; row += tasks * step) {
      const int64_t count = std::min(step, rows - row);
      const TensorView out = memory_.view().slice(0, row, count);
      const TensorView in = straight ? out : staging.view().slice(0, task * step, count);
      std::array<int64_t, kMaxRank> begin{};
      begin[part.dim] = part.range.begin;
      begin[0] += row;
      file_.read(name, {begin.data(), static_cast<size_t>(like.rank)}, in, shape_);
      if (!straight) copy(own, in, out);
    }
  });
}

HeldWeight::~HeldWeight() {
  if (mapped_) file_.drop_pages(mapped_);
}

namespace {

// The columns of a matrix that a part holds, whose blocks must not be cut.
Range held_columns(const TensorFile& file, const std::string& name, const TensorPart& part,
                   const TensorView& like, const BlockShape& shape) {
  const Range columns = part.dim == 0 ? Range{0, like.count() / like[0]} : part.range;
  if (columns.begin % shape.values == 0 && columns.end % shape.values == 0) return columns;
  const std::string where = file.files().empty() ? "" : file.files().front() + ": ";
  throw Error(ErrorKind::kUsage, where + name + " is stored in blocks of " +
                                     std::to_string(shape.values) + " columns (" + shape.name +
                                     "), which a part of the columns " + to_string(columns) +
                                     " cuts; legal: parts that begin and end between blocks, or "
                                     "weights in the compute dtype");
}

}  // namespace

std::optional<StoredMatrix> held_blocks(Stream& stream, const TensorFile& file,
                                        const std::string& name, const TensorPart& part,
                                        std::span<const int64_t> extents, DType dtype) {
  const std::optional<BlockType> type = file.blocks(name);
  const TensorView like(nullptr, file.describe(name).dtype, extents);
  const int64_t all_columns = like.count() / like[0];
  if (!type || all_columns % shape_of(*type).values || (part.dim > 0 && like.rank != 2)) return {};
  const BlockShape& shape = shape_of(*type);
  if (shape.bytes >= shape.values * static_cast<int64_t>(size_of(dtype))) return {};
  const Range columns = held_columns(file, name, part, like, shape),
              rows = part.dim == 0 ? part.range : Range{0, like[0]};
  StoredMatrix out{.type = *type, .out = rows.size(), .in = columns.size()};
  const bool dry = is_dry_run(stream);
  const Device place = stream.device();
  out.blocks = Tensor(DType::kU8, {out.out, out.row_bytes()}, place);
  const std::vector<float> scales =
      file.stored() ? file.stored()->scales(name) : std::vector<float>();
  const bool one = scales.size() == 1;
  if (!scales.empty()) out.scales = Tensor(DType::kF32, {one ? 1 : out.out}, place);
  if (dry) return out;
  const int64_t first = rows.begin * all_columns / shape.values,
                blocks = all_columns / shape.values;
  if (columns.size() == all_columns)
    file.read_blocks(name, first, out.blocks.view().reshape({out.blocks.count()}));
  else
    for (int64_t row = 0; row < out.out; ++row)
      file.read_blocks(name, first + row * blocks + columns.begin / shape.values,
                       out.blocks.view().select(0, row));
  if (!scales.empty())
    std::copy_n(scales.begin() + (one ? 0 : rows.begin), out.scales.count(),
                out.scales.as<float>());
  return out;
}

WeightBinder::WeightBinder(const TensorFile& file, std::string component,
                           std::function<std::string(const std::string&)> rename)
    : file_(file), component_(std::move(component)), rename_(std::move(rename)) {}

bool WeightBinder::take(const std::string& name, std::span<const int64_t> shape) {
  const std::string spelled = rename_ ? rename_(name) : name;
  if (file_.contains(spelled)) return check(spelled, shape);
  if (const auto unread = file_.unread().find(spelled); unread != file_.unread().end())
    mistyped_.push_back(spelled + " is " + unread->second);
  else
    missing_.push_back(spelled + " " + shape_text(shape));
  return false;
}

std::string WeightBinder::take_any(std::initializer_list<std::string> names,
                                   std::initializer_list<int64_t> shape) {
  const std::span<const int64_t> extents(shape.begin(), shape.size());
  std::string found;
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
    if (check(spelled, extents)) found = spelled;
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
  if (!same_values(view.shape(), shape)) {
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
