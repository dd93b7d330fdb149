#include "io/text/path_list.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

using Paths = std::vector<std::string>;

TEST(PathList, CommasBelongToPathsThatAreThere) {
  const TempDir folder;
  for (const char* name : {"a", "a,b", "c,d", "c,d,e", "f,", "g,,h"})
    std::ofstream(folder / name) << "x";
  const auto at = [&](const std::string& name) { return folder / name; };
  for (const Paths& paths : {Paths{at("c,d")},
                             {at("c,d"), at("a")},
                             {at("a"), at("c,d"), at("c,d")},
                             {at("f,"), at("a")},
                             {at("g,,h"), at("f,")},
                             {at("gone"), at("a"), at("also gone")},
                             {at("gone"), at("c,d")}}) {
    std::string list;
    for (const std::string& path : paths) list += (list.empty() ? "" : ",") + path;
    EXPECT_EQ(split_paths(list), paths) << list;
  }
  // The shortest that is there is taken.
  EXPECT_EQ(split_paths(at("a,b")), (Paths{at("a"), "b"}));
  EXPECT_EQ(split_paths(at("c,d,e")), (Paths{at("c,d"), "e"}));
  EXPECT_EQ(split_paths("no/x,no/y"), (Paths{"no/x", "no/y"}));
  EXPECT_EQ(split_paths(",no/y"), (Paths{"", "no/y"}));
  EXPECT_EQ(split_paths(""), Paths());
}

}  // namespace
}  // namespace weft::test
