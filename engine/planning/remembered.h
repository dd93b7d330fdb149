#pragma once
// A bounded memory of what is computed for kinds of jobs.
#include <map>
#include <string>

namespace weft {

// The value of this key, which is made where it is not remembered.
template <class Value, class Make>
const Value& remembered(std::map<std::string, Value>& values, const std::string& key, Make make) {
  constexpr size_t kMost = 64;  // kinds of jobs
  if (values.size() >= kMost && !values.contains(key)) values.clear();
  if (!values.contains(key)) values.emplace(key, make());
  return values.at(key);
}

}  // namespace weft
