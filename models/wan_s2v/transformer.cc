#include "models/wan_s2v/transformer.h"

#include <algorithm>
#include <cmath>

#include "kernels/transfer.h"

namespace weft {

namespace {

// Rows of the table that tells the kinds of rows apart.
enum Kind { kClip = 0, kReference = 1, kMotion = 2 };

constexpr float kNormEps = 1e-6f;   // of the injectors' queries and keys
constexpr float kAdainEps = 1e-5f;  // of the norm that the sound modulates

WanAudioInjector load_injector(Stream& stream, const CheckpointPart& tensors,
                               const TransformerLoad& load, size_t index) {
  const std::string name = "audio_injector.injector." + std::to_string(index) + ".";
  const auto linear = [&](const std::string& part) {
    return tensors.linear(stream, part, load.dtype, load.weights);
  };
  return {.to_q = linear(name + "q"),
          .to_k = linear(name + "k"),
          .to_v = linear(name + "v"),
          .to_out = tensors.row_linear(stream, name + "o", load.dtype, load.weights),
          .norm_q = tensors.vector(stream, name + "norm_q.weight"),
          .norm_k = tensors.vector(stream, name + "norm_k.weight"),
          .adain = tensors.linear(
              stream, "audio_injector.injector_adain_layers." + std::to_string(index) + ".linear",
              load.dtype)};
}

// Returns the values of x as the compute dtype, in the arena.
TensorView converted(Context& context, const TensorView& x, DType dtype) {
  const TensorView out = context.arena.alloc(dtype, x.shape());
  copy(context.stream, x, out);
  return out;
}

}  // namespace

size_t WanSpeech::bytes() const { return WanText::bytes() + bytes_of(std::tie(pose, embedded)); }

bool WanS2vTransformer::hears(const BlockRange& blocks) const {
  return std::ranges::any_of(
      config_.injects, [&](int block) { return blocks.begin <= block && block < blocks.end; });
}

WanS2vTransformer WanS2vTransformer::load(Stream& stream, const TensorFile& file,
                                          const WanS2vConfig& config, const TransformerLoad& load) {
  WanS2vTransformer model;
  model.config_ = config;
  model.set_load(config.wan, load);
  model.traits_ = config.traits();
  const CheckpointPart tensors = checked_wan_tensors(
      file, config.wan, load, wan_s2v_tensors(config),
      [&](const TensorSpec& tensor) { return wan_s2v_part(config, tensor, load.width); });
  model.load_parts(stream, tensors, config.wan, load);
  const BlockRange& blocks = model.load_.blocks;
  if (blocks.first()) {
    model.pose_embedding_ = tensors.linear(stream, "cond_encoder", DType::kF32);
    model.kinds_ = tensors.table(stream, "trainable_cond_mask.weight");
    model.without_pose_ = tensors.vector(stream, "cond_encoder.bias");
    model.packer_ = WanFramePacker::load(stream, tensors);
  }
  if (blocks.first() || model.hears(blocks))
    model.audio_ = WanAudioEncoder::load(stream, tensors, config.audio_sizes());
  for (size_t i = 0; i < config.injects.size(); ++i)
    if (blocks.begin <= config.injects[i] && config.injects[i] < blocks.end)
      model.injectors_.push_back(load_injector(stream, tensors, model.load_, i));
  return model;
}

size_t WanS2vTransformer::weights_bytes() const {
  size_t bytes = WanTransformer::weights_bytes() + packer_.bytes() + audio_.bytes() +
                 bytes_of(std::tie(pose_embedding_, kinds_, without_pose_));
  for (const WanAudioInjector& injector : injectors_) bytes += bytes_of(injector.weights());
  return bytes;
}

// Returns the injector after a loaded block, or null.
const WanAudioInjector* WanS2vTransformer::injector(int block) const {
  size_t index = 0;
  for (const int each : config_.injects) {
    if (each == block) return &injectors_[index];
    index += each >= load_.blocks.begin && each < load_.blocks.end;
  }
  return nullptr;
}

void WanS2vTransformer::check_given(const Conditions& conditions,
                                    std::array<int64_t, 3> grid) const {
  const auto& patch = config_.wan.patch;
  const auto check = [&](const char* what, const TensorView& x, int64_t least, int64_t most) {
    if (!x) return;
    const std::array<int64_t, 3> legal{config_.wan.in_channels, grid[1] * patch[1],
                                       grid[2] * patch[2]};
    if (x.rank == 4 && std::array{x[0], x[2], x[3]} == legal && least <= x[1] && x[1] <= most)
      return;
    throw Error(ErrorKind::kModel,
                std::string("transformer: ") + what + " is " + x.to_string_shape() + " (legal: [" +
                    std::to_string(legal[0]) + ", " + std::to_string(least) + " to " +
                    std::to_string(most) + ", " + std::to_string(legal[1]) + ", " +
                    std::to_string(legal[2]) + "])");
  };
  check("the reference", conditions.reference, 1, 1);
  check("the motion", conditions.motion, 1, kWanMotionFrames);
  check("the pose", conditions.pose, grid[0], grid[0]);
}

std::unique_ptr<Conditioning> WanS2vTransformer::prepare(Context& context,
                                                         const Conditions& conditions,
                                                         std::array<int64_t, 3> grid) const {
  check_given(conditions, grid);
  auto prepared = std::make_unique<WanSpeech>();
  WanSpeech& speech = *prepared;
  prepare_text(context, conditions, speech);
  speech.tokens_are_reference = conditions.tokens_are_reference;
  if (conditions.reference) speech.places = wan_reference_positions(grid);
  speech.reference_rows = std::ssize(speech.places);
  if (conditions.motion)
    std::ranges::copy(wan_motion_positions(grid), std::back_inserter(speech.places));
  if (!speech.places.empty()) embed_joint(context, conditions, speech);
  if (conditions.pose && load_.blocks.first()) {
    speech.pose = Tensor(DType::kF32, conditions.pose.shape(), context.stream.device());
    copy(context.stream, conditions.pose, speech.pose);
  }
  return prepared;
}

// Fills in the joint rows. Their timestep is 0.
void WanS2vTransformer::embed_joint(Context& context, const Conditions& conditions,
                                    WanSpeech& speech) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t d = config_.width();
  WanJointRows& joint = speech.joint;
  joint.rows = std::ssize(speech.places);
  joint.positions = on_device(stream, joint_rope(0, speech));
  joint.temb = Tensor(DType::kF32, {d}, stream.device());
  joint.proj = Tensor(DType::kF32, {6, d}, stream.device());
  const TensorView embedding = context.arena.alloc(DType::kF32, {1, traits_.time_columns});
  const TimeSegment start{{0, joint.rows}, 0};
  timestep_embedding(stream, {&start, 1}, embedding);
  embed_timesteps(context, embedding, {}, joint.temb.view().reshape({1, d}),
                  joint.proj.view().reshape({1, 6, d}));
  if (!load_.blocks.first()) return;

