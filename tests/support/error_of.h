#pragma once
// error_of: the message of the Error that a piece of code throws.
#include <gtest/gtest.h>

#include <optional>
#include <string>

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

}  // namespace weft::test
