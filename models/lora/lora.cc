#include "models/lora/lora.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "io/sha256.h"
#include "io/weights/safetensors_header.h"
#include "models/lora/delta.h"
#include "models/lora/lora_file.h"
#include "models/transformer.h"

namespace weft {
namespace {

// A tensor of the model, and its place in the rows of the module whose name stands for it.
struct Meaning {
  std::string tensor;
  TensorPlace place;
};

struct Meanings {
  std::vector<Meaning> weights, biases;
  std::vector<Meaning> modulations;  // tensors of the module that have no module of their own
};

// The modules that LoRA files may name, for one model.
class ModuleNames {
 public:
  explicit ModuleNames(const CheckpointModel& model) {
    for (const TensorSpec& tensor : model.tensors())
      for (const TensorPlace& place : model.spellings(tensor.name)) {
        const auto [module, end] = split(place.name);
        const Meaning meaning{tensor.name, place};
        add(module, end == ".bias" ? &Meanings::biases : &Meanings::weights, meaning);
        const std::string dotted = "." + module;
        for (const std::string_view name : {".modulation", ".scale_shift_table"})
          if (dotted.ends_with(name))
            add(dotted.substr(0, dotted.size() - name.size()), &Meanings::modulations, meaning);
      }
    for (const auto& [module, meanings] : modules_) flat_[flattened(module)] = &meanings;
  }

  // Returns the meanings of a module, in whose name underscores may stand for dots, or null.
  const Meanings* find(const std::string& key) const {
    if (const auto found = modules_.find(key); found != modules_.end()) return &found->second;
    const auto found = flat_.find(flattened(key));
    return found == flat_.end() ? nullptr : found->second;
  }

 private:
  void add(const std::string& module, std::vector<Meaning> Meanings::*list,
           const Meaning& meaning) {
    std::vector<Meaning>& all = modules_[module.substr(module.starts_with('.'))].*list;
    if (std::ranges::none_of(all, [&](const Meaning& m) { return m.tensor == meaning.tensor; }))
      all.push_back(meaning);
  }
  static std::pair<std::string, std::string_view> split(const std::string& tensor) {
    for (const std::string_view end : {".weight", ".bias"})
      if (tensor.ends_with(end)) return {tensor.substr(0, tensor.size() - end.size()), end};
    return {tensor, ""};
  }
  static std::string flattened(std::string module) {
    std::ranges::replace(module, '.', '_');
    return module;
  }

  std::map<std::string, Meanings> modules_;
  std::map<std::string, const Meanings*> flat_;  // with underscores for dots
};

// A change of rows of one tensor.
struct Change {
  // Only that of LoRA, a product of two factors, may be added when the tensor is used.
  enum Kind : uint8_t { kLora, kDelta, kAdd, kSet } kind = kAdd;
  const LoraFile* lora = nullptr;
  const LoraModule* module = nullptr;
  std::string tensor{};  // of the file: lora_B, a difference or a value; empty for LoKr and LoHa
  float scale = 1;
  int64_t row = 0, rows = 0, from = 0;  // rows of the tensor, the first one's row in the change

  bool computed() const { return kind == kLora || kind == kDelta; }
  const std::string& down() const { return *module->find(LoraRole::kDown); }
  int64_t rank() const { return lora->file.describe(down())[0]; }  // of a product
};

using Changes = std::vector<std::pair<std::string, Change>>;  // by the file's tensors

class MergedWeights final : public StoredTensors {
 public:
  MergedWeights(std::shared_ptr<const TensorFile> base, const CheckpointModel& model)
      : base_(std::move(base)), names_(model) {
    place_tensors(model);
  }

  const ModuleNames& names() const { return names_; }

