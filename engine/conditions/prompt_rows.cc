#include "engine/conditions/prompt_rows.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/sha256.h"
#include "kernels/copy.h"
#include "kernels/ops.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

// The file with its size and the time of its last change: its values are too many to be hashed.
nlohmann::json identity(const std::string& path) {
  struct stat facts {};
  stat(path.c_str(), &facts);
  return {std::filesystem::weakly_canonical(path).string(), static_cast<int64_t>(facts.st_size),
          static_cast<int64_t>(facts.st_mtim.tv_sec), static_cast<int64_t>(facts.st_mtim.tv_nsec)};
}

// Everything that the rows of given ids depend on, to the bit.
std::string encoder_facts(const Stream& stream, const Components& parts,
                          const RankPlacement& placement, bool pooled) {
  const ModelDirectory& directory = parts.directory();
  const OpenModel& model = *parts.model();
  const std::string& folder = pooled ? directory.pooled_encoder : directory.text_encoder;
  // The config of weights that are a file of their own is one of the other two, or none.
  nlohmann::json files{identity(folder + "/config.json")};
  if (folder == model.files.text_encoder || folder == model.files.text_encoder_2) {
    const std::string beside = std::filesystem::path(folder).parent_path() / "config.json";
    const TextFolders& own = pooled ? directory.family->pooled : directory.family->text;
    for (const std::string& config : {beside, directory.path + "/" + own.encoder + "/config.json"})
      files.push_back(identity(config));
  }
  for (const std::string& file :
       (pooled ? model.text_files.pooled : model.text_files.rows)->files()) {
    files.push_back(identity(file));
    for (const Lora& lora : model.loras)
      if (lora.file == file) files.push_back(to_string(lora));
  }
  const TextEncoderModel& encoder = pooled ? *parts.pooled_model() : parts.text_model();
  return nlohmann::json{{"numerics_epoch", kNumericsEpoch},
                        {"files", files},
                        {"taps", pooled ? std::vector<int>() : directory.text_taps},
                        {"dtype", to_string(parts.dtype())},
                        {"weights", to_string(parts.text_weights())},
                        {"device", to_string(stream.device().kind)},
                        {"isa", cpu_isa()},
                        {"threads", stream.threads()},
                        {"deterministic", stream.deterministic()},
                        {"parts", placement.text_parts(encoder.traits())}}
      .dump();
}

}  // namespace

void encode_pooled(Context& context, const TextEncoder& encoder, std::span<const int32_t> ids,
                   int64_t row, const TensorView& out) {
  const Arena::Scope scope(context.arena);
  const TensorView rows = context.arena.alloc(DType::kF32, {std::ssize(ids), out[1]});
  encoder.encode(context, ids, rows);
  copy(context.stream, rows.slice(0, row, 1), out);
}

void tap_prompt(Stream& stream, const Prompt& prompt, const Components& parts, PipelineTap& tap) {
  const HostCopy rows(stream, prompt.embeds);
  Tensor padded(DType::kF32, {parts.text_length(rows.view()[0]), rows.view()[1]});
  std::copy_n(rows.view().as<float>(), rows.view().count(), padded.as<float>());
  tap.tap("prompt_embeds", padded);
  if (!prompt.pooled) return;
  const HostCopy pooled(stream, prompt.pooled);
  tap.tap("pooled_prompt_embeds", pooled.view().select(0, 0));
}

std::string text_hash(Stream& stream, std::span<const Prompt> prompts) {
  Sha256 hash;
  for (const Prompt& prompt : prompts) {
    for (const Tensor* made : {&prompt.embeds, &prompt.pooled}) {
      const HostCopy values(stream, *made);
      if (values.view()) hash.update(values.view().data, values.view().bytes());
    }
  }
  return hash.hex();
}

std::vector<Prompt> prompts_of(const Request& request, const OpenModel& model, bool is_guided) {
  std::vector<Prompt> prompts(2);  // the positive one and the negative one
  const auto read = [&](const std::string& text) {
    const auto tokens = model.tokens(text);
    return Prompt{.ids = tokens->ids, .pooled_ids = tokens->pooled_ids};
  };
  prompts[0] = read(request.prompt);
  if (is_guided) prompts[1] = read(*request.negative_prompt);
  for (const ScheduledPrompt& later : request.schedule) prompts.push_back(read(later.prompt));
  return prompts;
}

