#include "apps/command_line/byte_size.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ByteSize, UnitsOf1024AndOf1000) {
  constexpr uint64_t kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
  for (const auto& [text, bytes] : {std::pair<const char*, uint64_t>{"1000000", 1000000},
                                    {"5B", 5},
                                    {"20K", 20 * kKi},
                                    {"20KiB", 20 * kKi},
                                    {"20KB", 20000},
                                    {"3M", 3 * kMi},
                                    {"3MiB", 3 * kMi},
                                    {"3MB", 3000000},
                                    {"20G", 20 * kGi},
                                    {"20GiB", 20 * kGi},
                                    {"20GB", 20000000000},
                                    {"20gb", 20000000000},
                                    {"20 GB", 20000000000},
                                    {"1.5G", kGi + kGi / 2},
                                    {"1T", kTi},
                                    {"1TiB", kTi},
                                    {"1TB", 1000000000000}})
    EXPECT_EQ(parse_byte_size(text), bytes) << text;
}

TEST(ByteSize, AnythingElseIsNone) {
  for (const char* text : {"", "G", "0", "0G", "-1G", "+1G", "1X", "1GG", "1 G B", "1e30G", "nan",
                           "inf", "0x10", "20Gi", "20 ", " 20", "9223372036854775808"})
    EXPECT_EQ(parse_byte_size(text), std::nullopt) << text;
}

}  // namespace
}  // namespace weft
