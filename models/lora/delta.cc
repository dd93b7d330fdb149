#include "models/lora/delta.h"

#include <algorithm>
#include <array>
#include <vector>

#include "io/weights/safetensors_header.h"

namespace weft {
namespace {

constexpr int64_t kTile = 16;  // columns whose sums are computed together
using TileSums = std::array<float, kTile>;

// A product of factors in f32: up [rows, rank], and down [rank, stride], whose rows end in zeros.
struct LowRank {
  std::vector<float> up, down;
  int64_t rank = 0, columns = 0, stride = 0;

  LowRank(std::vector<float> b, const std::vector<float>& a, int64_t ranks)
      : up(std::move(b)),
        rank(ranks),
        columns(std::ssize(a) / ranks),
        stride((columns + kTile - 1) / kTile * kTile) {
    down.resize(static_cast<size_t>(rank * stride));
    for (int64_t k = 0; k < rank; ++k)
      std::copy_n(a.data() + k * columns, columns, down.data() + k * stride);
  }
  // The sums of a row at kTile columns.
  TileSums tile(int64_t row, int64_t column) const {
    TileSums sums{};
    const float* factor = up.data() + row * rank;
    for (int64_t k = 0; k < rank; ++k) {
      const float* line = down.data() + k * stride + column;
      for (int64_t i = 0; i < kTile; ++i) sums[i] += factor[k] * line[i];
    }
    return sums;
  }
};

// Adds factor * sums(row, column) to the values of a matrix, a tile after the other.
template <class F>
void add_tiles(Range values, int64_t columns, float factor, float* out, F&& sums) {
  const int64_t first_row = values.begin / columns, last_row = (values.end - 1) / columns;
  for (int64_t column = 0; column < columns; column += kTile)
    for (int64_t row = first_row; row <= last_row; ++row) {
      const int64_t at = row * columns + column;  // of the tile's first value
      const int64_t begin = std::max(values.begin, at);
      const int64_t end = std::min(values.end, at + std::min(kTile, columns - column));
      if (begin >= end) continue;
      const TileSums tile = sums(row, column);
      for (int64_t i = begin; i < end; ++i)
        out[i - values.begin] += factor * tile[static_cast<size_t>(i - at)];
    }
}

class ProductDelta final : public LoraDelta {
 public:
  explicit ProductDelta(LowRank product) : product_(std::move(product)) {}
  void add(Range values, float factor, float* out) const override {
    add_tiles(values, product_.columns, factor, out,
              [&](int64_t row, int64_t column) { return product_.tile(row, column); });
  }

 private:
  LowRank product_;
};

class HadamardDelta final : public LoraDelta {
 public:
  HadamardDelta(LowRank first, LowRank second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void add(Range values, float factor, float* out) const override {
    add_tiles(values, first_.columns, factor, out, [&](int64_t row, int64_t column) {
      TileSums sums = first_.tile(row, column);
      const TileSums other = second_.tile(row, column);
      for (int64_t i = 0; i < kTile; ++i) sums[i] *= other[i];
      return sums;
    });
  }

 private:
  LowRank first_, second_;
};

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values{};
};

class KroneckerDelta final : public LoraDelta {
 public:
  KroneckerDelta(Matrix first, Matrix second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void add(Range values, float factor, float* out) const override {
    const int64_t columns = first_.columns * second_.columns;
    for (int64_t at = values.begin; at < values.end;) {
      const int64_t row = at / columns, column = at % columns;
      const int64_t inside = column % second_.columns;
      const int64_t run = std::min(second_.columns - inside, values.end - at);
      const int64_t block = row / second_.rows * first_.columns + column / second_.columns;
      const float scale = factor * first_.values[static_cast<size_t>(block)];
      const float* line = second_.values.data() + row % second_.rows * second_.columns + inside;
      for (int64_t i = 0; i < run; ++i) out[at - values.begin + i] += scale * line[i];
      at += run;
    }
  }

 private:
  Matrix first_, second_;
};

// A factor that is a tensor, or a product of two, or of two with a core between them.
class Factor {
 public:
  struct Roles {
    const char* name;
    LoraRole a, b;
    std::optional<LoraRole> whole{}, core{};
  };

