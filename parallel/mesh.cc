#include "parallel/mesh.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "kernels/check.h"

namespace weft {

namespace {

constexpr const char* kAxisNames[kAxes] = {"data",  "cfg",  "step",       "layers",  "clip",
                                           "patch", "ring", "token_ring", "ulysses", "tensor"};
static_assert(kAxisNames[kAxes - 1] != nullptr, "every axis has a name");
// Keys of a layout that are no axes. A value below `least` means that the key is not given.
struct StageKey {
  const char* name;
  int Layout::*value;
  int least;
};
constexpr StageKey kStageKeys[] = {{"text_ranks", &Layout::text_ranks, 1},
                                   {"vae_ranks", &Layout::vae_ranks, 1},
                                   {"decode_rank", &Layout::decode_rank, 0}};

std::string list_of_keys() {
  std::string text;
  for (const char* name : kAxisNames) text += (text.empty() ? "" : ", ") + std::string(name);
  for (const StageKey& key : kStageKeys) text += ", " + std::string(key.name);
  return text;
}

void collect(Layout& layout, int axis, int left, const LayoutLimits& limits,
             std::vector<Layout>& out) {
  if (axis == kAxes) {
    if (left == 1 && refuse(layout, limits).empty()) out.push_back(layout);
    return;
  }
  for (int parts = 1; parts <= left; ++parts) {
    if (left % parts) continue;
    layout.parts[axis] = parts;
    collect(layout, axis + 1, left / parts, limits, out);
  }
  layout.parts[axis] = 1;
}

// "6 and 8": the next smaller and the next larger number of ranks that a layout can use.
std::string legal_counts(int ranks, const LayoutLimits& limits) {
  const auto legal = [&](int count) { return !legal_layouts(count, limits).empty(); };
  int fewer = ranks - 1, more = ranks + 1;
  const int most = std::max(2 * ranks, static_cast<int>(limits.method.patches()));
  while (fewer > 0 && !legal(fewer)) --fewer;
  while (more < most && !legal(more)) ++more;
  const std::string below = fewer > 0 ? std::to_string(fewer) : "";
  const std::string above = legal(more) ? std::to_string(more) : "";
  return below + (below.empty() || above.empty() ? "" : " and ") + above;
}

[[noreturn]] void refuse_with_list(const std::string& text, const std::string& why, int ranks,
                                   const LayoutLimits& limits) {
  const std::string count = std::to_string(ranks);
  std::string legal;
  for (const Layout& layout : legal_layouts(ranks, limits))
    legal += (legal.empty() ? " " : " | ") + to_string(layout);
  throw Error(ErrorKind::kUsage,
              "--layout is '" + text + "': " + why +
                  (legal.empty() ? "; no layout of " + count + " ranks can serve this job; legal " +
                                       "numbers of ranks near it: " + legal_counts(ranks, limits)
                                 : "; legal for " + count + " ranks:" + legal));
}

// Prefers guidance, which costs no bytes per layer, then clips, which exchange some frames alone,
// then Ulysses, which sends the fewest, then the ring, which overlaps with attention, and layers
// last.
void sort_by_preference(std::vector<Layout>& layouts) {
  const auto score = [](const Layout& layout) {
    return std::array{layout[Axis::kCfg],  -layout[Axis::kTensor], -layout[Axis::kLayers],
                      layout[Axis::kClip], layout[Axis::kUlysses], layout[Axis::kRing],
                      -layout[Axis::kData]};
  };
  std::ranges::stable_sort(layouts, std::greater(), score);
}

}  // namespace

const char* to_string(Axis axis) { return kAxisNames[static_cast<int>(axis)]; }

int Layout::ranks() const {
  int product = 1;
  for (int n : parts) product *= n;
  return product;
}

int Layout::sequence() const {
  int product = 1;
  for (const Axis axis : kSequenceAxes) product *= (*this)[axis];
  return product;
}

std::vector<Axis> sequence_axes(std::vector<Axis> others) {
  others.insert(others.end(), std::begin(kSequenceAxes), std::end(kSequenceAxes));
  return others;
}

void Layout::take_stages(const Layout& from) {
  for (const StageKey& key : kStageKeys) this->*key.value = from.*key.value;
}

std::string to_string(const Layout& layout) {
  std::string text;
  for (int axis = 0; axis < kAxes; ++axis)
    if (layout.parts[axis] > 1)
      text += (text.empty() ? "" : ",") + std::string(kAxisNames[axis]) + "=" +
              std::to_string(layout.parts[axis]);
  for (const StageKey& key : kStageKeys)
    if (layout.*key.value >= key.least && !text.empty())
      text += "," + std::string(key.name) + "=" + std::to_string(layout.*key.value);
  return text.empty() ? "one rank" : text;
}

namespace {

// Why the ranks of the stages that are no axes cannot work, or "".
std::string refuse_stages(const Layout& layout, bool language) {
  const int members = layout.ranks() / layout[Axis::kData];
  for (const StageKey& key : kStageKeys) {
    const int value = layout.*key.value, most = members - 1 + key.least;
    if (value >= key.least && language)
      return std::string(key.name) + " is " + std::to_string(value) +
             ", but a language model has no such stage";
    if (value > most)
      return std::string(key.name) + " is " + std::to_string(value) +
             ", legal: " + std::to_string(key.least) + " to " + std::to_string(most) +
             ", the ranks of one result";
  }
  if (layout.decode_rank >= 0 && layout.vae_ranks > 1)
    return "vae_ranks is " + std::to_string(layout.vae_ranks) +
           ", but decode_rank gives the VAE to one rank; legal with it: 1";
  return "";
}

std::string refuse_clips(const Layout& layout, const LayoutLimits& limits) {
  const int clips = layout[Axis::kClip], shares = layout[Axis::kUlysses];
  const int64_t frames = limits.method.of(SplitRule::kClips);
  const auto is = [](Axis axis, int parts) {
    return std::string(to_string(axis)) + "=" + std::to_string(parts);
  };
  if (frames == 0)
    return clips == 1 ? ""
                      : is(Axis::kClip, clips) +
                            " where attention sees all frames: clips need --method clips";
  for (const Axis axis : {Axis::kRing, Axis::kTokenRing})
    if (layout[axis] > 1)
      return is(axis, layout[axis]) +
             " under --method clips, whose attention sees some frames alone: nothing goes around; "
             "clip and ulysses split its tokens";
  if (clips > frames)
    return "clip is " + std::to_string(clips) + ", but there are " + std::to_string(frames) +
           " latent frames";
  const int64_t least = frames / clips * (limits.tokens / frames);
  if (limits.tokens > 0 && shares > least)
    return "ulysses is " + std::to_string(shares) + ", but the shortest clip has " +
           std::to_string(least) + " tokens";
  return "";
}

std::string refuse_patches(const Layout& layout, const LayoutLimits& limits) {
  const int parts = layout[Axis::kPatch];
  const int64_t patches = limits.method.patches(),
                tokens = limits.method.of(SplitRule::kStagedPatches);
  if (tokens > 0 && layout[Axis::kTokenRing] > 1)
    return "token_ring=" + std::to_string(layout[Axis::kTokenRing]) +
           " under --method pipefusion, whose patches see kept keys; legal: 1 (ring and ulysses "
           "split a patch)";
  if (tokens > 0 && layout.sequence() > tokens)
    return "ring * ulysses is " + std::to_string(layout.sequence()) +
           ", but the smallest patch has " + std::to_string(tokens) + " tokens";
  if (patches == 0)
    return parts == 1 ? ""
                      : "patch=" + std::to_string(parts) +
                            " where attention sees the present keys of all tokens: there are no "
                            "displaced patches; legal: 1";
  for (const Axis axis : kSequenceAxes)
    if (axis != Axis::kPatch && layout[axis] > 1)
      return std::string(to_string(axis)) + "=" + std::to_string(layout[axis]) +
             " beside displaced patches, whose tokens the patch axis alone splits; legal: 1";
  if (limits.method.rule == SplitRule::kPatchEach && parts != patches)
    return "patch is " + std::to_string(parts) + ", but each of the " + std::to_string(patches) +
           " patches has text rows of its own, which takes a rank each; legal: " +
           std::to_string(patches);
  if (parts > patches)
    return "patch is " + std::to_string(parts) + ", but there are " + std::to_string(patches) +
           " patches";
  return "";
}

std::string refuse_steps(const Layout& layout, const LayoutLimits& limits) {
  const int parts = layout[Axis::kStep];
  const int64_t steps = limits.method.of(SplitRule::kStream);
  if (steps == 0)
    return parts == 1 ? ""
                      : "step=" + std::to_string(parts) +
                            " where every step waits for the one before: steps side by side need "
                            "the blocks of a stream; legal: 1";
  for (const Axis axis : kSequenceAxes)
    if (layout[axis] > 1 && axis != Axis::kUlysses)
      return std::string(to_string(axis)) + "=" + std::to_string(layout[axis]) +
             " splits the keys of a stream's blocks, which a window needs whole; legal: 1 (step, "
             "layers" +
             (limits.whole_width ? "" : ", tensor") + " and ulysses split a stream)";
  if (layout[Axis::kUlysses] > 1 && layout[Axis::kLayers] > 1)
    return "ulysses=" + std::to_string(layout[Axis::kUlysses]) +
           " beside layers=" + std::to_string(layout[Axis::kLayers]) +
           ": the stages of a stream pass on the hidden rows of whole blocks; legal: one of them";
  if (parts > steps)
    return "step is " + std::to_string(parts) + ", but there are " + std::to_string(steps) +
           " steps";
  return "";
}

// Decoding meanwhile is the work of one rank, and the text is encoded on one, so that the bits of a
// result do not depend on how many there are.
void take_one_rank_stages(Layout& layout) {
  if (layout.text_ranks == 0) layout.text_ranks = 1;
  if (layout.decode_rank < 0 && layout.vae_ranks == 0) layout.decode_rank = 0;
}

// The groups of heads that share keys.
int64_t groups_of(const LayoutLimits& limits) {
  return limits.kv_heads > 0 ? limits.kv_heads : limits.heads;
}

// Why the layout cuts blocks in which weights are stored, or "".
std::string refuse_blocks(const Layout& layout, const LayoutLimits& limits) {
  const int parts = layout[Axis::kTensor];
  const LayoutLimits::Stored& stored = limits.stored;
  const auto cut = [&](const char* what, int64_t count, int64_t groups, int64_t size,
                       int64_t block) {
    for (int part = 0; part < parts && count >= parts; ++part)
      if (const int64_t end = partition_heads(count, groups, parts, part).q.end * size; end % block)
        return "tensor=" + std::to_string(parts) + " cuts the " + what + " at column " +
               std::to_string(end) + ", but the weights are stored in blocks of " +
               std::to_string(block) + " columns";
    return std::string();
  };
  const std::string heads =
      cut("heads", limits.heads, groups_of(limits), stored.head_size, stored.head_block);
  return heads.empty() ? cut("feed-forward", limits.ffn, limits.ffn, 1, stored.ffn_block) : heads;
}

// Why the layout splits what the job does not let be split, or "".
std::string refuse_split(const Layout& layout, const LayoutLimits& limits) {
  if (layout[Axis::kCfg] > 2)
    return "cfg is " + std::to_string(layout[Axis::kCfg]) + ", legal: 1, 2";
  if (layout[Axis::kCfg] == 2 && !limits.guided)
    return "cfg=2 where guidance is off: there is one branch to compute";
  if (layout[Axis::kTensor] > 1 && limits.whole_width)
    return "tensor=" + std::to_string(layout[Axis::kTensor]) +
           " splits the width, which neither 8-bit weights (their scales would be others) nor "
           "weft stream can; legal: 1";
  if (layout[Axis::kLayers] > 1 && limits.whole_depth)
    return "layers=" + std::to_string(layout[Axis::kLayers]) +
           " splits the blocks, but TeaCache needs the embedded rows after the last one, and this "
           "model embeds before the first alone; legal: 1, or another cache";
  if (const std::string why = refuse_blocks(layout, limits); !why.empty()) return why;
  if (const std::string why = refuse_clips(layout, limits); !why.empty()) return why;
  if (const std::string why = refuse_patches(layout, limits); !why.empty()) return why;
  if (const std::string why = refuse_steps(layout, limits); !why.empty()) return why;
  if (limits.method.rule != SplitRule::kBlocks) return "";
  for (const Axis ring : {Axis::kRing, Axis::kTokenRing})
    if (layout[ring] > 1)
      return std::string(to_string(ring)) + "=" + std::to_string(layout[ring]) +
             " splits the frames of a block, whose keys other blocks need whole; legal: 1";
  if (layout.vae_ranks > 1)
    return "vae_ranks is " + std::to_string(layout.vae_ranks) +
           ", but one rank decodes the blocks as they are done; legal: 1";
  return "";
}

}  // namespace

std::string refuse(const Layout& layout, const LayoutLimits& limits) {
  if (const std::string why = refuse_split(layout, limits); !why.empty()) return why;
  const auto too_many = [&](const std::string& what, int64_t parts, int64_t have,
                            const char* things) {
    return have > 0 && parts > have ? what + " is " + std::to_string(parts) + ", but there are " +
                                          std::to_string(have) + " " + things
                                    : std::string();
  };
  std::string sequence;  // "ring * token_ring * ulysses"
  for (const Axis axis : kSequenceAxes) {
    if (axis == Axis::kClip && limits.method.of(SplitRule::kClips) == 0) continue;
    if (axis == Axis::kPatch && limits.method.patches() == 0) continue;
    sequence += (sequence.empty() ? "" : " * ") + std::string(to_string(axis));
    for (const Axis other : kSequenceAxes)
      if (axis < other && other < Axis::kUlysses && layout[axis] > 1 && layout[other] > 1)
        return std::string(to_string(axis)) + " and " + to_string(other) +
               " are two ways of one split: one of them must be 1";
  }
  // A tensor rank's heads are split again over this many ranks.
  const bool decodes = limits.decodes;
  if (const std::string why = refuse_stages(layout, decodes); !why.empty()) return why;
  const int shares = decodes ? layout.sequence() : layout[Axis::kUlysses];
  const std::string split_again = decodes ? sequence : "ulysses";
  const int64_t width_parts = int64_t{layout[Axis::kTensor]} * (decodes ? layout.sequence() : 1);
  for (const std::string& why :
       {too_many(split_again + " * tensor", int64_t{shares} * layout[Axis::kTensor], limits.heads,
                 "heads"),
        too_many("layers", layout[Axis::kLayers], limits.layers, "layers"),
        too_many(decodes ? split_again + " * tensor" : "tensor", width_parts, limits.ffn,
                 "feed-forward columns"),
        too_many(split_again + " * tensor", width_parts, limits.vocabulary, "vocabulary entries"),
        too_many(sequence, layout.sequence(), limits.tokens, "tokens"),
        too_many("data", layout[Axis::kData], limits.requests, "requests")})
    if (!why.empty()) return why;
  // Heads may be uneven: every tensor rank needs a head for each of the ranks that split it again.
  const int parts = layout[Axis::kTensor];
  int64_t fewest = limits.heads;
  for (int part = 0; limits.heads > 0 && part < parts; ++part)
    fewest =
        std::min(fewest, partition_heads(limits.heads, groups_of(limits), parts, part).q.size());
  if (limits.heads > 0 && fewest < shares)
    return "tensor=" + std::to_string(layout[Axis::kTensor]) + " leaves a rank with " +
           std::to_string(fewest) + " heads for " + split_again + "=" + std::to_string(shares);
  return "";
}

std::vector<Layout> legal_layouts(int ranks, const LayoutLimits& limits) {
  std::vector<Layout> out;
  Layout layout;
  collect(layout, 0, ranks, limits, out);
  return out;
}

std::vector<Layout> with_stage_ranks(const Layout& layout, int Layout::*stage) {
  std::vector<Layout> out{layout};
  const bool one_decodes = stage == &Layout::vae_ranks && layout.decode_rank >= 0;
  if (layout.*stage > 0 || one_decodes) return out;
  const int members = layout.ranks() / layout[Axis::kData];
  for (const int ranks : {std::max(members / 2, 2), 2, 1}) {
    if (ranks >= members || out.back().*stage == ranks) continue;
    out.push_back(layout);
    out.back().*stage = ranks;
  }
  return out;
}

namespace {

// The keys and values of "key=n,...", in order. Errors name `whole`, the text that it is part of.
std::vector<std::pair<std::string, int>> parse_pairs(const std::string& whole,
                                                     const std::string& pairs) {
  std::vector<std::pair<std::string, int>> out;
  for (size_t at = 0; at <= pairs.size();) {
    const size_t comma = std::min(pairs.find(',', at), pairs.size());
    const std::string pair = pairs.substr(at, comma - at);
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, equals),
                      value = pair.substr(std::min(equals + 1, pair.size()));
    int parts = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parts);
    const auto stage = std::ranges::find(kStageKeys, key, &StageKey::name);
    const bool known =
        stage != std::end(kStageKeys) ||
        std::find(std::begin(kAxisNames), std::end(kAxisNames), key) != std::end(kAxisNames);
    const int least = stage == std::end(kStageKeys) ? 1 : stage->least;
    if (error != std::errc() || end != value.data() + value.size() || parts < least ||
        parts > 4096 || !known)
      throw Error(ErrorKind::kUsage, "--layout is '" + whole + "': '" + pair +
                                         "' is not legal: key=n with n >= 1 (decode_rank: 0) and "
                                         "a key of " +
                                         list_of_keys());
    for (const auto& [given, n] : out)
      if (given == key)
        throw Error(ErrorKind::kUsage, "--layout is '" + whole + "': " + key + " stands twice");
    out.emplace_back(key, parts);
    at = comma + 1;
  }
  return out;
}

}  // namespace

