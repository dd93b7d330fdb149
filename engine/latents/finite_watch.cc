#include "engine/latents/finite_watch.h"

#include <algorithm>

#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

constexpr int64_t kSlots = 256;  // one per watched result: every block, the embedding, the output

Tensor unset_slots(Stream& stream) {
  Tensor slots(DType::kI64, {kSlots});
  std::fill_n(slots.as<int64_t>(), kSlots, int64_t{-1});
  return on_device(stream, std::move(slots));
}

}  // namespace

void FiniteWatch::begin(Report report, Observer* also) {
  report_ = std::move(report);
  also_ = also;
  names_.clear();
}

void FiniteWatch::again(Report report) { report_ = std::move(report); }

void FiniteWatch::see(Context& context, const char* name, int index, const TensorView& value) {
  if (also_) also_->see(context, name, index, value);
  if (!value.contiguous()) return;
  const std::string where = index < 0 ? name : "block " + std::to_string(index);
  if (!context.stream.queue()) {
    if (first_non_finite(context.stream, value) >= 0) report_(where);
    return;
  }
  if (!slots_) slots_ = unset_slots(context.stream);
  const auto slot = static_cast<int64_t>(names_.size());
  CHECK(slot < kSlots, "results watched in one forward", slot);
  note_non_finite(context.stream, value, slots_.view().slice(0, slot, 1));
  names_.push_back(where);
}

void FiniteWatch::end(Stream& stream) {
  if (names_.empty()) return;
  const HostCopy found(stream, slots_);
  for (size_t slot = 0; slot < names_.size(); ++slot)
    if (found.view().as<int64_t>()[slot] >= 0) report_(names_[slot]);
}

}  // namespace weft
