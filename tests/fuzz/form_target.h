#pragma once
// The fuzz target of forms (multipart/form-data).
#include <cstdint>
#include <span>

namespace weft::fuzz {

// Takes the bytes up to the first 0, if there is one, as a Content-Type, and the others as a form.
// However they are split, the reader finds the same parts, which are those that a slow parser of
// the whole form finds; and these parts, written as another form, are read as they were.
void multipart(std::span<const uint8_t> bytes);

}  // namespace weft::fuzz
