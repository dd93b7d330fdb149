#pragma once
// Registry: the one table of model families. A row describes a pipeline by the `_class_name` of its
// model_index.json; other tables find the class of a component by that of its config.json.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/encoder.h"
#include "models/files/part_files.h"
#include "models/files/tokenizer_kind.h"
#include "models/known_model.h"
#include "models/picture_conditioning.h"
#include "models/prompt_tokenizer.h"
#include "models/transformer.h"
#include "models/vae.h"
#include "parallel/partition.h"

namespace weft {

// A stream that shows a picture begins with it: its sink is the latent of the picture, and before
// it lie the latents of the picture that stands still (Conditions::motion).
struct StreamPicture {
  int64_t sink_frame = 0;  // the sink's position in time, in frames of tokens
  // A forward draws from these how many frames ahead of its segment the sink is kept.
  Range sink_distance{};
  int swap_segment = 0;  // before this segment the stream's first latent becomes the sink; 0: never
  // The decoder has seen so many latents of the standing picture when the first segment comes, of
  // whose pictures the first ones are not shown.
  int64_t decoded_latents = 0, dropped_pictures = 0;
};

// The endless streams that a model was trained for.
struct StreamDefaults {
  std::string caption;  // a {mood} in it stands for one of `moods`
  std::vector<std::string> moods;
  int64_t width = 0, height = 0;  // pixels
  double fps = 0;
  int steps = 0;
  std::string solver;          // "": that of the model's scheduler
  int64_t segment_frames = 0;  // latent frames of a segment
  int64_t window_frames = 0;   // latent frames that a segment sees, its own among them
  bool clean_pass = false;     // a segment sees keys of finished segments, not of the same step
  std::optional<StreamPicture> picture;  // unset: streams show what the caption says alone
  std::string needs_lora;                // of which the model draws good streams; "": it needs none
};

// The settings that a model is run with unless the user says otherwise.
struct DefaultSettings {
  std::string name;    // the published model's, or that of weft.json
  std::string origin;  // "weft.json" or "built-in"
  std::string negative_prompt;
  int64_t width = 832, height = 480, frames = 81;
  std::optional<int64_t> trained_frames;  // the longest clips of its training; unset: frames
  double fps = 16;
  int steps = 50;
  double guidance_scale = 5;               // for the high-noise expert where there are two
  std::optional<double> guidance_scale_2;  // for the low-noise expert
  std::optional<double> flow_shift;        // unset: scheduler_config.json
  // The polynomial of TeaCache, highest power first (engine/methods/step_cache.h). Empty: none
  // is known.
  std::vector<double> teacache;
  std::optional<StreamDefaults> stream;  // unset: the model draws no streams
};

// Two velocities become one, with scale g: v_n + g (v_p - v_n), or v_p + g (v_p - v_n).
enum class GuidanceForm : uint8_t {
  kFromNegative,
  kFromPositive,
  kBeyondPositive,  // the same, where any g above 0 guides: the scale is 1 + g, counted as others
  kRescaled,  // from the negative one; then every token's velocity is scaled to the norm of v_p
  kTold,      // there is one velocity; the transformer is told g, if it reads it
};

// The chunks of a model whose videos follow a sound. Each is denoised for its part of the sound,
// and goes on from the pictures before it.
struct SpeechChunks {
  int64_t latent_frames = 0;  // of a chunk; 0: the videos follow no sound
  // The first chunk goes on from the reference picture, and so many of its pictures are not shown.
  int64_t dropped_frames = 0;
  int64_t motion_frames = 0;  // pictures before a chunk, which are encoded (Conditions::motion)
  int64_t size_multiple = 1;  // pixels, of width and height