  // Adds the changes that a module of the file makes; returns why it does not fit, or "".
  std::string add(const LoraFile& lora, const LoraModule& module, const Meanings& meanings) {
    const DeltaForm form = delta_form(lora, module);
    const float factor = lora.factor(module, form.rank);
    Changes changes;
    std::string fault;
    if (form.method == LoraMethod::kLokr || form.method == LoraMethod::kLoha)
      fault = place({.kind = Change::kDelta, .lora = &lora, .module = &module, .scale = factor},
                    form, meanings.weights, changes);
    for (const auto& [role, kind, list] :
         {std::tuple{LoraRole::kUp, Change::kLora, &Meanings::weights},
          {LoraRole::kDiff, Change::kAdd, &Meanings::weights},
          {LoraRole::kSet, Change::kSet, &Meanings::weights},
          {LoraRole::kDiffModulation, Change::kAdd, &Meanings::modulations},
          {LoraRole::kDiffBias, Change::kAdd, &Meanings::biases},
          {LoraRole::kUpBias, Change::kAdd, &Meanings::biases}}) {
      const std::string* tensor = module.find(role);
      if (!tensor || !fault.empty()) continue;
      const bool scaled = role == LoraRole::kUp || role == LoraRole::kUpBias;
      fault = place({.kind = kind,
                     .lora = &lora,
                     .module = &module,
                     .tensor = *tensor,
                     .scale = scaled ? factor : lora.scale},
                    form, meanings.*list, changes);
    }
    if (!fault.empty()) return fault;
    lora.check_values(module);
    for (const auto& [tensor, change] : changes) changes_[tensor].push_back(change);
    return "";
  }

  // Keeps the file whose modules were added.
  void keep(const std::shared_ptr<const LoraFile>& lora) {
    if (loras_.empty() || loras_.back() != lora) loras_.push_back(lora);
  }
  bool changes_any() const { return !loras_.empty(); }

  TensorFile::Origin origin() const {
    std::vector<std::string> files = base_->files();
    std::string all = base_->header_hash();
    for (const auto& lora : loras_) {
      files.push_back(lora->path);
      all += lora->file.header_hash() + std::to_string(lora->scale);
    }
    return {.format = base_->format() + " with LoRA",
            .files = std::move(files),
            .metadata = base_->metadata(),
            .header_hash = sha256_hex(all),
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
      if (change.kind != Change::kLora) return 0;
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
        read_floats(file, change.down(), k * columns + column, wide,
                    down.as<float>() + (first + k) * wide);
      const int64_t begin = std::max(row, change.row),
                    end = std::min(row + up[0], change.row + change.rows);
      for (int64_t r = begin; r < end; ++r) {
        float* to = up.as<float>() + (r - row) * all + first;
        read_floats(file, change.tensor, (r - change.row + change.from) * rank, rank, to);
        for (int64_t k = 0; k < rank; ++k) to[k] *= change.scale;
      }
      first += rank;
    }
  }
  const TensorFile* base() const override { return base_.get(); }

 private:
  // Finds the tensors of the model in the file, whatever their spelling.
  void place_tensors(const CheckpointModel& model) {
    for (const TensorSpec& tensor : model.tensors())
      for (const TensorPlace& place : model.spellings(tensor.name))
        if (base_->contains(place.name)) {
          places_[tensor.name] = place;
          shapes_[tensor.name] = tensor.shape;
        }
  }

  // Finds the changes of all tensors for which a module's name stands; returns a fault or "".
  std::string place(Change change, const DeltaForm& form, const std::vector<Meaning>& meanings,
                    Changes& changes) const {
    if (meanings.empty() && change.kind == Change::kAdd && change.lora->is_zero(change.tensor))
      return "";
    const std::string& module = change.module->name.module;
    const std::string name = quoted_name(change.tensor.empty() ? module : change.tensor);
    if (meanings.empty())
      return name + " fits nothing: " + quoted_name(module) + " has no such tensor in the model";
    for (const Meaning& meaning : meanings) {
      const auto found = places_.find(meaning.tensor);
      if (found == places_.end())
        return name + " changes " + meaning.tensor + ", which is missing from the weights";
      const TensorPlace &place = found->second, &given = meaning.place;
      const std::vector<int64_t>& shape = shapes_.at(meaning.tensor);
      int64_t columns = 1;
      for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
      change.rows = shape[0];
      change.row = place.part * (shape[0] / place.taken);
      change.from = given.part * (shape[0] / given.taken);
      const std::string fault =
          size_fault(change, form, given.parts * (shape[0] / given.taken), columns);
      if (!fault.empty()) return fault;
      if (place.swapped == given.swapped)
        changes.emplace_back(place.name, change);
      else
        add_halves(change, place.name, changes);
    }
    return "";
  }

