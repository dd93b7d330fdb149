#include "io/text/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxModelBytes = size_t{256} << 20;
constexpr int kMaxTextLength = 4096, kDefaultTextLength = 512;

// The numbers of fields of sentencepiece_model.proto.
enum Field : uint32_t {
  kPieces = 1,
  kTrainer = 2,
  kNormalizer = 3,
  // of a piece
  kPieceText = 1,
  kPieceScore = 2,
  kPieceType = 3,
  // of the trainer
  kModelType = 3,
  kByteFallback = 35,
  // of the normalizer
  kCharsmap = 2,
  kAddPrefix = 3,
  kRemoveSpaces = 4,
  kEscapeSpaces = 5,
};
constexpr uint32_t kUnigram = 1;  // of the model's type
constexpr int32_t kByte = 6;      // of a piece's type

void add_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void add_number(std::string& out, Field field, uint64_t value) {
  add_varint(out, field << 3);
  add_varint(out, value);
}

void add_float(std::string& out, Field field, float value) {
  add_varint(out, field << 3 | 5);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> (8 * i));
}

void add_bytes(std::string& out, Field field, const std::string& bytes) {
  add_varint(out, field << 3 | 2);
  add_varint(out, bytes.size());
  out += bytes;
}

}  // namespace

std::string SentencePieces::model() const {
  std::string out;
  bool has_bytes = false;
  for (const Piece& piece : pieces) {
    std::string message;
    add_bytes(message, kPieceText, piece.text);
    add_float(message, kPieceScore, piece.score);
    add_number(message, kPieceType, static_cast<uint64_t>(piece.type));
    add_bytes(out, kPieces, message);
    has_bytes |= piece.type == kByte;
  }
  std::string trainer, normalizer;
  add_number(trainer, kModelType, kUnigram);
  add_number(trainer, kByteFallback, has_bytes);
  if (!charsmap.empty()) add_bytes(normalizer, kCharsmap, charsmap);
  add_number(normalizer, kAddPrefix, add_space_prefix);
  add_number(normalizer, kRemoveSpaces, remove_extra_whitespaces);
  add_number(normalizer, kEscapeSpaces, true);
  add_bytes(out, kTrainer, trainer);
  add_bytes(out, kNormalizer, normalizer);
  return out;
}

struct SentencePieceTokenizer::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceTokenizer::SentencePieceTokenizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceTokenizer&&) noexcept = default;
SentencePieceTokenizer& SentencePieceTokenizer::operator=(SentencePieceTokenizer&&) noexcept =
    default;
SentencePieceTokenizer::~SentencePieceTokenizer() = default;

SentencePieceTokenizer SentencePieceTokenizer::load(const std::string& path) {
  return from_bytes(read_text_file(path, kMaxModelBytes), path);
}

namespace {

// Reads the fields of a serialized protobuf message. next() returns field 0 at the end, or if the
// rest is not a valid message; SentencePiece itself then reports the error.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}
  int next(std::string_view* bytes) {
    *bytes = {};
    const uint64_t key = varint();
    const auto wire = key & 7;
    uint64_t size = wire == 1 ? 8 : wire == 5 ? 4 : 0;
    if (wire == 0) varint();
    if (wire == 2) size = varint();
    if (!sound_ || wire == 3 || wire == 4 || wire > 5 || size > rest_.size()) return 0;
    *bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return static_cast<int>(key >> 3 & 0x1fffffff);
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    sound_ = false;
    return 0;
  }

  std::string_view rest_;
  bool sound_ = true;
};

// Checks a normalizer's precompiled_charsmap: a u32 with the size of a double-array trie
// (Darts-clone: u32 units), the trie, then the replacements as C strings. SentencePiece reads it
// without checking bounds, so all children of a unit and all values must lie inside.
bool sound_charsmap(std::string_view map) {
  if (map.empty()) return true;
  const auto read_u32 = [&](uint64_t at) {
    uint32_t value;
    std::memcpy(&value, map.data() + at, sizeof value);
    return value;
  };
  if (map.size() < 4) return false;
  const uint64_t bytes = read_u32(0), units = bytes / 4;
  if (bytes % 4 || bytes > map.size() - 4) return false;
  const std::string_view replacements = map.substr(4 + bytes);
  if (replacements.empty() || replacements.back() != 0) return false;
  for (uint64_t i = 0; i < units; ++i) {
    const uint32_t unit = read_u32(4 + 4 * i);
    if (unit >> 31) {  // a leaf's value
      if ((unit & 0x7fffffffu) >= replacements.size()) return false;
      continue;
    }
    const uint64_t offset = static_cast<uint64_t>(unit >> 10) << ((unit & 0x200u) >> 6);
    if (((i ^ offset) | 0xff) >= units) return false;
  }
  return true;
}

