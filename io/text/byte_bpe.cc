#include "io/text/byte_bpe.h"

#include <algorithm>
#include <array>

#include "io/json.h"
#include "io/text/byte_alphabet.h"
#include "io/text/byte_bpe_file.h"
#include "io/text/normal_form.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20, kMaxTextBytes = size_t{64} << 20;

// Finds the added tokens of one kind in a text, by narrowing a sorted list byte by byte.
class AddedTokenSet {
 public:
  struct Hit {
    size_t begin, end;
    int32_t id;
  };

  void add(const std::string& content, int32_t id) { tokens_.emplace_back(content, id); }
  void sort() { std::ranges::sort(tokens_); }

  // Returns the leftmost token at `from` or later; if several begin there, the longest.
  std::optional<Hit> find(std::string_view text, size_t from) const {
    if (tokens_.empty()) return std::nullopt;
    for (size_t begin = from; begin < text.size(); ++begin)
      if (const auto hit = longest_at(text, begin)) return hit;
    return std::nullopt;
  }

 private:
  std::optional<Hit> longest_at(std::string_view text, size_t begin) const {
    std::optional<Hit> hit;
    auto first = tokens_.begin(), last = tokens_.end();
    for (size_t depth = 0; begin + depth < text.size() && first != last; ++depth) {
      const auto wanted = static_cast<unsigned char>(text[begin + depth]);
      // All tokens in the range share their first `depth` bytes, so the shorter ones come first.
      const auto byte = [&](const auto& token) {
        return token.first.size() > depth ? static_cast<unsigned char>(token.first[depth]) : -1;
      };
      first = std::partition_point(first, last, [&](const auto& t) { return byte(t) < wanted; });
      last = std::partition_point(first, last, [&](const auto& t) { return byte(t) == wanted; });
      if (first != last && first->first.size() == depth + 1)
        hit = Hit{begin, begin + depth + 1, first->second};
    }
    return hit;
  }

  std::vector<std::pair<std::string, int32_t>> tokens_;
};

// An added token, or the text between two of them.
struct Segment {
  std::optional<int32_t> id;
  std::string text;
  bool split = true;  // all parts of the text are AddedTokens::kSplit
};

struct Token {
  std::string bytes;
  bool special = false;
};

}  // namespace

struct ByteBpeTokenizer::Impl {
  ByteBpeFile file;
  std::array<int32_t, 256> byte_ids;
  std::vector<Token> tokens;      // by id
  AddedTokenSet raw, normalized;  // searched in the given text; in the normalised text

  struct Work {
    explicit Work(size_t text_bytes) : limit(text_bytes) {}
    SplitPattern::TimeLimit limit;
    BpeMerges::Scratch merges;
    std::vector<int32_t> word;
    std::vector<int32_t> ids;
  };

  Impl(ByteBpeFile parsed, const std::string& what);
  std::vector<Segment> segments(std::span<const TextPart> parts) const;
  void encode_run(const Segment& run, Work& work) const;
  void encode_text(const std::string& text, Work& work) const;
  std::vector<std::string_view> split(std::vector<std::string_view> pieces, size_t first,
                                      size_t last, Work& work) const;
  void encode_word(std::string_view word, Work& work) const;
};

ByteBpeTokenizer::Impl::Impl(ByteBpeFile parsed, const std::string& what)
    : file(std::move(parsed)) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = encode_utf8(std::u32string(1, byte_letter(byte)));
    const auto found = file.vocab.find(spelled);
    byte_ids[byte] = found == file.vocab.end() ? -1 : found->second;
    // The bytes C0, C1 and F5 to FF do not occur in well-formed UTF-8.
    const bool occurs = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);
    if (byte_ids[byte] < 0 && occurs)
      throw Error(ErrorKind::kModel, what + ", model: \"vocab\" lacks the byte " +
                                         std::to_string(byte) + ", spelled \"" + spelled + "\"");
  }
  for (const auto& [spelled, id] : file.vocab) {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(id + size_t{1});
    tokens[id] = {read_spelled(spelled).value_or(spelled), false};
  }
  for (const ByteBpeFile::AddedToken& token : file.added) {
    tokens[token.id].special = token.special;
    if (token.normalized && file.nfc)
      normalized.add(encode_utf8(to_nfc(decode_utf8(token.content))), token.id);
    else
      (token.normalized ? normalized : raw).add(token.content, token.id);
  }
  raw.sort();
  normalized.sort();
}

std::vector<Segment> ByteBpeTokenizer::Impl::segments(std::span<const TextPart> parts) const {
  std::vector<Segment> out;
  const auto put_text = [&](std::string_view text, bool split) {
    if (text.empty()) return;
    if (out.empty() || out.back().id) out.push_back({});
    out.back().text += text;
    out.back().split &= split;
  };
  for (const TextPart& part : parts) {
    const std::string text = encode_utf8(decode_utf8(part.text));
    const bool split = part.added == AddedTokens::kSplit;
    size_t from = 0;
    while (const auto hit = split ? raw.find(text, from) : std::nullopt) {
      put_text(std::string_view(text).substr(from, hit->begin - from), split);
      out.push_back({.id = hit->id, .text = {}});
      from = hit->end;
    }
    put_text(std::string_view(text).substr(from), split);
  }
  return out;
}

