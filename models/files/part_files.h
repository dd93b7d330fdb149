#pragma once
// PartFiles: weights files of single parts of a model. Each takes the place of that part of a model
// directory, or is a part of a model that has no directory.
#include <string>
#include <utility>

namespace weft {

struct ModelDirectory;

struct PartFiles {
  // Full paths of files, or of folders with one; "" where a part has none of its own. A tokenizer's
  // path may also be a tokenizer.json, a SentencePiece model or a vocab.json beside a merges.txt. A
  // model with two text encoders takes their files, and their tokenizers' files, in either order.
  std::string transformer, transformer_2, text_encoder, text_encoder_2, tokenizer, tokenizer_2, vae,
      image_encoder;

  bool operator==(const PartFiles&) const = default;
  bool any() const { return *this != PartFiles{}; }
  // Sets the paths of the parts that have files. What the files hold tells which of a model's two
  // text encoders and tokenizers each is. Error(kUsage) names the flags of files that do not fit
  // the model's family.
  void replace_in(ModelDirectory& model) const;
  // Adds a note where the name of an expert's file contradicts its place. The files of both experts
  // have the same tensors, so that only their names tell them apart.
  void note_names(ModelDirectory& model) const;
};

// The parts by the names that model directories, jobs and (with dashes) flags have for them.
inline constexpr std::pair<const char*, std::string PartFiles::*> kParts[] = {
    {"transformer", &PartFiles::transformer},
    {"transformer_2", &PartFiles::transformer_2},
    {"text_encoder", &PartFiles::text_encoder},
    {"text_encoder_2", &PartFiles::text_encoder_2},
    {"tokenizer", &PartFiles::tokenizer},
    {"tokenizer_2", &PartFiles::tokenizer_2},
    {"vae", &PartFiles::vae},
    {"image_encoder", &PartFiles::image_encoder}};

// "transformer is '/a/b.safetensors', vae is '/a/c.safetensors'", or "none".
std::string to_string(const PartFiles& files);

}  // namespace weft
