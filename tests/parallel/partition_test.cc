#include "parallel/partition.h"

#include <gtest/gtest.h>

#include "parallel/sequence_map.h"

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

TEST(TokenRanges, WithinARange) {
  const TokenRanges tokens{{{2, 5}, {8, 12}}, 20};
  EXPECT_EQ(tokens.within({4, 9}).ranges, (std::vector<Range>{{4, 5}, {8, 9}}));
  EXPECT_EQ(tokens.within({4, 9}).total, 20);
  EXPECT_EQ(tokens.within({5, 8}).size(), 0);
  EXPECT_EQ(tokens.within({0, 20}).ranges, tokens.ranges);
}

// Every index has its part of both; one of few tokens beside the others may have none.
TEST(SequenceMap, TokensBesideAreSplitOverTheIndices) {
  const SequenceMap map = SequenceMap::contiguous(7, 3).with_beside(2);
  EXPECT_EQ(map[0].ranges, (std::vector<Range>{{0, 3}, {7, 8}}));
  EXPECT_EQ(map[1].ranges, (std::vector<Range>{{3, 5}, {8, 9}}));
  EXPECT_EQ(map[2].ranges, (std::vector<Range>{{5, 7}}));
  for (int index = 0; index < map.size(); ++index) EXPECT_EQ(map[index].total, 9);
  EXPECT_EQ(map.rows(), 9);
  EXPECT_EQ(SequenceMap::contiguous(7, 1).with_beside(2)[0].ranges, (std::vector<Range>{{0, 9}}));
}

TEST(BlockRange, KnowsItsEnds) {
  EXPECT_TRUE(BlockRange::all(4).first() && BlockRange::all(4).last());
  EXPECT_FALSE((BlockRange{1, 4, 4}).first());
  EXPECT_FALSE((BlockRange{0, 3, 4}).last());
}

TEST(Partition, RangesPrint) { EXPECT_EQ(to_string(Range{3, 9}), "[3, 9)"); }

}  // namespace
}  // namespace weft
