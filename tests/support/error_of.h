#pragma once
// The Error that a piece of code throws: error_of returns its message and error_kind its kind;
// expect_error expects both.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "kernels/check.h"

namespace weft::test {

// Returns "" where nothing is thrown. An Error must be of the kind, if one is given.
template <class Body>
std::string error_of(Body&& body, std::optional<ErrorKind> kind = {}) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind.value_or(error.kind())) << error.what();
    return error.what();
  }
  return "";
}
// The same of code that must throw.
template <class Body>
std::string thrown_error(Body&& body, ErrorKind kind) {
  std::string message = error_of(body, kind);
  EXPECT_NE(message, "") << "no error";
  return message;
}
template <class Body>
std::optional<ErrorKind> error_kind(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

// Tells whether the text contains the part; a failed expectation shows the text.
inline testing::AssertionResult contains(std::string_view text, std::string_view part) {
  const bool found = text.find(part) != text.npos;
  return testing::AssertionResult(found)
         << "'" << part << "' is " << (found ? "" : "not ") << "in: " << text;
}
// Expects an Error of the kind whose message is one line that contains the part.
template <class Body>
void expect_error(ErrorKind kind, std::string_view part, Body&& body) {
  const std::string message = thrown_error(body, kind);
  EXPECT_TRUE(contains(message, part));
  EXPECT_FALSE(contains(message, "\n"));
  EXPECT_LT(message.size(), 2000u) << message;
}

}  // namespace weft::test
