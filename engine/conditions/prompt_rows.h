#pragma once
// The prompts of a job as ids, and as the rows and vectors that the text encoders make of them.
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/conditions/text_cache.h"
#include "engine/job/options.h"
#include "engine/parts/rank.h"
#include "engine/parts/seams.h"

namespace weft {

struct Prompt {
  std::vector<int32_t> ids;
  Tensor embeds{};  // [rows that transformers read, d] f32, on the device
  // For models that also read a prompt as one vector: the ids for its encoder, and the vector
  // [1, d] f32, on the device.
  std::vector<int32_t> pooled_ids{};
  Tensor pooled{};
};

// The ids of the positive prompt, of the negative one, which are none where it is not used, and of
// those of the schedule.
std::vector<Prompt> prompts_of(const Request& request, const OpenModel& model, bool is_guided);

// Fills in the tensors of prompts on every rank. All ranks call the same functions.
class PromptEncoder {
 public:
  // `cache_folder` is empty, or the folder of a TextCache.
  PromptEncoder(const Rank& rank, const std::string& cache_folder);

  // Takes the tensors from the cache. Returns false, and changes nothing, where it lacks one.
  bool recall(std::span<Prompt> prompts);
  // Computes the tensors and keeps them in the cache. `next` is called before each prompt, and
  // `done` with the number of prompts after each. Throws Error(kNonFinite).
  void encode(std::span<Prompt> prompts, const std::function<void()>& next,
              const std::function<void(int prompts)>& done);

 private:
  // One of the text encoders: which ids of a prompt it reads, and which tensor it makes.
  struct Source {
    bool pooled;
    const TextEncoderModel& model;
    std::optional<TextCache> cache{};  // on the root

    const std::vector<int32_t>& ids(const Prompt& prompt) const {
      return pooled ? prompt.pooled_ids : prompt.ids;
    }
    Tensor& made(Prompt& prompt) const { return pooled ? prompt.pooled : prompt.embeds; }
    Tag tag(int prompt) const {
      return {.kind = Payload::kText,
              .pass = {.branch = prompt},
              .layer = pooled,
              .topic = Topic::kText};
    }
  };
  std::array<int64_t, 2> shape_of(const Source& source, const Prompt& prompt) const;
  Tensor new_tensor(const Source& source, const Prompt& prompt) const;
  void encode(const Source& source, Prompt& prompt, int count);

  Stream& stream_;
  Arena& arena_;
  Components& parts_;
  const RankPlacement& placement_;
  EncoderSeams seams_;
  const bool caches_;
  std::vector<Source> sources_;
};

// Encodes the ids of one prompt and writes the row `row` to out [1, columns] f32.
void encode_pooled(Context& context, const TextEncoder& encoder, std::span<const int32_t> ids,
                   int64_t row, const TensorView& out);

// Shows a prompt's tensors, its rows padded with zeros to the length that the models were trained
// with.
void tap_prompt(Stream& stream, const Prompt& prompt, const Components& parts, PipelineTap& tap);
std::string text_hash(Stream& stream, std::span<const Prompt> prompts);

}  // namespace weft
