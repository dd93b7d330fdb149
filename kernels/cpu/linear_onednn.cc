// Linear by oneDNN's matmul if it has a fast kernel for the packed weights, else by panel_gemm.
// tests/bench measures one against the other.
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_panels.h"
#include "kernels/cpu/linear_stored.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/panel_gemm.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

using dnnl::memory;

struct MatmulKey {
  int64_t rows = 0;
  int threads = 1;
  LinearActivation activation = LinearActivation::kNone;
  DType out = DType::kF32;
  bool operator==(const MatmulKey&) const = default;
};

// Holds the weights once: as panels, which both libraries read, or (if the hardware multiplies
// bf16) in the layout that oneDNN asked for. Of those only panels of pairs are read by panel_gemm,
// too. Stored weights are expanded to the one or the other.
struct LinearStorage : StoredWeights {
  LinearPanels panels;
  Tensor vendor;
  // This is oneDNN's description of the weights; it is zero if oneDNN does not read them.
  memory::desc vendor_desc;
  bool pairs = false;  // that description is pair_panels()
  OnednnCache<MatmulKey> calls;
  const void* expanded = nullptr;  // stored weights, while a call uses them

  bool vendor_only() const { return vendor || layout == ExpandedLayout::kPairs; }
  const void* values() const {
    return expanded ? expanded : vendor ? vendor.view().data : panels.data();
  }
  void for_buffers(const BufferVisitor& visit) override {
    if (scratch) return StoredWeights::for_buffers(visit);
    visit(panels.buffer());
    visit(vendor);
  }
};

// The rows of one oneDNN call in deterministic mode.
constexpr int64_t kFixedRows = 64;

// Up to this many rows, panel_gemm on f32 panels is faster: reading the weights is most of the
// work, and it needs no primitive per row count.
constexpr int64_t kPanelRows = 16;

// The same for panels of pairs, where the machine has tiles: oneDNN's kernels for them wait for
// memory, whatever the number of rows. Its kernels of dot products do not. The panels were faster
// at 1 and 4 rows and slower at 16; the limit lies between.
constexpr int64_t kPairRows = 8;

// From this many multiplications on (about 20 us of one core) a second thread pays.
constexpr int64_t kThreadedMultiplications = int64_t{1} << 20;

memory::desc plain(int64_t rows, int64_t columns, DType dtype) {
  return {{rows, columns}, onednn_type(dtype), memory::dims{columns, 1}};
}

OnednnCall make_matmul(const PackedLinear& packed, const memory::desc& weight,
                       const MatmulKey& key) {
  OmpThreads threads(key.threads);
  OnednnCall call;
  dnnl::post_ops after;
  if (key.activation == LinearActivation::kGeluTanh)
    after.append_eltwise(1, dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
  if (key.activation == LinearActivation::kSilu)
    after.append_eltwise(1, dnnl::algorithm::eltwise_swish, 1, 0);
  dnnl::primitive_attr attr;
  attr.set_post_ops(after);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  call.in = plain(key.rows, packed.in(), packed.dtype());
  call.out = plain(key.rows, packed.out(), key.out);
  call.bias = packed.has_bias() ? plain(1, packed.out(), DType::kF32) : memory::desc();
  const dnnl::matmul::desc desc = packed.has_bias()
                                      ? dnnl::matmul::desc(call.in, weight, call.bias, call.out)
                                      : dnnl::matmul::desc(call.in, weight, call.out);
  const dnnl::matmul::primitive_desc chosen(desc, attr, onednn_engine(), true);
  if (!chosen.get(true)) return call;
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  if (is_fast_implementation(call.implementation)) call.primitive = dnnl::matmul(chosen);
  return call;
}

// oneDNN's usual layout for bf16, whose panels panel_gemm reads.
memory::desc pair_panels(const PackedLinear& packed) {
  return {{packed.in(), packed.out()}, memory::data_type::bf16, memory::format_tag::BA16a64b2a};
}

// The layout of oneDNN's bf16 kernels for a matrix; nullopt if oneDNN has no such kernel here.
std::optional<memory::desc> vendor_layout(const PackedLinear& packed, int threads) {
  const memory::desc any({packed.in(), packed.out()}, memory::data_type::bf16,
                         memory::format_tag::any);
  const OnednnCall typical =
      make_matmul(packed, any, {1024, threads, LinearActivation::kNone, DType::kBF16});
  if (!typical) return std::nullopt;
  // One layout must serve every number of rows.
  for (int64_t rows : {1, 2, 16, 63, 64, 4096})
    if (!make_matmul(packed, typical.weight,
                     {rows, threads, LinearActivation::kNone, DType::kBF16}))
      return std::nullopt;
  return typical.weight;
}

// Packs bf16 weights in that layout. Returns false where there is none.
bool pack_vendor(Stream& stream, const TensorView& weight, const PackedLinear& packed,
                 LinearStorage& storage) {
  const std::optional<memory::desc> layout = vendor_layout(packed, stream.threads());
  if (!layout) return false;
  storage.vendor = Tensor(DType::kU8, {static_cast<int64_t>(layout->get_size())});
  storage.vendor_desc = *layout;
  storage.pairs = *layout == pair_panels(packed);
  reorder_weight(stream, weight, *layout, storage.vendor.view().data);
  return true;
}

// The same, remembered: a dry run asks for many matrices of few sizes, and so does a model whose
// matrices stay stored.
std::optional<memory::desc> known_layout(const PackedLinear& packed, int threads) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 4>, std::optional<memory::desc>> known;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] =
      known.try_emplace({packed.in(), packed.out(), packed.has_bias() ? 1 : 0, threads});
  if (fresh) found->second = vendor_layout(packed, threads);
  return found->second;
}

