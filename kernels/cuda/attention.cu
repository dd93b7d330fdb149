// Attention's dispatch: the library takes large plain problems, also with one key more, the flash
// kernels the rest, and attention_gemm heads that are too large for them. If there are too few
// blocks to fill the device, the keys are cut in parts; a list of more segments than a launch takes
// is cut in several launches. Each part leaves its state in f32, and merge_states combines them.
// The way a call is cut only depends on its shape and on the device's size.
#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cuda/attention_paths.h"
#include "kernels/cuda/flash.h"
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/merge_key.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/cuda/tables.h"

namespace weft::cuda {

namespace {

std::atomic<AttentionPath> chosen_path{AttentionPath::kAuto};

// The input is `parts` states [N, A, E] with lse [A, N], `stride` floats apart.
struct MergeArgs {
  const float* states;
  int64_t stride;
  int parts, queries, heads, size;
  void* out;
  int64_t out_row, out_head;
  bool f32_out;
  float* lse;  // or null
  int64_t lse_row, lse_head;
};

constexpr int kMergeWarps = 4;

// One warp merges one query of one head. The result may overwrite the first state.
__global__ void __launch_bounds__(32 * kMergeWarps)
    merge_states(const __grid_constant__ MergeArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  if (index >= static_cast<int64_t>(args.queries) * args.heads) return;
  const int query = static_cast<int>(index / args.heads),
            head = static_cast<int>(index % args.heads);
  const int64_t elements = static_cast<int64_t>(args.queries) * args.heads * args.size;
  const float* const lse =
      args.states + elements + static_cast<int64_t>(head) * args.queries + query;
  float top = minus_infinity();
  for (int p = 0; p < args.parts; ++p) top = fmaxf(top, lse[p * args.stride]);
  const float base = top == minus_infinity() ? 0.0f : top;
  float total = 0;
  for (int p = 0; p < args.parts; ++p) total += expf(lse[p * args.stride] - base);
  const float share = total == 0 ? 0.0f : 1.0f / total;
  for (int e = lane; e < args.size; e += 32) {
    const float* from = args.states + index * args.size + e;
    float sum = 0;
    for (int p = 0; p < args.parts; ++p)
      sum = fmaf(expf(lse[p * args.stride] - base), from[p * args.stride], sum);
    sum *= share;
    const int64_t to = query * args.out_row + head * args.out_head + e;
    if (args.f32_out)
      static_cast<float*>(args.out)[to] = sum;
    else
      static_cast<bf16*>(args.out)[to] = to_bf16(sum);
  }
  __syncwarp();  // all lanes have read what lane 0 may now overwrite
  if (lane == 0 && args.lse)
    args.lse[head * args.lse_head + query * args.lse_row] =
        total == 0 ? minus_infinity() : top + logf(total);
}

// True if 16-byte pieces of all rows are aligned. Strides of dimensions with one element do not
// matter.
bool whole_pieces(const TensorView& x) {
  const int64_t piece = 16 / static_cast<int64_t>(size_of(x.dtype));
  return x[2] % piece == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         (x[0] <= 1 || x.stride[0] % piece == 0) && (x[1] <= 1 || x.stride[1] % piece == 0);
}

// Fills everything but segments, parts and the output.
FlashArgs flash_args(const AttentionArgs& args) {
  const TensorView& q = args.q;
  FlashArgs flash{};
  flash.q = q.data;
  flash.q_row = q.stride[0];
  flash.q_head = q.stride[1];
  if (args.bias) {
    flash.bias = args.bias.as<float>();
    flash.bias_head = args.bias.stride[0];
    flash.bias_row = args.bias.stride[1];
    flash.bias_key = args.bias.stride[2];
  }
  flash.scale = args.scale * kLog2E;
  flash.queries = static_cast<int>(q[0]);
  flash.share = 1;
  flash.size = static_cast<int>(q[2]);
  flash.causal = args.causal;
  flash.aligned = whole_pieces(q);
  return flash;
}

// Returns the number of key/value heads; every query head counts as one if there is no segment.
int64_t kv_heads_of(const AttentionArgs& args) {
  return args.segments.empty() ? args.q[1] : args.segments[0].k[1];
}

// True if `next` lies right after `last` in memory, so that both are one stretch of keys.
bool follows(const AttentionArgs& args, const KVSegment& last, const KVSegment& next) {
  const auto adjacent = [](const TensorView& a, const TensorView& b) {
    return a.stride == b.stride &&
           static_cast<const char*>(a.data) +
                   a[0] * a.stride[0] * static_cast<int64_t>(size_of(a.dtype)) ==
               b.data;
  };
  return adjacent(last.k, next.k) && adjacent(last.v, next.v) && last.log_bias == next.log_bias &&
         (!args.causal || last.position + last.k[0] == next.position);
}

// Fills the launch's list from segment `next` on, whose first key is number `key` of all; advances
// both past the segments taken. The tiles are counted later, when their size is chosen.
void take_segments(const AttentionArgs& args, size_t& next, int64_t& key, FlashArgs& flash) {
  flash.segments = 0;
  const KVSegment* last = nullptr;
  for (; next < args.segments.size(); ++next) {
    const KVSegment& segment = args.segments[next];
    const int64_t keys = segment.k[0];
    if (keys == 0) continue;
    if (last && follows(args, *last, segment)) {
      flash.segment[flash.segments - 1].keys += static_cast<int>(keys);
    } else {
      if (flash.segments == kFlashSegments) return;
      const int64_t diagonal =
          std::clamp(args.query_position - segment.position, -args.q[0], int64_t{1} << 30);
      flash.segment[flash.segments++] = {.k = segment.k.data,
                                         .v = segment.v.data,
                                         .k_row = segment.k.stride[0],
                                         .k_head = segment.k.stride[1],
                                         .v_row = segment.v.stride[0],
                                         .v_head = segment.v.stride[1],
                                         .keys = static_cast<int>(keys),
                                         .first_key = static_cast<int>(key),
                                         .first_tile = 0,
                                         .diagonal = static_cast<int>(diagonal),
                                         .shift = segment.log_bias * kLog2E};
    }
    flash.aligned = flash.aligned && whole_pieces(segment.k) && whole_pieces(segment.v);
    key += keys;
    last = &segment;
  }
}

int64_t keys_of(const AttentionArgs& args) {
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) keys += segment.k[0];
  return keys;
}
// Counts the multiplications of q k^T, masked ones included.
int64_t multiplications(const AttentionArgs& args) { return args.q.count() * keys_of(args); }

// The kernels for a call that the library does not take.
enum class Kernels : uint8_t { kFlash, kSm90, kGemm };

Kernels kernels_of(const Stream& stream, const AttentionArgs& args) {
  if (args.format == AttentionFormat::kFp8) return Kernels::kSm90;
  const TensorView& q = args.q;
  if (q[2] > kFlashLargest) return Kernels::kGemm;
  CudaQueue& queue = cuda_queue(stream);
  // Narrower heads would be padded to the largest, and calls with few queries only read keys and
  // values; both stay with the other flash kernels.
  const bool sm90 = queue.properties().major == 9 && q.dtype == DType::kBF16 && !args.bias &&
                    q[2] <= kFlashSm90LargestHead && 2 * q[2] > kFlashSm90LargestHead &&
                    q[0] >= kLibraryRows &&
                    multiplications(args) >= queue.part<AttentionPaths>().sm90_from;
  return sm90 ? Kernels::kSm90 : Kernels::kFlash;
}

bool library_takes(const Stream& stream, const AttentionArgs& args, const FlashArgs& flash) {
  const TensorView &q = args.q, &out = args.out;
  const AttentionPaths& paths = cuda_queue(stream).part<AttentionPaths>();
  return args.format == AttentionFormat::kCompute && q.dtype == DType::kBF16 &&
         out.dtype == DType::kBF16 && !args.bias && flash.segment[0].shift == 0 && !args.causal &&
         flash.aligned && whole_pieces(out) && (!args.lse || args.lse.contiguous()) &&
         args.scale > 0 && q[2] <= kLibraryLargest && q[0] >= kLibraryRows &&
         multiplications(args) >= paths.library_from &&
         (kernels_of(stream, args) != Kernels::kSm90 || keys_of(args) < paths.long_from);
}

// The library takes one stretch of keys. merge_key adds a second one of a single key.
bool by_library(Stream& stream, const AttentionArgs& args, const FlashArgs& flash) {
  const bool one_more = flash.segments == 2 && flash.segment[1].keys == 1;
  if ((flash.segments != 1 && !one_more) || !library_takes(stream, args, flash)) return false;
  const TensorView &q = args.q, &out = args.out;
  const FlashSegment &segment = flash.segment[0], &key = flash.segment[1];
  const size_t lse_bytes = one_more ? attention_lse_bytes(q[0], q[1]) : 0;
  float* lse = args.lse ? args.lse.as<float>() : nullptr;
  if (one_more && !lse) lse = static_cast<float*>(cuda_queue(stream).scratch(lse_bytes));
  if (!sdpa(stream, {.queries = q[0],
                     .keys = segment.keys,
                     .heads = q[1],
                     .kv_heads = kv_heads_of(args),
                     .size = q[2],
                     .q = q.data,
                     .k = segment.k,
                     .v = segment.v,
                     .out = out.data,
                     .lse = lse,
                     .q_row = q.stride[0],
                     .q_head = q.stride[1],
                     .k_row = segment.k_row,
                     .k_head = segment.k_head,
                     .v_row = segment.v_row,
                     .v_head = segment.v_head,
                     .out_row = out.stride[0],
                     .out_head = out.stride[1],
                     .scale = args.scale,
                     .scratch_used = lse_bytes}))
    return false;
  if (one_more)
    merge_key(stream, {.queries = q[0],
                       .heads = q[1],
                       .kv_heads = kv_heads_of(args),
                       .size = q[2],
                       .q = q.data,
                       .k = key.k,
                       .v = key.v,
                       .out = out.data,
                       .lse = lse,
                       .q_row = q.stride[0],
                       .q_head = q.stride[1],
                       .k_head = key.k_head,
                       .v_head = key.v_head,
                       .out_row = out.stride[0],
                       .out_head = out.stride[1],
                       .scale = args.scale,
                       .log_bias = key.shift / kLog2E});
  return true;
}

// One call of the flash kernels, launch by launch.
class FlashCall {
 public:
  FlashCall(Stream& stream, const AttentionArgs& args)
      : stream_(stream),
        args_(args),
        kv_heads_(static_cast<int>(kv_heads_of(args))),
        kernels_(kernels_of(stream, args)) {}

