#include "models/lora/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "io/json.h"
#include "io/sha256.h"
#include "io/weights/safetensors_header.h"
#include "kernels/convert.h"
#include "models/transformer.h"

namespace weft {
namespace {

// The part that a tensor of a LoRA file plays in its module.
enum class Role : uint8_t { kDown, kUp, kUpBias, kAlpha, kDiff, kDiffBias, kSet };

constexpr std::pair<const char*, Role> kSuffixes[] = {{".lora_A.weight", Role::kDown},
                                                      {".lora_B.weight", Role::kUp},
                                                      {".lora_A.default.weight", Role::kDown},
                                                      {".lora_B.default.weight", Role::kUp},
                                                      {".lora_down.weight", Role::kDown},
                                                      {".lora_up.weight", Role::kUp},
                                                      {".lora.down.weight", Role::kDown},
                                                      {".lora.up.weight", Role::kUp},
                                                      {".lora_B.bias", Role::kUpBias},
                                                      {".alpha", Role::kAlpha},
                                                      {".diff", Role::kDiff},
                                                      {".diff_b", Role::kDiffBias},
                                                      {".set_weight", Role::kSet}};
constexpr const char* kPrefixes[] = {"base_model.model.", "model.diffusion_model.",
                                     "diffusion_model.", "transformer."};
constexpr const char* kFlatPrefixes[] = {"lora_unet_", "lora_transformer_"};
constexpr const char kPeftPrefix[] = "base_model.model.";
constexpr const char kPeftMetadata[] = "lora_adapter_metadata";
constexpr const char kLegal[] =
    "lora_A and lora_B, lora_down and lora_up with alpha, diff, diff_b and set_weight";
constexpr size_t kMostNamed = 12;  // modules in one message

// Reads the values [first, first + count) of a tensor of floats.
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

// The tensors of a module, by name; empty where there is none.
struct Module {
  std::map<Role, std::string> tensors;

