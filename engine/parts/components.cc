#include "engine/parts/components.h"

#include <algorithm>

namespace weft {

Components::Components(std::shared_ptr<const OpenModel> model, const TransformerLoad& how,
                       DType vae_dtype, RankPlacement placement, std::optional<DeviceTraits> device,
                       WeightFormat text_weights)
    : model_(std::move(model)),
      how_(how),
      vae_dtype_(vae_dtype),
      text_weights_(text_weights),
      device_(std::move(device)),
      placement_(std::move(placement)),
      experts_(directory().experts()) {}

void Components::place(const RankPlacement& placement) {
  const auto held_otherwise = [&](const EncoderTraits& traits) {
    return !placement.encodes_text(traits) ||
           placement.text_width(traits) != placement_.text_width(traits);
  };
  if (held_otherwise(text_model().traits())) text_encoder_.reset();
  if (pooled_model() && held_otherwise(pooled_model()->traits())) pooled_encoder_.reset();
  done_with_pictures();
  if (placement_.has_bands() && !placement.has_bands()) vae_.reset();
  placement_ = placement;
  const int resident = experts_resident();
  release_experts_loaded_otherwise();
  release_vae_before_experts(resident);
}

// A plan counts what loading an expert takes where the VAE is not yet there.
void Components::release_vae_before_experts(int resident) {
  if (experts_resident() < resident) vae_.reset();
}

void Components::change_model(std::shared_ptr<const OpenModel> variant) {
  if (variant->loras == model_->loras) return;
  const int resident = experts_resident();
  for (int model = 0; model < experts(); ++model)
    if (variant->expert_files[model] != model_->expert_files[model]) experts_[model].reset();
  if (variant->text_files.rows != model_->text_files.rows) text_encoder_.reset();
  if (variant->text_files.pooled != model_->text_files.pooled) pooled_encoder_.reset();
  release_vae_before_experts(resident);
  model_ = std::move(variant);
}

Components Components::of_variant(std::shared_ptr<const OpenModel> variant) const {
  Components out(std::move(variant), how_, vae_dtype_, placement_, device_, text_weights_);
  out.set_wire_dtype(wire_dtype_);
  return out;
}

void Components::release_experts_loaded_otherwise() {
  for (int model = 0; model < experts(); ++model)
    if (experts_[model] &&
        experts_[model]->loaded() != load_of(model).of(expert_model(model).traits()))
      experts_[model].reset();
}

void Components::set_residency(Residency residency) {
  residency_ = residency;
  done_with_text_encoders();
  if (residency >= Residency::kOneExpert && experts_resident() > 1) {
    for (auto& expert : experts_) expert.reset();
  }
  if (residency == Residency::kSequential) vae_.reset();
}

void Components::set_resident_blocks(int blocks) {
  how_.resident = blocks;
  release_experts_loaded_otherwise();
}

void Components::release_unused(const std::function<bool(int model)>& uses_expert, bool uses_vae,
                                uint64_t spare) {
  std::vector<int> unused;
  for (int model = 0; model < experts(); ++model)
    if (experts_[model] && !uses_expert(model)) unused.push_back(model);
  uint64_t bytes = vae_ && !uses_vae ? vae_->bytes() : 0;
  for (const int model : unused) bytes += experts_[model]->weights_bytes();
  if (bytes <= spare) return;
  for (const int model : unused) experts_[model].reset();
  if (!uses_vae) vae_.reset();
}

void Components::load(const std::string& name, const std::function<void()>& body) {
  if (on_load) {
    on_load(name, body);
  } else {
    body();
  }
  loaded_.push_back(name);
}

// The encoders are resident without the other parts, unless all are.
template <class Traits>
const Encoder<Traits>& Components::encoder(Stream& stream, const std::string& name,
                                           const EncoderModel<Traits>& model,
                                           const TensorFile& file,
                                           std::unique_ptr<Encoder<Traits>>& held,
                                           WeightFormat weights) {
  if (!held) {
    release_others();
    load(name, [&] {
      held = model.load(stream, file, {dtype(), placement_.text_width(model.traits()), weights});
    });
  }
  return *held;
}

const TextEncoder& Components::text_encoder(Stream& stream) {
  return encoder(stream, "text_encoder", text_model(), *model_->text_files.rows, text_encoder_,
                 text_weights_);
}

const TextEncoder& Components::pooled_encoder(Stream& stream) {
  CHECK(pooled_model());
  return encoder(stream, "pooled_encoder", *pooled_model(), *model_->text_files.pooled,
                 pooled_encoder_);
}

void Components::load_text_encoders(Stream& stream) {
  if (placement_.encodes_text(text_model().traits())) text_encoder(stream);
  if (pooled_model() && placement_.encodes_text(pooled_model()->traits())) pooled_encoder(stream);
}

void Components::release_others() {
  if (residency_ == Residency::kAll) return;
  for (auto& expert : experts_) expert.reset();
  vae_.reset();
}

const ImageEncoder& Components::image_encoder(Stream& stream) {
  return encoder(stream, "image_encoder", *directory().image_model, *model_->image_file,
                 image_encoder_);
}

const Vae& Components::vae_encoder(Stream& stream) {
  if (!vae_encoder_) {
    release_others();
    load("vae", [&] {
      vae_encoder_ = vae_model().load(stream, *model_->vae_file, vae_dtype_, VaeParts::kEncoder);
    });
  }
  return *vae_encoder_;
}

void Components::done_with_pictures() {
  image_encoder_.reset();
  vae_encoder_.reset();
}

const Transformer& Components::expert(Stream& stream, int model) {
  CHECK(model >= 0 && model < static_cast<int>(experts_.size()), "expert", model);
  if (!experts_[model]) {
    if (residency_ >= Residency::kOneExpert) {
      for (auto& other : experts_) other.reset();
    }
    load(model ? "transformer_2" : "transformer", [&] {
      experts_[model] =
          expert_model(model).load(stream, *model_->expert_files[model], load_of(model));
    });
  }
  return *experts_[model];
}

const Vae& Components::vae(Stream& stream) {
  if (!vae_) {
    // The end of a clip is encoded for the next one.
    const VaeParts parts = directory().chunks.any() ? VaeParts::kBoth : VaeParts::kDecoder;
    load("vae", [&] { vae_ = vae_model().load(stream, *model_->vae_file, vae_dtype_, parts); });
  }
  return *vae_;
}

const AudioEncoderModel& Components::audio_model() const {
  const std::shared_ptr<const AudioEncoderModel>& model = directory().audio_model;
  if (!model)
    throw Error(ErrorKind::kModel, directory().path + " has no audio_encoder; models of " +
                                       "speech to video have one");
  return *model;
}

std::unique_ptr<AudioEncoder> Components::audio_encoder(Stream& stream) {
  const AudioEncoderModel& model = audio_model();
  done_with_text_encoders();
  std::unique_ptr<AudioEncoder> held;
  encoder(stream, "audio_encoder", model, *model_->audio_file, held);
  return held;
}

void Components::done_with_text_encoders() {
  if (residency_ == Residency::kAll) return;
  text_encoder_.reset();
  pooled_encoder_.reset();
}

void Components::done_with_vae() {
  if (residency_ == Residency::kSequential) vae_.reset();
}

void Components::done_with_experts() {
  if (residency_ != Residency::kSequential) return;
  for (auto& expert : experts_) expert.reset();
}

int Components::experts_resident() const {
  return static_cast<int>(
      std::count_if(experts_.begin(), experts_.end(), [](const auto& e) { return e != nullptr; }));
}

}  // namespace weft
