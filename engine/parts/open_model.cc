#include "engine/parts/open_model.h"

#include <algorithm>
#include <iterator>

#include "io/sha256.h"
#include "io/weights/weights_file.h"

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
    const TextEncoderModel* pooled = directory.pooled_model.get();
    expect(traits.pooled_columns, pooled ? pooled->traits().columns : 0,
           name + " pooled_projection_dim",
           std::string(pooled ? directory.family->pooled.encoder : "no text encoder's") +
               " hidden_size");
    expect(traits.out_channels, directory.vae_model->traits.channels, name + " out_channels",
           "vae z_dim");
    expect(traits.given_channels(), directory.pictures.given_channels,
           name + " in_channels less out_channels", "what the pipeline gives it");
    if (directory.image_model && traits.image_columns)
      expect(traits.image_columns, directory.image_model->traits().columns, name + " image_dim",
             "image_encoder hidden_size");
  }
}

OpenModel::File opened(PartKind kind, const std::string& path, const char* class_name = nullptr) {
  return std::make_shared<const TensorFile>(open_part_weights(kind, path, class_name));
}

std::vector<OpenModel::File> open_experts(const ModelDirectory& directory) {
  check_that_parts_fit(directory);
  std::vector<OpenModel::File> files;
  for (int model = 0; model < directory.experts(); ++model)
    files.push_back(opened(PartKind::kTransformer, directory.expert_path(model),
                           directory.family->transformer_class));
  return files;
}

OpenModel::TextFiles open_text_encoders(const ModelDirectory& directory) {
  OpenModel::TextFiles files{
      opened(PartKind::kTextEncoder, directory.text_encoder, directory.family->text_encoder_class),
      nullptr};
  if (directory.pooled_model)
    files.pooled = opened(PartKind::kTextEncoder, directory.pooled_encoder,
                          directory.family->pooled_encoder_class);
  return files;
}

std::vector<OpenModel::File> changed_experts(const ModelDirectory& directory,
                                             std::vector<OpenModel::File> files,
                                             std::span<const Lora> loras,
                                             std::vector<std::string>& notes) {
  for (const Lora& lora : loras)
    if (lora.expert != LoraExpert::kAll && directory.experts() < 2)
      throw Error(ErrorKind::kUsage, "lora is '" + to_string(lora) +
                                         "', but this model has one expert; legal: FILE[:SCALE]");
  for (int model = 0; model < directory.experts(); ++model) {
    std::vector<Lora> own;
    std::ranges::copy_if(loras, std::back_inserter(own),
                         [&](const Lora& lora) { return lora.changes(model); });
    if (!own.empty())
      files[model] = std::make_shared<const TensorFile>(
          with_loras(files[model], directory.expert(model), own, notes));
  }
  return files;
}

OpenModel::TextFiles changed_texts(const ModelDirectory& directory, OpenModel::TextFiles files,
                                   std::span<const Lora> loras, std::vector<std::string>& notes) {
  std::vector<TextEncoderWeights> encoders{{*directory.text_model, files.rows}};
  if (directory.pooled_model) encoders.push_back({*directory.pooled_model, files.pooled});
  std::vector<Lora> own;  // a file that is given for each expert changes the encoders once
  for (const Lora& lora : loras)
    if (std::ranges::none_of(own, [&](const Lora& before) {
          return before.file == lora.file && before.expert != lora.expert;
        }))
      own.push_back(lora);
  change_text_encoders(encoders, own, notes);
  return files;
}

std::string weights_hash_of(const OpenModel& model) {
  const auto& [rows, pooled] = model.text_files;
  std::string all = rows->header_hash() + model.vae_file->header_hash();
  if (pooled) all += pooled->header_hash();
  for (const OpenModel::File& file : model.expert_files) all += file->header_hash();
  if (model.audio_file) all += model.audio_file->header_hash();
  if (model.image_file) all += model.image_file->header_hash();
  return sha256_hex(all);
}

ModelDirectory with_blocks(ModelDirectory directory, int blocks) {
  for (std::shared_ptr<const TransformerModel>& transformer : directory.transformers)
    if (transformer->traits().blocks > blocks) transformer = transformer->with_blocks(blocks);
  return directory;
}