  const std::string* find(Role role) const {
    const auto found = tensors.find(role);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

// A tensor of the model, and its place in the rows of the module whose name stands for it.
struct Meaning {
  std::string tensor;
  TensorPlace place;
};

struct Meanings {
  std::vector<Meaning> weights, biases;
};

// The modules that LoRA files may name, for one model.
class ModuleNames {
 public:
  explicit ModuleNames(const TransformerModel& model) {
    for (const TensorSpec& tensor : model.tensors())
      for (const TensorPlace& place : model.spellings(tensor.name)) {
        const bool bias = place.name.ends_with(".bias");
        const auto at = modules_.try_emplace(module_of(place.name)).first;
        auto& [weights, biases] = at->second;
        std::vector<Meaning>& list = bias ? biases : weights;
        if (std::ranges::none_of(list, [&](const Meaning& m) { return m.tensor == tensor.name; }))
          list.push_back({tensor.name, place});
        std::string flat = at->first;
        std::ranges::replace(flat, '.', '_');
        flat_[flat] = &at->second;
      }
  }

  // Returns the meanings of a module as a file names it, or null.
  const Meanings* find(std::string name) const {
    for (const char* prefix : kFlatPrefixes)
      if (name.starts_with(prefix)) {
        const auto found = flat_.find(name.substr(std::string_view(prefix).size()));
        return found == flat_.end() ? nullptr : found->second;
      }
    for (;;) {
      if (const auto found = modules_.find(name); found != modules_.end()) return &found->second;
      const auto* prefix =
          std::ranges::find_if(kPrefixes, [&](const char* each) { return name.starts_with(each); });
      if (prefix == std::end(kPrefixes)) return nullptr;
      name.erase(0, std::string_view(*prefix).size());
    }
  }

 private:
  static std::string module_of(const std::string& tensor) {
    for (const std::string_view end : {".weight", ".bias"})
      if (tensor.ends_with(end)) return tensor.substr(0, tensor.size() - end.size());
    return tensor;
  }

  std::map<std::string, Meanings> modules_;
  std::map<std::string, const Meanings*> flat_;  // with underscores for dots
};

// One LoRA file, its tensors sorted by module.
class LoraFile {
 public:
  explicit LoraFile(const Lora& lora)
      : file(TensorFile::open(lora.file)), path(lora.file), scale(static_cast<float>(lora.scale)) {
    for (const std::string& name : file.names()) add(name);
    if (modules.empty()) refuse("holds no tensors");
    read_peft_config();
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(ErrorKind::kModel, path + ": " + reason);
  }
  // Files with full differences also name what has no weights, and then hold zeros.
  bool is_zero(const std::string& name) const {
    const std::vector<float> values = read_floats(file, name);
    return std::ranges::all_of(values, [](float value) { return value == 0; });
  }
  bool is_zero(const Module& module) const {
    return std::ranges::all_of(module.tensors, [&](const auto& tensor) {
      const bool difference = tensor.first == Role::kDiff || tensor.first == Role::kDiffBias;
      return difference && is_zero(tensor.second);
    });
  }
  // The factor of a module's product, of rank `rank`.
  float factor(const std::string& name, const Module& module, int64_t rank) const {
    double alpha = 0;
    if (const std::string* tensor = module.find(Role::kAlpha)) {
      if (file.describe(*tensor).count() != 1)
        refuse(quoted_name(*tensor) + " is " + file.describe(*tensor).to_string_shape() +
               ", must be one number");
      alpha = read_floats(file, *tensor)[0];
    } else if (const auto own = alphas_.find(stripped(name)); own != alphas_.end()) {
      alpha = own->second;
    } else if (alpha_) {
      alpha = *alpha_;
    } else {
      return scale;
    }
    if (!std::isfinite(alpha)) refuse(quoted_name(name) + " has an alpha that is not finite");
    const auto r = static_cast<double>(rank);
    return static_cast<float>(scale * alpha / (root_ ? std::sqrt(r) : r));
  }

  const TensorFile file;
  const std::string path;
  const float scale;
  std::map<std::string, Module> modules;

 private:
  static std::string stripped(std::string name) {
    for (const char* prefix : kPrefixes)
      if (name.starts_with(prefix)) name.erase(0, std::string_view(prefix).size());
    return name;
  }

  void add(const std::string& name) {
    const DType dtype = file.describe(name).dtype;
    for (const auto& [suffix, role] : kSuffixes) {
      if (!name.ends_with(suffix)) continue;
      const std::string module = name.substr(0, name.size() - std::string_view(suffix).size());
      if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16 &&
          dtype != DType::kF64)
        refuse(quoted_name(name) + " is " + std::string(to_string(dtype)) +
               " (legal: f32, bf16, f16, f64)");
      if (!modules[module].tensors.emplace(role, name).second)
        refuse(quoted_name(module) + " has two tensors of one kind, " + quoted_name(name) +
               " and another");
      return;
    }
    refuse("tensor " + quoted_name(name) + " is of a kind that is not read (legal: " + kLegal +
           "; LyCORIS and DoRA are not)");
  }

  // PEFT keeps alpha and rank beside the weights: in the metadata, or in a file of its own.
  void read_peft_config() {
    nlohmann::json config;
    std::string what, prefix;
    if (const auto found = file.metadata().find(kPeftMetadata); found != file.metadata().end()) {
      what = path + ": " + kPeftMetadata;
      config = parse_json(found->second, what);
      prefix = "transformer.";
    } else if (modules.begin()->first.starts_with(kPeftPrefix)) {
      what = (std::filesystem::path(path).parent_path() / "adapter_config.json").string();
      if (!std::filesystem::exists(what)) return;
      config = read_json_file(what);
    }
    if (!config.is_object()) return;
    if (!config.contains(prefix + "lora_alpha")) prefix.clear();
    if (json_has(config, prefix + "lora_alpha"))
      alpha_ = json_number(config, prefix + "lora_alpha", what);
    root_ = json_bool_or(config, prefix + "use_rslora", what, false);
    if (!json_has(config, prefix + "alpha_pattern")) return;
    const nlohmann::json& pattern = config.at(prefix + "alpha_pattern");
    if (!pattern.is_object()) refuse(what + ": alpha_pattern is not an object");
    for (const auto& [module, value] : pattern.items()) {
      if (!value.is_number()) refuse(what + ": alpha_pattern has a value that is not a number");
      alphas_[module] = value.get<double>();
    }
  }

  std::optional<double> alpha_;
  std::map<std::string, double> alphas_;  // of single modules
  bool root_ = false;                     // alpha / sqrt(rank)
};

// A change of rows of one tensor.
struct Change {
  enum Kind : uint8_t { kProduct, kAdd, kSet } kind = kAdd;
  const LoraFile* lora = nullptr;
  std::string up{}, down{};  // `up` alone unless it is a product
  float scale = 1;
  int64_t row = 0, rows = 0, from = 0;  // rows of the tensor, the first one's row in `up`

