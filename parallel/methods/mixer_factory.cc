#include "parallel/methods/mixer_factory.h"

#include "kernels/check.h"
#include "parallel/methods/causal_balance.h"
#include "parallel/methods/ring.h"
#include "parallel/methods/token_ring.h"
#include "parallel/methods/ulysses.h"

namespace weft {

namespace {

// The blocks of tokens that the ranks of one axis hold, and the keys in each: those of earlier
// passes first.
struct Blocks {
  SequenceMap tokens, keys;
};

SequenceMap tokens_of_patch(const MixerDescription& description, int patch) {
  return PatchParts(*description.patches.pipefusion, description.tokens.size()).map(patch);
}

Blocks blocks_of(const MixerDescription& description) {
  const int ulysses = description.mesh.layout()[Axis::kUlysses];
  const SequenceMap tokens = description.tokens.blocks(ulysses);
  std::vector<TokenRanges> keys = description.held;
  keys.resize(tokens.size());
  for (int block = 0; block < tokens.size(); ++block) {
    keys[block].total = tokens[block].total;
    for (const Range& range : tokens[block].ranges) keys[block].append(range);
  }
  return {tokens, description.patches.pipefusion
                      ? tokens_of_patch(description, kAllPatches).blocks(ulysses)
                      : SequenceMap(std::move(keys))};
}

// A method that splits the tokens along one axis. The row that serves a description makes its
// mixer.
struct Method {
  Axis axis;
  bool (*serves)(const MixerDescription& description);
  std::unique_ptr<TokenMixer> (*make)(Communicator group, const Blocks& blocks);
};

bool light_seq(const MixerDescription& description) {
  return description.balance == RingBalance::kLightSeq;
}

template <class Mixer>
std::unique_ptr<TokenMixer> of_tokens(Communicator group, const Blocks& blocks) {
  return std::make_unique<Mixer>(std::move(group), blocks.tokens);
}

constexpr Method kMethods[] = {
    {.axis = Axis::kRing,
     .serves = [](const MixerDescription& description) { return !light_seq(description); },
     .make = [](Communicator group, const Blocks& blocks) -> std::unique_ptr<TokenMixer> {
       return std::make_unique<RingMixer>(std::move(group), blocks.tokens, blocks.keys);
     }},
    {.axis = Axis::kRing, .serves = light_seq, .make = of_tokens<LightSeqMixer>},
    {.axis = Axis::kTokenRing,
     .serves = [](const MixerDescription&) { return true; },
     .make = of_tokens<TokenRingMixer>},
};

// Null where no axis but Ulysses splits the tokens.
const Method* method_of(const MixerDescription& description) {
  for (const Method& method : kMethods)
    if (description.mesh.layout()[method.axis] > 1 && method.serves(description)) return &method;
  return nullptr;
}

ClipFrames clip_frames(const MixerDescription& description) {
  const SequenceMap clips = description.tokens.blocks(description.mesh.layout()[Axis::kUlysses]);
  return {clips, {clips.rows(), description.frames}, *description.dual_scope};
}

std::unique_ptr<TokenMixer> make_dual_scope(const MixerDescription& description,
                                            const MakeGroup& group) {
  std::optional<Communicator> clips;
  if (description.mesh.layout()[Axis::kClip] > 1)
    clips = group(description.mesh.along({Axis::kClip}, description.rank), 1);
  return std::make_unique<DualScopeMixer>(std::move(clips), clip_frames(description));
}

PatchRows patch_rows(const MixerDescription& description) {
  std::vector<Range> ranks;
  for (int rank = 0; rank < description.tokens.size(); ++rank)
    ranks.push_back(description.tokens[rank].ranges.at(0));
  return {*description.patches.displaced, ranks};
}

std::unique_ptr<TokenMixer> make_displaced(const MixerDescription& description,
                                           const MakeGroup& group) {
  std::optional<Communicator> patches;
  if (description.mesh.layout()[Axis::kPatch] > 1)
    patches = group(description.mesh.along({Axis::kPatch}, description.rank), 1);
  return std::make_unique<DisplacedMixer>(std::move(patches), patch_rows(description));
}

// The tokens of the Ulysses group of the rank.
SequenceMap ulysses_group(const MixerDescription& description) {
  const int ranks = description.mesh.layout()[Axis::kUlysses];
  const int index = description.mesh.sequence_index(description.rank);
  return description.tokens.slice(index / ranks * ranks, ranks);
}

std::unique_ptr<TokenMixer> in_ulysses(const MixerDescription& description, const MakeGroup& group,
                                       std::unique_ptr<TokenMixer> mixer) {
  const Mesh& mesh = description.mesh;
  if (mesh.layout()[Axis::kUlysses] == 1) return mixer;
  return std::make_unique<UlyssesMixer>(group(mesh.along({Axis::kUlysses}, description.rank), 0),
                                        ulysses_group(description), std::move(mixer));
}

MixerDescription of_patch(const MixerDescription& all, int patch) {
  MixerDescription one = all;
  one.tokens = tokens_of_patch(all, patch);
  return one;
}

std::unique_ptr<TokenMixer> make_patches(const MixerDescription& all, const MakeGroup& group) {
  CHECK(all.mesh.layout()[Axis::kTokenRing] == 1, "patches whose keys stay on a token ring");
  const PatchParts parts(*all.patches.pipefusion, all.tokens.size());
  const int ulysses = all.mesh.layout()[Axis::kUlysses],
            first = all.mesh.sequence_index(all.rank) / ulysses * ulysses;
  std::vector<std::vector<int64_t>> pieces(parts.patches());
  for (int patch = 1; patch <= parts.patches(); ++patch)
    for (int part = first; part < first + ulysses; ++part)
      pieces[patch - 1].push_back(parts.tokens(patch, part).size());
  const auto keys = std::make_shared<PatchKeys>(std::move(pieces));
  const Method* method = method_of(all);
  std::vector<std::unique_ptr<TokenMixer>> mixers;
  for (int patch = kAllPatches; patch <= parts.patches(); ++patch) {
    const MixerDescription one = of_patch(all, patch);
    std::unique_ptr<TokenMixer> inner = std::make_unique<FullMixer>();
    if (method)
      inner = method->make(group(all.mesh.along({method->axis}, all.rank), 1), blocks_of(one));
    mixers.push_back(
        in_ulysses(one, group, std::make_unique<PatchKeysMixer>(keys, std::move(inner))));
  }
  return std::make_unique<PatchMixer>(std::move(mixers));
}

}  // namespace

std::unique_ptr<TokenMixer> make_mixer(const MixerDescription& description,
                                       const MakeGroup& group) {
  const Mesh& mesh = description.mesh;
  CHECK(description.tokens.size() == mesh.layout().sequence(), "tokens of",
        description.tokens.size(), "in", to_string(mesh.layout()));
  CHECK(mesh.layout()[Axis::kClip] == 1 || description.dual_scope, "clips of full attention");
  CHECK(mesh.layout()[Axis::kPatch] == 1 || description.patches.displaced,
        "patches of full attention");
  std::unique_ptr<TokenMixer> mixer =
      description.inner ? description.inner() : std::make_unique<FullMixer>();
  const Method* method = method_of(description);
  CHECK(!description.inner || (!method && !description.dual_scope && !description.patches),
        "a mixer inside rings, clips or patches");
  if (description.patches.pipefusion) return make_patches(description, group);
  if (description.patches.displaced) return make_displaced(description, group);
  if (description.dual_scope)
    mixer = make_dual_scope(description, group);
  else if (method)
    mixer = method->make(group(mesh.along({method->axis}, description.rank), 1),
                         blocks_of(description));
  return in_ulysses(description, group, std::move(mixer));
}

}  // namespace weft
