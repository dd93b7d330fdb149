#include "engine/generation/components.h"

#include <algorithm>

#include "io/sha256.h"

namespace weft {
namespace {

void check_that_parts_fit(const ModelDirectory& directory) {
  const auto expect = [&](int64_t is, int64_t must, const std::string& what,
                          const std::string& other) {
    if (is == must) return;
    throw Error(ErrorKind::kModel, directory.path + ": " + what + " is " + std::to_string(is) +
                                       ", but " + other + " is " + std::to_string(must) +
                                       "; the parts do not belong together");
  };
  for (int model = 0; model < directory.experts(); ++model) {
    const TransformerTraits& traits = directory.expert(model).traits();
    const std::string name = model ? "transformer_2" : "transformer";
    expect(traits.text_columns, directory.text_model->traits().columns, name + " text_dim",
           "text_encoder d_model");
    expect(traits.out_channels, directory.vae_model->traits().channels, name + " out_channels",
           "vae z_dim");
    expect(traits.in_channels, directory.vae_model->traits().channels, name + " in_channels",
           "vae z_dim");
  }
}

}  // namespace

OpenModel::OpenModel(const std::string& path)
    : directory(open_model_directory(path)),
      tokenizer(directory.family->tokenizer(directory.tokenizer)),
      text_file(std::make_shared<TensorFile>(TensorFile::open(directory.text_encoder))),
      vae_file(std::make_shared<TensorFile>(TensorFile::open(directory.vae))) {
  check_that_parts_fit(directory);
  std::string hashes = text_file->header_hash() + vae_file->header_hash();
  for (int model = 0; model < directory.experts(); ++model) {
    expert_files.push_back(
        std::make_shared<TensorFile>(TensorFile::open(directory.expert_path(model))));
    hashes += expert_files.back()->header_hash();
  }
  weights_hash = sha256_hex(hashes);
}

Components::Components(std::shared_ptr<const OpenModel> model, const TransformerLoad& how,
                       DType vae_dtype, const RankPlacement& placement,
                       std::optional<DeviceTraits> device)
    : model_(std::move(model)),
      how_(how),
      vae_dtype_(vae_dtype),
      device_(std::move(device)),
      placement_(placement),
      experts_(experts()) {}

uint64_t Components::text_encoder_bytes() const {
  const TextEncoderTraits& traits = text_model().traits();
  if (!placement_.encodes_text(traits)) return 0;
  const WidthSlice width = placement_.text_width(traits);
  return device_ ? text_model().device_bytes(dtype(), width)
                 : text_model().weights_bytes(dtype(), width);
}

uint64_t Components::expert_bytes(int model) const {
  return device_ ? expert_model(model).device_bytes(load_of(model), expert_biases(model)).weights
                 : expert_model(model).weights_bytes(load_of(model));
}

uint64_t Components::expert_loading_bytes(int model) const {
  return device_ ? expert_model(model).device_bytes(load_of(model), expert_biases(model)).loading
                 : 0;
}

uint64_t Components::expert_streamed_bytes(int model) const {
  return expert_model(model).streamed_bytes(load_of(model));
}

uint64_t Components::vae_bytes() const {
  return device_ ? vae_model().decoder_device_bytes(vae_dtype_, vae_biases())
                 : vae_model().decoder_bytes(vae_dtype_);
}

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