  int64_t rank() const { return lora->file.describe(down)[0]; }  // of a product
};

constexpr int64_t kTile = 16;  // columns whose sums are computed together

// The factors of a product in f32: up [rows, rank], and down [rank, stride], whose rows end in
// zeros.
struct Factors {
  std::vector<float> up, down;
  int64_t rank = 0, columns = 0, stride = 0;
};

// Adds scale * up * down to the values [begin, end) of a matrix, counted over its rows; row `r` of
// it is row r + shift of the product. Every value is the same sum whatever the range is.
void add_product(const Factors& factors, const Change& change, Range values, float* out) {
  const auto& [up, down, rank, columns, stride] = factors;
  const int64_t first_row = values.begin / columns, last_row = (values.end - 1) / columns;
  for (int64_t column = 0; column < columns; column += kTile)
    for (int64_t row = first_row; row <= last_row; ++row) {
      const int64_t at = row * columns + column;  // of the tile's first value
      const int64_t begin = std::max(values.begin, at);
      const int64_t end = std::min(values.end, at + std::min(kTile, columns - column));
      if (begin >= end) continue;
      std::array<float, kTile> sum{};
      const float* factor = up.data() + (row - change.row + change.from) * rank;
      for (int64_t k = 0; k < rank; ++k) {
        const float* line = down.data() + k * stride + column;
        for (int64_t i = 0; i < kTile; ++i) sum[i] += factor[k] * line[i];
      }
      for (int64_t i = begin; i < end; ++i)
        out[i - values.begin] += change.scale * sum[static_cast<size_t>(i - at)];
    }
}

class MergedWeights final : public StoredTensors {
 public:
  MergedWeights(std::shared_ptr<const TensorFile> base, const TransformerModel& model,
                std::span<const Lora> loras, std::vector<std::string>& notes)
      : base_(std::move(base)) {
    place_tensors(model);
    const ModuleNames names(model);
    std::string all = base_->header_hash();
    for (const Lora& lora : loras) {
      loras_.push_back(std::make_unique<LoraFile>(lora));
      add(*loras_.back(), names, model, notes);
      all += loras_.back()->file.header_hash() + std::to_string(loras_.back()->scale);
    }
    hash_ = sha256_hex(all);
  }

  TensorFile::Origin origin() const {
    return {.format = base_->format() + " with LoRA",
            .files = base_->files(),
            .metadata = base_->metadata(),
            .header_hash = hash_,
            .bytes = base_->bytes()};
  }
  std::vector<TensorFile::Generated> tensors() const {
    std::vector<TensorFile::Generated> list;
    for (const std::string& name : base_->names()) {
      const TensorView view = base_->describe(name);
      list.push_back({.name = name,
                      .dtype = changes_.contains(name) ? DType::kF32 : view.dtype,
                      .shape = {view.shape().begin(), view.shape().end()},
                      .stored = base_->stored_type(name)});
    }
    return list;
  }
  void part(const std::string& name, int64_t first, const TensorView& out) const {
    const auto found = changes_.find(name);
    if (found == changes_.end()) return base_->read_run(name, first, out);
    const TensorView like = base_->describe(name);
    const int64_t columns = like.rank < 2 ? 1 : like.count() / like[0];
    read_floats(*base_, name, first, out.count(), out.as<float>());
    for (const Change& change : found->second) apply(change, columns, first, out);
  }

