#pragma once
// Components: the parts of a model directory that one rank of a replica holds. Each is loaded when
// it is first used and kept as long as the memory plan's residency and the rank's placement allow.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/parts/open_model.h"
#include "engine/parts/rank_placement.h"
#include "engine/parts/residency.h"

namespace weft {

// The transformers of a job, as the denoiser requests them.
struct Experts {
  virtual ~Experts() = default;
  virtual const ModelFamily& family() const = 0;
  virtual const TransformerTraits& traits() const = 0;  // of the first expert
  virtual DType dtype() const = 0;
  // The prompt rows that the transformers were trained on for a prompt of `rows`, with padding.
  virtual int64_t text_length(int64_t rows) const = 0;
  virtual const Transformer& expert(Stream& stream, int model) = 0;
  virtual void done_with_experts() = 0;
};

class Components final : public Experts {
 public:
  // Loads no weights. `how` says how the experts are loaded; its dtype is also the text encoder's.
  // `placement` says which slices this rank holds. `device` is set where memory is planned for a
  // device that is not the host.
  Components(std::shared_ptr<const OpenModel> model, const TransformerLoad& how, DType vae_dtype,
             RankPlacement placement, std::optional<DeviceTraits> device = {},
             WeightFormat text_weights = WeightFormat::kCompute);

  const RankPlacement& placement() const { return placement_; }
  // Sets another placement, and releases the parts of which it holds another slice or nothing.
  void place(const RankPlacement& placement);
  // Sets the model with other LoRAs (variant_of), and releases the parts that they change.
  void change_model(std::shared_ptr<const OpenModel> variant);
  // The same parts of such a model, none of them loaded, for planning.
  Components of_variant(std::shared_ptr<const OpenModel> variant) const;

  const std::shared_ptr<const OpenModel>& model() const { return model_; }
  const ModelFamily& family() const override { return *directory().family; }
  const TransformerTraits& traits() const override { return expert_model(0).traits(); }
  DType dtype() const override { return how_.dtype; }
  DType vae_dtype() const { return vae_dtype_; }
  WeightFormat text_weights() const { return text_weights_; }  // of the text encoder's matrices
  // The dtype of the queue's hidden rows between pipeline stages: dtype() unless it is set.
  DType wire_dtype() const { return wire_dtype_.value_or(dtype()); }
  void set_wire_dtype(std::optional<DType> wire) { wire_dtype_ = wire; }
  int experts() const { return directory().experts(); }
  const ModelDirectory& directory() const { return model_->directory; }
  const TransformerModel& expert_model(int model) const { return directory().expert(model); }
  const TextEncoderModel& text_model() const { return *directory().text_model; }
  // The encoder of a prompt's vector; null: the transformers read none.
  const TextEncoderModel* pooled_model() const { return directory().pooled_model.get(); }
  const VaeModel& vae_model() const { return *directory().vae_model; }
  // Error(kModel) for a model that hears nothing.
  const AudioEncoderModel& audio_model() const;
  int64_t text_length(int64_t rows) const override { return model_->tokenizer->padded_rows(rows); }

  const std::optional<DeviceTraits>& device() const { return device_; }
  const TransformerLoad& how() const { return how_; }  // of the whole width and all blocks
  TransformerLoad load_of(int model) const {
    return placement_.load(expert_model(model).traits(), how_);
  }
  int resident_blocks() const { return how_.resident; }
  // Sets TransformerLoad::resident, and releases the experts that are loaded otherwise.
  void set_resident_blocks(int blocks);

  // Sets which parts may be resident from now on, and releases the others.
  void set_residency(Residency residency);
  // Called around every load with the component's name, to report progress and time.
  std::function<void(const std::string& name, const std::function<void()>& load)> on_load;

  // Each loads its part if it is missing, after releasing the parts that may not be resident with
  // it.
  const TextEncoder& text_encoder(Stream& stream);
  const TextEncoder& pooled_encoder(Stream& stream);
  const Transformer& expert(Stream& stream, int model) override;
  const Vae& vae(Stream& stream);
  // Loads the audio encoder. A job needs it once, so the caller holds it.
  std::unique_ptr<AudioEncoder> audio_encoder(Stream& stream);
  // The encoders of pictures. A job needs each of them once, so done_with_pictures() releases them
  // under every residency.
  const ImageEncoder& image_encoder(Stream& stream);
  const Vae& vae_encoder(Stream& stream);
  void done_with_pictures();
  // Loads the parts of the text encoders that this rank holds.
  void load_text_encoders(Stream& stream);
  // Says that this job no longer needs the part.
  void done_with_text_encoders();
  void done_with_experts() override;
  void done_with_vae();
  // Releases the experts and the decoder that earlier jobs have left here and the next one does not
  // use on this rank, unless they take at most `spare` bytes.
  void release_unused(const std::function<bool(int model)>& uses_expert, bool uses_vae,
                      uint64_t spare);

  int experts_resident() const;
  // Returns the names of the parts that were loaded since the last call, in order.
  std::vector<std::string> take_loaded() { return std::exchange(loaded_, {}); }

 private:
  void load(const std::string& name, const std::function<void()>& body);
  void release_experts_loaded_otherwise();  // than load_of()
  void release_vae_before_experts(int resident);
  // Before a part that is resident alone, unless all parts are resident.
  void release_others();
  // Loads an encoder into `held` if that is empty.
  template <class Traits>
  const Encoder<Traits>& encoder(Stream& stream, const std::string& name,
                                 const EncoderModel<Traits>& model, const TensorFile& file,
                                 std::unique_ptr<Encoder<Traits>>& held,
                                 WeightFormat weights = WeightFormat::kCompute);

  std::shared_ptr<const OpenModel> model_;
  TransformerLoad how_;
  DType vae_dtype_;
  WeightFormat text_weights_;
  std::optional<DType> wire_dtype_;
  std::optional<DeviceTraits> device_;
  RankPlacement placement_;
  Residency residency_ = Residency::kAll;
  std::vector<std::string> loaded_;
  std::unique_ptr<TextEncoder> text_encoder_, pooled_encoder_;
  std::vector<std::unique_ptr<Transformer>> experts_;
  std::unique_ptr<Vae> vae_;
  std::unique_ptr<ImageEncoder> image_encoder_;
  std::unique_ptr<Vae> vae_encoder_;
};

}  // namespace weft
