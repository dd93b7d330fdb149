#pragma once
// Components: the parts of a model directory that one rank of a replica holds, each loaded when
// asked for and kept as long as the memory plan's residency allows.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"
#include "engine/replica.h"
#include "engine/request.h"
#include "io/tensor_file.h"
#include "io/tokenizer.h"
#include "models/registry.h"
#include "models/umt5.h"
#include "models/wan.h"
#include "models/wan_vae.h"

namespace weft {

// The transformers of a job, as the executor asks for them.
struct Experts {
  virtual ~Experts() = default;
  virtual DType dtype() const = 0;
  virtual int64_t text_length() const = 0;  // rows the model was trained to see
  virtual const WanTransformer& expert(Stream& stream, int model) = 0;
  virtual void done_with_experts() = 0;
};

class Components final : public Experts {
 public:
  // Opens every configuration and every tensor header; no weights.
  // `replica` says which slices are this rank's, and must outlive the object. `how` the experts are
  // loaded; its dtype is the text encoder's too. `device`: what is planned for where it is not the
  // host.
  Components(const std::string& directory, const WanLoad& how, DType vae_dtype,
             const Replica& replica, std::optional<DeviceTraits> device = {});

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

  // Predicted bytes of this rank's packed weights, and what its expert takes more while it loads
  // and copies for every forward.
  uint64_t text_encoder_bytes() const;
  uint64_t expert_bytes(int model) const;
  uint64_t expert_loading_bytes(int model) const;
  uint64_t expert_streamed_bytes(int model) const;
  uint64_t vae_bytes() const;

  const std::optional<DeviceTraits>& device() const { return device_; }
  WanLoad load_of(const WanConfig& config) const { return replica_.load(config, how_); }
  Bias expert_biases(int model) const { return biases_of(expert_files_[model]); }
  Bias vae_biases() const { return biases_of(vae_file_); }
  int resident_blocks() const { return how_.resident; }
  void set_resident_blocks(int blocks) { how_.resident = blocks; }  // of what is loaded later

  // What may be resident from now on; releases what may not.
  void set_residency(Residency residency);
  // Called around every load with the component's name, for progress and time.
  std::function<void(const std::string& name, const std::function<void()>& load)> on_load;

  // Each loads what is missing, after releasing what may not stand beside it.
  const Umt5Encoder& text_encoder(Stream& stream);
  const WanTransformer& expert(Stream& stream, int model) override;
  const WanVae& vae(Stream& stream);
  // The part is not needed again in this job.
  void done_with_text_encoder();
  void done_with_experts() override;

  int experts_resident() const;

 private:
  void load(const std::string& name, const std::function<void()>& body);

  ModelDirectory directory_;
  WanLoad how_;
  DType vae_dtype_;
  std::optional<DeviceTraits> device_;
  const Replica& replica_;
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