  // A tensor that only products change stays as it is stored; they are added when it is used.
  std::optional<BlockType> blocks(const std::string& name) const override {
    return changes_.contains(name) && !product_rank(name) ? std::nullopt : base_->blocks(name);
  }
  void read_blocks(const std::string& name, int64_t first, const TensorView& out) const override {
    base_->read_blocks(name, first, out);
  }
  std::vector<float> scales(const std::string& name) const override {
    return base_->stored() ? base_->stored()->scales(name) : std::vector<float>();
  }
  int64_t product_rank(const std::string& name) const override {
    const auto found = changes_.find(name);
    if (found == changes_.end()) return 0;
    int64_t rank = 0;
    for (const Change& change : found->second) {
      if (change.kind != Change::kProduct) return 0;
      rank += change.rank();
    }
    return rank;
  }
  // The factors of several products stand side by side. Rows that a product does not change are
  // zero in its columns of `up`.
  void read_product(const std::string& name, int64_t row, const TensorView& up, int64_t column,
                    const TensorView& down) const override {
    const TensorView like = base_->describe(name);
    const int64_t columns = like.count() / like[0], all = up[1], wide = down[1];
    int64_t first = 0;  // of the product's columns of `up`
    for (const Change& change : changes_.at(name)) {
      const TensorFile& file = change.lora->file;
      const int64_t rank = change.rank();
      for (int64_t k = 0; k < rank; ++k)
        read_floats(file, change.down, k * columns + column, wide,
                    down.as<float>() + (first + k) * wide);
      const int64_t begin = std::max(row, change.row),
                    end = std::min(row + up[0], change.row + change.rows);
      for (int64_t r = begin; r < end; ++r) {
        float* to = up.as<float>() + (r - row) * all + first;
        read_floats(file, change.up, (r - change.row + change.from) * rank, rank, to);
        for (int64_t k = 0; k < rank; ++k) to[k] *= change.scale;
      }
      first += rank;
    }
  }
  const TensorFile* base() const override { return base_.get(); }

 private:
  // Finds the tensors of the model in the file, whatever their spelling and prefix.
  void place_tensors(const TransformerModel& model) {
    for (const TensorSpec& tensor : model.tensors())
      for (const TensorPlace& place : model.spellings(tensor.name))
        for (const char* prefix : {"", "diffusion_model.", "model.diffusion_model."})
          if (base_->contains(prefix + place.name)) {
            places_[tensor.name] = place;
            places_[tensor.name].name = prefix + place.name;
            shapes_[tensor.name] = tensor.shape;
          }
  }

  void add(const LoraFile& lora, const ModuleNames& names, const TransformerModel& model,
           std::vector<std::string>& notes) {
    std::vector<std::string> unknown, relatives;
    for (const auto& [name, module] : lora.modules) {
      const Meanings* meanings = names.find(name);
      if (meanings)
        add(lora, name, module, *meanings);
      else if (!lora.is_zero(module))
        (model.relatives_have(name) ? relatives : unknown).push_back(name);
    }
    const auto list = [](const std::vector<std::string>& modules) {
      std::string text = std::to_string(modules.size()) + " modules: ";
      for (size_t i = 0; i < std::min(kMostNamed, modules.size()); ++i)
        text += (i ? ", " : "") + quoted_name(modules[i]);
      return text + (modules.size() > kMostNamed ? ", ..." : "");
    };
    if (!unknown.empty())
      lora.refuse("does not fit " + model.description() + ", which lacks " + list(unknown));
    if (!relatives.empty())
      notes.push_back(lora.path + ": changes nothing of what this model lacks, " + list(relatives));
  }

