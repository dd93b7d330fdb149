// Translates Oniguruma's Ruby syntax, which tokenizer.json uses, to that of PCRE2.
#include <unicode/uchar.h>

#include "io/text/split_pattern.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxPattern = 8192;  // bytes; o200k's, the longest in use, has about 500

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& what) : rest_(pattern), what_(what) {}

  std::string run() {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '\\')
        escape();
      else if (in_class_)
        class_character();
      else if (c == '[')
        open_class();
      else if (c == '(')
        group();
      else if (c == '{')
        counted_repeat();
      else
        take(1);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(size_t bytes, const char* why) const {
    throw Error(ErrorKind::kModel, what_ + ": the pattern holds \"" +
                                       std::string(rest_.substr(0, bytes)) + "\": " + why);
  }
  void take(size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }
  void replace(size_t bytes, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(bytes);
  }

  void open_class() {
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with("]")) refuse(1, "the first of a class is written \\]");
    in_class_ = true;
  }

  void class_character() {
    if (rest_.front() == '[') refuse(2, "classes in classes are not supported");
    if (rest_.starts_with("&&")) refuse(2, "intersections of classes are not supported");
    in_class_ = rest_.front() != ']';
    take(1);
  }

  void group() {
    for (const std::string_view head :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:", "(?i)", "(?-i)"})
      if (rest_.starts_with(head)) return take(head.size());
    if (rest_.starts_with("(?") || rest_.starts_with("(*"))
      refuse(4, "this kind of group is not supported");
    take(1);
  }

  // Translates {n}, {n,} and {n,m}. The two libraries read a + or ? after them differently.
  void counted_repeat() {
    size_t end = 1, digits = 0;
    while (end < rest_.size() && rest_[end] >= '0' && rest_[end] <= '9') ++end, ++digits;
    if (end < rest_.size() && rest_[end] == ',') ++end;
    while (end < rest_.size() && rest_[end] >= '0' && rest_[end] <= '9') ++end;
    if (digits == 0 || end >= rest_.size() || rest_[end] != '}')
      refuse(end + 1, "a repeat is written {n}, {n,} or {n,m}, a brace \\{");
    ++end;
    if (end < rest_.size() && (rest_[end] == '+' || rest_[end] == '?'))
      refuse(end + 1, "what follows a counted repeat is not supported");
    take(end);
  }

  void escape() {
    // Oniguruma's word characters. Outside of a class they include the fractions and powers of
    // Latin-1.
    const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    const std::string alone = word + "\\xb2\\xb3\\xb9\\xbc-\\xbe]";
    if (rest_.size() < 2) refuse(1, "nothing follows the backslash");
    const char c = rest_[1];
    switch (c) {
      case 's':
        return replace(2, "\\p{White_Space}");
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'd':
        return replace(2, "\\p{Nd}");
      case 'D':
        return replace(2, "\\P{Nd}");
      case 'w':
        return replace(2, in_class_ ? word : "[" + alone);
      case 'W':
        if (in_class_) refuse(2, "not supported in a class");
        return replace(2, "[^" + alone);
      case 'v':
        return replace(2, "\\x0b");
      case 'p':
      case 'P':
        return property();
      case 'x':
      case 'u':
        return code_point();
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return take(2);
      default:
        if (is_alnum(c)) refuse(2, "this escape is not supported");
        return take(2);
    }
  }

  void property() {
    const size_t end = rest_.find('}');
    if (!rest_.substr(2).starts_with("{") || end == rest_.npos)
      refuse(3, "a property is written \\p{Name}");
    const std::string name(rest_.substr(3, end - 3));
    for (const char c : name)
      if (!is_alnum(c) && c != '_' && c != '^') refuse(end + 1, "this property is not supported");
    // In PCRE2 a bare script name includes the script's extensions. In Oniguruma it does not.
    if (name.size() > 2 && u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str()) != UCHAR_INVALID_CODE)
      return replace(end + 1, std::string(rest_.substr(0, 3)) + "sc:" + name + "}");
    take(end + 1);
  }

  // Translates \xHH (ASCII only), \x{H...} and \uHHHH.
  void code_point() {
    const auto digits = [&](size_t at) {
      size_t end = at;
      while (end < rest_.size() && is_hex(rest_[end])) ++end;
      return end - at;
    };
    if (rest_[1] == 'u') {
      if (digits(2) < 4) refuse(6, "four hexadecimal digits follow \\u");
      return replace(6, "\\x{" + std::string(rest_.substr(2, 4)) + "}");
    }
    if (rest_.substr(2).starts_with("{")) {
      const size_t end = 3 + digits(3);
      if (end == 3 || end >= rest_.size() || rest_[end] != '}')
        refuse(end, "a code point is written \\x{H...}");
      return take(end + 1);
    }
    if (digits(2) < 2 || rest_[2] > '7') refuse(4, "a code point is written \\x{H...}");
    take(4);
  }

  std::string_view rest_;
  const std::string& what_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& what) {
  if (pattern.empty() || pattern.size() > kMaxPattern)
    throw Error(ErrorKind::kModel, what + ": the pattern has " + std::to_string(pattern.size()) +
                                       " bytes; legal are 1 to " + std::to_string(kMaxPattern));
  return Translator(pattern, what).run();
}

}  // namespace weft
