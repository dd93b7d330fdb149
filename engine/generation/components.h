#pragma once
// Components: the parts of a model directory that one rank of a replica holds. Each is loaded when
// it is first used and kept as long as the memory plan's residency allows.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation/rank_placement.h"
#include "engine/generation/request.h"
#include "engine/memory/memory_plan.h"
#include "io/text/tokenizer.h"
#include "io/weights/tensor_file.h"
#include "models/registry.h"
#include "models/umt5/encoder.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"

namespace weft {

// The transformers of a job, as the executor requests them.
struct Experts {
  virtual ~Experts() = default;
  virtual DType dtype() const = 0;
  virtual int64_t text_length() const = 0;  // prompt rows, padded, that the model was trained on
  virtual const WanTransformer& expert(Stream& stream, int model) = 0;
  virtual void done_with_experts() = 0;
};

class Components final : public Experts {
 public:
  // Opens every configuration and every tensor header, but loads no weights. `how` says how the
  // experts are loaded; its dtype is also the text encoder's. `replica` says which slices this rank
  // holds, and must outlive the object. `device` is set where memory is planned for a device that
  // is not the host.
  Components(const std::string& directory, const WanLoad& how, DType vae_dtype,
             const RankPlacement& placement, std::optional<DeviceTraits> device = {});

  DType dtype() const override { return how_.dtype; }
  DType vae_dtype() const { return vae_dtype_; }
  int experts() const { return directory_.experts(); }
  const ModelDirectory& directory() const { return directory_; }
  const Umt5Config& text_config() const { return text_config_; }
  const WanVaeConfig& vae_config() const { return vae_config_; }
  const SentencePieceTokenizer& tokenizer() const { return tokenizer_; }
  int64_t text_length() const override { return text_length_; }
  std::vector<int32_t> ids_of(const std::string& prompt) const;  // at most text_length()
  std::optional<PromptCut> prompt_cut(const std::string& prompt) const;
  std::string weights_hash() const;

  // Predicted bytes of this rank: packed weights per part, the extra memory that an expert needs
  // while it loads, and the weights that each of its forwards copies from the host.
  uint64_t text_encoder_bytes() const;
  uint64_t expert_bytes(int model) const;
  uint64_t expert_loading_bytes(int model) const;
  uint64_t expert_streamed_bytes(int model) const;
  uint64_t vae_bytes() const;

  const std::optional<DeviceTraits>& device() const { return device_; }
  WanLoad load_of(const WanConfig& config) const { return placement_.load(config, how_); }
  Bias expert_biases(int model) const { return biases_of(expert_files_[model]); }
  Bias vae_biases() const { return biases_of(vae_file_); }
  int resident_blocks() const { return how_.resident; }
  void set_resident_blocks(int blocks) { how_.resident = blocks; }  // for parts loaded later

  // Sets which parts may be resident from now on, and releases the others.
  void set_residency(Residency residency);
  // Called around every load with the component's name, to report progress and time.
  std::function<void(const std::string& name, const std::function<void()>& load)> on_load;

  // Each loads its part if it is missing, after releasing the parts that may not be resident with
  // it.
  const Umt5Encoder& text_encoder(Stream& stream);
  const WanTransformer& expert(Stream& stream, int model) override;
  const WanVae& vae(Stream& stream);
  // Says that this job no longer needs the part.
  void done_with_text_encoder();
  void done_with_experts() override;

  int experts_resident() const;

 private:
  void load(const std::string& name, const std::function<void()>& body);

  ModelDirectory directory_;
  WanLoad how_;
  DType vae_dtype_;
  std::optional<DeviceTraits> device_;
  const RankPlacement& placement_;
  Umt5Config text_config_;
  WanVaeConfig vae_config_;
  SentencePieceTokenizer tokenizer_;
  int64_t text_length_;
  Residency residency_ = Residency::kAll;
  TensorFile text_file_;  // the encoder's embedding stays in this mapping
  std::vector<TensorFile> expert_files_;
  TensorFile vae_file_;
  std::optional<Umt5Encoder> text_encoder_;
  std::vector<std::optional<WanTransformer>> experts_;
  std::optional<WanVae> vae_;
};

}  // namespace weft