  bool any() const { return latent_frames > 0; }
};

struct ModelDirectory;

// The folders of a text encoder in a model directory, and the kind of its tokenizer; null: the
// family has none.
struct TextFolders {
  const char *encoder = nullptr, *tokenizer = nullptr;
  TokenizerKind kind = TokenizerKind::kSentencePiece;
};

// The facts that the folder of a model states beside its weights, for one that has no folder.
struct PipelineFacts {
  std::string scheduler;                   // as scheduler_config.json
  std::optional<double> boundary_ratio{};  // of two experts
  bool expand_timesteps = false;
};

// This says where the repository of a model's authors has its parts, beside the transformer in its
// root.
struct RootLayout {
  const char* vae_pickle;  // published as pickles, which are not read
  const char* text_encoder_pickle;
  const char* tokenizer;  // folders
  const char* audio_encoder;
};

// A row of the registry.
struct ModelFamily {
  const char* class_name;  // of model_index.json, or of the config.json in the root
  GuidanceForm guidance = GuidanceForm::kFromNegative;
  bool even_sigmas = false;  // the pipeline gives an Euler scheduler its sigmas (SamplerConfig)
  float velocity_sign = 1;   // the sampler steps along velocity_sign times the transformer's output
  TextFolders text{"text_encoder", "tokenizer"};  // of the rows that transformers read
  TextFolders pooled{};                           // of a prompt's vector
  std::span<const int> text_taps{};  // ModelDirectory::text_taps of a model that names none
  std::optional<bool> distilled{};   // is_distilled of the index; unset: any
  std::unique_ptr<PromptTokenizer> (*tokenizer)(const ModelDirectory& model) = nullptr;
  // The published settings of the model, for a folder without weft.json.
  DefaultSettings (*defaults)(const ModelDirectory& model) = nullptr;
  // Reads what else a model_index.json says, to the directory. Error(kModel) names the key.
  void (*read_index)(const std::string& path, ModelDirectory& model) = nullptr;
  // The exponent m of a scheduler's dynamic shift for a latent of so many tokens (DynamicShift);
  // null: it follows from the scheduler's config.
  double (*shift_exponent)(int64_t tokens, int steps) = nullptr;
  std::span<const KnownModel> known{};  // the published models of the family
  const char* only_model = nullptr;     // the name of its models where there is one size alone
  // Says which pictures the model reads; null: none.
  PictureConditioning (*pictures)(const ModelDirectory& model) = nullptr;
  // Says in which chunks its videos follow a sound; null: they follow none.
  SpeechChunks (*chunks)(const ModelDirectory& model) = nullptr;
  const RootLayout* root = nullptr;  // of its folders; null: they have a model_index.json
  // These describe a model whose parts are single files: the classes of the parts, of which the
  // transformer's tells the family, and the rest. A family without them needs a folder.
  const char* transformer_class = nullptr;
  const char* text_encoder_class = nullptr;
  const char* pooled_encoder_class = nullptr;
  const char* vae_class = nullptr;
  PipelineFacts (*pipeline)(const ModelDirectory& model) = nullptr;
};

// The rows of the table, each in its model's folder.
extern const ModelFamily kFlux2BaseFamily, kFlux2Family, kFluxFamily, kKrea2Family,
    kKrea2TurboFamily, kQwenImageFamily, kWanFamily, kWanPictureFamily, kWanSpeechFamily,
    kZImageFamily;

// A model directory, or single files that together are a model. Components are full paths of
// folders or files; one that is absent is empty. The scheduler's is empty where scheduler_config
// holds its JSON text.
struct ModelDirectory {
  std::string path;  // the folder, or the transformer's file
  const ModelFamily* family = nullptr;
  std::string transformer, transformer_2, text_encoder, tokenizer, scheduler, vae;
  std::string audio_encoder, image_encoder, image_processor;
  std::string pooled_encoder, pooled_tokenizer;  // of a prompt's vector
  std::string scheduler_config;
  std::optional<double> boundary_ratio;
  bool expand_timesteps = false;   // every token of a forward has a timestep of its own
  std::vector<std::string> notes;  // what may be wrong with the files, a line each
  std::vector<std::shared_ptr<const TransformerModel>> transformers;  // one per expert
  std::shared_ptr<const TextEncoderModel> text_model;
  std::vector<int> text_taps;  // layers of it whose states are the rows; none: its own rows are
  std::shared_ptr<const TextEncoderModel> pooled_model;  // null: prompts have no vector
  std::shared_ptr<const VaeModel> vae_model;
  std::shared_ptr<const AudioEncoderModel> audio_model;  // null: the folder has none
  std::shared_ptr<const ImageEncoderModel> image_model;  // null: the folder has none
  PictureConditioning pictures;
  SpeechChunks chunks;
  DefaultSettings defaults;