  // `flash` holds the first launch's segments; `next` and `key` lie after them.
  void run(FlashArgs flash, size_t next, int64_t key) {
    AttentionPaths& paths = cuda_queue(stream_).part<AttentionPaths>();
    ++(by_gemm() ? paths.gemm : sm90() ? paths.sm90 : paths.flash);
    paths.last = sm90() ? AttentionPath::kWgmma : AttentionPath::kMma;
    flash.share = static_cast<int>(args_.q[1]) / kv_heads_;
    for (int merged = 0;;) {
      const bool last = next == args_.segments.size();
      rows_ = rows_of(flash);
      cut(flash);
      if (flash.parts > 1) ++paths.split;
      const int states = merged + flash.parts;
      const bool direct = last && states == 1;
      if (direct)
        aim_at_result(flash);
      else
        aim_at_state(flash, merged, states);
      launch_one(flash, direct ? 0 : states);
      if (!direct && (last || states > 1)) merge(states, last);
      if (last) return;
      merged = 1;
      ++paths.chained;
      take_segments(args_, next, key, flash);
    }
  }

 private:
  bool sm90() const { return kernels_ == Kernels::kSm90; }
  bool by_gemm() const { return kernels_ == Kernels::kGemm; }
  int64_t elements() const { return args_.q.count(); }
  int64_t stride() const { return flash_state_floats(args_.q[0], args_.q[1], args_.q[2]); }
  int multiprocessors() const { return cuda_queue(stream_).properties().multiprocessors; }

