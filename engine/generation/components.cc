#include "engine/generation/components.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "io/sha256.h"
#include "io/text/text_clean.h"

namespace weft {
namespace {

ModelDirectory checked(ModelDirectory directory, const Umt5Config& text, const WanVaeConfig& vae) {
  const auto expect = [&](int64_t is, int64_t must, const std::string& what,
                          const std::string& other) {
    if (is == must) return;
    throw Error(ErrorKind::kModel, directory.path + ": " + what + " is " + std::to_string(is) +
                                       ", but " + other + " is " + std::to_string(must) +
                                       "; the parts do not belong together");
  };
  for (int model = 0; model < directory.experts(); ++model) {
    const WanConfig& config = directory.expert_config(model);
    const std::string name = model ? "transformer_2" : "transformer";
    expect(config.text_dim, text.d_model, name + " text_dim", "text_encoder d_model");
    expect(config.out_channels, vae.z_dim, name + " out_channels", "vae z_dim");
    expect(config.in_channels, vae.z_dim, name + " in_channels", "vae z_dim");
  }
  return directory;
}

// Matrices are packed in the compute dtype. Tensors of rank 1 and the position biases stay f32.
uint64_t host_bytes(const std::vector<TensorSpec>& tensors, DType dtype,
                    const std::function<bool(const std::string&)>& skip) {
  uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) {
    if (skip(tensor.name)) continue;
    const bool matrix = tensor.shape.size() > 1 &&
                        tensor.name.find("relative_attention_bias") == std::string::npos &&
                        !tensor.name.ends_with("gamma");
    total += static_cast<uint64_t>(parameter_count({&tensor, 1})) *
             size_of(matrix ? dtype : DType::kF32);
  }
  return total;
}

}  // namespace

Components::Components(const std::string& path, const WanLoad& how, DType vae_dtype,
                       const RankPlacement& placement, std::optional<DeviceTraits> device)
    : directory_(open_model_directory(path)),
      how_(how),
      vae_dtype_(vae_dtype),
      device_(std::move(device)),
      placement_(placement),
      text_config_(Umt5Config::from_json_file(directory_.text_encoder + "/config.json")),
      vae_config_(WanVaeConfig::from_json_file(directory_.vae + "/config.json")),
      tokenizer_(SentencePieceTokenizer::load(directory_.tokenizer + "/spiece.model")),
      text_length_(tokenizer_model_max_length(directory_.tokenizer + "/tokenizer_config.json")),
      text_file_(TensorFile::open(directory_.text_encoder)),
      vae_file_(TensorFile::open(directory_.vae)) {
  directory_ = checked(std::move(directory_), text_config_, vae_config_);
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

std::vector<int32_t> Components::ids_of(const std::string& prompt) const {
  return tokenizer_.encode(clean_prompt(prompt), static_cast<int>(text_length_));
}

std::optional<PromptCut> Components::prompt_cut(const std::string& prompt) const {
  const std::vector<int32_t> ids =
      tokenizer_.encode(clean_prompt(prompt), std::numeric_limits<int>::max());
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens <= text_length_) return std::nullopt;
  // The last row, like the last token, is the end of the text.
  const auto first_lost = ids.begin() + text_length_ - 1;
  const std::string read = tokenizer_.decode({ids.begin(), first_lost});
  std::string lost = tokenizer_.decode({first_lost, ids.end() - 1});
  // A word that is cut in two is told whole.
  const std::string all = tokenizer_.decode({ids.begin(), ids.end() - 1});
  if (all.starts_with(read) && all.ends_with(lost)) {
    const size_t space = all.find_last_of(' ', read.size());
    lost = all.substr(space == std::string::npos ? 0 : space + 1);
  }
  return PromptCut{tokens, text_length_, lost};
}

uint64_t Components::text_encoder_bytes() const {
  if (!placement_.encodes_text(text_config_)) return 0;
  const WidthSlice width = placement_.text_width(text_config_);
  return device_ ? umt5_device_bytes(text_config_, dtype(), width)
                 : umt5_weights_bytes(text_config_, dtype(), width);
}

uint64_t Components::expert_bytes(int model) const {
  const WanConfig& config = directory_.expert_config(model);
  return device_ ? wan_device_bytes(config, load_of(config), expert_biases(model)).weights
                 : wan_weights_bytes(config, load_of(config));
}

uint64_t Components::expert_loading_bytes(int model) const {
  const WanConfig& config = directory_.expert_config(model);
  return device_ ? wan_device_bytes(config, load_of(config), expert_biases(model)).loading : 0;
}

uint64_t Components::expert_streamed_bytes(int model) const {
  const WanConfig& config = directory_.expert_config(model);
  return wan_streamed_bytes(config, load_of(config));
}

uint64_t Components::vae_bytes() const {
  if (device_) return vae_decode_device_bytes(vae_config_, vae_dtype_, vae_biases());
  return host_bytes(wan_vae_tensors(vae_config_), vae_dtype_, [](const std::string& name) {
    return !name.starts_with("decoder.") && !name.starts_with("post_quant_conv.");
  });
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

const Umt5Encoder& Components::text_encoder(Stream& stream) {
  if (!text_encoder_) {
    if (residency_ != Residency::kAll) {  // the text encoder is then resident alone
      for (auto& expert : experts_) expert.reset();
      vae_.reset();
    }
    load("text_encoder", [&] {
      text_encoder_ = Umt5Encoder::load(text_file_, text_config_, stream, dtype(),
                                        placement_.text_width(text_config_));
    });
  }
  return *text_encoder_;
}

const WanTransformer& Components::expert(Stream& stream, int model) {
  CHECK(model >= 0 && model < static_cast<int>(experts_.size()), "expert", model);
  if (!experts_[model]) {
    if (residency_ >= Residency::kOneExpert) {
      for (auto& other : experts_) other.reset();
    }
    load(model ? "transformer_2" : "transformer", [&] {
      const WanConfig& config = directory_.expert_config(model);
      experts_[model] =
          WanTransformer::load(stream, expert_files_[model], config, placement_.load(config, how_));
    });
  }
  return *experts_[model];
}

const WanVae& Components::vae(Stream& stream) {
  if (!vae_) {
    load("vae", [&] {
      vae_ = WanVae::load(vae_file_, vae_config_, stream, vae_dtype_, VaeParts::kDecoder);
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
      std::count_if(experts_.begin(), experts_.end(), [](const auto& e) { return e.has_value(); }));
}

}  // namespace weft
