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

Components::Components(const std::string& path, const TransformerLoad& how, DType vae_dtype,
                       const RankPlacement& placement, std::optional<DeviceTraits> device)
    : directory_(open_model_directory(path)),
      how_(how),
      vae_dtype_(vae_dtype),
      device_(std::move(device)),
      placement_(placement),
      tokenizer_(directory_.family->tokenizer(directory_.tokenizer)),
      text_file_(TensorFile::open(directory_.text_encoder)),
      vae_file_(TensorFile::open(directory_.vae)) {
  check_that_parts_fit(directory_);
  for (int model = 0; model < directory_.experts(); ++model) {
    expert_files_.push_back(TensorFile::open(directory_.expert_path(model)));
  }
  experts_.resize(expert_files_.size());
}

std::string Components::weights_hash() const {
  std::string all = text_file_.header_hash() + vae_file_.header_hash();
  for (const TensorFile& file : expert_files_) all += file.header_hash();
  return sha256_hex(all);
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
      text_encoder_ = text_model().load(stream, text_file_, dtype(),
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
      experts_[model] = expert_model(model).load(stream, expert_files_[model], load_of(model));
    });
  }
  return *experts_[model];
}

const Vae& Components::vae(Stream& stream) {
  if (!vae_) {
    load("vae",
         [&] { vae_ = vae_model().load(stream, vae_file_, vae_dtype_, VaeParts::kDecoder); });
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
