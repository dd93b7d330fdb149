// Attention by oneDNN's GEMMs on blocks of queries and keys, with the online softmax between them.
// oneDNN uses the machine's matrix units (AMX tiles, bf16 dot products, wide f32 FMAs). The keys
// and values of some heads are packed once and stay in the cache while every block of their queries
// passes. The blocks follow from the numbers of queries and keys alone, so results do not depend on
// the number of threads.
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/panel_gemm.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

using dnnl::memory;

// Logits (512 KiB in f32), probabilities, a block of keys and one of values fit an L2 cache of 1 to
// 2 MiB.
constexpr int64_t kQueryRows = 256, kKeys = 512;
// Blocks are smaller under a mask, so that more of them are hidden entirely: 3/8 for 512 queries on
// as many keys.
constexpr int64_t kMaskedRows = 128, kMaskedKeys = 128;
constexpr int64_t kPackedBytes = int64_t{64} << 20;  // of heads packed together
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One of the two GEMMs of a block: its kernel, and the reorder that packs its right operand.
struct BlockGemm {
  OnednnCall call;
  dnnl::reorder pack;
  memory::desc from;
  size_t bytes = 0;  // of the packed operand, in whole cache lines
};

struct BlockKey {
  int64_t rows, keys, size;
  DType type;
  bool operator==(const BlockKey&) const = default;
};

// logits [rows, keys] = q [rows, E] k^T; sums [rows, E] += p [rows, keys] v.
struct Block {
  BlockGemm logits, sums;
  bool fast() const {
    return is_fast_implementation(logits.call.implementation) &&
           is_fast_implementation(sums.call.implementation);
  }
  size_t scratch_bytes() const {
    return std::max(logits.call.scratchpad.get_size(), sums.call.scratchpad.get_size());
  }
};

// `transposed`: the right operand is stored as [columns, depth].
BlockGemm make_gemm(int64_t rows, int64_t depth, int64_t columns, DType type, bool transposed,
                    bool add) {
  const memory::data_type element = onednn_type(type);
  BlockGemm gemm;
  OnednnCall& call = gemm.call;
  call.in = {{rows, depth}, element, memory::dims{depth, 1}};
  call.out = {{rows, columns}, memory::data_type::f32, memory::dims{columns, 1}};
  dnnl::post_ops after;
  if (add) after.append_sum(1);
  dnnl::primitive_attr attr;
  attr.set_post_ops(after);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const memory::desc any({depth, columns}, element, memory::format_tag::any);
  const dnnl::matmul::primitive_desc chosen({call.in, any, call.out}, attr, onednn_engine());
  call.implementation = chosen.impl_info_str();
  call.weight = chosen.weights_desc();
  call.scratchpad = chosen.scratchpad_desc();
  call.primitive = dnnl::matmul(chosen);
  gemm.from = {
      {depth, columns}, element, transposed ? memory::dims{1, depth} : memory::dims{columns, 1}};
  gemm.pack = dnnl::reorder(
      dnnl::reorder::primitive_desc(onednn_engine(), gemm.from, onednn_engine(), call.weight));
  gemm.bytes = (call.weight.get_size() + 63) / 64 * 64;
  return gemm;
}

std::shared_ptr<const Block> block_of(const BlockKey& key) {
  static OnednnCache<BlockKey, Block> cache;
  return cache.get(key, [&] {
    const OmpThreads one(1);
    return Block{make_gemm(key.rows, key.size, key.keys, key.type, true, false),
                 make_gemm(key.rows, key.keys, key.size, key.type, false, true)};
  });
}

// Returns the size of equal parts of at most `most`, rounded up to whole multiples of `unit`; the
// last part may be smaller.
int64_t part_of(int64_t all, int64_t most, int64_t unit) {
  const int64_t parts = (all + most - 1) / most;
  return std::min(all, ((all + parts - 1) / parts + unit - 1) / unit * unit);
}

// One call: its blocks, and the heads that are packed at present.
struct Job {
  const AttentionArgs* args;
  DType type;             // of the GEMMs' operands
  int64_t keys = 0;       // in all segments
  const int64_t* starts;  // first key of each segment, in the caller's scratch
  int64_t rows, columns;  // of a block; the last block of keys may be smaller
  std::shared_ptr<const Block> full, last;
  size_t head_bytes = 0;   // of one head's packed keys and values
  int64_t first_head = 0;  // the first packed key/value head
  char* packed = nullptr;
  const float* key_terms = nullptr;  // [keys] the segments' log_bias, or null

