#pragma once
// Reads values that users write, against their legal set as the tables of flags and of fields
// state it.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// A text, and how messages name it. `legal` is "a|b|c" of a text, "1 ... 1000" of a number.
struct GivenText {
  std::string text, label;
  const char* legal = nullptr;

  // All throw Error(kUsage) that names the label, the text and what is legal.
  [[noreturn]] void refuse(const std::string& rule) const;
  double number() const;
  double rate() const;  // also "30000/1001"; NTSC rates that are rounded are made exact
  int64_t whole_number() const;
  const std::string& one_of() const;

 private:
  double in_range(double value) const;
};

// Splits "a|b|c" or "a b" into its parts; empty ones are left out.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace weft
