#pragma once
// OpenModel: a model directory whose configurations and tensor headers have been read. It holds no
// weights. The ranks of a process share one.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"
#include "models/registry.h"

namespace weft {

class OpenModel {
 public:
  // Throws Error(kModel) for a directory that is not supported, or whose parts do not belong
  // together.
  explicit OpenModel(const std::string& path);
  // The same model for simulations: its transformers have at most so many blocks. Those that had
  // more lose their values.
  OpenModel(const OpenModel& whole, int blocks);

  using File = std::shared_ptr<const TensorFile>;
  const ModelDirectory directory;
  const std::shared_ptr<const PromptTokenizer> tokenizer;
  const File text_file, vae_file;
  const std::vector<File> expert_files;  // one per expert
  // SHA-256 over the header hashes of all files; in simulations that of the whole model.
  const std::string weights_hash;

  // The prompt's tokens. The last prompts are remembered, so that each is cleaned and tokenised
  // once, whoever asks for it.
  std::shared_ptr<const PromptTokens> tokens(const std::string& prompt) const;

 private:
  mutable std::mutex mutex_;  // guards the member below
  mutable std::map<std::string, std::shared_ptr<const PromptTokens>> tokens_;
};

}  // namespace weft
