#pragma once
// The transformers of the golden cases, of all families, and their runs.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/registry.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {

// The model, the weights and the inputs of a case. Tests may change the inputs.
struct TransformerCase : GoldenCase {
  explicit TransformerCase(const std::string& name)
      : GoldenCase(name),
        part(spec.value("format", "") == "original" ? folder + "/model/model.safetensors"
                                                    : golden_part(name, "transformer")),
        file(open_part_weights(PartKind::kTransformer, part)),
        model(std::filesystem::exists(config()) ? open_transformer(config())
                                                : open_transformer(file)),
        traits(model->traits()) {
    set_latent(kept("hidden_states"));
    const float time = input("timestep").as<float>()[0];
    times = {{{0, tokens}, time}};
    if (traits.signal_columns) {  // each latent frame follows a sound of its own
      Tensor& rows = held_["signal"] = Tensor(DType::kF32, {grid[0], traits.signal_columns});
      model->signal_rows(input("audio_features"), rows);
      signal = rows;
      times.clear();
      for (int64_t i = 0, n = tokens / grid[0]; i < grid[0]; ++i)
        times.push_back({{i * n, (i + 1) * n}, time});
    }
    conditions.text = seen_rows(kept("encoder_hidden_states"));
    conditions.text_length = conditions.text[0];
    conditions.image = kept("encoder_hidden_states_image");
    conditions.pooled = kept("pooled_projections");
    conditions.guidance = spec.value("guidance_scale", 0.0);
    conditions.reference = kept("reference_latents");
    conditions.motion = kept("motion_latents");
    conditions.motion_scales = spec.value("add_last_motion", 2);
    conditions.pose = kept("cond_states");
    for (int i = 0; inputs.contains("reference_latents." + std::to_string(i)); ++i)
      conditions.references.push_back(kept("reference_latents." + std::to_string(i)));
  }
  std::string config() const { return part + "/config.json"; }
  // Takes a latent [C, H, W] or [C, F, H, W], whose last channels may be given ones.
  void set_latent(const TensorView& x) {
    shape.assign(x.shape().begin(), x.shape().end());
    const TensorView all = x.rank == 3 ? x.reshape({x[0], 1, x[1], x[2]}) : x;
    latent = all.slice(0, 0, traits.out_channels);
    if (traits.given_channels())
      conditions.channels = all.slice(0, traits.out_channels, traits.given_channels());
    shape[0] = traits.out_channels;
    grid = traits.grid(all[1], all[2], all[3]);
    tokens = grid[0] * grid[1] * grid[2];
  }

  std::string part;  // the path of the weights
  TensorFile file;
  std::shared_ptr<const TransformerModel> model;
  TransformerTraits traits;
  TensorView latent;           // [C, F, H, W]
  std::vector<int64_t> shape;  // of the velocity, as the case holds it
  Conditions conditions;
  std::vector<TimeSegment> times;
  TensorView signal;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;

 private:
  // The rows that the case's mask does not hide.
  TensorView seen_rows(const TensorView& all) {
    if (!inputs.contains("encoder_attention_mask")) return all;
    const TensorView mask = inputs.view("encoder_attention_mask");
    const int32_t* seen = mask.as<int32_t>();
    Tensor& rows = held_["seen rows"] =
        Tensor(DType::kF32, {std::count(seen, seen + mask[0], 1), all[1]});
    float* out = rows.as<float>();
    for (int64_t row = 0; row < mask[0]; ++row)
      if (seen[row]) out = std::copy_n(all.as<float>() + row * all[1], all[1], out);
    return rows;
  }
  TensorView kept(const std::string& name) {
    if (!inputs.contains(name)) return {};
    return held_[name] = input(name);
  }
  std::map<std::string, Tensor> held_;
};

// The blocks that a rank loads of a case's transformer, and its memory.
struct TransformerRun {
  explicit TransformerRun(const TransformerCase& its, const TransformerLoad& load = {},
                          const Ops& ops = reference_ops())
      : TransformerRun(its, its.file, load, ops) {}
  TransformerRun(const TransformerCase& its, const TensorFile& file, const TransformerLoad& load,
                 const Ops& ops = reference_ops())
      : of(its),
        stream(Stream::cpu(2, Determinism::kFixed, &ops)),
        transformer(of.model->load(stream, file, load)) {}

  Context context(Observer* observer = nullptr) {
    return {stream,  arena, seams.mixer, *reducer, seams.halo, {}, TokenRanges::all(of.tokens),
            observer};
  }
  std::unique_ptr<Conditioning> prepare(Context& c) const {
    return transformer->prepare(c, of.conditions, of.grid);
  }
  Tensor hidden(const Conditioning& prepared) const {
    return Tensor(DType::kF32, {of.tokens + prepared.joint_rows(), of.traits.width});
  }
  // Runs the loaded blocks on the latent or on hidden rows. Returns the velocity or hidden rows.
  Tensor run(Context& c, const TensorView& in, const Conditioning& prepared,
             std::array<int64_t, 3> start = {}) const {
    const BlockRange blocks = transformer->loaded().blocks;
    const TensorView& x = of.latent;
    Tensor out = blocks.last() ? Tensor(DType::kF32, of.shape) : hidden(prepared);
    forward(*transformer, c, blocks, in, of.times, prepared,
            transformer->rope(of.grid, start, prepared),
            blocks.last() ? out.view().reshape({x[0], x[1], x[2], x[3]}) : out.view(), of.signal);
    return out;
  }
  // The velocity of the case's latent.
  Tensor run(Observer* observer = nullptr) {
    Context c = context(observer);
    return run(c, of.latent, *prepare(c));
  }

  const TransformerCase& of;
  Stream stream;
  Arena arena{size_t{1} << 30};
  SerialSeams seams;
  Reducer* reducer = &seams.reducer;
  std::unique_ptr<Transformer> transformer;
};

}  // namespace weft::test
