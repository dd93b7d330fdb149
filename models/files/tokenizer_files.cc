#include "models/files/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "io/weights/gguf_tokenizer.h"
#include "io/weights/weights_file.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

constexpr const char kPieces[] = "spiece_model";      // a tensor of bytes
constexpr const char kT5[] = "t5", kGpt2[] = "gpt2";  // tokenizer.ggml.model
constexpr int64_t kLongestPieces = int64_t{64} << 20;

bool is_gguf(const std::string& path) { return path.ends_with(".gguf"); }
bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

bool has_weights(const std::string& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().string();
    return is_gguf(name) || is_safetensors(name);
  });
}

// The name of the tensor that holds the tokenizer, which may have a prefix; "" where there is none.
std::string pieces_in(const TensorFile& file) {
  for (const std::string& name : file.names())
    if (name == kPieces || name.ends_with(std::string(".") + kPieces)) return name;
  return "";
}

// Returns whether weights hold a tokenizer of this kind, or of any.
bool holds_inside(const std::string& weights, std::optional<TokenizerKind> kind) {
  if (!fs::exists(weights) || kind == TokenizerKind::kClip) return false;
  const TensorFile file = open_weights(weights);
  const std::string path = file.files().front();
  const bool pieces = kind != TokenizerKind::kByteBpe;
  if (!is_gguf(path)) return pieces && !pieces_in(file).empty();
  const GgufHeader header = read_gguf_header(path);
  const auto model = header.metadata.find("tokenizer.ggml.model");
  return header.lists.contains("tokenizer.ggml.tokens") &&
         (!kind || (model != header.metadata.end() && model->second == (pieces ? kT5 : kGpt2)));
}

[[noreturn]] void refuse_tokenizer(const std::string& path, const std::string& legal) {
  throw Error(ErrorKind::kModel,
              path + ": holds no tokenizer (legal: " + legal + "; give it with --tokenizer)");
}

std::string pieces_of_tensor(const std::string& path) {
  const TensorFile file = TensorFile::open(path);
  const std::string name = pieces_in(file);
  if (name.empty()) refuse_tokenizer(path, "a spiece.model, or weights with a spiece_model");
  const TensorView view = file.describe(name);
  if ((view.dtype != DType::kU8 && view.dtype != DType::kI8) || view.rank != 1 ||
      view.count() > kLongestPieces)
    throw Error(ErrorKind::kModel, path + ": spiece_model is " + view.to_string_shape() +
                                       " (legal: at most 64 MiB of u8)");
  std::string bytes(static_cast<size_t>(view.count()), '\0');
  file.read_run(name, 0, TensorView(bytes.data(), view.dtype, {view.count()}));
  return bytes;
}

GgufTokenizer gguf_tokenizer(const std::string& path, const char* model, const char* legal) {
  // The first part of a split file has the metadata of all.
  std::optional<GgufTokenizer> found = read_gguf_tokenizer(open_gguf(path).files().front());
  if (!found) refuse_tokenizer(path, legal);
  if (found->model != model)
    throw Error(ErrorKind::kModel, path + ": tokenizer.ggml.model is '" + found->model +
                                       "', this encoder needs '" + model + "'");
  return std::move(*found);
}

std::string pieces_of_gguf(const std::string& path) {
  GgufTokenizer read = gguf_tokenizer(path, kT5, "a spiece.model, or weights that hold one");
  if (read.scores.empty())
    throw Error(ErrorKind::kModel, path + ": tokenizer.ggml.scores is missing");
  SentencePieces out{.pieces = {},
                     .charsmap = std::move(read.charsmap),
                     .add_space_prefix = read.add_space_prefix,
                     .remove_extra_whitespaces = read.remove_extra_whitespaces};
  for (size_t id = 0; id < read.tokens.size(); ++id) {
    int32_t type = read.types.empty() ? GgufTokenizer::kNormal : read.types[id];
    // Tokens that transformers adds after the pieces. No text has them.
    if (read.tokens[id].starts_with("<extra_id_")) type = GgufTokenizer::kUnused;
    out.pieces.push_back({std::move(read.tokens[id]), read.scores[id], type});
  }
  return out.model();
}

