#pragma once
// A PlanCache holds what a library prepared, by shape. It belongs to one queue, so one thread uses
// it.
#include <cstdint>
#include <map>

namespace weft::cuda {

template <class Key, class Plan>
class PlanCache {
 public:
  // Returns the plan of `key`; make() prepares it at the first call.
  template <class Make>
  Plan& get(const Key& key, Make&& make) {
    const auto found = plans_.find(key);
    if (found != plans_.end()) {
      ++hits_;
      return found->second;
    }
    ++misses_;
    return plans_.emplace(key, make()).first->second;
  }
  bool has(const Key& key) const { return plans_.count(key) > 0; }
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }

 private:
  std::map<Key, Plan> plans_;
  int64_t hits_ = 0, misses_ = 0;
};

}  // namespace weft::cuda