  speech.embedded = Tensor(DType::kF32, {joint.rows, d}, stream.device());
  const int64_t pictures = speech.reference_rows;
  if (pictures > 0) {
    const TensorView rows = speech.embedded.view().slice(0, 0, pictures);
    const TensorView patches = context.arena.alloc(DType::kF32, {pictures, patch_embedding().in()});
    patchify(stream, conditions.reference, config_.wan.patch, TokenRanges::all(pictures), patches);
    linear(stream, patches, patch_embedding(), LinearActivation::kNone, rows);
    add_bias(stream, rows, kinds_.view().select(0, kReference), rows);
  }
  if (joint.rows > pictures) {
    const TensorView rows = speech.embedded.view().slice(0, pictures, joint.rows - pictures);
    packer_.pack(context, conditions.motion, config_.reads_newest ? conditions.motion_scales : 0,
                 rows);
    context.observe("motion_tokens", rows);
    add_bias(stream, rows, kinds_.view().select(0, kMotion), rows);
  }
}

Rope WanS2vTransformer::joint_rope(int64_t frames, const Conditioning& conditioning) const {
  const auto& speech = dynamic_cast<const WanSpeech&>(conditioning);
  return wan_positions_rope(speech.places, frames, config_.wan.head_dim);
}

void WanS2vTransformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& speech = dynamic_cast<const WanSpeech&>(args.conditioning);
  check_forward(context, args);
  const BlockRange& blocks = args.blocks;
  const bool computes = blocks.begin < blocks.end;
  const Arena::Scope scope(context.arena);
  WanAudioRows sound;
  if (computes && !speech.tokens_are_reference && (blocks.first() || hears(blocks))) {
    sound = audio_.encode(context, args.signal);
    context.observe("audio_tokens", sound.tokens);
    context.observe("audio_global", sound.global);
  }
  Additions additions{.embedded = [&](const TensorView& x) { enter(context, speech, x); }};
  if (sound.tokens)
    additions.after_block = [&](int block, std::span<const TimeRows> times, const TensorView& x) {
      if (const WanAudioInjector* weights = injector(block))
        hear(context, *weights, times, sound, x);
    };
  forward_with(context, args, additions);
}