// Lets oneDNN read f32 panels, too.
void share_panels(const PackedLinear& packed, LinearStorage& storage) {
  const memory::desc shared({packed.in(), packed.out()}, memory::data_type::f32,
                            memory::format_tag::BA16a64b);
  if (packed.dtype() == DType::kF32 && has_avx512() &&
      make_matmul(packed, shared, {.rows = kFixedRows}))
    storage.vendor_desc = shared;
}

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  if (format == WeightFormat::kInt8 && has_int8_dot_products())
    return pack_linear_int8_onednn(stream, weight, bias, dtype);
  if (format != WeightFormat::kCompute)
    return pack_linear_8bit(stream, weight, bias, dtype, format);
  PackedLinear packed(weight, dtype);
  auto& storage = packed.make_storage<LinearStorage>();
  packed.set_bias(stream, bias);
  const bool may_be_vendor = dtype == DType::kBF16 && has_bf16_dot_products();
  if (stream.device().measured()) {
    if (const auto layout = may_be_vendor ? known_layout(packed, 1) : std::nullopt) {
      storage.vendor =
          Tensor(DType::kU8, {static_cast<int64_t>(layout->get_size())}, stream.device());
      reordered_rows(weight, stream.device());  // held while the weight is packed
    } else {
      storage.panels = LinearPanels(stream, weight, dtype);
    }
    return packed;
  }
  const bool vendor = may_be_vendor && pack_vendor(stream, weight, packed, storage);
  if (!vendor) {
    storage.panels = LinearPanels(stream, weight, dtype);
    share_panels(packed, storage);
  }
  return packed;
}

// Stored bf16 weights are expanded to the layout that oneDNN would ask for, where it is known here.
PackedLinear pack_stored(Stream& stream, StoredMatrix matrix, const TensorView& bias, DType dtype,
                         std::shared_ptr<SharedScratch> scratch) {
  PackedLinear packed(matrix.out, matrix.in, dtype, WeightFormat::kFile);
  auto& storage = packed.make_storage<LinearStorage>();
  packed.set_bias(stream, bias);
  ExpandedLayout layout = ExpandedLayout::kPanels;
  if (dtype == DType::kBF16 && has_bf16_dot_products()) {
    const memory::desc pairs = pair_panels(packed);
    const auto asked = known_layout(packed, stream.device().measured() ? 1 : stream.threads());
    if (asked && *asked != pairs) return pack_expanded(stream, matrix, bias, dtype);
    if (asked) {
      layout = ExpandedLayout::kPairs;
      storage.vendor_desc = pairs;
      storage.pairs = true;
    }
  }
  storage.hold(stream, std::move(matrix), layout, dtype, std::move(scratch));
  if (layout == ExpandedLayout::kPanels) share_panels(packed, storage);
  return packed;
}

// Runs dense rows in one oneDNN call, or in several if it has no kernel for that many rows.
void run_rows(const PackedLinear& packed, LinearStorage& storage, const MatmulKey& key,
              const char* x, char* out) {
  const auto call =
      storage.calls.get(key, [&] { return make_matmul(packed, storage.vendor_desc, key); });
  if (!*call) {
    CHECK(key.rows > 1, "no fast matmul", call->implementation);
    MatmulKey part = key;
    // pack_vendor made sure that kernels for both exist.
    part.rows = key.rows > kFixedRows ? kFixedRows : 1;
    const int64_t step = part.rows;
    for (int64_t row = 0; row < key.rows; row += step) {
      part.rows = std::min(step, key.rows - row);
      run_rows(packed, storage, part, x + row * packed.in() * size_of(packed.dtype()),
               out + row * packed.out() * size_of(key.out));
    }
    return;
  }
  OmpThreads scope(key.threads);
  run_onednn(*call, x, storage.values(), packed.bias(), out);
}

