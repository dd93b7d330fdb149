#pragma once
// Layout (how many ways each axis is split) and Mesh (where a rank stands in it).
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace weft {

// From the slowest varying to the fastest: rank = (((data * C + cfg) * S + step) * L + layers) * ..
enum class Axis : uint8_t {
  kData,
  kCfg,
  kStep,
  kLayers,
  kClip,
  kPatch,
  kRing,
  kTokenRing,
  kUlysses,
  kTensor,
  kCount
};
inline constexpr int kAxes = static_cast<int>(Axis::kCount);
const char* to_string(Axis axis);  // the key of --layout
// The axes that split the tokens. All but Ulysses cut them into blocks, each by a method of its own
// (methods/mixer_factory.cc), so a layout has at most one of them. A Ulysses group shares a block.
// Clips are cut between latent frames, displaced patches where the job says.
inline constexpr Axis kSequenceAxes[] = {Axis::kClip, Axis::kPatch, Axis::kRing, Axis::kTokenRing,
                                         Axis::kUlysses};
// `others` and these axes.
std::vector<Axis> sequence_axes(std::vector<Axis> others = {});

struct Layout {
  std::array<int, kAxes> parts;
  // The first ranks of a replica that share the text encoder's width and the VAE's rows; 0: as many
  // as there can be. On slow links few ranks, on one host, are faster.
  int text_ranks = 0, vae_ranks = 0;
  int decode_rank = -1;  // the rank of a replica that alone decodes; -1: the vae_ranks
  Layout() { parts.fill(1); }
  int operator[](Axis axis) const { return parts[static_cast<int>(axis)]; }
  int& operator[](Axis axis) { return parts[static_cast<int>(axis)]; }
  int ranks() const;
  int sequence() const;  // ranks among which the tokens of one forward are split
  int blocks() const { return sequence() / (*this)[Axis::kUlysses]; }  // blocks of tokens
  // Takes the ranks of the stages that are no axes: text_ranks, vae_ranks and decode_rank.
  void take_stages(const Layout& from);
  auto operator<=>(const Layout&) const = default;
};
std::string to_string(const Layout& layout);  // "cfg=2,ulysses=2,text_ranks=1"; "one rank"

// A rule of a job's method for the split of its tokens. The axes clip, patch and step have no
// meaning under rules that do not name them, and must be 1.
enum class SplitRule : uint8_t {
  kAllTokens,  // attention sees all tokens
  kClips,      // it is cut into clips of `count` latent frames, which rings cannot serve
  kPatches,    // it is displaced among `count` patches, which the patch axis alone splits
  kPatchEach,  // the same, and a rank holds one of them, because each has text of its own
  // Patches are computed one after the other, and `count` is the tokens of the smallest, whose rows
  // Ulysses and rings split. Their keys stay, so a token ring does not serve.
  kStagedPatches,
  kBlocks,  // of whole frames: ring and token_ring must be 1, and one rank decodes
  // A stream's `count` denoising steps, which the step axis splits; nothing but layers, tensor and
  // ulysses may stand beside it.
  kStream
};
struct MethodLimit {
  SplitRule rule = SplitRule::kAllTokens;
  int64_t count = 0;

  int64_t of(SplitRule one) const { return rule == one ? count : 0; }  // 0 under another rule
  int64_t patches() const { return of(SplitRule::kPatches) + of(SplitRule::kPatchEach); }
};

// The sizes that bound how a job can be split; 0 sets no bound.
struct LayoutLimits {
  int64_t heads = 0, layers = 0, tokens = 0, ffn = 0;
  int64_t kv_heads = 0;  // that the heads share, in whole groups; 0: every head has its own
  int64_t requests = 1;  // bounds the data axis
  MethodLimit method{};
  bool guided = true;        // false: cfg must be 1
  bool whole_width = false;  // true: tensor must be 1
  bool whole_depth = false;  // true: layers must be 1
  // The columns at whose multiples alone the width may be cut, because weights are stored in blocks
  // of so many: the columns of the heads, of `head_size` each, and the columns of the feed-forward.
  struct Stored {
    int64_t head_size = 1, head_block = 1, ffn_block = 1;
  } stored{};
  bool decodes = false;    // the ranks that split a long pass by tokens split one token by heads
  int64_t vocabulary = 0;  // rows of the output layer, split like the feed-forward columns
};

// Why the layout cannot work for the job, or "".
std::string refuse(const Layout& layout, const LayoutLimits& limits);
// Every layout of exactly `ranks` ranks that can, by the order of Axis.
std::vector<Layout> legal_layouts(int ranks, const LayoutLimits& limits);
// The layout with every number of ranks for a stage, text_ranks or vae_ranks, that --layout auto
// compares: itself, and where it leaves the number open, half of a replica's ranks, two and one. A
// decode_rank leaves nothing of vae_ranks open.
std::vector<Layout> with_stage_ranks(const Layout& layout, int Layout::*stage);
// "auto" or "key=n,...", where text_ranks, vae_ranks and decode_rank are keys too and may follow
// "auto".
// Error(kUsage) that names the fault and lists every legal factorisation where the product is not
// `ranks` or the layout cannot work. auto: guidance first, then Ulysses as far as the heads go,
// ring beyond, layers last.
Layout parse_layout(const std::string& text, int ranks, const LayoutLimits& limits);
// Every layout that the text allows, the preferred first: "auto" and "all" allow every legal one.
std::vector<Layout> parse_layouts(const std::string& text, int ranks, const LayoutLimits& limits);

class Mesh {
 public:
  explicit Mesh(const Layout& layout) : layout_(layout) {}
  const Layout& layout() const { return layout_; }
  int at(Axis axis, int rank) const;  // the coordinate
  // The ranks that differ from `rank` along these axes alone, in rank order, `rank` among them.
  std::vector<int> along(const std::vector<Axis>& axes, int rank) const;
  int rank_at(std::array<int, kAxes> coordinates) const;
  // Index among the ranks that share one forward's tokens: by block, Ulysses fastest.
  int sequence_index(int rank) const;

 private:
  Layout layout_;
};

}  // namespace weft
