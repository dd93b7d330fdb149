#include "io/text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "kernels/check.h"

namespace weft {
namespace {

template <auto free>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;

template <class Owner>
Owner owned(typename Owner::pointer pointer) {
  if (!pointer) throw std::bad_alloc();
  return Owner(pointer);
}

std::string message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct Budget {
  int64_t steps_left;
  size_t position = 0;  // position in the text at the last step
};

// PCRE2 calls this before it tries an item of the pattern; a negative result ends the match. A
// repeat of one class runs through the text within one item, so the distance in the text counts,
// too.
int count_step(pcre2_callout_block* block, void* data) {
  constexpr size_t kBytesPerStep = 8;
  auto& [steps_left, position] = *static_cast<Budget*>(data);
  const size_t now = block->current_position;
  steps_left -=
      1 + static_cast<int64_t>((now > position ? now - position : position - now) / kBytesPerStep);
  position = now;
  return steps_left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

}  // namespace

struct SplitPattern::Scratch::Impl {
  Budget budget;
  MatchData data = owned<MatchData>(pcre2_match_data_create(1, nullptr));
  MatchContext context = owned<MatchContext>(pcre2_match_context_create(nullptr));
  JitStack stack =
      owned<JitStack>(pcre2_jit_stack_create(size_t{32} << 10, size_t{8} << 20, nullptr));

  explicit Impl(int64_t steps) : budget{steps} {
    pcre2_set_callout(context.get(), count_step, &budget);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

SplitPattern::Scratch::Scratch(int64_t steps) : impl_(std::make_unique<Impl>(steps)) {}
SplitPattern::Scratch::~Scratch() = default;

struct SplitPattern::Impl {
  Code code;
  std::string what;
};

SplitPattern::SplitPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

SplitPattern SplitPattern::from_regex(std::string_view pattern, const std::string& what) {
  const std::string translated = pcre2_pattern(pattern, what);
  const auto context = owned<CompileContext>(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C,
      &error, &at, context.get()));
  if (!code)
    throw Error(ErrorKind::kModel, what + ": the pattern cannot be read as \"" + translated +
                                       "\": " + message(error) + " at byte " + std::to_string(at));
  // If the machine does not allow JIT compilation, the pattern is interpreted, with the same
  // matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return SplitPattern(std::make_unique<Impl>(Impl{std::move(code), what}));
}

SplitPattern SplitPattern::from_literal(std::string_view text, const std::string& what) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return from_regex(escaped, what);
}

std::vector<SplitPattern::Match> SplitPattern::find_all(std::string_view text,
                                                        Scratch& scratch) const {
  std::vector<Match> matches;
  auto& [budget, data, context, stack] = *scratch.impl_;
  for (size_t from = 0; from <= text.size();) {
    const int rc = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                               text.size(), from, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (rc < 0)
      throw Error(ErrorKind::kModel,
                  impl_->what + ": the pattern takes too long or too deep on a text of " +
                      std::to_string(text.size()) + " bytes (" + message(rc) + ")");
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const Match match{bounds[0], bounds[1]};
    if (match.begin == match.end && !matches.empty() && match.end == matches.back().end) {
      do ++from;
      while (from < text.size() && (text[from] & 0xc0) == 0x80);
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
  return matches;
}

}  // namespace weft