const char* row_of(const TensorView& x, int64_t row) {
  return static_cast<const char*>(x.data) + row * x.row_stride() * size_of(x.dtype);
}

// Runs rows of any stride through dense copies in the thread's scratch.
void run_staged(const PackedLinear& packed, LinearStorage& storage, const MatmulKey& key,
                const TensorView& x, const TensorView& out, int64_t begin) {
  const int64_t in_bytes = packed.in() * size_of(x.dtype);
  const int64_t out_bytes = packed.out() * size_of(out.dtype);
  char* dense_in = thread_scratch<char>(Scratch::kStageIn, key.rows * in_bytes);
  char* dense_out = thread_scratch<char>(Scratch::kStageOut, key.rows * out_bytes);
  for (int64_t r = 0; r < key.rows; ++r)
    std::memcpy(dense_in + r * in_bytes, row_of(x, begin + r), in_bytes);
  run_rows(packed, storage, key, dense_in, dense_out);
  for (int64_t r = 0; r < key.rows; ++r)
    std::memcpy(const_cast<char*>(row_of(out, begin + r)), dense_out + r * out_bytes, out_bytes);
}

bool dense_rows(const TensorView& x) { return x.rows() == 1 || x.row_stride() == x[-1]; }

bool takes_pairs(const PackedLinear& packed, const LinearStorage& storage, int64_t rows) {
  return storage.pairs && has_bf16_tiles() && packed.in() % 2 == 0 && rows <= kPairRows;
}

bool takes_panels(const LinearStorage& storage, int64_t rows, bool dense) {
  if (storage.vendor_only()) return false;
  return !storage.vendor_desc.get_size() || !dense || rows <= kPanelRows;
}

int fast_threads(const Stream& stream, const PackedLinear& packed, int64_t rows) {
  return rows * packed.in() * packed.out() < kThreadedMultiplications ? 1 : stream.threads();
}

void linear_float(Stream& stream, const TensorView& x, const PackedLinear& packed,
                  LinearActivation activation, const TensorView& out) {
  auto& storage = packed.storage<LinearStorage>();
  const int64_t rows = x.rows();
  const bool dense = dense_rows(x) && dense_rows(out);
  if (takes_pairs(packed, storage, rows)) {
    LinearPanels::run_pairs(stream, storage.values(), x, packed.bias(), activation, out);
    return;
  }
  if (takes_panels(storage, rows, dense)) {
    LinearPanels::run(stream, storage.values(), x, packed.bias(), activation, out);
    return;
  }
  MatmulKey key{.rows = rows, .threads = 1, .activation = activation, .out = out.dtype};
  if (dense && !stream.deterministic()) {
    key.threads = fast_threads(stream, packed, rows);
    run_rows(packed, storage, key, row_of(x, 0), const_cast<char*>(row_of(out, 0)));
    return;
  }
  parallel_tasks(stream, (rows + kFixedRows - 1) / kFixedRows, [&](int64_t i) {
    MatmulKey block = key;
    const int64_t begin = i * kFixedRows;
    block.rows = std::min(kFixedRows, rows - begin);
    if (dense)
      run_rows(packed, storage, block, row_of(x, begin), const_cast<char*>(row_of(out, begin)));
    else
      run_staged(packed, storage, block, x, out, begin);
  });
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  if (packed.format() == WeightFormat::kInt8 && has_int8_dot_products())
    return linear_int8_onednn(stream, x, packed, activation, out);
  if (packed.format() == WeightFormat::kFile) {
    auto& storage = packed.storage<LinearStorage>();
    return storage.with_values(stream, packed.dtype(), [&](const void* values) {
      storage.expanded = values;
      linear_float(stream, x, packed, activation, out);
    });
  }
  if (packed.format() != WeightFormat::kCompute)
    return linear_8bit(stream, x, packed, activation, out);
  linear_float(stream, x, packed, activation, out);
}

}  // namespace

std::string linear_implementation(const Stream& stream, const PackedLinear& packed, int64_t rows,
                                  LinearActivation activation, DType out) {
  const auto& storage = packed.storage<LinearStorage>();
  if (takes_panels(storage, rows, true) || takes_pairs(packed, storage, rows)) return "panels";
  const int threads = stream.deterministic() ? 1 : fast_threads(stream, packed, rows);
  return make_matmul(packed, storage.vendor_desc, {rows, threads, activation, out}).implementation;
}

void fill_linear_onednn(Ops& ops) {
  ops.linear = {.pack_linear = pack_linear, .pack_stored = pack_stored, .linear = linear};
}

}  // namespace weft::cpu
