// gemm.h by cuBLASLt. The library's matrices are column-major, ours are row-major: out^T = w x^T,
// with w transposed and k innermost in both ("TN"), which every kernel of the library accepts.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kernels/cuda/bits_sum.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/queue.h"

namespace weft::cuda {

namespace {

void check_cublas(cublasStatus_t status, const char* call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    check_cuda(cudaErrorMemoryAllocation, call, __FILE__, line);
  throw Error(ErrorKind::kInternal, std::string(__FILE__) + ":" + std::to_string(line) + ": " +
                                        call + ": " + cublasLtGetStatusString(status));
}
#define WEFT_CUBLAS_CHECK(call) check_cublas((call), #call, __LINE__)

constexpr int kCandidates = 6;
constexpr int kTimedRuns = 3;
// A shape is timed at this call. Shapes that come once, such as a prompt's, are not worth it.
constexpr int kTimedCall = 3;
// Only results of at least so many elements are timed. Of fewer, two algorithms that add in another
// order could have the same bits once, and other bits in a later call.
constexpr int64_t kTimedElements = 1 << 20;

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kI8:
      return CUDA_R_8I;
    case DType::kI32:
      return CUDA_R_32I;
    default:
      CHECK(dtype == DType::kF8E4M3, "dtype", to_string(dtype));
      return CUDA_R_8F_E4M3;
  }
}

// Returns the power of two that an address is a multiple of, up to the largest that a kernel asks
// for.
uint32_t alignment(const void* data) {
  constexpr int kMost = 4;  // 16 bytes
  return 1u << std::min(kMost, std::countr_zero(reinterpret_cast<uintptr_t>(data)));
}

// A Key is everything a plan depends on.
using Key = std::array<int64_t, 20>;

Key key_of(const Gemm& g) {
  return {g.m,
          g.n,
          g.k,
          g.batch,
          static_cast<int64_t>(g.x.dtype),
          static_cast<int64_t>(g.out.dtype),
          g.x.row_stride,
          g.w.row_stride,
          g.out.row_stride,
          g.x.batch_stride,
          g.w.batch_stride,
          g.out.batch_stride,
          alignment(g.x.data),
          alignment(g.w.data),
          alignment(g.out.data),
          g.bias != nullptr,
          g.gelu,
          g.add,
          g.x_scales != nullptr,
          g.one_scale};
}

// A Plan holds the descriptors of a shape and the library's algorithms for it, best first.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Gemm& g) {
    try {
      describe(g);
      find(handle, g);
    } catch (...) {
      destroy();
      throw;
    }
  }
  Plan(Plan&& other) noexcept { *this = std::move(other); }
  Plan& operator=(Plan&& other) noexcept {
    std::swap(operation_, other.operation_);
    std::swap(layouts_, other.layouts_);
    std::swap(ways_, other.ways_);
    std::swap(calls_, other.calls_);
    std::swap(refusal_, other.refusal_);
    return *this;
  }
  ~Plan() { destroy(); }

  bool possible() const { return !ways_.empty(); }
  const std::string& refusal() const { return refusal_; }
  void run(cublasLtHandle_t handle, const Stream& stream, const Gemm& g, bool may_time);

 private:
  using Way = cublasLtMatmulHeuristicResult_t;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    WEFT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  }
  void describe(const Gemm& g);
  cublasLtMatrixLayout_t layout(const GemmMatrix& matrix, int64_t rows, int64_t columns,
                                int64_t batch);
  void find(cublasLtHandle_t handle, const Gemm& g);
  void point(const Gemm& g);
  void launch(cublasLtHandle_t handle, CudaQueue& queue, const Gemm& g, const Way& way);
  uint64_t bits(const Stream& stream, const Gemm& g);
  float seconds(cublasLtHandle_t handle, CudaQueue& queue, const Gemm& g, const Way& way);
  void choose(cublasLtHandle_t handle, const Stream& stream, const Gemm& g);
  void destroy() {
    for (cublasLtMatrixLayout_t layout : layouts_)
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (operation_) cublasLtMatmulDescDestroy(operation_);
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts_{};  // w, x, out
  std::vector<Way> ways_;
  std::string refusal_;  // set if the library has no algorithm
  int calls_ = 0;
};

cublasLtMatrixLayout_t Plan::layout(const GemmMatrix& matrix, int64_t rows, int64_t columns,
                                    int64_t batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type_of(matrix.dtype),
                                               static_cast<uint64_t>(rows),
                                               static_cast<uint64_t>(columns), matrix.row_stride));
  const auto count = static_cast<int32_t>(batch);
  WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                     &count, sizeof(count)));
  WEFT_CUBLAS_CHECK(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                       &matrix.batch_stride, sizeof(matrix.batch_stride)));
  return layout;
}

void Plan::describe(const Gemm& g) {
  const bool whole = g.x.dtype == DType::kI8;
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_,
                                             whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                             whole ? CUDA_R_32I : CUDA_R_32F));
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  // The library's GELU is the tanh form (TensorRT-LLM pull request 17693 relies on it).
  const auto plain = g.gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT;
  const auto with_bias = g.gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, g.bias ? with_bias : plain);
  if (g.x_scales) {
    const auto mode =
        static_cast<int32_t>(g.one_scale ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
                                         : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
  }
  layouts_ = {layout(g.w, g.k, g.n, g.batch), nullptr, nullptr};
  layouts_[1] = layout(g.x, g.k, g.m, g.batch);
  layouts_[2] = layout(g.out, g.n, g.m, g.batch);
}

