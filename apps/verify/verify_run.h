#pragma once
// Shared by the stages of `weft verify`: the case that runs, and a collector of intermediate
// results.
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/verify/verify_stages.h"
#include "engine/generation/layout_limits.h"
#include "engine/latents/job.h"
#include "engine/parts/rank.h"
#include "engine/parts/seams.h"
#include "io/json.h"
#include "kernels/arena.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/registry.h"
#include "parallel/context.h"

namespace weft {

inline constexpr int kMaxSteps = 1000;

class OpenModel;

// The paths of the parts of the model that case.json names under "model": folders or files of other
// cases, relative to the folder. Error(kModel) for a part that is not known or a path that leads
// nowhere.
std::map<std::string, std::string> parts_named_in(const std::string& folder,
                                                  const nlohmann::json& spec);

struct Case {
  const std::string& folder;
  const nlohmann::json& spec;
  const VerifyOptions& options;
  std::vector<VerifyRow>& rows;
  RankPlacement placement{};
  const std::map<std::string, std::string> named_parts = parts_named_in(folder, spec);

  Device device() const {
    return options.devices[static_cast<size_t>(placement.rank()) % options.devices.size()];
  }
  std::string file(const std::string& name) const { return folder + "/" + name; }
  // The path of a part of the model: the one that case.json names, or else the folder in model/.
  std::string part(const std::string& name) const;
  // A file of the part, in its folder or beside its file; in the folder in model/ where there is
  // none.
  std::string part_file(const std::string& name, const std::string& file_name) const;
  // The path of a part that is the whole of model/ where case.json does not name it.
  std::string only_part(const std::string& name) const;
  // Throw Error(kModel) that names the folder, or its case.json.
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::kModel, folder + ": " + why);
  }
  [[noreturn]] void refuse_spec(const std::string& why) const {
    throw Error(ErrorKind::kModel, file("case.json") + ": " + why);
  }
  std::string text(const char* key) const { return json_string(spec, key, file("case.json")); }
  std::vector<std::string> texts(const char* key) const {
    return json_strings(spec, key, file("case.json"));
  }
  int64_t integer(const char* key, const IntRange& legal) const {
    return json_int(spec, key, file("case.json"), legal);
  }
  int integer(const char* key, int64_t max) const {
    return static_cast<int>(integer(key, IntRange{1, max}));
  }
  double number(const char* key) const { return json_number(spec, key, file("case.json")); }
  bool original_names() const {
    return json_string_or(spec, "format", file("case.json"), "") == "original";
  }
  std::shared_ptr<const TransformerModel> transformer_model(const TensorFile& weights) const {
    return original_names() ? open_transformer(weights)
                            : open_transformer(part_file("transformer", "config.json"));
  }
  std::string transformer_path() const {
    return original_names() ? only_part("transformer") : part("transformer");
  }
};

// Merges the LoRA files of the case into the weights of its transformer or its text encoder.
std::shared_ptr<const TensorFile> merge_loras(const Case& c,
                                              std::shared_ptr<const TensorFile> weights,
                                              const TransformerModel* transformer,
                                              const TextEncoderModel* text);

// The model of a case of a whole pipeline.
std::shared_ptr<const OpenModel> open_model(const Case& c);

// A stream, an arena and the case's inputs for one stage run.
struct Bench {
  Stream stream;
  Stream host = host_stream(stream);
  Arena arena;
  const TensorFile inputs;

  explicit Bench(const Case& c)
      : stream(stream_on(c.device(), c.options.threads, c.options.determinism, c.options.ops)),
        arena(size_t{256} << 30, c.device()),
        inputs(TensorFile::open(c.file("inputs.safetensors"))) {}
  Tensor tensor(DType dtype, std::span<const int64_t> shape) const {
    return Tensor(dtype, shape, stream.device());
  }
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape) const {
    return Tensor(dtype, shape, stream.device());
  }
  // Returns an f32 copy of an input on the stream's device.
  Tensor load(const std::string& name) {
    if (!inputs.contains(name))
      throw Error(ErrorKind::kModel, inputs.files().front() + " lacks the tensor " + name);
    const TensorView view = inputs.view(name);
    Tensor out = tensor(DType::kF32, view.shape());
    copy(stream, view, out);
    return out;
  }
};

// Keeps an f32 copy on the host of everything it sees; indexed names become "blocks.3".
struct Collector final : Observer {
  NamedTensors tensors;
  void see(Context& context, const char* name, int index, const TensorView& value) override {
    Tensor copy_of(DType::kF32, value.shape());
    copy(context.stream, value, copy_of);
    tensors[index < 0 ? std::string(name) : name + ("." + std::to_string(index))] =
        std::move(copy_of);
  }
};