std::vector<Layout> parse_layouts(const std::string& text, int ranks, const LayoutLimits& limits) {
  CHECK(ranks > 0, "ranks", ranks);
  const std::string first = text.substr(0, text.find(','));
  const bool chosen = first != "auto" && first != "all" && !text.empty();
  Layout given;
  if (chosen || text.size() > first.size())
    for (const auto& [key, n] : parse_pairs(text, chosen ? text : text.substr(first.size() + 1))) {
      const auto axis =
          std::find(std::begin(kAxisNames), std::end(kAxisNames), key) - std::begin(kAxisNames);
      if (axis < kAxes && !chosen)
        throw Error(ErrorKind::kUsage, "--layout is '" + text + "': " + key + " beside " + first);
      if (axis < kAxes) given.parts[axis] = n;
      for (const StageKey& stage : kStageKeys)
        if (stage.name == key) given.*stage.value = n;
    }
  if (given.ranks() != ranks && chosen)
    refuse_with_list(text,
                     "the product of its axes is " + std::to_string(given.ranks()) +
                         ", there are " + std::to_string(ranks) + " ranks",
                     ranks, limits);
  std::vector<Layout> layouts{given};
  const bool blocks = limits.method.rule == SplitRule::kBlocks;
  if (!chosen) layouts = legal_layouts(ranks, limits);
  std::string why = ranks == 1 ? refuse(Layout{}, limits) : "nothing fits";
  std::erase_if(layouts, [&](Layout& layout) {
    layout.take_stages(given);
    if (blocks && ranks > 1) take_one_rank_stages(layout);
    const std::string fault = refuse(layout, limits);
    if (!fault.empty()) why = fault;
    return !fault.empty();
  });
  if (layouts.empty()) refuse_with_list(text, why, ranks, limits);
  sort_by_preference(layouts);
  // Blocks of whole frames go through the stages one after the other, so these cost the least.
  if (blocks)
    std::ranges::stable_sort(layouts, std::greater(),
                             [](const Layout& layout) { return layout[Axis::kLayers]; });
  return layouts;
}

