#include "parallel/tag.h"

#include "kernels/check.h"

namespace weft {

namespace {

constexpr const char* kNames[] = {"control",   "text",     "hidden", "heads-in", "heads-out",
                                  "key-value", "query",    "state",  "partial",  "statistic",
                                  "gathered",  "velocity", "latent", "halo",     "frames"};
static_assert(std::size(kNames) == static_cast<size_t>(Payload::kCount));

// The widths of a tag's fields, from the highest bit down.
constexpr int kGroupBits = 8, kKindBits = 5, kBranchBits = 2, kStepBits = 16, kLayerBits = 12,
              kSegmentBits = 20;

uint64_t field(uint64_t bits, int value, int width, const char* name) {
  CHECK(value >= 0 && value < (1 << width), name, value);
  return bits << width | static_cast<uint64_t>(value);
}

int take(uint64_t& bits, int width) {
  const int value = static_cast<int>(bits & ((uint64_t{1} << width) - 1));
  bits >>= width;
  return value;
}

}  // namespace

std::string_view to_string(Payload kind) { return kNames[static_cast<int>(kind)]; }

uint64_t Tag::bits(int group) const {
  uint64_t bits = field(0, group, kGroupBits, "group");
  bits = field(bits, static_cast<int>(kind), kKindBits, "kind");
  bits = field(bits, branch, kBranchBits, "branch");
  bits = field(bits, step, kStepBits, "step");
  bits = field(bits, layer, kLayerBits, "layer");
  return field(bits, segment, kSegmentBits, "segment");
}

std::string to_string(const Tag& tag) { return tag_text(tag.bits(0)); }

std::string tag_text(uint64_t bits) {
  const int segment = take(bits, kSegmentBits), layer = take(bits, kLayerBits),
            step = take(bits, kStepBits), branch = take(bits, kBranchBits),
            kind = take(bits, kKindBits), group = take(bits, kGroupBits);
  return std::string(kind < static_cast<int>(Payload::kCount) ? kNames[kind] : "?") + " step " +
         std::to_string(step) + " branch " + std::to_string(branch) + " layer " +
         std::to_string(layer) + " segment " + std::to_string(segment) + " group " +
         std::to_string(group);
}

Payload payload_of(uint64_t bits) {
  bits >>= kSegmentBits + kLayerBits + kStepBits + kBranchBits;
  return static_cast<Payload>(take(bits, kKindBits));
}

}  // namespace weft
