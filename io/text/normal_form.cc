#include "io/text/normal_form.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>

#include <algorithm>

#include "kernels/check.h"

namespace weft {
namespace {

std::u32string normalize(const UNormalizer2* form, std::u32string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  std::u16string in(text.size() * 2, u'\0');
  int32_t length = 0;
  u_strFromUTF32WithSub(in.data(), static_cast<int32_t>(in.size()), &length,
                        reinterpret_cast<const UChar32*>(text.data()),
                        static_cast<int32_t>(text.size()), 0xfffd, nullptr, &error);
  CHECK(U_SUCCESS(error), u_errorName(error));
  in.resize(length);
  std::u16string out(in.size() * 2 + 32, u'\0');
  for (;;) {
    error = U_ZERO_ERROR;
    length = unorm2_normalize(form, in.data(), static_cast<int32_t>(in.size()), out.data(),
                              static_cast<int32_t>(out.size()), &error);
    if (error != U_BUFFER_OVERFLOW_ERROR) break;
    out.resize(length);
  }
  CHECK(U_SUCCESS(error), u_errorName(error));
  std::u32string result(length, U'\0');
  error = U_ZERO_ERROR;
  int32_t points = 0;
  u_strToUTF32(reinterpret_cast<UChar32*>(result.data()), static_cast<int32_t>(result.size()),
               &points, out.data(), length, &error);
  CHECK(U_SUCCESS(error), u_errorName(error));
  result.resize(points);
  return result;
}

const UNormalizer2* form(const UNormalizer2* (*get)(UErrorCode*)) {
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* instance = get(&error);
  if (U_FAILURE(error))
    throw Error(ErrorKind::kInternal,
                std::string("ICU has no normalisation data: ") + u_errorName(error));
  return instance;
}

}  // namespace

std::u32string to_nfc(std::u32string text) {
  // Text of characters below U+0300 is already in NFC.
  if (std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x300; })) return text;
  return normalize(form(unorm2_getNFCInstance), text);
}

std::u32string to_nfkc(std::u32string_view text) {
  return normalize(form(unorm2_getNFKCInstance), text);
}

std::u32string to_lower(std::u32string_view text) {
  constexpr char32_t kDottedCapitalI = 0x130;  // the one whose lower case has two characters
  std::u32string lower;
  for (const char32_t c : text) {
    if (c == kDottedCapitalI)
      lower += U"i\u0307";
    else
      lower += static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  }
  return lower;
}

}  // namespace weft
