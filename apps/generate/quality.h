#pragma once
// The names of qualities that clients ask for. Each is a method and a step cache whose loss was
// measured (apps/guide/approximations.md), or what the server's own flags say.
#include <span>
#include <string_view>

namespace weft {

struct Quality {
  const char* name;
  const char* method;  // fields of a job; null: the server's own
  const char* cache;
  // The mean PSNR against the same job without a cache, in dB, and the share of clips with a view
  // that does not fit the others; 0 and 0 of exact ones. Of the pocket model in 20 steps.
  double psnr = 0, torn = 0;
};
std::span<const Quality> qualities();
const Quality* find_quality(std::string_view name);  // null where there is none

}  // namespace weft