// Adds to the embedded tokens x [n + joint rows, D] what tells their kind and pose, and fills in
// the joint rows.
void WanS2vTransformer::enter(Context& context, const WanSpeech& speech,
                              const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t n = context.tokens.size();
  const TensorView tokens = x.slice(0, 0, n);
  if (speech.pose) {
    const TensorView patches = context.arena.alloc(DType::kF32, {n, pose_embedding_.in()});
    const TensorView pose = context.arena.alloc(DType::kF32, {n, x[1]});
    patchify(stream, speech.pose, config_.wan.patch, context.tokens, patches);
    linear(stream, patches, pose_embedding_, LinearActivation::kNone, pose);
    add(stream, tokens, pose, tokens);
  } else if (!speech.tokens_are_reference) {
    add_bias(stream, tokens, without_pose_, tokens);
  }
  const Kind kind = speech.tokens_are_reference ? kReference : kClip;
  add_bias(stream, tokens, kinds_.view().select(0, kind), tokens);
  if (speech.embedded) copy(stream, speech.embedded, x.slice(0, n, speech.joint.rows));
}

// Adds to the tokens of x [n + joint rows, D] f32 their cross-attention over the sound of their
// latent frame.
void WanS2vTransformer::hear(Context& context, const WanAudioInjector& weights,
                             std::span<const TimeRows> times, const WanAudioRows& sound,
                             const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t n = context.tokens.size(), d = config_.width(), width = weights.to_q.out();
  const int64_t e = config_.wan.head_dim, a = width / e, each = sound.tokens[1];
  const TensorView h = normed_audio(context, weights, times, sound, x.slice(0, 0, n));
  const TensorView heard =
      converted(context, sound.tokens.reshape({sound.tokens[0] * each, d}), load_.dtype);
  const auto project = [&](const TensorView& from, const PackedLinear& to, const Tensor& norm) {
    const TensorView out = context.arena.alloc(load_.dtype, {from[0], width});
    linear(stream, from, to, LinearActivation::kNone, out);
    if (norm) full_rms_norm(context, out, d, norm, kNormEps);
    return out.reshape({from[0], a, e});
  };
  const TensorView q = project(h, weights.to_q, weights.norm_q);
  const TensorView k = project(heard, weights.to_k, weights.norm_k);
  const TensorView v = project(heard, weights.to_v, {});
  const TensorView merged = reuse(h, {n, a, e});
  for (const TimeRows& time : times) {
    if (time.segment < 0) continue;
    const KVSegment keys{.k = k.slice(0, time.segment * each, each),
                         .v = v.slice(0, time.segment * each, each)};
    const auto [begin, count] = std::pair{time.rows.begin, time.rows.size()};
    attention(stream, {.q = q.slice(0, begin, count),
                       .segments = {&keys, 1},
                       .scale = 1 / std::sqrt(static_cast<float>(e)),
                       .out = merged.slice(0, begin, count)});
  }
  row_linear_add(context, merged.reshape({n, width}), weights.to_out, x.slice(0, 0, n));
}

// Returns the norm of tokens x [n, D] f32 that is modulated by the vector of their latent frame's
// sound, in the compute dtype, in the arena.
TensorView WanS2vTransformer::normed_audio(Context& context, const WanAudioInjector& weights,
                                           std::span<const TimeRows> times,
                                           const WanAudioRows& sound, const TensorView& x) const {
  Stream& stream = context.stream;
  const int64_t d = x[1];
  const TensorView h = context.arena.alloc(load_.dtype, {x[0], d});
  const Arena::Scope scope(context.arena);
  const TensorView m = context.arena.alloc(DType::kF32, {sound.global[0], 2 * d});
  const TensorView active = context.arena.alloc(DType::kF32, sound.global.shape());
  silu(stream, sound.global, active);
  linear(stream, converted(context, active, load_.dtype), weights.adain, LinearActivation::kNone,
         m);
  for (const TimeRows& time : times) {
    if (time.segment < 0) continue;
    const TensorView table = m.select(0, time.segment);
    const auto [begin, count] = std::pair{time.rows.begin, time.rows.size()};
    modulated_layer_norm(stream, x.slice(0, begin, count), table.slice(0, d, d),
                         table.slice(0, 0, d), kAdainEps, h.slice(0, begin, count));
  }
  return h;
}

}  // namespace weft