  void add(const LoraFile& lora, const std::string& name, const Module& module,
           const Meanings& meanings) {
    const std::string *up = module.find(Role::kUp), *down = module.find(Role::kDown);
    if (!up != !down)
      lora.refuse(quoted_name(name) + " has " +
                  (up ? "lora_B (lora_up) but no lora_A (lora_down)"
                      : "lora_A (lora_down) but no lora_B (lora_up)"));
    Change change;
    float factor = lora.scale;
    if (up) {
      const TensorView a = lora.file.describe(*down);
      if (a.rank < 1 || a.count() == 0)
        lora.refuse(quoted_name(*down) + " is " + a.to_string_shape() +
                    ", must be [rank, columns]");
      factor = lora.factor(name, module, a[0]);
      change = {.kind = Change::kProduct, .lora = &lora, .up = *up, .down = *down, .scale = factor};
      place(change, name, meanings.weights);
    }
    for (const auto& [role, kind, bias] : {std::tuple{Role::kDiff, Change::kAdd, false},
                                           {Role::kSet, Change::kSet, false},
                                           {Role::kDiffBias, Change::kAdd, true},
                                           {Role::kUpBias, Change::kAdd, true}})
      if (const std::string* tensor = module.find(role)) {
        change = {.kind = kind, .lora = &lora, .up = *tensor, .down = "", .scale = lora.scale};
        if (role == Role::kUpBias) change.scale = factor;
        place(change, name, bias ? meanings.biases : meanings.weights);
      }
  }

  // Adds a change of all tensors for which its module's name stands.
  void place(Change change, const std::string& module, const std::vector<Meaning>& meanings) {
    const LoraFile& lora = *change.lora;
    if (meanings.empty() && change.kind == Change::kAdd && lora.is_zero(change.up)) return;
    if (meanings.empty())
      lora.refuse(quoted_name(change.up) + " fits nothing: " + quoted_name(module) +
                  " has no such tensor in the model");
    for (const Meaning& meaning : meanings) {
      const auto found = places_.find(meaning.tensor);
      if (found == places_.end())
        lora.refuse(quoted_name(change.up) + " changes " + meaning.tensor +
                    ", which is missing from the weights");
      const TensorPlace &place = found->second, &given = meaning.place;
      const std::vector<int64_t>& shape = shapes_.at(meaning.tensor);
      int64_t columns = 1;
      for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
      change.rows = shape[0];
      change.row = place.part * (shape[0] / place.taken);
      change.from = given.part * (shape[0] / given.taken);
      check_sizes(change, given.parts * (shape[0] / given.taken), columns);
      if (place.swapped == given.swapped)
        changes_[place.name].push_back(change);
      else
        add_halves(change, changes_[place.name]);
    }
  }

  // Adds a change of rows whose halves the file and the LoRA have in the opposite order.
  static void add_halves(Change change, std::vector<Change>& changes) {
    const int64_t half = change.rows / 2, from = change.from;
    change.rows = half;
    change.from = from + half;
    changes.push_back(change);
    change.row += half;
    change.from = from;
    changes.push_back(change);
  }

  static void check_sizes(const Change& change, int64_t rows, int64_t columns) {
    const LoraFile& lora = *change.lora;
    const TensorView up = lora.file.describe(change.up);
    int64_t wanted = rows * columns;
    if (change.kind == Change::kProduct) {
      const TensorView down = lora.file.describe(change.down);
      wanted = rows * down[0];
      if (down.count() != down[0] * columns)
        lora.refuse(quoted_name(change.down) + " is " + down.to_string_shape() +
                    ", the model's matrix has " + std::to_string(columns) + " columns");
    }
    if (up.count() != wanted)
      lora.refuse(quoted_name(change.up) + " is " + up.to_string_shape() + ", must have " +
                  std::to_string(wanted) + " values: the model's matrix is [" +
                  std::to_string(rows) + ", " + std::to_string(columns) + "]");
  }