  int64_t blocks() const { return (keys + columns - 1) / columns; }
  const Block& block(int64_t b) const { return b + 1 < blocks() ? *full : *last; }
  int64_t width(int64_t b) const { return std::min(columns, keys - b * columns); }
  char* keys_of(int64_t head, int64_t b) const {
    return packed + (head - first_head) * head_bytes + b * (full->logits.bytes + full->sums.bytes);
  }
  char* values_of(int64_t head, int64_t b) const {
    return keys_of(head, b) + block(b).logits.bytes;
  }
};

Job make_job(const AttentionArgs& args, DType type) {
  Job job;
  job.args = &args;
  job.type = type;
  job.rows = part_of(args.q[0], args.causal ? kMaskedRows : kQueryRows, 16);
  int64_t* starts =
      thread_scratch<int64_t>(Scratch::kStarts, static_cast<int64_t>(args.segments.size()) + 1);
  job.keys = fill_starts(args.segments, starts);
  job.starts = starts;
  job.columns = part_of(job.keys, args.causal ? kMaskedKeys : kKeys, 64);
  const BlockKey key{job.rows, job.columns, args.q[2], type};
  job.full = block_of(key);
  job.last = block_of({key.rows, job.width(job.blocks() - 1), key.size, type});
  job.head_bytes = (job.blocks() - 1) * (job.full->logits.bytes + job.full->sums.bytes) +
                   job.last->logits.bytes + job.last->sums.bytes;
  return job;
}

// Copies one row of one head to `out` in the GEMM's operand type.
void load_row(const TensorView& x, int64_t row, int64_t head, DType type, void* out) {
  const int64_t size = x[2];
  const char* from = static_cast<const char*>(x.data) +
                     (row * x.stride[0] + head * x.stride[1]) * size_of(x.dtype);
  if (x.dtype == type)
    std::memcpy(out, from, size * size_of(type));
  else
    widen_bf16(reinterpret_cast<const bf16*>(from), size, static_cast<float*>(out));
}

// Returns keys [begin, begin + count) of all segments (or their values) as dense rows.
char* load_keys(const Job& job, TensorView KVSegment::*part, int64_t head, int64_t begin,
                int64_t count) {
  const int64_t row_bytes = job.args->q[2] * static_cast<int64_t>(size_of(job.type));
  char* dense = thread_scratch<char>(Scratch::kStageIn, job.columns * row_bytes);
  over_keys(job.args->segments, job.starts, begin, count, [&](const KeyRun& run) {
    for (int64_t j = 0; j < run.count; ++j)
      load_row(run.segment->*part, run.begin + j, head, job.type,
               dense + (run.column - begin + j) * row_bytes);
  });
  return dense;
}

void pack(const BlockGemm& gemm, char* dense, char* packed) {
  memory from(gemm.from, onednn_engine(), dense), to(gemm.call.weight, onednn_engine(), packed);
  gemm.pack.execute(onednn_stream(), from, to);
  onednn_stream().wait();
}

void pack_block(const Job& job, int64_t head, int64_t b) {
  const OmpThreads one(1);
  const int64_t begin = b * job.columns, count = job.width(b);
  pack(job.block(b).logits, load_keys(job, &KVSegment::k, head, begin, count),
       job.keys_of(head, b));
  pack(job.block(b).sums, load_keys(job, &KVSegment::v, head, begin, count),
       job.values_of(head, b));
}

// Says whether the mask shows all, some or none of the keys of block b to rows [row, row + count).
enum class Seen : uint8_t { kAll, kSome, kNone };
Seen seen_of(const Job& job, int64_t row, int64_t count, int64_t b) {
  const AttentionArgs& args = *job.args;
  if (!args.causal) return Seen::kAll;
  bool all = true, none = true;
  const int64_t first = args.query_position + row, last = first + count - 1;
  over_keys(args.segments, job.starts, b * job.columns, job.width(b), [&](const KeyRun& run) {
    const int64_t position = run.segment->position + run.begin;
    all &= position + run.count - 1 <= first;
    none &= position > last;
  });
  return all ? Seen::kAll : none ? Seen::kNone : Seen::kSome;
}

