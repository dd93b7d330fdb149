#pragma once
// Reporter: receives lines for whoever watches a program.
#include <functional>
#include <string>

namespace weft {

struct Reporter {
  using Say = std::function<void(const std::string& line)>;
  Say told{};      // warnings, and what must not be missed
  Say informed{};  // what may be left out

  void tell(const std::string& line) const {
    if (told) told(line);
  }
  void inform(const std::string& line) const {
    if (informed) informed(line);
  }
};

}  // namespace weft