void ByteBpeTokenizer::Impl::encode_run(const Segment& run, Work& work) const {
  const std::string text = file.nfc ? encode_utf8(to_nfc(decode_utf8(run.text))) : run.text;
  size_t from = 0;
  while (const auto hit = run.split ? normalized.find(text, from) : std::nullopt) {
    encode_text(text.substr(from, hit->begin - from), work);
    work.ids.push_back(hit->id);
    from = hit->end;
  }
  encode_text(text.substr(from), work);
}

// Applies steps [first, last) of the pre-tokeniser and drops empty pieces.
std::vector<std::string_view> ByteBpeTokenizer::Impl::split(std::vector<std::string_view> pieces,
                                                            size_t first, size_t last,
                                                            Work& work) const {
  for (size_t step = first; step < last; ++step) {
    const ByteBpeFile::Split& split = file.splits[step];
    std::vector<std::string_view> next;
    for (const std::string_view piece : pieces) {
      const auto put = [&](size_t begin, size_t end, bool match) {
        const bool delimiter = match != split.invert;
        if (begin < end && !(delimiter && split.behavior == ByteBpeFile::Behavior::kRemoved))
          next.push_back(piece.substr(begin, end - begin));
      };
      size_t from = 0;
      for (const SplitPattern::Match& match : split.pattern.find_all(piece, work.limit)) {
        put(from, match.begin, false);
        put(match.begin, match.end, true);
        from = match.end;
      }
      put(from, piece.size(), false);
    }
    pieces = std::move(next);
  }
  return pieces;
}

void ByteBpeTokenizer::Impl::encode_text(const std::string& text, Work& work) const {
  if (text.empty()) return;
  const auto words = split({text}, 0, file.splits_before_prefix, work);
  if (!file.add_prefix_space) {
    for (const std::string_view word :
         split(words, file.splits_before_prefix, file.splits.size(), work))
      encode_word(word, work);
    return;
  }
  for (const std::string_view word : words) {
    const std::string spaced = (word.starts_with(' ') ? "" : " ") + std::string(word);
    for (const std::string_view part :
         split({spaced}, file.splits_before_prefix, file.splits.size(), work))
      encode_word(part, work);
  }
}

void ByteBpeTokenizer::Impl::encode_word(std::string_view word, Work& work) const {
  if (file.ignore_merges) {
    if (const auto whole = file.vocab.find(spell_bytes(word)); whole != file.vocab.end()) {
      work.ids.push_back(whole->second);
      return;
    }
  }
  work.word.clear();
  for (const char byte : word) work.word.push_back(byte_ids[static_cast<unsigned char>(byte)]);
  file.merges.apply(work.word, work.merges);
  work.ids.insert(work.ids.end(), work.word.begin(), work.word.end());
}

ByteBpeTokenizer::ByteBpeTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ByteBpeTokenizer::ByteBpeTokenizer(ByteBpeTokenizer&&) noexcept = default;
ByteBpeTokenizer& ByteBpeTokenizer::operator=(ByteBpeTokenizer&&) noexcept = default;
ByteBpeTokenizer::~ByteBpeTokenizer() = default;

ByteBpeTokenizer ByteBpeTokenizer::open(const std::string& path) {
  return from_json(read_text_file(path, kMaxFileBytes), path);
}

ByteBpeTokenizer ByteBpeTokenizer::from_json(std::string_view json, const std::string& what) {
  return ByteBpeTokenizer(std::make_unique<Impl>(ByteBpeFile::parse(json, what), what));
}

std::vector<int32_t> ByteBpeTokenizer::encode(std::string_view text, AddedTokens added) const {
  const TextPart part{text, added};
  return encode({&part, 1});
}

std::vector<int32_t> ByteBpeTokenizer::encode(std::span<const TextPart> parts) const {
  size_t bytes = 0;
  for (const TextPart& part : parts) bytes += part.text.size();
  if (bytes > kMaxTextBytes)
    throw Error(ErrorKind::kUsage, "a text of " + std::to_string(bytes) +
                                       " bytes is too long to be encoded; the limit is " +
                                       std::to_string(kMaxTextBytes));
  Impl::Work work(bytes);
  for (const Segment& segment : impl_->segments(parts)) {
    if (segment.id)
      work.ids.push_back(*segment.id);
    else
      impl_->encode_run(segment, work);
  }
  return std::move(work.ids);
}

std::string ByteBpeTokenizer::decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (special == SpecialTokens::kKeep || !is_special(id)) bytes += bytes_of(id);
  return encode_utf8(decode_utf8(bytes));
}

std::string_view ByteBpeTokenizer::bytes_of(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(impl_->tokens[id].bytes) : std::string_view();
}

std::optional<int32_t> ByteBpeTokenizer::id_of(std::string_view token) const {
  const auto found = impl_->file.vocab.find(std::string(token));
  return found == impl_->file.vocab.end() ? std::nullopt : std::optional(found->second);
}

bool ByteBpeTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && impl_->tokens[id].special;
}

int64_t ByteBpeTokenizer::size() const { return static_cast<int64_t>(impl_->tokens.size()); }

std::string StreamingDecoder::push(int32_t id) {
  if (special_ == SpecialTokens::kSkip && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.bytes_of(id);
  const size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
  std::string text = encode_utf8(decode_utf8(std::string_view(pending_).substr(0, whole)));
  pending_.erase(0, whole);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text = encode_utf8(decode_utf8(pending_));
  pending_.clear();
  return text;
}

}  // namespace weft