PromptEncoder::PromptEncoder(const Rank& rank, const std::string& cache_folder)
    : stream_(rank.stream),
      arena_(rank.arena),
      parts_(rank.parts()),
      placement_(rank.placement),
      seams_(placement_),
      caches_(!cache_folder.empty()) {
  sources_.push_back({.pooled = false, .model = parts_.text_model()});
  if (parts_.pooled_model()) sources_.push_back({.pooled = true, .model = *parts_.pooled_model()});
  if (!caches_ || !placement_.root()) return;
  for (Source& source : sources_)
    source.cache.emplace(cache_folder, encoder_facts(stream_, parts_, placement_, source.pooled));
}

std::array<int64_t, 2> PromptEncoder::shape_of(const Source& source, const Prompt& prompt) const {
  const int64_t read = std::ssize(prompt.ids) - parts_.model()->tokenizer->unread_ids();
  return {source.pooled ? 1 : read, source.model.traits().columns};
}

Tensor PromptEncoder::new_tensor(const Source& source, const Prompt& prompt) const {
  const auto [rows, columns] = shape_of(source, prompt);
  return {DType::kF32, {rows, columns}, stream_.device()};
}

bool PromptEncoder::recall(std::span<Prompt> prompts) {
  if (!caches_) return false;
  std::vector<Tensor> kept;  // on the root, in the order of the loops below
  bool has_all = true;
  for (const Prompt& prompt : prompts)
    for (const Source& source : sources_) {
      if (prompt.ids.empty() || !source.cache || !has_all) continue;
      kept.push_back(source.cache->find(source.ids(prompt), shape_of(source, prompt)));
      has_all = static_cast<bool>(kept.back());
    }
  const Tag decision{.kind = Payload::kControl, .topic = Topic::kText};
  if (!placement_.broadcast_from_root(stream_, decision, has_all)) return false;
  auto next = kept.begin();
  for (size_t i = 0; i < prompts.size(); ++i)
    for (const Source& source : sources_) {
      Prompt& prompt = prompts[i];
      if (prompt.ids.empty()) continue;
      Tensor& made = source.made(prompt);
      made =
          placement_.root() ? on_device(stream_, std::move(*next++)) : new_tensor(source, prompt);
      if (!placement_.alone())
        placement_.communicator().broadcast(stream_, source.tag(static_cast<int>(i)), made, 0);
    }
  return true;
}

void PromptEncoder::encode(std::span<Prompt> prompts, const std::function<void()>& next,
                           const std::function<void(int prompts)>& done) {
  int count = 0;
  for (Prompt& prompt : prompts) {
    if (prompt.ids.empty()) continue;
    next();
    for (const Source& source : sources_) encode(source, prompt, count);
    done(++count);
  }
}

// The ranks that hold a part of the encoder compute the rows together. The root sends the rows that
// transformers read to the other ranks.
void PromptEncoder::encode(const Source& source, Prompt& prompt, int count) {
  const TextEncoderTraits& traits = source.model.traits();
  const std::vector<int32_t>& ids = source.ids(prompt);
  const Tag tag = source.tag(count);
  Tensor& made = source.made(prompt);
  made = new_tensor(source, prompt);
  if (placement_.encodes_text(traits)) {
    const TextEncoder& encoder =
        source.pooled ? parts_.pooled_encoder(stream_) : parts_.text_encoder(stream_);
    const Arena::Scope scope(arena_);
    Context context = seams_.context(stream_, arena_, tag.pass, traits, std::ssize(ids));
    if (source.pooled)
      encode_pooled(context, encoder, ids, traits.pooled_row(ids), made);
    else
      encoder.encode(context, ids, made);
  }
  placement_.share_encoded(stream_, traits, tag, made);
  if (first_non_finite(stream_, made) >= 0)
    throw Error(ErrorKind::kNonFinite,
                "NaN or infinity in encode_text, " + std::string(count ? "negative" : "positive") +
                    " prompt. Try --dtype f32, or check the weights with weft inspect");
  if (source.cache) source.cache->keep(ids, HostCopy(stream_, made).view());
}

}  // namespace weft