  // Error(kModel) names what is missing or does not fit.
  Factor(const LoraFile& lora, const LoraModule& module, const Roles& roles)
      : lora_(lora),
        whole_(roles.whole ? module.find(*roles.whole) : nullptr),
        a_(module.find(roles.a)),
        b_(module.find(roles.b)),
        core_(roles.core ? module.find(*roles.core) : nullptr) {
    const std::string name = roles.name, both = name + "_a and " + name + "_b";
    const std::string legal = roles.whole ? name + ", or " + both : both;
    if (whole_ ? a_ || b_ || core_ : !a_ || !b_) {
      std::string has;
      for (const std::string* each : {whole_, a_, b_, core_})
        if (each) has += (has.empty() ? "" : " and ") + quoted_name(*each);
      lora.refuse(quoted_name(module.name.module) + " has " + (has.empty() ? "no " + name : has) +
                  ", must have " + legal);
    }
    for (const std::string* each : {whole_, a_, b_})
      if (each && (view(each).rank < 2 || view(each).count() == 0))
        lora.refuse(quoted_name(*each) + " is " + view(each).to_string_shape() +
                    ", must be a matrix");
    if (whole_) {
      rows = view(whole_)[0];
      columns = view(whole_).count() / rows;
      return;
    }
    rank = view(b_)[0];
    columns = view(b_).count() / rank;
    // Beside a core, A is transposed.
    rows = view(a_)[core_ ? 1 : 0];
    if (view(a_)[core_ ? 0 : 1] != (core_ ? view(core_)[0] : rank) || view(a_).rank != 2 ||
        (core_ && (view(core_).rank < 2 || view(core_)[1] != rank)))
      lora.refuse(said() + ", must be " +
                  (core_ ? "[rank, rank], [rank, rows] and [rank, columns]"
                         : "[rows, rank] and [rank, columns]"));
    if (core_ && view(core_).count() != view(core_)[0] * rank)
      lora.refuse(quoted_name(*core_) + " is " + view(core_).to_string_shape() +
                  ", the core of a convolution, legal: [rank, rank], of a matrix");
  }

  std::string said() const {
    std::string text;
    for (const std::string* each : {whole_, core_, a_, b_})
      if (each)
        text += (text.empty() ? "" : " and ") + quoted_name(*each) + " is " +
                view(each).to_string_shape();
    return text;
  }

  LowRank product() const {
    const std::vector<float> a = read(a_), b = read(b_);
    if (!core_) return {a, b, rank};
    const std::vector<float> core = read(core_);
    std::vector<float> up(static_cast<size_t>(rows * rank));
    for (int64_t i = 0; i < view(core_)[0]; ++i)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t j = 0; j < rank; ++j)
          up[static_cast<size_t>(row * rank + j)] +=
              a[static_cast<size_t>(i * rows + row)] * core[static_cast<size_t>(i * rank + j)];
    return {up, b, rank};
  }
  Matrix matrix() const {
    Matrix out{rows, columns, whole_ ? read(whole_) : std::vector<float>()};
    if (whole_) return out;
    out.values.resize(static_cast<size_t>(rows * columns));
    ProductDelta(product()).add({0, rows * columns}, 1, out.values.data());
    return out;
  }

  int64_t rows = 0, columns = 0;
  int64_t rank = 0;  // of a product

 private:
  TensorView view(const std::string* name) const { return lora_.file.describe(*name); }
  std::vector<float> read(const std::string* name) const { return read_floats(lora_.file, *name); }