// Writes the terms to be added to the logits of the block of rows from `row` on against block b:
// the bias, the segments' log_bias, and -inf for keys after the query where a mask hides `some`.
void fill_terms(const Job& job, int64_t head, int64_t row, int64_t b, bool some, float* terms) {
  const AttentionArgs& args = *job.args;
  const int64_t count = std::min(job.rows, args.q[0] - row);
  const int64_t begin = b * job.columns, width = job.width(b);
  for (int64_t i = 0; i < count; ++i) {
    float* to = terms + i * width;
    for (int64_t j = 0; j < width; ++j) to[j] = job.key_terms ? job.key_terms[begin + j] : 0;
    if (args.bias) {
      const TensorView& bias = args.bias;
      const float* from = bias.as<float>() + head * bias.stride[0] + (row + i) * bias.stride[1] +
                          begin * bias.stride[2];
      for (int64_t j = 0; j < width; ++j) to[j] += from[j * bias.stride[2]];
    }
    if (!some) continue;
    over_keys(args.segments, job.starts, begin, width, [&](const KeyRun& run) {
      // From here on, the keys of the run lie after the query.
      const int64_t seen = args.query_position + row + i + 1 - run.segment->position - run.begin;
      float* keys = to + run.column - begin;
      std::fill(keys + std::clamp<int64_t>(seen, 0, run.count), keys + run.count, kMinusInfinity);
    });
  }
}

// Says what `rows` adds to the logits of rows [row, row + rows.rows) against block b, and which
// keys they see.
void set_terms(const Job& job, int64_t head, int64_t row, int64_t b, Seen seen,
               OnlineSoftmaxRows& rows) {
  const AttentionArgs& args = *job.args;
  const int64_t begin = b * job.columns;
  bool some = seen == Seen::kSome;
  // The keys of one segment that a query sees are the first of them.
  over_keys(args.segments, job.starts, begin, rows.keys, [&](const KeyRun& run) {
    if (!some || run.count < rows.keys) return;
    rows.first_seen = args.query_position + row + 1 - run.segment->position - run.begin;
    some = false;
  });
  if (args.bias || some) {
    float* terms = thread_scratch<float>(Scratch::kRowTerms, job.rows * job.columns);
    fill_terms(job, head, row, b, some, terms);
    rows.add = terms;
    rows.add_stride = rows.keys;
  } else if (job.key_terms) {
    rows.add = job.key_terms + begin;
  }
}

// The GEMMs of a block with the buffers of some query rows.
struct BoundBlock {
  BoundCall logits, sums;
};

// Computes query rows [row, row + job.rows) of one head against all keys. Rows past the last query
// are zeros.
void attend_rows(const Job& job, int64_t head, int64_t row) {
  const OmpThreads one(1);
  const AttentionArgs& args = *job.args;
  const int64_t size = args.q[2], count = std::min(job.rows, args.q[0] - row);
  const int64_t row_bytes = size * static_cast<int64_t>(size_of(job.type));
  const bool rounds = job.type == DType::kBF16;
  char* query = thread_scratch<char>(Scratch::kQuery, job.rows * row_bytes);
  float* logits = thread_scratch<float>(Scratch::kLogits, job.rows * job.columns);
  bf16* narrowed = rounds ? thread_scratch<bf16>(Scratch::kLeft, job.rows * job.columns) : nullptr;
  float* sums = thread_scratch<float>(Scratch::kSums, job.rows * size);
  float* top = thread_scratch<float>(Scratch::kState, 2 * job.rows);
  float* total = top + job.rows;
  for (int64_t i = 0; i < count; ++i)
    load_row(args.q, row + i, head, job.type, query + i * row_bytes);
  std::memset(query + count * row_bytes, 0, (job.rows - count) * row_bytes);
  std::fill_n(sums, job.rows * size, 0.0f);
  std::fill_n(top, job.rows, kMinusInfinity);
  std::fill_n(total, job.rows, 0.0f);
  void* const scratch = thread_scratch_bytes(
      Scratch::kVendor, std::max(job.full->scratch_bytes(), job.last->scratch_bytes()));
  const auto bind = [&](const Block& block) {
    return BoundBlock{
        {block.logits.call, query, logits, scratch},
        {block.sums.call, rounds ? static_cast<void*>(narrowed) : logits, sums, scratch}};
  };
  BoundBlock full = bind(*job.full), last = bind(*job.last);
  const int64_t kv_head = head / (args.q[1] / args.segments[0].k[1]);
  for (int64_t b = 0; b < job.blocks(); ++b) {
    const Seen seen = seen_of(job, row, count, b);
    if (seen == Seen::kNone) continue;
    BoundBlock& block = b + 1 < job.blocks() ? full : last;
    OnlineSoftmaxRows rows{.rows = count,
                           .keys = job.width(b),
                           .size = size,
                           .logits = logits,
                           .narrow = narrowed,
                           .scale = args.scale,
                           .sums = sums,
                           .top = top,
                           .total = total};
    set_terms(job, head, row, b, seen, rows);
    block.logits.run(job.keys_of(kv_head, b));
    online_softmax_rows(rows);
    if (rounds) std::fill_n(narrowed + count * rows.keys, (job.rows - count) * rows.keys, bf16{});
    block.sums.run(job.values_of(kv_head, b));
  }
  for (int64_t i = 0; i < count; ++i)
    store_attention_row(args, row + i, head, sums + i * size, top[i], total[i]);
}