void check_charsmaps(std::string_view model, const std::string& what) {
  constexpr int kNormalizer = 3, kDenormalizer = 5, kCharsmap = 2;  // fields of the proto
  std::string_view bytes, map;
  Fields fields(model);
  while (const int field = fields.next(&bytes)) {
    if (field != kNormalizer && field != kDenormalizer) continue;
    Fields inner(bytes);
    while (const int part = inner.next(&map))
      if (part == kCharsmap && !sound_charsmap(map))
        throw Error(ErrorKind::kModel,
                    what +
                        ": is not a SentencePiece model (its precompiled_charsmap leads outside "
                        "of itself)");
  }
}

}  // namespace

SentencePieceTokenizer SentencePieceTokenizer::from_bytes(std::string_view model,
                                                          const std::string& what) {
  check_charsmaps(model, what);
  auto impl = std::make_unique<Impl>();
  sentencepiece::util::Status status;
  try {
    status = impl->processor.LoadFromSerializedProto(model);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // its trie throws for a bad model and for lack of memory
    if (std::string_view(error.what()).find("bad_alloc") != std::string_view::npos)
      throw std::bad_alloc();
    throw Error(ErrorKind::kModel, what + ": is not a SentencePiece model (" + error.what() + ")");
  }
  if (!status.ok())
    throw Error(ErrorKind::kModel,
                what + ": is not a SentencePiece model (" + status.message() + ")");
  const auto& processor = impl->processor;
  if (processor.GetPieceSize() <= kEndId || !processor.IsControl(kEndId) ||
      processor.IdToPiece(kEndId) != "</s>")
    throw Error(ErrorKind::kModel, what + ": id 1 must be </s>, as in every T5 vocabulary");
  return SentencePieceTokenizer(std::move(impl));
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text, int max_length) const {
  CHECK(max_length >= 1, "max_length", max_length);
  std::vector<int> ids;
  const auto status = impl_->processor.Encode(encode_utf8(decode_utf8(text)), &ids);
  if (!status.ok())
    throw Error(ErrorKind::kModel, std::string("the tokenizer failed: ") + status.message());
  if (ids.size() > static_cast<size_t>(max_length) - 1) ids.resize(max_length - 1);
  ids.push_back(kEndId);
  return {ids.begin(), ids.end()};
}

std::string SentencePieceTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  const auto status = impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok())
    throw Error(ErrorKind::kModel, std::string("the tokenizer failed: ") + status.message());
  return text;
}

std::string SentencePieceTokenizer::text_behind(const std::vector<int32_t>& ids,
                                                int64_t max_ids) const {
  const auto first_lost = ids.begin() + max_ids - 1;
  const std::string read = decode({ids.begin(), first_lost});
  std::string lost = decode({first_lost, ids.end() - 1});
  // A word that is cut in two is told whole.
  const std::string all = decode({ids.begin(), ids.end() - 1});
  if (all.starts_with(read) && all.ends_with(lost)) {
    const size_t space = all.find_last_of(' ', read.size());
    lost = all.substr(space == std::string::npos ? 0 : space + 1);
  }
  return lost;
}

int SentencePieceTokenizer::vocab_size() const { return impl_->processor.GetPieceSize(); }

int tokenizer_model_max_length(const std::string& config_path) {
  if (!std::filesystem::exists(config_path)) return kDefaultTextLength;
  const nlohmann::json config = read_json_file(config_path);
  if (!json_has(config, "model_max_length")) return kDefaultTextLength;
  // Tokenizers without a limit have 1e30 here, which does not fit in a 64-bit integer.
  const double length = json_number(config, "model_max_length", config_path);
  if (!(length >= 1))
    throw Error(ErrorKind::kModel, config_path + ": \"model_max_length\" must be at least 1");
  return length <= kMaxTextLength ? static_cast<int>(length) : kDefaultTextLength;
}

}  // namespace weft