  const LoraFile& lora_;
  const std::string *whole_, *a_, *b_, *core_;
};

constexpr Factor::Roles kLokrRoles[] = {
    {"lokr_w1", LoraRole::kLokrW1A, LoraRole::kLokrW1B, LoraRole::kLokrW1},
    {"lokr_w2", LoraRole::kLokrW2A, LoraRole::kLokrW2B, LoraRole::kLokrW2, LoraRole::kLokrT2}};
constexpr Factor::Roles kLohaRoles[] = {{"hada_w1", LoraRole::kHadaW1A, LoraRole::kHadaW1B},
                                        {"hada_w2", LoraRole::kHadaW2A, LoraRole::kHadaW2B}};

std::array<Factor, 2> factors_of(const LoraFile& lora, const LoraModule& module,
                                 LoraMethod method) {
  const Factor::Roles* roles = method == LoraMethod::kLokr ? kLokrRoles : kLohaRoles;
  return {Factor(lora, module, roles[0]), Factor(lora, module, roles[1])};
}

// The method of all factors of a module.
LoraMethod method_of_module(const LoraFile& lora, const LoraModule& module) {
  LoraMethod method = LoraMethod::kNone;
  const std::string* first = nullptr;
  for (const auto& [role, name] : module.tensors) {
    const LoraMethod own = method_of(role);
    if (own == LoraMethod::kNone) continue;
    if (first && own != method)
      lora.refuse(quoted_name(module.name.module) + " has " + quoted_name(*first) + " and " +
                  quoted_name(name) + ", must have the factors of one of LoRA, LoKr and LoHa");
    method = own;
    if (!first) first = &name;
  }
  return method;
}

DeltaForm lora_form(const LoraFile& lora, const LoraModule& module) {
  const std::string *up = module.find(LoraRole::kUp), *down = module.find(LoraRole::kDown);
  if (!up && !down) return {};  // the bias alone
  if (!up || !down)
    lora.refuse(quoted_name(module.name.module) + " has " +
                (up ? "lora_B (lora_up) but no lora_A (lora_down)"
                    : "lora_A (lora_down) but no lora_B (lora_up)"));
  const TensorView a = lora.file.describe(*down);
  if (a.rank < 1 || a.count() == 0)
    lora.refuse(quoted_name(*down) + " is " + a.to_string_shape() + ", must be [rank, columns]");
  return {.method = LoraMethod::kLora,
          .rows = lora.file.describe(*up).count() / a[0],
          .columns = a.count() / a[0],
          .rank = a[0]};
}

}  // namespace

DeltaForm delta_form(const LoraFile& lora, const LoraModule& module) {
  const LoraMethod method = method_of_module(lora, module);
  if (method == LoraMethod::kLora) return lora_form(lora, module);
  if (method == LoraMethod::kNone) return {};
  const auto [first, second] = factors_of(lora, module, method);
  DeltaForm form{.method = method, .said = first.said() + ", " + second.said()};
  if (method == LoraMethod::kLokr) {
    form.rows = first.rows * second.rows;
    form.columns = first.columns * second.columns;
    form.rank = second.rank ? second.rank : first.rank;
    return form;
  }
  if (first.rows != second.rows || first.columns != second.columns)
    lora.refuse(form.said + ", must be products of the same extents");
  form.rows = first.rows;
  form.columns = first.columns;
  form.rank = first.rank;
  return form;
}

std::shared_ptr<const LoraDelta> read_delta(const LoraFile& lora, const LoraModule& module) {
  const LoraMethod method = method_of_module(lora, module);
  if (method == LoraMethod::kLora) {
    const std::string& down = *module.find(LoraRole::kDown);
    return std::make_shared<ProductDelta>(
        LowRank(read_floats(lora.file, *module.find(LoraRole::kUp)), read_floats(lora.file, down),
                lora.file.describe(down)[0]));
  }
  const auto [first, second] = factors_of(lora, module, method);
  if (method == LoraMethod::kLokr)
    return std::make_shared<KroneckerDelta>(first.matrix(), second.matrix());
  return std::make_shared<HadamardDelta>(first.product(), second.product());
}

}  // namespace weft