ByteBpeTokenizer bpe_of_gguf(const std::string& path) {
  GgufTokenizer read = gguf_tokenizer(path, kGpt2, "a tokenizer.json, or weights that hold one");
  if (read.words != "qwen2")
    throw Error(ErrorKind::kModel, path + ": tokenizer.ggml.pre is '" + read.words +
                                       "', whose words are not known (legal: qwen2)");
  ByteBpeLists lists{.tokens = {}, .merges = std::move(read.merges)};
  using Kind = ByteBpeLists::Kind;
  for (size_t id = 0; id < read.tokens.size(); ++id) {
    const int32_t type = read.types.empty() ? GgufTokenizer::kNormal : read.types[id];
    const Kind kind = type == GgufTokenizer::kUnused        ? Kind::kUnused
                      : type == GgufTokenizer::kControl     ? Kind::kSpecial
                      : type == GgufTokenizer::kUserDefined ? Kind::kAdded
                                                            : Kind::kNormal;
    lists.tokens.push_back({std::move(read.tokens[id]), kind});
  }
  return ByteBpeTokenizer::from_lists(lists, path);
}

}  // namespace

bool holds_tokenizer(const std::string& weights) { return holds_inside(weights, std::nullopt); }

const char* files_of(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kSentencePiece:
      return "spiece.model";
    case TokenizerKind::kByteBpe:
      return "tokenizer.json";
    case TokenizerKind::kClip:
      return "vocab.json and merges.txt, or tokenizer.json";
  }
  return "";
}

bool is_tokenizer(const std::string& path, TokenizerKind kind) {
  if (fs::is_directory(path)) {
    const auto has = [&](const char* name) { return fs::exists(fs::path(path) / name); };
    if (kind == TokenizerKind::kClip)
      return (has("vocab.json") && has("merges.txt")) ||
             (has("tokenizer.json") && ClipTokenizer::recognise(path + "/tokenizer.json"));
    return has(files_of(kind)) || (has_weights(path) && holds_inside(path, kind));
  }
  if (!fs::exists(path)) return false;
  if (is_gguf(path) || is_safetensors(path)) return holds_inside(path, kind);
  const std::string name = fs::path(path).filename().string();
  if (kind == TokenizerKind::kSentencePiece)
    return !name.ends_with(".json") && !name.ends_with(".txt");
  if (name == "vocab.json" || name == "merges.txt") return kind == TokenizerKind::kClip;
  return name.ends_with(".json") &&
         (kind == TokenizerKind::kClip) == ClipTokenizer::recognise(path);
}

std::string find_tokenizer(const std::string& text_encoder, TokenizerKind kind, const char* name) {
  if (holds_inside(text_encoder, kind)) return text_encoder;
  const fs::path folder = fs::is_directory(text_encoder) ? fs::path(text_encoder)
                                                         : fs::path(text_encoder).parent_path();
  for (const fs::path& place : {folder, folder / name, folder.parent_path() / name}) {
    if (kind == TokenizerKind::kClip) {
      if (is_tokenizer(place.string(), kind)) return place.string();
      continue;
    }
    const fs::path file = place / files_of(kind);
    if (fs::exists(file)) return (place == folder ? file : place).string();
  }
  return "";
}

ClipTokenizer open_clip_tokenizer(const std::string& path) {
  if (fs::is_directory(path)) return ClipTokenizer::open_folder(path);
  const std::string name = fs::path(path).filename().string();
  if (name == "vocab.json" || name == "merges.txt")
    return ClipTokenizer::open_folder(fs::absolute(path).parent_path().string());
  return ClipTokenizer::open(path);
}

SentencePieceTokenizer open_sentencepiece(const std::string& path) {
  const bool folder = fs::is_directory(path);
  const std::string in_folder = path + "/spiece.model";
  if (folder && (fs::exists(in_folder) || !has_weights(path)))
    return SentencePieceTokenizer::load(in_folder);
  const std::string file = folder ? open_weights(path).files().front() : path;
  if (is_gguf(file)) return SentencePieceTokenizer::from_bytes(pieces_of_gguf(file), file);
  if (is_safetensors(file)) return SentencePieceTokenizer::from_bytes(pieces_of_tensor(file), file);
  return SentencePieceTokenizer::load(file);
}

ByteBpeTokenizer open_byte_bpe(const std::string& path) {
  if (fs::is_directory(path)) return ByteBpeTokenizer::open_folder(path);
  if (is_gguf(path)) return bpe_of_gguf(path);
  if (is_safetensors(path))
    refuse_tokenizer(path, "a tokenizer.json, or a GGUF file that holds one");
  return ByteBpeTokenizer::open(path);
}

}  // namespace weft