Layout parse_layout(const std::string& text, int ranks, const LayoutLimits& limits) {
  if (text.substr(0, text.find(',')) == "all")
    throw Error(ErrorKind::kUsage, "--layout is '" + text + "': all is for weft plan alone");
  return parse_layouts(text, ranks, limits).front();
}

int Mesh::at(Axis axis, int rank) const {
  CHECK(rank >= 0 && rank < layout_.ranks(), "rank", rank);
  for (int i = kAxes - 1; i > static_cast<int>(axis); --i) rank /= layout_.parts[i];
  return rank % layout_[axis];
}

int Mesh::rank_at(std::array<int, kAxes> coordinates) const {
  int rank = 0;
  for (int i = 0; i < kAxes; ++i) {
    CHECK(coordinates[i] >= 0 && coordinates[i] < layout_.parts[i], kAxisNames[i], coordinates[i]);
    rank = rank * layout_.parts[i] + coordinates[i];
  }
  return rank;
}

std::vector<int> Mesh::along(const std::vector<Axis>& axes, int rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < layout_.ranks(); ++other) {
    bool same = true;
    for (int i = 0; i < kAxes; ++i) {
      const Axis axis = static_cast<Axis>(i);
      if (std::find(axes.begin(), axes.end(), axis) == axes.end())
        same &= at(axis, other) == at(axis, rank);
    }
    if (same) ranks.push_back(other);
  }
  return ranks;
}

int Mesh::sequence_index(int rank) const {
  int index = 0;
  for (const Axis axis : kSequenceAxes) index = index * layout_[axis] + at(axis, rank);
  return index;
}

}  // namespace weft
