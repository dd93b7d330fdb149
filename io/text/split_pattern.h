#pragma once
// Matches the patterns of a tokenizer.json, as the tokenizers library does, and other regular
// expressions of untrusted files with Oniguruma.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct re_pattern_buffer;  // Oniguruma's name of a compiled pattern

namespace weft {

// Const members may be called from several threads.
class SplitPattern {
 public:
  // Limits the CPU time of this thread for all matches of one text, so that no pattern can hang. It
  // is far more than any sensible pattern needs.
  class TimeLimit {
   public:
    explicit TimeLimit(size_t text_bytes);
    bool is_over() const;

   private:
    double end_;  // in seconds of the thread's clock
  };

  struct Match {
    size_t begin, end;  // bytes; may be empty
  };

  // Messages begin with `what`, the pattern's place in the file. Throws Error(kModel) if it is not
  // a pattern.
  static SplitPattern from_regex(std::string_view pattern, const std::string& what);
  static SplitPattern from_python(std::string_view pattern, const std::string& what);  // for its re
  static SplitPattern from_literal(std::string_view text, const std::string& what);

  // Returns all matches in order, as a regular expression's iterator gives them. An empty match
  // that touches the previous one is skipped. `text` must be well-formed UTF-8. Throws
  // Error(kModel) when the time is over.
  std::vector<Match> find_all(std::string_view text, const TimeLimit& limit) const;

 private:
  SplitPattern(std::shared_ptr<re_pattern_buffer> code, std::string what);

  std::shared_ptr<re_pattern_buffer> code_;
  std::string what_;
};

}  // namespace weft