  // Two experts run only if transformer_2 exists, whatever boundary_ratio says.
  int experts() const { return transformer_2.empty() ? 1 : 2; }
  const std::string& expert_path(int model) const { return model ? transformer_2 : transformer; }
  std::vector<std::string> weights_folders() const;  // of the components that there are
  const TransformerModel& expert(int model) const { return *transformers[model]; }
  // The published model of its sizes; null: there is none.
  const KnownModel* known() const { return known_model(family->known, expert(0).traits()); }
};

// Returns whether the folder has the index of a model, or the layout of a RootLayout.
bool is_model_directory(const std::string& path);

// Opens a model directory: reads its JSON files only. Throws Error(kModel) that names the file if a
// part is missing or not supported. `files` take the place of its parts; their configurations are
// those of a config.json beside the weights or of the folder, where one fits the tensors, or else
// follow from the tensors. Without a path, "", they are the model: Error(kUsage) names the flags of
// the parts that are missing.
ModelDirectory open_model_directory(const std::string& path, const PartFiles& files = {});

// Open one component by the class that its config.json names. Error(kModel) lists the classes that
// are legal.
std::shared_ptr<const TransformerModel> open_transformer(const std::string& config_path);
std::shared_ptr<const TextEncoderModel> open_text_encoder(const std::string& config_path);
std::shared_ptr<const ImageEncoderModel> open_image_encoder(const std::string& config_path);
std::shared_ptr<const AudioEncoderModel> open_audio_encoder(const std::string& config_path);
std::shared_ptr<const VaeModel> open_vae(const std::string& config_path);
// The transformer of a single-file checkpoint: by the config.json beside it, if that fits the
// tensors, or else by their names and shapes.
std::shared_ptr<const TransformerModel> open_transformer(const TensorFile& file);

// The component that a config.json describes. component_facts returns nullopt for one that is not
// known here.
struct ComponentFacts {
  std::string part;  // "transformer", "text_encoder", "image_encoder", "audio_encoder", "vae"
  std::string class_name;
  std::vector<TensorSpec> tensors;  // none where sizes do not follow from a file's tensors
  std::string description;          // the configuration in one line, or why it is not known, or ""
  std::string prefix{};             // of the names in the file that holds it
  // The other classes whose files have such tensors; none where a config.json names the class.
  std::vector<std::string> other_classes{};

  bool may_be(const std::string& name) const {
    return name == class_name || std::ranges::find(other_classes, name) != other_classes.end();
  }
};
std::optional<ComponentFacts> component_facts(const std::string& config_path);
// The components that a weights file holds, by the config.json beside it, if that fits the tensors,
// or else by the tensors alone.
std::vector<ComponentFacts> held_components(const std::string& path);
// Opens the tensors of one component of a file, under its own names: that of the class, if there is
// one, or else the first of the kind. Of a file that holds none it opens all as they are.
enum class PartKind : uint8_t { kTransformer, kTextEncoder, kImageEncoder, kAudioEncoder, kVae };
TensorFile open_part_weights(PartKind kind, const std::string& path,
                             const char* class_name = nullptr);
std::string known_components();  // "WanTransformer3DModel, ..."
// The family that draws with a transformer of this class from single files; null where none does.
const ModelFamily* family_of_transformer(const std::string& class_name);

// The last name of a path, without the extension of weights.
std::string folder_name(const std::string& path);

// Reads a weft.json. Error(kModel) names the key, its value and what is legal.
DefaultSettings read_weft_json(const std::string& path);
// Returns the settings of the folder's weft.json, or else the published ones of the family.
DefaultSettings default_settings(const ModelDirectory& model);

}  // namespace weft