  // Adds a change of rows whose halves the file and the LoRA have in the opposite order.
  static void add_halves(Change change, const std::string& tensor, Changes& changes) {
    const int64_t half = change.rows / 2, from = change.from;
    change.rows = half;
    change.from = from + half;
    changes.emplace_back(tensor, change);
    change.row += half;
    change.from = from;
    changes.emplace_back(tensor, change);
  }

  static std::string size_fault(const Change& change, const DeltaForm& form, int64_t rows,
                                int64_t columns) {
    const std::string matrix =
        "the model's matrix is [" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
    if (change.kind == Change::kDelta)
      return form.rows == rows && form.columns == columns
                 ? ""
                 : form.said + ", which make [" + std::to_string(form.rows) + ", " +
                       std::to_string(form.columns) + "]; " + matrix;
    const bool product = change.kind == Change::kLora;
    if (product && form.columns != columns)
      return quoted_name(change.down()) + " is " +
             change.lora->file.describe(change.down()).to_string_shape() +
             ", the model's matrix has " + std::to_string(columns) + " columns";
    const TensorView given = change.lora->file.describe(change.tensor);
    const int64_t wanted = rows * (product ? form.rank : columns);
    if (given.count() == wanted) return "";
    return quoted_name(change.tensor) + " is " + given.to_string_shape() + ", must have " +
           std::to_string(wanted) + " values: " + matrix;
  }

  // Applies a change to the values [first, ...) of a tensor with so many columns.
  void apply(const Change& change, int64_t columns, int64_t first, const TensorView& out) const {
    const int64_t begin = std::max(first, change.row * columns);
    const int64_t end = std::min(first + out.count(), (change.row + change.rows) * columns);
    if (begin >= end) return;
    float* values = out.as<float>() + (begin - first);
    const int64_t shift = (change.from - change.row) * columns;  // to a place in the change
    if (change.computed())
      return delta(change)->add({begin + shift, end + shift}, change.scale, values);
    std::vector<float> delta(static_cast<size_t>(end - begin));
    read_floats(change.lora->file, change.tensor, begin + shift, end - begin, delta.data());
    const bool set = change.kind == Change::kSet;
    for (size_t i = 0; i < delta.size(); ++i)
      values[i] = set ? delta[i] : values[i] + change.scale * delta[i];
  }

  // The last few deltas are kept: a part of the width is read row by row.
  std::shared_ptr<const LoraDelta> delta(const Change& change) const {
    constexpr size_t kKept = 8;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [module, kept] : kept_)
        if (module == change.module) return kept;
    }
    auto made = read_delta(*change.lora, *change.module);
    const std::lock_guard lock(mutex_);
    if (kept_.size() >= kKept) kept_.erase(kept_.begin());
    kept_.emplace_back(change.module, made);
    return made;
  }

  std::shared_ptr<const TensorFile> base_;
  const ModuleNames names_;
  std::vector<std::shared_ptr<const LoraFile>> loras_;
  std::map<std::string, TensorPlace> places_;  // the model's tensors in the file
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, std::vector<Change>> changes_;  // by the file's tensors
  mutable std::mutex mutex_;                            // guards the member below
  mutable std::vector<std::pair<const LoraModule*, std::shared_ptr<const LoraDelta>>> kept_;
};

TensorFile changed(std::shared_ptr<const MergedWeights> merged) {
  TensorFile::Origin origin = merged->origin();
  const auto part = [merged](const std::string& name, int64_t first, const TensorView& out) {
    merged->part(name, first, out);
  };
  return TensorFile::derived(merged->tensors(), part, std::move(origin), merged);
}

// A file that changes both experts of a model is told once.
void add_notes(const std::vector<std::string>& more, std::vector<std::string>& notes) {
  for (const std::string& note : more)
    if (std::ranges::count(notes, note) == 0) notes.push_back(note);
}

