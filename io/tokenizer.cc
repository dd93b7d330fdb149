#include "io/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxModelBytes = size_t{256} << 20;
constexpr int kMaxTextLength = 4096, kDefaultTextLength = 512;

}  // namespace

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

SentencePieceTokenizer SentencePieceTokenizer::from_bytes(std::string_view model,
                                                          const std::string& what) {
  auto impl = std::make_unique<Impl>();
  sentencepiece::util::Status status;
  try {
    status = impl->processor.LoadFromSerializedProto(model);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // of its trie, for a model as well as for memory
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

int SentencePieceTokenizer::vocab_size() const { return impl_->processor.GetPieceSize(); }

int tokenizer_model_max_length(const std::string& config_path) {
  if (!std::filesystem::exists(config_path)) return kDefaultTextLength;
  const nlohmann::json config = read_json_file(config_path);
  if (!json_has(config, "model_max_length")) return kDefaultTextLength;
  // Unlimited tokenizers hold 1e30 here, which is no 64-bit integer.
  const double length = json_number(config, "model_max_length", config_path);
  if (!(length >= 1))
    throw Error(ErrorKind::kModel, config_path + ": \"model_max_length\" must be at least 1");
  return length <= kMaxTextLength ? static_cast<int>(length) : kDefaultTextLength;
}

}  // namespace weft
