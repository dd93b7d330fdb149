#pragma once
// The patterns of a tokenizer.json, which are Oniguruma's (Ruby syntax), matched by PCRE2 with the
// same meaning: \s, \w, \d and scripts are spelled out, and what the two read differently is
// refused by name.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class SplitPattern {
 public:
  // What one text needs while it is split; not for two threads at once. `steps` is what all matches
  // together may cost: more than a sound pattern ever takes, so that none can hang.
  class Scratch {
   public:
    explicit Scratch(int64_t steps);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class SplitPattern;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  struct Match {
    size_t begin, end;  // bytes; may be empty
  };

  // `what` names the pattern's place in messages. Error(kModel) where it is no pattern or uses what
  // is not supported.
  static SplitPattern from_regex(std::string_view pattern, const std::string& what);
  static SplitPattern from_literal(std::string_view text, const std::string& what);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // All matches in order, as a regular expression's iterator gives them; an empty one that touches
  // the match before it is left out. `text` is well-formed UTF-8. Error(kModel) when the steps are
  // used up.
  std::vector<Match> find_all(std::string_view text, Scratch& scratch) const;

 private:
  struct Impl;
  explicit SplitPattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The PCRE2 pattern that means what Oniguruma reads in `pattern`.
std::string pcre2_pattern(std::string_view pattern, const std::string& what);

}  // namespace weft