// The experts of a case, all resident, with its LoRA files merged into them. All rows of its
// prompts are given.
struct CaseExperts final : Experts {
  CaseExperts(const Case& c, Stream& stream);
  const ModelFamily& family() const override { return row; }
  const TransformerTraits& traits() const override { return models[0]->traits(); }
  DType dtype() const override { return loaded[0]->loaded().dtype; }
  int64_t text_length(int64_t rows) const override { return rows; }
  const Transformer& expert(Stream&, int model) override { return *loaded[model]; }
  void done_with_experts() override {}

  const ModelFamily row{};
  std::vector<std::shared_ptr<const TransformerModel>> models;
  std::vector<std::unique_ptr<Transformer>> loaded;
};
// Their number in a case, and the description of one.
int experts_of(const Case& c);
std::shared_ptr<const TransformerModel> expert_model(const Case& c, int model);
Sampler sampler_of(const Case& c, int steps);

// The run of a case's job on one rank. It reads the noise of segments from the case's `noise`
// [C, F, H, W], whose frames are those of the video, and keeps their latents and velocities.
class CaseRun : public JobHost {
 public:
  // `reported` are the tokens of a pass that a rank reports, of which one has each token.
  using Reported = std::function<TokenRanges(const Pass& pass, int rank)>;
  CaseRun(Case& c, Bench& bench, CaseExperts& experts, const JobFacts& facts, Reported reported);

  Rank rank() const { return {bench_.stream, bench_.arena, experts_, case_.placement}; }
  // Returns the guided velocity of a pass [C, frames, H, W] on the root, elsewhere an empty tensor.
  Tensor joined_velocity(const Pass& pass, int64_t frames);
  // The root takes in `latents` what the rank `from` has.
  void latents_from(int from);
  // The latents, and the velocities of all steps of `blocks`, which begin where the first of them
  // says and have the frames after it.
  NamedTensors results(std::span<const Range> blocks, int steps);

  Job job;
  Tensor latents;  // [C, F, H, W], on the host
  Tensor noises;   // of the same shape

 private:
  void noise(const Segment& segment, const TensorView& to) override;
  void take(const Segment& segment, const TensorView& latent) override;
  void velocity(const Pass& pass, const Range& own, const TensorView& velocity) override;

  Case& case_;
  Bench& bench_;
  CaseExperts& experts_;
  const Reported reported_;
  Arena host_arena_;
  std::map<Pass, Tensor> velocities_;  // this rank's rows, on the host
};

// The inputs of speech to video beside the latent and the prompt (verify_speech.cc). All are empty
// for other models.
struct SpeechInputs {
  Tensor reference, motion, pose;  // as in Conditions
  int motion_scales = 2;
  Tensor signal;  // as in ForwardArgs, of a row per latent frame
};
SpeechInputs speech_inputs(Bench& bench, const Case& c, const TransformerModel& model,
                           int64_t frames);
// The rows that latent frames hear of `features`, which are on the host, on the stream's device.
Tensor signal_of(Bench& bench, const TransformerModel& model, const TensorView& features,
                 int64_t frames);

// Stages transformer, clips and displaced (verify_denoise.cc).
NamedTensors run_transformer(Case& c);
NamedTensors run_clips(Case& c);
NamedTensors run_displaced(Case& c);
MethodLimit limit_displaced(const Case& c);
// A latent [C, F, H, W], or a picture's [C, H, W] as one of a frame.
inline TensorView as_video(const TensorView& x) {
  return x.rank == 3 ? x.reshape({x[0], 1, x[1], x[2]}) : x;
}

// Stages tokenizer, text_clean, text_encoder, image_encoder and audio_encoder
// (verify_encoders.cc).
NamedTensors run_tokenizer(Case& c);
NamedTensors run_text_clean(Case& c);
NamedTensors run_text_encoder(Case& c);
NamedTensors run_image_encoder(Case& c);
NamedTensors run_audio_encoder(Case& c);

// Stage llm (verify_language.cc).
NamedTensors run_llm(Case& c);
LayoutLimits llm_limits(const Case& c);

// Stage queue (verify_queue.cc).
NamedTensors run_queue(Case& c);
LayoutLimits queue_limits(const Case& c);

// Stage stream (verify_stream.cc).
NamedTensors run_stream(Case& c);
LayoutLimits stream_limits(const Case& c);

}  // namespace weft
