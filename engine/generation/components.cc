#include "engine/generation/components.h"

#include <algorithm>

namespace weft {

Components::Components(std::shared_ptr<const OpenModel> model, const TransformerLoad& how,
                       DType vae_dtype, const RankPlacement& placement,
                       std::optional<DeviceTraits> device)
    : model_(std::move(model)),
      how_(how),
      vae_dtype_(vae_dtype),
      device_(std::move(device)),
      placement_(placement),
      experts_(directory().experts()) {}

void Components::set_residency(Residency residency) {
  residency_ = residency;
  done_with_text_encoder();
  if (residency >= Residency::kOneExpert && experts_resident() > 1) {
    for (auto& expert : experts_) expert.reset();
  }
  if (residency == Residency::kSequential) vae_.reset();
}

void Components::load(const std::string& name, const std::function<void()>& body) {
  if (on_load) {
    on_load(name, body);
  } else {
    body();
  }
}

const TextEncoder& Components::text_encoder(Stream& stream) {
  if (!text_encoder_) {
    if (residency_ != Residency::kAll) {  // the text encoder is then resident alone
      for (auto& expert : experts_) expert.reset();
      vae_.reset();
    }
    load("text_encoder", [&] {
      text_encoder_ = text_model().load(stream, *model_->text_file, dtype(),
                                        placement_.text_width(text_model().traits()));
    });
  }
  return *text_encoder_;
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
    load("vae", [&] {
      vae_ = vae_model().load(stream, *model_->vae_file, vae_dtype_, VaeParts::kDecoder);
    });
  }
  return *vae_;
}

void Components::done_with_text_encoder() {
  if (residency_ != Residency::kAll) text_encoder_.reset();
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
