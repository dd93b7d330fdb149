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
  for (size_t segment = 0; segment < got.size(); ++segment) {
    EXPECT_EQ(got[segment].first, wanted[segment].first) << split;
    ASSERT_EQ(got[segment].pictures.size(), wanted[segment].pictures.size()) << split;
    for (size_t i = 0; i < got[segment].pictures.size(); ++i)
      EXPECT_EQ(got[segment].pictures[i].rgb, wanted[segment].pictures[i].rgb)
          << split << ", block " << segment << ", picture " << i;
  }
}

}  // namespace weft::test