// Adds the modules of a transformer.
void add_all(const LoraFile& lora, const TransformerModel& model, MergedWeights& merged,
             std::vector<std::string>& notes) {
  std::vector<std::string> unknown, relatives;
  for (const auto& [name, module] : lora.modules) {
    if (module.name.text) continue;
    if (const Meanings* meanings = merged.names().find(module.name.key)) {
      if (const std::string fault = merged.add(lora, module, *meanings); !fault.empty())
        lora.refuse(fault);
    } else if (!lora.is_zero(module)) {
      (model.relatives_have(name) ? relatives : unknown).push_back(name);
    }
  }
  if (!unknown.empty())
    lora.refuse("does not fit " + model.description() + ", which lacks " +
                counted(unknown, "modules"));
  if (!relatives.empty())
    notes.push_back(lora.path + ": changes nothing of what this model lacks, " +
                    counted(relatives, "modules"));
}

}  // namespace

std::optional<std::string> lora_family(const TensorFile& file) {
  bool peft = false, flat = false, difference = false, processor = false, any = false;
  bool lokr = false, loha = false;
  for (const std::string& name : file.names()) {
    const std::optional<LoraName> parsed = parse_lora_name(name);
    if (!parsed || parsed->role == LoraRole::kAlpha) continue;
    any = true;
    peft |= name.find(".lora_A.") != std::string::npos && !name.starts_with("diffusion_model.");
    flat |= parsed->flat;
    processor |= parsed->key.find(".processor.") != std::string::npos;
    difference |= parsed->role == LoraRole::kDiff;
    lokr |= method_of(parsed->role) == LoraMethod::kLokr;
    loha |= method_of(parsed->role) == LoraMethod::kLoha;
  }
  if (!any) return std::nullopt;
  return lokr         ? "LoKr"
         : loha       ? "LoHa"
         : processor  ? "XLabs"
         : flat       ? "kohya"
         : peft       ? "diffusers, PEFT"
         : difference ? "full difference"
                      : "ComfyUI";
}

TensorFile with_loras(std::shared_ptr<const TensorFile> weights, const TransformerModel& model,
                      std::span<const Lora> loras, std::vector<std::string>& notes) {
  const auto merged = std::make_shared<MergedWeights>(std::move(weights), model);
  std::vector<std::string> own;
  for (const Lora& lora : loras) {
    const auto file = std::make_shared<const LoraFile>(lora, own);
    add_all(*file, model, *merged, own);
    merged->keep(file);
  }
  add_notes(own, notes);
  return changed(merged);
}

void change_text_encoders(std::span<const TextEncoderWeights> encoders, std::span<const Lora> loras,
                          std::vector<std::string>& notes) {
  if (loras.empty()) return;
  std::vector<std::shared_ptr<MergedWeights>> merged;
  for (const TextEncoderWeights& encoder : encoders)
    merged.push_back(std::make_shared<MergedWeights>(encoder.weights, encoder.model));
  std::vector<std::string> own;
  for (const Lora& lora : loras) {
    const auto file = std::make_shared<const LoraFile>(lora, own);
    std::vector<std::string> misfits;
    for (const auto& [name, module] : file->modules) {
      if (!module.name.text) continue;
      const auto taker = std::ranges::find_if(merged, [&, &made = module](const auto& each) {
        const Meanings* meanings = each->names().find(made.name.key);
        return meanings && each->add(*file, made, *meanings).empty();
      });
      if (taker != merged.end())
        (*taker)->keep(file);
      else if (!file->is_zero(module))
        misfits.push_back(name);
    }
    if (!misfits.empty())
      own.push_back(file->path + ": leaves out what fits no text encoder of this model, " +
                    counted(misfits, "modules"));
  }
  add_notes(own, notes);
  for (size_t i = 0; i < merged.size(); ++i)
    if (merged[i]->changes_any())
      encoders[i].weights = std::make_shared<TensorFile>(changed(merged[i]));
}

}  // namespace weft
