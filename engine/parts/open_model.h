#pragma once
// OpenModel: a model directory whose configurations and tensor headers have been read. It holds no
// weights. The ranks of a process share one.
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"
#include "io/weights/tensor_file.h"
#include "models/lora/lora.h"
#include "models/registry.h"

namespace weft {

class OpenModel {
 public:
  // `files` take the place of parts of the directory; a path of "" means that they are the model.
  // Throws Error(kModel) for a directory that is not supported, or whose parts do not belong
  // together.
  explicit OpenModel(const std::string& path, std::vector<Lora> loras = {}, PartFiles files = {});
  // The same files with other settings than those that their directory states.
  OpenModel(const OpenModel& whole, ModelDirectory changed);
  // The same model for simulations: its transformers have at most so many blocks. Those that had
  // more lose their values.
  OpenModel(const OpenModel& whole, int blocks);
  // The same model with other LoRAs, which shares all that they do not change. Error(kUsage) and
  // Error(kModel) where one does not fit.
  OpenModel(const OpenModel& model, std::vector<Lora> loras);

  using File = std::shared_ptr<const TensorFile>;
  struct TextFiles {
    File rows, pooled;  // of the encoders of a prompt's rows and of its vector; null: it has none
  };
  const ModelDirectory directory;
  const std::shared_ptr<const PromptTokenizer> tokenizer;
  const File vae_file;
  const File audio_file;          // of the audio encoder; null where the folder has none
  const File image_file;          // of the image encoder; null where there is none
  const PartFiles files;          // that it was opened with
  const std::vector<Lora> loras;  // merged into the weights of the experts and the text encoders
  // The user should know of these: the modules of LoRAs that change nothing of this model, and
  // names of files that contradict their places.
  std::vector<std::string> notes;
  const std::vector<File> base_experts;  // without LoRAs
  const TextFiles base_texts;
  // These have the LoRAs' changes; a file that none of them changes is that of the base.
  const std::vector<File> expert_files;  // one per expert
  const TextFiles text_files;
  // SHA-256 over the header hashes of all files; in simulations that of the whole model.
  const std::string weights_hash;

  SamplerConfig sampler() const;  // of the model's scheduler
  // The prompt's tokens. The last prompts are remembered, so that each is cleaned and tokenised
  // once, whoever asks for it.
  std::shared_ptr<const PromptTokens> tokens(const std::string& prompt) const;
  // The number of the prompt's rows that the transformers read.
  int64_t prompt_rows(const std::string& prompt) const;

 private:
  // The same but for its directory and the files of its experts.
  OpenModel(const OpenModel& whole, ModelDirectory changed, std::vector<File> experts);

  using Variant = std::shared_ptr<const OpenModel>;
  friend Variant variant_of(const Variant& model, const std::optional<std::vector<Lora>>& loras);

  mutable std::mutex mutex_;  // guards tokens_
  mutable std::map<std::string, std::shared_ptr<const PromptTokens>> tokens_;
  mutable std::mutex variants_mutex_;                // guards variants_
  mutable std::map<std::string, Variant> variants_;  // by their LoRAs
};

// Returns the model with these LoRAs in place of its own; nullopt: the model itself. It remembers
// the last ones, whoever asks for them. Throws what OpenModel's constructor throws.
std::shared_ptr<const OpenModel> variant_of(const std::shared_ptr<const OpenModel>& model,
                                            const std::optional<std::vector<Lora>>& loras);

}  // namespace weft