  // Applies a change to the values [first, ...) of a tensor with so many columns.
  void apply(const Change& change, int64_t columns, int64_t first, const TensorView& out) const {
    const int64_t begin = std::max(first, change.row * columns);
    const int64_t end = std::min(first + out.count(), (change.row + change.rows) * columns);
    if (begin >= end) return;
    float* values = out.as<float>() + (begin - first);
    const int64_t shift = (change.from - change.row) * columns;  // to a place in `up`
    if (change.kind != Change::kProduct) {
      std::vector<float> delta(static_cast<size_t>(end - begin));
      read_floats(change.lora->file, change.up, begin + shift, end - begin, delta.data());
      const bool set = change.kind == Change::kSet;
      for (size_t i = 0; i < delta.size(); ++i)
        values[i] = set ? delta[i] : values[i] + change.scale * delta[i];
      return;
    }
    const std::shared_ptr<const Factors> factors = this->factors(change, columns);
    add_product(*factors, change, {begin, end}, values);
  }

  // The factors of the last few products are kept: a part of the width is read row by row.
  std::shared_ptr<const Factors> factors(const Change& change, int64_t columns) const {
    constexpr size_t kKept = 8;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, kept] : kept_)
        if (name == std::pair{change.lora, change.up}) return kept;
    }
    auto made = std::make_shared<Factors>();
    made->up = read_floats(change.lora->file, change.up);
    made->columns = columns;
    made->stride = (columns + kTile - 1) / kTile * kTile;
    made->rank = change.rank();
    made->down.resize(static_cast<size_t>(made->rank * made->stride));
    for (int64_t k = 0; k < made->rank; ++k)
      read_floats(change.lora->file, change.down, k * columns, columns,
                  made->down.data() + k * made->stride);
    const std::lock_guard lock(mutex_);
    if (kept_.size() >= kKept) kept_.erase(kept_.begin());
    kept_.emplace_back(std::pair{change.lora, change.up}, made);
    return made;
  }

  std::shared_ptr<const TensorFile> base_;
  std::vector<std::unique_ptr<LoraFile>> loras_;
  std::map<std::string, TensorPlace> places_;  // the model's tensors in the file
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, std::vector<Change>> changes_;  // by the file's tensors
  std::string hash_;
  mutable std::mutex mutex_;  // guards the member below
  mutable std::vector<
      std::pair<std::pair<const LoraFile*, std::string>, std::shared_ptr<const Factors>>>
      kept_;
};

}  // namespace

std::optional<std::string> lora_family(const TensorFile& file) {
  bool peft = false, flat = false, difference = false, any = false;
  for (const std::string& name : file.names())
    for (const auto& [suffix, role] : kSuffixes) {
      if (role == Role::kAlpha || !name.ends_with(suffix)) continue;
      any = true;
      peft |= name.find(".lora_A.") != std::string::npos && !name.starts_with("diffusion_model.");
      flat |= std::ranges::any_of(kFlatPrefixes,
                                  [&](const char* prefix) { return name.starts_with(prefix); });
      difference |= role == Role::kDiff;
    }
  if (!any) return std::nullopt;
  return flat ? "kohya" : peft ? "diffusers, PEFT" : difference ? "full difference" : "ComfyUI";
}

TensorFile with_loras(std::shared_ptr<const TensorFile> weights, const TransformerModel& model,
                      std::span<const Lora> loras, std::vector<std::string>& notes) {
  const auto merged =
      std::make_shared<const MergedWeights>(std::move(weights), model, loras, notes);
  return TensorFile::derived(
      merged->tensors(),
      [merged](const std::string& name, int64_t first, const TensorView& out) {
        merged->part(name, first, out);
      },
      merged->origin(), merged);
}

}  // namespace weft
