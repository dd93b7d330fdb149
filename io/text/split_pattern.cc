#include "io/text/split_pattern.h"

#define ONIG_ESCAPE_REGEX_T_COLLISION
#define ONIG_ESCAPE_UCHAR_COLLISION  // ICU has a type of that name
#include <oniguruma.h>
#include <time.h>

#include <new>

#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxPattern = 8192;  // bytes; o200k's, the longest in use, has about 500
// Patterns in use take below 1 us per byte.
constexpr double kSecondsAtLeast = 0.1, kSecondsPerByte = 1e-5;
// The retries of a first search. A search that needs more is repeated with twice as many while
// there is time: Oniguruma reads no clock.
constexpr unsigned long kFirstRetries = 100;
constexpr unsigned kMaxStack = 1u << 22;  // entries of about 40 bytes

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

const OnigUChar* onig_text(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

// Returns a syntax without callouts, which are programs in patterns.
OnigSyntaxType without_callouts(OnigSyntaxType syntax) {
  OnigEncoding encoding = ONIG_ENCODING_UTF8;
  if (onig_initialize(&encoding, 1) != ONIG_NORMAL) throw std::bad_alloc();
  syntax.op2 &= ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME);
  return syntax;
}

OnigSyntaxType* split_syntax() {
  static OnigSyntaxType syntax = without_callouts(OnigSyntaxOniguruma);
  return &syntax;
}

std::shared_ptr<re_pattern_buffer> compile_split(std::string_view pattern, OnigSyntaxType* syntax,
                                                 const std::string& what) {
  if (pattern.empty() || pattern.size() > kMaxPattern)
    throw Error(ErrorKind::kModel, what + ": the pattern has " + std::to_string(pattern.size()) +
                                       " bytes; legal are 1 to " + std::to_string(kMaxPattern));
  OnigRegex code = nullptr;
  OnigErrorInfo info{};
  const int rc = onig_new(&code, onig_text(pattern), onig_text(pattern) + pattern.size(),
                          ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, syntax, &info);
  if (rc == ONIGERR_MEMORY) throw std::bad_alloc();
  if (rc != ONIG_NORMAL) {
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
    onig_error_code_to_str(text, rc, &info);
    throw Error(ErrorKind::kModel,
                what + ": the pattern cannot be read: " + reinterpret_cast<const char*>(text));
  }
  return {code, onig_free};
}

// One search after the other in a text.
class Searcher {
 public:
  Searcher(OnigRegex code, std::string_view text) : code_(code), text_(text) {
    if (!region_ || !param_) throw std::bad_alloc();
    onig_set_match_stack_limit_size_of_match_param(param_.get(), kMaxStack);
  }

  // Returns the result of onig_search, ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER when the time is over.
  int search(size_t from, const SplitPattern::TimeLimit& limit) {
    const OnigUChar *begin = onig_text(text_), *end = begin + text_.size();
    for (unsigned long retries = kFirstRetries;; retries *= 2) {
      onig_set_retry_limit_in_match_of_match_param(param_.get(), retries);
      onig_set_retry_limit_in_search_of_match_param(param_.get(), retries);
      const int rc = onig_search_with_param(code_, begin, end, begin + from, end, region_.get(),
                                            ONIG_OPTION_NONE, param_.get());
      if (limit.is_over()) return ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
      if (rc != ONIGERR_RETRY_LIMIT_IN_MATCH_OVER && rc != ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER)
        return rc;
    }
  }

  SplitPattern::Match match() const {
    return {static_cast<size_t>(region_->beg[0]), static_cast<size_t>(region_->end[0])};
  }

 private:
  struct Free {
    void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
    void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
  };
  const OnigRegex code_;
  const std::string_view text_;
  std::unique_ptr<OnigRegion, Free> region_{onig_region_new()};
  std::unique_ptr<OnigMatchParam, Free> param_{onig_new_match_param()};
};

// Returns whether a byte of a well-formed text is inside of a character and not its first.
bool is_within_character(std::string_view text, size_t at) {
  return at < text.size() && (text[at] & 0xc0) == 0x80;
}

}  // namespace

SplitPattern::TimeLimit::TimeLimit(size_t text_bytes)
    : end_(thread_seconds() + kSecondsAtLeast + kSecondsPerByte * static_cast<double>(text_bytes)) {
}

bool SplitPattern::TimeLimit::is_over() const { return thread_seconds() > end_; }

SplitPattern::SplitPattern(std::shared_ptr<re_pattern_buffer> code, std::string what)
    : code_(std::move(code)), what_(std::move(what)) {}

SplitPattern SplitPattern::from_regex(std::string_view pattern, const std::string& what) {
  return {compile_split(pattern, split_syntax(), what), what};
}

SplitPattern SplitPattern::from_python(std::string_view pattern, const std::string& what) {
  static OnigSyntaxType syntax = without_callouts(OnigSyntaxPython);
  return {compile_split(pattern, &syntax, what), what};
}

SplitPattern SplitPattern::from_literal(std::string_view text, const std::string& what) {
  split_syntax();  // initialises the library
  return {compile_split(text, ONIG_SYNTAX_ASIS, what), what};
}

std::vector<SplitPattern::Match> SplitPattern::find_all(std::string_view text,
                                                        const TimeLimit& limit) const {
  std::vector<Match> matches;
  Searcher searcher(code_.get(), text);
  for (size_t from = 0; from <= text.size();) {
    const int rc = searcher.search(from, limit);
    if (rc == ONIG_MISMATCH) break;
    if (rc == ONIGERR_MEMORY) throw std::bad_alloc();
    if (rc < 0)
      throw Error(ErrorKind::kModel, what_ +
                                         ": the pattern takes too long or too deep on a text of " +
                                         std::to_string(text.size()) + " bytes");
    const Match match = searcher.match();
    if (is_within_character(text, match.begin) || is_within_character(text, match.end))
      throw Error(ErrorKind::kModel, what_ + ": the pattern matches a part of a character");
    if (match.begin == match.end && !matches.empty() && match.end == matches.back().end) {
      do ++from;
      while (is_within_character(text, from));
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
  return matches;
}

}  // namespace weft