void fill_key_terms(Job& job) {
  bool any = false;
  for (const KVSegment& segment : job.args->segments)
    any |= segment.log_bias != 0 && segment.k[0] > 0;
  if (!any) return;
  float* terms = thread_scratch<float>(Scratch::kKeyTerms, job.keys);
  job.key_terms = terms;
  for (const KVSegment& segment : job.args->segments)
    for (int64_t j = 0; j < segment.k[0]; ++j) *terms++ = segment.log_bias;
}

void run(Stream& stream, Job& job) {
  const AttentionArgs& args = *job.args;
  fill_key_terms(job);
  const int64_t heads = args.segments[0].k[1], share = args.q[1] / heads;
  const int64_t together =
      std::clamp<int64_t>(kPackedBytes / static_cast<int64_t>(job.head_bytes), 1, heads);
  job.packed = thread_scratch<char>(Scratch::kPacked, together * job.head_bytes);
  const int64_t row_blocks = (args.q[0] + job.rows - 1) / job.rows;
  for (int64_t head = 0; head < heads; head += together) {
    const int64_t count = std::min(together, heads - head);
    job.first_head = head;
    parallel_tasks(stream, count * job.blocks(),
                   [&](int64_t i) { pack_block(job, head + i / job.blocks(), i % job.blocks()); });
    // Heads are the outer loop, so that tasks close in time share keys and values in the cache.
    // The last rows come first: they see most keys under a mask, and small tasks end evenly.
    parallel_tasks(stream, count * share * row_blocks, [&](int64_t i) {
      const int64_t block = row_blocks - 1 - i % row_blocks;
      attend_rows(job, head * share + i / row_blocks, block * job.rows);
    });
  }
}

DType operand_type(DType dtype) {
  return dtype == DType::kBF16 && has_bf16_dot_products() ? DType::kBF16 : DType::kF32;
}

// For smaller calls packing costs more than the GEMMs gain.
bool large(const AttentionArgs& args) {
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) keys += segment.k[0];
  return args.format == AttentionFormat::kCompute && args.q[0] >= 64 && keys >= 64 &&
         args.q[2] >= 32 && args.q[2] % 16 == 0;
}

void attention(Stream& stream, const AttentionArgs& args) {
  if (large(args) && has_avx512()) {
    Job job = make_job(args, operand_type(args.q.dtype));
    if (job.full->fast() && job.last->fast()) {
      run(stream, job);
      return;
    }
  }
  attention_simd(stream, args);
}

}  // namespace

void attention_by_gemm(Stream& stream, const AttentionArgs& args, DType compute) {
  Job job = make_job(args, compute);
  run(stream, job);
}

bool takes_gemm_attention(const AttentionArgs& args) {
  if (!large(args) || !has_avx512()) return false;
  const Job job = make_job(args, operand_type(args.q.dtype));
  return job.full->fast() && job.last->fast();
}

void fill_attention_onednn(Ops& ops) { ops.attention.attention = attention; }

}  // namespace weft::cpu