  int64_t blocks(const FlashArgs& flash, FlashRows rows) const {
    return blocks_for(flash.rows(), static_cast<int>(rows)) * int64_t{kv_heads_};
  }

  // Large blocks read keys and values less often, and two of them fill a multiprocessor; small
  // blocks fill the device sooner.
  FlashRows rows_of(const FlashArgs& flash) const {
    if (sm90()) return FlashRows::k128;
    return static_cast<FlashRows>(
        flash_rows(args_.q.dtype, flash.rows(), kv_heads_, multiprocessors()));
  }

  // Counts the tiles, and cuts them in parts if blocks alone do not fill the device.
  void cut(FlashArgs& flash) const {
    const int rows = static_cast<int>(rows_);
    const int keys = by_gemm() ? kAttentionGemmTile
                     : sm90()  ? kFlashSm90Tile
                               : flash_tile_keys(args_.q.dtype, rows, flash.size);
    flash.tiles = 0;
    for (int s = 0; s < flash.segments; ++s) {
      flash.segment[s].first_tile = flash.tiles;
      flash.tiles += (flash.segment[s].keys + keys - 1) / keys;
    }
    const int64_t parts = flash_parts(blocks(flash, rows_), flash.tiles,
                                      int64_t{multiprocessors()} * flash_blocks(rows, sm90()));
    flash.parts = by_gemm() ? 1 : static_cast<int>(parts);
  }

  // The scratch begins with `states` states in f32.
  void launch_one(const FlashArgs& flash, int states) const {
    const DType dtype = args_.q.dtype;
    const size_t used = static_cast<size_t>(states * stride()) * sizeof(float);
    if (by_gemm())
      attention_gemm(stream_, dtype, kv_heads_, flash, used);
    else if (sm90())
      launch_flash_sm90(stream_, dtype, args_.format, kv_heads_, flash, used);
    else
      launch_flash(stream_, dtype, rows_, kv_heads_, flash);
  }

  void aim_at_result(FlashArgs& flash) const {
    const TensorView &out = args_.out, &lse = args_.lse;
    flash.out = out.data;
    flash.out_row = out.stride[0];
    flash.out_head = out.stride[1];
    flash.f32_out = out.dtype == DType::kF32;
    flash.lse = lse ? lse.as<float>() : nullptr;
    flash.lse_head = lse.stride[0];
    flash.lse_row = lse.stride[1];
  }

