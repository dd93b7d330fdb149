#pragma once
// Compares what stream engines draw.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/session/stream_engine.h"

namespace weft::test {

// Expects the same pictures at the same indices, to the bit.
inline void expect_same_pictures(const std::vector<StreamPictures>& got,
                                 const std::vector<StreamPictures>& wanted,
                                 const std::string& split) {
  ASSERT_EQ(got.size(), wanted.size()) << split;
  for (size_t block = 0; block < got.size(); ++block) {
    EXPECT_EQ(got[block].first, wanted[block].first) << split;
    ASSERT_EQ(got[block].pictures.size(), wanted[block].pictures.size()) << split;
    for (size_t i = 0; i < got[block].pictures.size(); ++i)
      EXPECT_EQ(got[block].pictures[i].rgb, wanted[block].pictures[i].rgb)
          << split << ", block " << block << ", picture " << i;
  }
}

}  // namespace weft::test
