#pragma once
// The video of a small segment queue by a double loop over turns and segments, without plans,
// ranks, slots and mixers of the product; with or without faults of careless implementations.
#include <map>

#include "tests/engine/queue_job.h"

namespace weft::test {

// Faults that a reference may have; with none of them it is right.
struct Planted {
  bool old_prefix_in_fill = false;  // the segment before has not performed its step yet
  bool old_rows_in_drain = false;   // a forward runs on rows of the step before
  bool bf16_latents = false;        // between steps
  bool one_solver = false;          // all segments share its history
  bool keep_at_switch = false;      // the other expert's keys are used
  bool keys_of_prefix = false;      // the kept frames are those before the segment's own
  bool keys_of_last_turn = false;   // the keys are not dropped at the end of a turn
  // These are faults of step caches.
  bool one_residual = false;     // all segments share what the transformer blocks added
  bool branches_share = false;   // so do the branches
  bool no_old_keys = false;      // keys of an earlier turn are not seen
  bool oldest_residual = false;  // it is kept at the first step alone
};

// Keeps the keys of every forward, by pass and layer.
class ReferenceMixer final : public TokenMixer {
 public:
  explicit ReferenceMixer(const QueueNumbers& n, const Planted& planted)
      : n_(n), planted_(planted) {}

  std::optional<Pass> right;  // the pass whose keys are seen

  void attend(Context& context, const Attend& a) override {
    const int64_t s = n_.height * n_.width / 4, c = n_.frames.context, e = a.k[2];
    kept_[{context.pass.branch, context.pass.segment, context.pass.step, a.layer}] = {copy_of(a.k),
                                                                                      copy_of(a.v)};
    apply_positions(context, a);
    std::vector<KVSegment> segments{{.k = a.k, .v = a.v}};
    Tensor k, v;
    if (right && c > 0) {
      const auto& [keys, values] =
          kept_.at({context.pass.branch, right->segment, right->step, a.layer});
      const int64_t first = planted_.keys_of_prefix ? 0 : c * s;
      k = copy_of(keys.view().slice(0, first, c * s));
      v = copy_of(values.view().slice(0, first, c * s));
      const Rope rope = make_rope({c, n_.height / 2, n_.width / 2}, {n_.frames.segment + c, 0, 0},
                                  static_cast<int>(e));
      apply_rope(context.stream, k, rope, 0, k);
      segments.push_back({.k = k, .v = v});
    }
    attention(context.stream, {.q = a.q, .segments = segments, .scale = a.scale, .out = a.out});
  }

