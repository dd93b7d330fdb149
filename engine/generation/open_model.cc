#include "engine/generation/open_model.h"

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

OpenModel::File opened(const std::string& path) {
  return std::make_shared<const TensorFile>(TensorFile::open(path));
}

std::vector<OpenModel::File> open_experts(const ModelDirectory& directory) {
  check_that_parts_fit(directory);
  std::vector<OpenModel::File> files;
  for (int model = 0; model < directory.experts(); ++model)
    files.push_back(opened(directory.expert_path(model)));
  return files;
}

std::string hash_of(const OpenModel& model) {
  std::string all = model.text_file->header_hash() + model.vae_file->header_hash();
  for (const OpenModel::File& file : model.expert_files) all += file->header_hash();
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

OpenModel::OpenModel(const std::string& path)
    : directory(open_model_directory(path)),
      tokenizer(directory.family->tokenizer(directory.tokenizer)),
      text_file(opened(directory.text_encoder)),
      vae_file(opened(directory.vae)),
      expert_files(open_experts(directory)),
      weights_hash(hash_of(*this)) {}

OpenModel::OpenModel(const OpenModel& whole, int blocks)
    : directory(with_blocks(whole.directory, blocks)),
      tokenizer(whole.tokenizer),
      text_file(whole.text_file),
      vae_file(whole.vae_file),
      expert_files(with_blocks(whole, blocks)),
      weights_hash(whole.weights_hash) {}

std::shared_ptr<const PromptTokens> OpenModel::tokens(const std::string& prompt) const {
  constexpr size_t kMost = 64;  // a job has two prompts
  const std::lock_guard lock(mutex_);
  if (const auto found = tokens_.find(prompt); found != tokens_.end()) return found->second;
  if (tokens_.size() >= kMost) tokens_.clear();
  return tokens_[prompt] = std::make_shared<const PromptTokens>(tokenizer->read(prompt));
}

}  // namespace weft
