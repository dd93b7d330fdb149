// ask_cuda_libraries() uses small problems, so that an answer takes no longer than preparing a
// plan.
#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sdpa.h"

namespace weft {

namespace {

constexpr int64_t kTokens = 128, kHeads = 2, kHead = 128, kWidth = kHeads * kHead;
constexpr int64_t kSide = 8, kChannels = 32, kFrames = 3;

class Questions {
 public:
  explicit Questions(Stream& stream) : stream_(stream) {}

  void ask_gemm(DType dtype, DType out, bool scales) {
    const Tensor x(dtype, {kTokens, kWidth}, stream_.device()),
        w(dtype, {kWidth, kWidth}, stream_.device()),
        result(out, {kTokens, kWidth}, stream_.device()),
        factors(DType::kF32, {kWidth}, stream_.device());
    const float* const factor = scales ? factors.as<float>() : nullptr;
    const bool taken = cuda::gemm(
        stream_, {.m = kTokens,
                  .n = kWidth,
                  .k = kWidth,
                  .x = {.data = x.view().data, .dtype = dtype, .row_stride = kWidth},
                  .w = {.data = w.view().data, .dtype = dtype, .row_stride = kWidth},
                  .out = {.data = result.view().data, .dtype = out, .row_stride = kWidth},
                  .x_scales = factor,
                  .w_scales = factor});
    stream_.sync();
    note("linear",
         std::string(to_string(dtype)) + " to " + std::string(to_string(out)) +
             (scales ? " with scales of rows" : ""),
         taken, cuda::gemm_refusal(stream_));
  }

  void ask_sdpa(bool lse) {
    const auto heads = [&] {
      return Tensor(DType::kBF16, {kTokens, kHeads, kHead}, stream_.device());
    };
    const Tensor q = heads(), k = heads(), v = heads(), out = heads(),
                 sums(DType::kF32, {kHeads, kTokens}, stream_.device());
    const bool taken = cuda::sdpa(stream_, {.queries = kTokens,
                                            .keys = kTokens,
                                            .heads = kHeads,
                                            .kv_heads = kHeads,
                                            .size = kHead,
                                            .q = q.view().data,
                                            .k = k.view().data,
                                            .v = v.view().data,
                                            .out = out.view().data,
                                            .lse = lse ? sums.as<float>() : nullptr,
                                            .q_row = kWidth,
                                            .q_head = kHead,
                                            .k_row = kWidth,
                                            .k_head = kHead,
                                            .v_row = kWidth,
                                            .v_head = kHead,
                                            .out_row = kWidth,
                                            .out_head = kHead,
                                            .scale = 0.125f});
    stream_.sync();
    note("attention", std::string("bf16, heads of 128") + (lse ? ", log-sum-exp" : ""), taken,
         cuda::sdpa_refusal(stream_));
  }

  void ask_conv(DType dtype, bool bias) {
    const Tensor x(dtype, {kFrames, kSide, kSide, kChannels}, stream_.device()),
        weight(dtype, {kChannels, 27 * kChannels}, stream_.device()),
        out(dtype, {kFrames, kSide, kSide, kChannels}, stream_.device()),
        added(DType::kF32, {kChannels}, stream_.device());
    const bool taken = cuda::library_conv(
        stream_, {.dtype = dtype,
                  .x_shape = {kFrames, kSide, kSide, kChannels},
                  .out_shape = {kFrames, kSide, kSide, kChannels},
                  .kernel = {3, 3, 3},
                  .args = {.stride = {1, 1, 1}, .pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}},
                  .x = x.view().data,
                  .weight = weight.view().data,
                  .bias = bias ? added.as<float>() : nullptr,
                  .out = out.view().data});
    stream_.sync();
    note("conv", std::string(to_string(dtype)) + ", 3x3x3, causal" + (bias ? ", bias" : ""), taken,
         cuda::library_conv_refusal(stream_));
  }

  std::vector<LibraryAnswer> answers() { return std::move(answers_); }

 private:
  void note(const char* family, std::string what, bool taken, const std::string& refusal) {
    answers_.push_back({.family = family,
                        .what = std::move(what),
                        .refusal = taken             ? ""
                                   : refusal.empty() ? "it gave no reason"
                                                     : refusal});
  }

  Stream& stream_;
  std::vector<LibraryAnswer> answers_;
};

}  // namespace

std::vector<LibraryAnswer> ask_cuda_libraries(Stream& stream) {
  Questions questions(stream);
  questions.ask_gemm(DType::kBF16, DType::kBF16, false);
  questions.ask_gemm(DType::kF32, DType::kF32, false);
  questions.ask_gemm(DType::kI8, DType::kI32, false);
  questions.ask_gemm(DType::kF8E4M3, DType::kBF16, true);
  for (const bool lse : {false, true}) questions.ask_sdpa(lse);
  questions.ask_conv(DType::kBF16, true);
  questions.ask_conv(DType::kF32, false);
  return questions.answers();
}

}  // namespace weft
