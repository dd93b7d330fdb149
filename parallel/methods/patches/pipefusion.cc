#include "parallel/methods/patches/pipefusion.h"

#include <numeric>

#include "kernels/check.h"
#include "parallel/context.h"
#include "parallel/methods/patches/displaced.h"

namespace weft {

namespace {
constexpr int kNoStep = -2;  // before every step, and before the one before the first
}  // namespace

std::string refuse(const PipeFusion& method, int64_t tokens) {
  return refuse(Displaced{.patches = method.patches, .warmup = method.warmup}, tokens);
}

PatchParts::PatchParts(const PipeFusion& method, int parts) : parts_(parts) {
  int64_t at = 0;
  for (const int64_t size : method.patches) {
    CHECK(size >= parts, "a patch of", size, "tokens among", parts, "ranks");
    patches_.push_back({at, at + size});
    at += size;
  }
}

Range PatchParts::tokens(int patch, int part) const {
  const Range& whole = patches_.at(patch - 1);
  const Range own = partition(whole.size(), parts_, part);
  return {whole.begin + own.begin, whole.begin + own.end};
}

SequenceMap PatchParts::map(int patch) const {
  std::vector<TokenRanges> map;
  for (int part = 0; part < parts_; ++part) {
    TokenRanges& held = map.emplace_back(TokenRanges{{}, patches_.back().end});
    for (int each = 1; each <= patches(); ++each)
      if (patch == kAllPatches || patch == each) held.append(tokens(each, part));
  }
  return SequenceMap(std::move(map));
}

PatchKeys::Layer& PatchKeys::layer(const Pass& pass, const Attend& attend) {
  Layer& layer = layers_[{pass.branch, attend.layer}];
  if (layer.k) return layer;
  int64_t rows = 0;
  for (const auto& patch : pieces_) rows += std::accumulate(patch.begin(), patch.end(), int64_t{0});
  for (Tensor* tensor : {&layer.k, &layer.v})
    *tensor = Tensor(attend.k.dtype, {rows, attend.k[1], attend.k[2]}, attend.k.device);
  layer.steps.resize(pieces_.size(), kNoStep);
  return layer;
}

ContextKV PatchKeys::begin(const Pass& pass, const Attend& attend) {
  Layer& layer = this->layer(pass, attend);
  const auto count = static_cast<int>(pieces_.size());
  const auto rows = [&](const Range& range) {
    return KVSegment{layer.k.view().slice(0, range.begin, range.size()),
                     layer.v.view().slice(0, range.begin, range.size()), range.begin};
  };
  ContextKV seen;
  std::vector<std::vector<KVSegment>> slots;  // by patch, then by piece
  Range before{}, behind{};                   // rows of other patches
  int64_t at = 0;
  for (int patch = 1; patch <= count; ++patch) {
    auto& own = slots.emplace_back();
    for (const int64_t piece : pieces_[patch - 1]) {
      own.push_back(rows({at, at + piece}));
      at += piece;
    }
    int& step = layer.steps[patch - 1];
    if (pass.micro == kAllPatches || pass.micro == patch) {
      step = pass.step;
      before.end = patch == pass.micro ? own.front().position : 0;
      behind.begin = at;
    } else {
      CHECK(step == pass.step - (patch > pass.micro), "patch", patch, "is of step", step, "in",
            to_string(pass));
    }
  }
  behind.end = at;
  for (const Range& range : {before, behind})
    if (range.size() > 0) seen.segments.push_back(rows(range));
  // The rows of a forward are those of one rank of the group after those of another.
  for (size_t piece = 0; piece < pieces_[0].size(); ++piece)
    for (int patch = 1; patch <= count; ++patch)
      if (pass.micro == kAllPatches || pass.micro == patch)
        seen.append_slots.push_back(slots[patch - 1][piece]);
  return seen;
}

void PatchKeysMixer::begin(const Pass& pass) {
  pass_ = pass;
  inner_->begin(pass);
}

void PatchKeysMixer::attend(Context& context, const Attend& attend) {
  CHECK(attend.mask == Mask::kFull && !attend.past, "patches with a mask or a past");
  ContextKV seen = keys_->begin(pass_, attend);
  Attend with_kept = attend;
  with_kept.past = &seen;
  inner_->attend(context, with_kept);
}

void PatchMixer::begin(const Pass& pass) {
  patch_ = pass.micro;
  mixers_.at(patch_)->begin(pass);
}

void PatchMixer::finish() {
  for (const auto& mixer : mixers_) mixer->finish();
}

}  // namespace weft