  // Directs the output to `states` states in the queue's scratch, from number `first` on.
  void aim_at_state(FlashArgs& flash, int first, int states) {
    states_ = static_cast<float*>(
        cuda_queue(stream_).scratch(static_cast<size_t>(states * stride()) * sizeof(float)));
    float* const state = states_ + first * stride();
    flash.out = state;
    flash.out_row = args_.q[1] * args_.q[2];
    flash.out_head = args_.q[2];
    flash.f32_out = true;
    flash.lse = state + elements();
    flash.lse_head = args_.q[0];
    flash.lse_row = 1;
    flash.out_part = flash.lse_part = stride();
  }

  // Merges all states into the result, or into the first of them.
  void merge(int states, bool last) const {
    FlashArgs to{};
    if (last) {
      aim_at_result(to);
    } else {
      to.out = states_;
      to.out_row = args_.q[1] * args_.q[2];
      to.out_head = args_.q[2];
      to.f32_out = true;
      to.lse = states_ + elements();
      to.lse_head = args_.q[0];
      to.lse_row = 1;
    }
    const MergeArgs merge{.states = states_,
                          .stride = stride(),
                          .parts = states,
                          .queries = static_cast<int>(args_.q[0]),
                          .heads = static_cast<int>(args_.q[1]),
                          .size = static_cast<int>(args_.q[2]),
                          .out = to.out,
                          .out_row = to.out_row,
                          .out_head = to.out_head,
                          .f32_out = to.f32_out,
                          .lse = to.lse,
                          .lse_row = to.lse_row,
                          .lse_head = to.lse_head};
    launch(stream_,
           {.grid = dim3(blocks_for(args_.q[0] * args_.q[1], kMergeWarps)),
            .block = dim3(32 * kMergeWarps)},
           merge_states, merge);
  }

  Stream& stream_;
  const AttentionArgs& args_;
  int kv_heads_;
  Kernels kernels_;
  FlashRows rows_ = FlashRows::k64;
  float* states_ = nullptr;
};

void attention(Stream& stream, const AttentionArgs& args) {
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) keys += segment.k[0];
  CHECK(args.q[0] * args.q[1] < int64_t{1} << 30 && keys < int64_t{1} << 30, "q",
        args.q.to_string_shape(), "keys", keys);
  if (args.format == AttentionFormat::kFp8 && cuda_queue(stream).properties().major != 9)
    throw Error(ErrorKind::kUsage,
                "--attention is fp8, but " + cuda_queue(stream).properties().name +
                    " cannot compute it; legal: compute capability 9.0 (Hopper)");
  FlashArgs flash = flash_args(args);
  size_t next = 0;
  int64_t key = 0;
  take_segments(args, next, key, flash);
  if (next == args.segments.size() && by_library(stream, args, flash)) {
    AttentionPaths& paths = cuda_queue(stream).part<AttentionPaths>();
    ++paths.library;
    paths.last = AttentionPath::kLibrary;
    return;
  }
  FlashCall(stream, args).run(flash, next, key);
}

}  // namespace

void launch_flash(const Stream& stream, DType dtype, FlashRows rows, int kv_heads,
                  const FlashArgs& args) {
  if (dtype == DType::kF32) return flash_f32(stream, kv_heads, args);
  if (args.size <= 64) return flash_bf16_64(stream, rows, kv_heads, args);
  if (args.size <= 96) return flash_bf16_96(stream, rows, kv_heads, args);
  if (args.size <= 128) return flash_bf16_128(stream, rows, kv_heads, args);
  flash_bf16_256(stream, rows, kv_heads, args);
}

void fill_attention(Ops& ops) { ops.attention.attention = attention; }

AttentionPaths::AttentionPaths(CudaQueue&) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  switch (chosen_path) {
    case AttentionPath::kAuto:
      return;
    case AttentionPath::kLibrary:
      library_from = 0, long_from = kNever;
      break;
    case AttentionPath::kWgmma:
      library_from = kNever, sm90_from = 0;
      break;
    case AttentionPath::kMma:
      library_from = sm90_from = kNever;
      break;
  }
}

}  // namespace weft::cuda

namespace weft {

const char* to_string(AttentionPath path) {
  constexpr const char* kNames[] = {"auto", "library", "wgmma", "mma"};
  return kNames[static_cast<size_t>(path)];
}

void set_cuda_attention_path(AttentionPath path) { cuda::chosen_path = path; }

AttentionPath last_cuda_attention_path(const Stream& stream) {
  return cuda_queue(stream).part<cuda::AttentionPaths>().last;
}

}  // namespace weft