std::vector<OpenModel::File> with_blocks(const OpenModel& whole, int blocks) {
  std::vector<OpenModel::File> files = whole.expert_files;
  for (int model = 0; model < whole.directory.experts(); ++model) {
    const TransformerModel& transformer = whole.directory.expert(model);
    if (transformer.traits().blocks > blocks)
      files[model] = std::make_shared<const TensorFile>(
          without_values(transformer.with_blocks(blocks)->tensors()));
  }
  return files;
}

}  // namespace

OpenModel::OpenModel(const std::string& path, std::vector<Lora> changes, PartFiles of_parts)
    : directory(open_model_directory(path, of_parts)),
      tokenizer(directory.family->tokenizer(directory)),
      vae_file(opened(PartKind::kVae, directory.vae, directory.family->vae_class)),
      audio_file(directory.audio_model ? opened(PartKind::kAudioEncoder, directory.audio_encoder)
                                       : nullptr),
      image_file(directory.image_encoder.empty()
                     ? nullptr
                     : opened(PartKind::kImageEncoder, directory.image_encoder)),
      files(std::move(of_parts)),
      loras(std::move(changes)),
      notes(directory.notes),
      base_experts(open_experts(directory)),
      base_texts(open_text_encoders(directory)),
      expert_files(changed_experts(directory, base_experts, loras, notes)),
      text_files(changed_texts(directory, base_texts, loras, notes)),
      weights_hash(weights_hash_of(*this)) {}

OpenModel::OpenModel(const OpenModel& model, std::vector<Lora> changes)
    : directory(model.directory),
      tokenizer(model.tokenizer),
      vae_file(model.vae_file),
      audio_file(model.audio_file),
      image_file(model.image_file),
      files(model.files),
      loras(std::move(changes)),
      notes(directory.notes),
      base_experts(model.base_experts),
      base_texts(model.base_texts),
      expert_files(changed_experts(directory, base_experts, loras, notes)),
      text_files(changed_texts(directory, base_texts, loras, notes)),
      weights_hash(weights_hash_of(*this)) {}

OpenModel::OpenModel(const OpenModel& whole, ModelDirectory changed, std::vector<File> experts)
    : directory(std::move(changed)),
      tokenizer(whole.tokenizer),
      vae_file(whole.vae_file),
      audio_file(whole.audio_file),
      image_file(whole.image_file),
      files(whole.files),
      loras(whole.loras),
      notes(whole.notes),
      expert_files(std::move(experts)),
      text_files(whole.text_files),
      weights_hash(whole.weights_hash) {}

OpenModel::OpenModel(const OpenModel& whole, int blocks)
    : OpenModel(whole, with_blocks(whole.directory, blocks), with_blocks(whole, blocks)) {}

OpenModel::OpenModel(const OpenModel& whole, ModelDirectory changed)
    : OpenModel(whole, std::move(changed), whole.expert_files) {}

SamplerConfig OpenModel::sampler() const {
  if (directory.scheduler.empty())
    return SamplerConfig::from_json(directory.scheduler_config, "the built-in scheduler");
  return SamplerConfig::from_json_file(directory.scheduler + "/scheduler_config.json");
}

std::shared_ptr<const PromptTokens> OpenModel::tokens(const std::string& prompt) const {
  constexpr size_t kMost = 64;  // a job has two prompts
  const std::lock_guard lock(mutex_);
  if (const auto found = tokens_.find(prompt); found != tokens_.end()) return found->second;
  if (tokens_.size() >= kMost) tokens_.clear();
  return tokens_[prompt] = std::make_shared<const PromptTokens>(tokenizer->read(prompt));
}

std::shared_ptr<const OpenModel> variant_of(const std::shared_ptr<const OpenModel>& model,
                                            const std::optional<std::vector<Lora>>& loras) {
  if (!loras || *loras == model->loras) return model;
  constexpr size_t kMost = 16;
  const std::string key = to_string(*loras);
  CHECK(!model->base_experts.empty(), "a model for simulations keeps its LoRAs:", key);
  const std::lock_guard lock(model->variants_mutex_);
  auto& variants = model->variants_;
  if (const auto found = variants.find(key); found != variants.end()) return found->second;
  auto made = std::make_shared<const OpenModel>(*model, *loras);
  if (variants.size() >= kMost)
    std::erase_if(variants, [](const auto& variant) { return variant.second.use_count() == 1; });
  return variants[key] = std::move(made);
}

int64_t OpenModel::prompt_rows(const std::string& prompt) const {
  return std::ssize(tokens(prompt)->ids) - tokenizer->unread_ids();
}

}  // namespace weft
