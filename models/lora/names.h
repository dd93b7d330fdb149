#pragma once
// The names of the tensors of LoRA files: prefixes, the module that is changed, and the part that
// the tensor plays. Tests keep the guide to weights the same as these tables.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The part that a tensor of a LoRA file plays in its module.
enum class LoraRole : uint8_t {
  kDown,
  kUp,
  kUpBias,
  kAlpha,
  kDiff,
  kDiffBias,
  kDiffModulation,  // of a block's modulation, which is a tensor of its own
  kSet,
  kLokrW1,  // LoKr: the factors of a Kronecker product, whole or as products A B
  kLokrW1A,
  kLokrW1B,
  kLokrW2,
  kLokrW2A,
  kLokrW2B,
  kLokrT2,   // a core between A and B
  kHadaW1A,  // LoHa: two products A B that are multiplied value by value
  kHadaW1B,
  kHadaW2A,
  kHadaW2B
};

struct LoraPrefix {
  enum Kind : uint8_t {
    kDotted,
    kFlat,      // underscores stand for the dots that follow, wholly or in part
    kText,      // of a text encoder
    kTextName,  // the beginning of the name of a text encoder's module, which stays
  };
  std::string_view text;  // `#` is a number or nothing, `*` any name without a dot
  Kind kind = kDotted;
};

// They may be nested; the first that fits is taken.
inline constexpr LoraPrefix kLoraPrefixes[] = {{"base_model.model."},
                                               {"model.diffusion_model."},
                                               {"diffusion_model."},
                                               {"diffusion.model."},
                                               {"transformer."},
                                               {"pipe.dit."},
                                               {"dit."},
                                               {"unet."},
                                               {"lora_unet__", LoraPrefix::kFlat},
                                               {"lora_unet_", LoraPrefix::kFlat},
                                               {"lora_transformer_", LoraPrefix::kFlat},
                                               {"lycoris_", LoraPrefix::kFlat},
                                               {"lora_te#_", LoraPrefix::kText},
                                               {"text_encoder.", LoraPrefix::kText},
                                               {"text_encoder_#.", LoraPrefix::kText},
                                               {"text_encoders.*.", LoraPrefix::kText},
                                               {"text_model.", LoraPrefix::kTextName},
                                               {"encoder.block.", LoraPrefix::kTextName}};

struct LoraForm {
  std::string_view text;
  LoraRole role;
  size_t kept = 0;  // characters at its beginning that belong to the module's name
};

// Factors; `.weight` follows, or `.NAME.weight` with the name of an adapter. What goes up may also
// have a `.bias`. The processors of x-flux call their modules `qkv_lora1` and the like.
inline constexpr LoraForm kLoraFactors[] = {
    {".lora_A", LoraRole::kDown},        {".lora_B", LoraRole::kUp},
    {".lora_down", LoraRole::kDown},     {".lora_up", LoraRole::kUp},
    {".lora.down", LoraRole::kDown},     {".lora.up", LoraRole::kUp},
    {"_lora.down", LoraRole::kDown, 5},  {"_lora.up", LoraRole::kUp, 5},
    {"_lora1.down", LoraRole::kDown, 6}, {"_lora1.up", LoraRole::kUp, 6},
    {"_lora2.down", LoraRole::kDown, 6}, {"_lora2.up", LoraRole::kUp, 6}};
inline constexpr LoraForm kLoraOthers[] = {{".alpha", LoraRole::kAlpha},
                                           {".diff", LoraRole::kDiff},
                                           {".diff_b", LoraRole::kDiffBias},
                                           {".diff_m", LoraRole::kDiffModulation},
                                           {".set_weight", LoraRole::kSet}};
// The factors of LyCORIS.
inline constexpr LoraForm kLokrFactors[] = {
    {".lokr_w1", LoraRole::kLokrW1},    {".lokr_w1_a", LoraRole::kLokrW1A},
    {".lokr_w1_b", LoraRole::kLokrW1B}, {".lokr_w2", LoraRole::kLokrW2},
    {".lokr_w2_a", LoraRole::kLokrW2A}, {".lokr_w2_b", LoraRole::kLokrW2B},
    {".lokr_t2", LoraRole::kLokrT2}};
inline constexpr LoraForm kLohaFactors[] = {{".hada_w1_a", LoraRole::kHadaW1A},
                                            {".hada_w1_b", LoraRole::kHadaW1B},
                                            {".hada_w2_a", LoraRole::kHadaW2A},
                                            {".hada_w2_b", LoraRole::kHadaW2B}};

// The ways in which what a module adds is computed from its factors.
enum class LoraMethod : uint8_t { kNone, kLora, kLokr, kLoha };
LoraMethod method_of(LoraRole role);  // kNone for what is no factor

struct LoraName {
  std::string module;  // as the file spells it
  std::string key{};   // without prefixes
  LoraRole role{};
  bool text = false;  // of a text encoder
  bool flat = false;  // has a prefix of that kind
};

// Returns what the name of a tensor means; nullopt for a form that is not in the tables.
std::optional<LoraName> parse_lora_name(std::string_view name);

// "13 modules: "a", "b", ...", where `what` is "modules".
std::string counted(const std::vector<std::string>& names, const std::string& what);

}  // namespace weft
