#include "kernels/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "weft: bug: %s:%d: CHECK(%s) failed:%s\n", file, line, condition,
               values.c_str());
  std::abort();
}

}  // namespace weft::detail
