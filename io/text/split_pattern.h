#pragma once
// Matches the patterns of a tokenizer.json, which are written for Oniguruma (Ruby syntax), with
// PCRE2 and with the same meaning. \s, \w, \d and scripts are spelled out. Anything else that the
// two libraries read differently is refused by name.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class SplitPattern {
 public:
  // Buffers for splitting one text; only one thread at a time may use them. `steps` limits the cost
  // of all matches together, so that no pattern can hang. It is more than any sensible pattern
  // needs.
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

  // Messages begin with `what`, the pattern's place in the file. Throws Error(kModel) if it is not
  // a pattern or uses something that is not supported.
  static SplitPattern from_regex(std::string_view pattern, const std::string& what);
  static SplitPattern from_literal(std::string_view text, const std::string& what);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Returns all matches in order, as a regular expression's iterator gives them. An empty match
  // that touches the previous one is skipped. `text` must be well-formed UTF-8. Throws
  // Error(kModel) when the steps are used up.
  std::vector<Match> find_all(std::string_view text, Scratch& scratch) const;

 private:
  struct Impl;
  explicit SplitPattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Translates an Oniguruma pattern to a PCRE2 pattern with the same meaning.
std::string pcre2_pattern(std::string_view pattern, const std::string& what);

}  // namespace weft