void Plan::find(cublasLtHandle_t handle, const Gemm& g) {
  point(g);
  cublasLtMatmulPreference_t preference = nullptr;
  WEFT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmWorkspace});
  // Partial sums are added in f32, never in the type of the results.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.w.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.x.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(g.out.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.out.data));
  std::array<Way, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_, layouts_[0], layouts_[1], layouts_[2],
                                     layouts_[2], preference, kCandidates, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      status == CUBLAS_STATUS_ARCH_MISMATCH) {
    refusal_ = std::string("cublasLtMatmulAlgoGetHeuristic: ") + cublasLtGetStatusString(status);
    return;
  }
  WEFT_CUBLAS_CHECK(status);
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) ways_.push_back(found[i]);
  if (ways_.empty()) refusal_ = "cuBLASLt has no kernel for this shape";
}

void Plan::point(const Gemm& g) {
  if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
  if (!g.x_scales) return;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.w_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.x_scales);
}

char* workspace_of(CudaQueue& queue, const Gemm& g) {
  const size_t used = (g.scratch_used + 255) / 256 * 256;
  return static_cast<char*>(queue.scratch(used + kGemmWorkspace)) + used;
}

void Plan::launch(cublasLtHandle_t handle, CudaQueue& queue, const Gemm& g, const Way& way) {
  char* const workspace = workspace_of(queue, g);
  const float alpha = g.alpha, beta = g.add ? 1 : 0;
  const int32_t one = 1, zero = 0;
  const bool whole = g.x.dtype == DType::kI8;
  WEFT_CUBLAS_CHECK(cublasLtMatmul(
      handle, operation_, whole ? static_cast<const void*>(&one) : &alpha, g.w.data, layouts_[0],
      g.x.data, layouts_[1], whole ? static_cast<const void*>(&zero) : &beta, g.out.data,
      layouts_[2], g.out.data, layouts_[2], &way.algo, workspace, kGemmWorkspace, queue.stream()));
}

// Returns a hash of the result. Waits for the device.
uint64_t Plan::bits(const Stream& stream, const Gemm& g) {
  CudaQueue& queue = cuda_queue(stream);
  auto* const sum =
      reinterpret_cast<uint64_t*>(workspace_of(queue, g));  // the GEMM is done with it
  sum_bits(stream, g, sum);
  uint64_t host = 0;
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(&host, sum, sizeof(host), cudaMemcpyDeviceToHost, queue.stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(queue.stream()));
  return host;
}

float Plan::seconds(cublasLtHandle_t handle, CudaQueue& queue, const Gemm& g, const Way& way) {
  cudaEvent_t begin = nullptr, end = nullptr;
  WEFT_CUDA_CHECK(cudaEventCreate(&begin));
  WEFT_CUDA_CHECK(cudaEventCreate(&end));
  WEFT_CUDA_CHECK(cudaEventRecord(begin, queue.stream()));
  for (int run = 0; run < kTimedRuns; ++run) launch(handle, queue, g, way);
  WEFT_CUDA_CHECK(cudaEventRecord(end, queue.stream()));
  WEFT_CUDA_CHECK(cudaEventSynchronize(end));
  float elapsed = 0;
  WEFT_CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return elapsed;
}

// Times, on the call itself, the algorithms whose result has the bits of the first, and puts the
// fastest first: which one wins differs from run to run, and changes no result.
void Plan::choose(cublasLtHandle_t handle, const Stream& stream, const Gemm& g) {
  CudaQueue& queue = cuda_queue(stream);
  size_t fastest = 0;
  uint64_t first = 0;
  float least = 0;
  for (size_t i = 0; i < ways_.size(); ++i) {
    launch(handle, queue, g, ways_[i]);  // warms up
    const uint64_t found = bits(stream, g);
    if (i == 0) first = found;
    if (found != first) continue;
    const float elapsed = seconds(handle, queue, g, ways_[i]);
    if (i == 0 || elapsed < least) {
      least = elapsed;
      fastest = i;
    }
  }
  std::swap(ways_[0], ways_[fastest]);
  ways_.resize(1);
}

void Plan::run(cublasLtHandle_t handle, const Stream& stream, const Gemm& g, bool may_time) {
  point(g);
  if (++calls_ >= kTimedCall && ways_.size() > 1 && may_time && !g.add &&
      g.m * g.n * g.batch >= kTimedElements)
    choose(handle, stream, g);
  launch(handle, cuda_queue(stream), g, ways_[0]);
}

// The queue's library handle and plans.
struct Library {
  explicit Library(CudaQueue&) { WEFT_CUBLAS_CHECK(cublasLtCreate(&handle)); }
  ~Library() { cublasLtDestroy(handle); }
  cublasLtHandle_t handle = nullptr;
  PlanCache<Key, Plan> plans;
  std::string refusal;
};

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WEFT_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

bool gemm(const Stream& stream, const Gemm& g) {
  CudaQueue& queue = cuda_queue(stream);
  auto& library = queue.part<Library>();
  Plan& plan = library.plans.get(key_of(g), [&] { return Plan(library.handle, g); });
  if (!plan.possible()) {
    library.refusal = plan.refusal();
    return false;
  }
  plan.run(library.handle, stream, g, !stream.deterministic() && !is_captured(queue.stream()));
  return true;
}

std::string gemm_refusal(const Stream& stream) {
  return cuda_queue(stream).part<Library>().refusal;
}

}  // namespace weft::cuda
