#include "parallel/partition.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

// Every element belongs to exactly one part, parts are in order and differ by one at most.
TEST(Partition, CoversOnceAndEvenly) {
  for (int parts = 1; parts <= 9; ++parts)
    for (int64_t total : {0, 1, 2, 7, 8, 9, 63, 64, 65, 32760}) {
      int64_t next = 0;
      for (int index = 0; index < parts; ++index) {
        const Range range = partition(total, parts, index);
        EXPECT_EQ(range.begin, next) << total << " in " << parts;
        EXPECT_GE(range.size(), total / parts);
        EXPECT_LE(range.size(), total / parts + (total % parts ? 1 : 0));
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
}

TEST(Partition, TheFirstPartsAreLonger) {
  EXPECT_EQ(partition(10, 4, 0), (Range{0, 3}));
  EXPECT_EQ(partition(10, 4, 1), (Range{3, 6}));
  EXPECT_EQ(partition(10, 4, 2), (Range{6, 8}));
  EXPECT_EQ(partition(10, 4, 3), (Range{8, 10}));
}

TEST(TokenRanges, SizeIsTheSum) {
  EXPECT_EQ(TokenRanges::all(12).size(), 12);
  EXPECT_EQ((TokenRanges{{{0, 3}, {9, 12}}, 12}).size(), 6);
  EXPECT_EQ((TokenRanges{{}, 12}).size(), 0);
}

TEST(BlockRange, KnowsItsEnds) {
  EXPECT_TRUE(BlockRange::all(4).first() && BlockRange::all(4).last());
  EXPECT_FALSE((BlockRange{1, 4, 4}).first());
  EXPECT_FALSE((BlockRange{0, 3, 4}).last());
}

TEST(Partition, RangesPrint) { EXPECT_EQ(to_string(Range{3, 9}), "[3, 9)"); }

}  // namespace
}  // namespace weft