 private:
  const QueueNumbers& n_;
  const Planted& planted_;
  std::map<std::array<int, 4>, std::pair<Tensor, Tensor>> kept_;
};

// The video by the closed form: turns ascend, segments descend.
inline Video closed_form(const QueueNumbers& n, const Planted& planted = {}) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 28);
  ToyAttentionExperts experts(n.experts, n.layers);
  const Sampler sampler = n.sampler();
  const auto steps = n.step_list();
  const auto grid = experts.traits().grid(n.frames.count(0), n.height, n.width);
  const int64_t s = grid[1] * grid[2], tokens = grid[0] * s, row = experts.traits().row();
  ReferenceMixer mixer(n, planted);
  SerialSeams seams;
  Video video;
  std::map<StepOf, Tensor> z;  // rows of a segment's own frames before a step
  std::map<int, SamplerState> states;
  std::map<std::array<int, 2>, std::vector<float>> residuals;  // by segment and branch
  for (int turn = 0; turn < n.steps + n.segments - 1; ++turn)
    for (int k = std::min(turn, n.segments - 1); k >= std::max(0, turn - n.steps + 1); --k) {
      const int i = turn - k;
      const int64_t own = n.frames.count(k) * s;
      if (i == 0) {
        z[{k, 0}] = Tensor(DType::kF32, {own, row});
        patchify(stream, n.noise(k), experts.traits().patch, TokenRanges::all(own), z[{k, 0}]);
      }
      // X = [the last C frames of the segment before, one step further | own frames]
      Tensor x(DType::kF32, {tokens, row});
      const bool drain = turn >= n.segments && planted.old_rows_in_drain && i == n.steps - 1;
      copy(stream, z.at({k, drain ? i - 1 : i}), x.view().slice(0, tokens - own, own));
      if (k > 0 && own < tokens) {
        const bool old = planted.old_prefix_in_fill && turn < 2;
        const TensorView before = z.at({k - 1, old ? i : i + 1});
        copy(stream, before.slice(0, before[0] - (tokens - own), tokens - own),
             x.view().slice(0, 0, tokens - own));
      }
      mixer.right = {};
      int from = i - 1;  // the step whose keys are the newest of the segment after it
      while (from > 0 && steps[from].skipped) --from;
      if (i > 0 && k + 1 < n.segments && !(planted.no_old_keys && from < i - 1) &&
          (planted.keep_at_switch || steps[i].model == steps[from].model))
        mixer.right = Pass{.segment = k + 1, .step = from};
      else if (planted.keys_of_last_turn && i == 0 && k > 0)
        mixer.right = Pass{.segment = k - 1, .step = 0};
      const Transformer& model = *experts.models[steps[i].model];
      std::vector<Tensor> velocities;
      for (int branch = 0; branch < steps[i].branches; ++branch) {
        float prompt = branch ? n.negative : n.prompt(k);
        Context context = seams.context(stream, arena, {.branch = branch, .segment = k, .step = i},
                                        TokenRanges::all(tokens));
        context.mixer.begin(context.pass);
        Context own_mixer{stream,       arena,        mixer,         context.reducer,
                          context.halo, context.pass, context.tokens};
        const auto conditioning =
            model.prepare(own_mixer, {.text = TensorView(&prompt, DType::kF32, {1, 1})}, grid);
        const Rope rope = model.rope(grid, {}, *conditioning);
        const TimeSegment time{{0, tokens}, sampler.timesteps()[i]};
        const auto run = [&](const BlockRange& blocks, const TensorView& in, HiddenHook hook) {
          const bool embeds = blocks.begin == 0 && blocks.end == 0;
          Tensor out(DType::kF32, {in[0], embeds ? ToyAttention::kWidth : row});
          model.forward(own_mixer, {.blocks = blocks,
                                    .in = in,
                                    .times = {&time, 1},
                                    .embedding = {},
                                    .conditioning = *conditioning,
                                    .rope = rope,
                                    .out = out,
                                    .hook = std::move(hook)});
          return out;
        };
        // The transformer blocks turn the embedded rows of the own frames into `last`.
        Tensor first = run({0, 0, n.layers}, z.at({k, i}), nullptr);
        std::vector<float>& added =
            residuals[{planted.one_residual ? 0 : k, planted.branches_share ? 0 : branch}];
        if (steps[i].skipped) {
          for (int64_t at = 0; at < first.count(); ++at) first.as<float>()[at] += added[at];
          velocities.push_back(run({n.layers, n.layers, n.layers}, first, nullptr));
          continue;
        }
        Tensor last;
        const Tensor out = run(BlockRange::all(n.layers), x,
                               [&](const TensorView& rows) { last = copy_of(rows); });
        velocities.push_back(copy_of(out.view().slice(0, tokens - own, own)));
        if (planted.oldest_residual && !added.empty()) continue;
        added.resize(first.count());
        for (int64_t at = 0; at < first.count(); ++at)
          added[at] =
              last.view().slice(0, tokens - own, own).as<float>()[at] - first.as<float>()[at];
      }
      guide(stream, arena, {}, n.guidance,
            velocities.size() > 1 ? velocities[1].view() : TensorView(), velocities[0]);
      Tensor next = copy_of(z.at({k, i}));
      // Segments that share a history must have equally many frames.
      const auto state = states.try_emplace(planted.one_solver ? 0 : k, own * row).first;
      sampler.step(stream, arena, i, velocities[0], next, state->second);
      if (planted.bf16_latents) {
        Tensor rounded(DType::kBF16, next.view().shape());
        copy(stream, next, rounded);
        copy(stream, rounded, next);
      }
      video.velocities[{k, i}] = std::move(velocities[0]);
      z[{k, i + 1}] = std::move(next);
      if (i + 1 == n.steps) {
        video.latents[k] = Tensor(DType::kF32, n.shape(k));
        unpatchify(stream, z[{k, n.steps}], experts.traits().patch, TokenRanges::all(own),
                   video.latents[k]);
      }
    }
  return video;
}

}  // namespace weft::test
