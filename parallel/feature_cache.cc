#include "parallel/feature_cache.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/check.h"

namespace weft {

std::string to_string(const FeatureKey& key) {
  return std::string(to_string(key.kind)) + " of segment " + std::to_string(key.segment) +
         " branch " + std::to_string(key.branch) + " layer " + std::to_string(key.layer);
}

FeatureCache::FeatureCache(Communicator* group, FeatureDescription description)
    : group_(group), description_(std::move(description)) {
  CHECK(description_.versions > 0, "versions", description_.versions);
  CHECK(group || description_.links.empty(), "links without a group");
  for (const FeatureKey& key : description_.keys) make_slot(key);
}

FeatureCache::Slot& FeatureCache::make_slot(const FeatureKey& key) {
  const auto tensor = [&](int64_t rows) {
    std::vector<int64_t> shape{rows};
    shape.insert(shape.end(), description_.row.begin(), description_.row.end());
    return Tensor(description_.dtype, shape, description_.device);
  };
  Slot& slot = slots_[key];
  CHECK(slot.empty(), to_string(key), "twice");
  slot.resize(description_.versions);
  for (Version& version : slot) {
    version.part = tensor(description_.rows);
    for (const FeatureLink& link : description_.links)
      version.arrived.push_back(tensor(link.received.size()));
    version.receives.resize(description_.links.size());
  }
  return slot;
}

FeatureCache::~FeatureCache() { abort(); }

FeatureCache::Slot& FeatureCache::slot(const FeatureKey& key) {
  const auto found = slots_.find(key);
  CHECK(found != slots_.end(), "no slot for", to_string(key));
  return found->second;
}

FeatureCache::Version& FeatureCache::at(const FeatureKey& key, int version) {
  std::string held;
  for (Version& candidate : slot(key)) {
    if (candidate.number == version) return candidate;
    if (candidate.number != Version::kNone)
      held += (held.empty() ? "" : ", ") + std::to_string(candidate.number);
  }
  CHECK(false, to_string(key), "is asked for version", version, "and holds",
        held.empty() ? "none" : held);
  std::abort();
}

// Receives come first: a peer's send may end only when its reader waits for it, and every rank that
// comes here has posted all sends of the version.
void FeatureCache::drain(Version& version) {
  for (Communicator::Pending& receive : version.receives)
    if (!receive.empty()) group_->wait(receive);
  if (!version.sends.empty()) group_->wait(version.sends);
}

TensorView FeatureCache::write(const FeatureKey& key, int version) {
  Slot& versions = slots_.contains(key) ? slot(key) : make_slot(key);
  const auto by_number = [](const Version& a, const Version& b) { return a.number < b.number; };
  const auto newest = std::max_element(versions.begin(), versions.end(), by_number);
  CHECK(version >= 0 && newest->number < version, to_string(key), "is written in version", version,
        "after", newest->number);
  const auto oldest = std::min_element(versions.begin(), versions.end(), by_number);
  drain(*oldest);
  oldest->number = version;
  oldest->exchanged = false;
  return oldest->part;
}

FeatureCache::Version& FeatureCache::begin_exchange(const FeatureKey& key, int version) {
  Version& written = at(key, version);
  CHECK(!written.exchanged, to_string(key), "is exchanged twice in version", version);
  written.exchanged = true;
  return written;
}

std::vector<TensorView> FeatureCache::fill(const FeatureKey& key, int version) {
  const Version& written = begin_exchange(key, version);
  return {written.arrived.begin(), written.arrived.end()};
}

void FeatureCache::exchange(Stream& stream, const FeatureKey& key, int version,
                            const std::vector<FeatureLink>& links) {
  CHECK(links.empty() || links.size() == description_.links.size(), links.size(), "links");
  Version& written = begin_exchange(key, version);
  if (!group_) return;
  const Tag tag{.kind = key.kind,
                .pass = {.branch = key.branch, .segment = key.segment, .step = version},
                .layer = key.layer};
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < description_.links.size(); ++i) {
    const FeatureLink &whole = description_.links[i], &link = links.empty() ? whole : links[i];
    const Range& rows = link.received;
    receives.push_back(
        {link.peer, tag,
         written.arrived[i].view().slice(0, rows.begin - whole.received.begin, rows.size())});
    sends.push_back(
        {link.peer, tag, written.part.view().slice(0, link.sent.begin, link.sent.size())});
  }
  // The receives are waited for one by one, the sends together.
  written.sends = group_->post(stream, sends, receives);
  for (size_t i = 0; i < receives.size(); ++i)
    if (receives[i].view.count() > 0) written.receives[i] = written.sends.take_first();
}

TensorView FeatureCache::own(const FeatureKey& key, int version) { return at(key, version).part; }

TensorView FeatureCache::read(const FeatureKey& key, int link, int version) {
  Version& held = at(key, version);
  CHECK(held.exchanged, to_string(key), "is read in version", version, "before its exchange");
  Communicator::Pending& receive = held.receives.at(link);
  if (!receive.empty()) group_->wait(receive);
  return held.arrived[link];
}

std::optional<int> FeatureCache::staleness(const FeatureKey& key, int version) {
  if (!slots_.contains(key)) return std::nullopt;
  int newest = Version::kNone;
  for (const Version& held : slot(key))
    if (held.exchanged) newest = std::max(newest, held.number);
  if (newest == Version::kNone) return std::nullopt;
  return version - newest;
}

void FeatureCache::finish() {
  // All receives first; see drain().
  for (auto& [key, versions] : slots_)
    for (Version& version : versions)
      for (Communicator::Pending& receive : version.receives)
        if (!receive.empty()) group_->wait(receive);
  for (auto& [key, versions] : slots_)
    for (Version& version : versions) drain(version);
}

void FeatureCache::abort() {
  for (auto& [key, versions] : slots_)
    for (Version& version : versions) {
      for (Communicator::Pending& receive : version.receives) receive = {};
      version.sends = {};
      version.number = Version::kNone;
      version.exchanged = false;
    }
}

size_t FeatureCache::bytes() const {
  size_t bytes = 0;
  for (const auto& [key, versions] : slots_)
    for (const Version& version : versions) {
      bytes += version.part.view().bytes();
      for (const Tensor& arrived : version.arrived) bytes += arrived.view().bytes();
    }
  return bytes;
}

int FeatureCache::pending() const {
  int count = 0;
  for (const auto& [key, versions] : slots_)
    for (const Version& version : versions) {
      for (const Communicator::Pending& receive : version.receives) count += !receive.empty();
      count += !version.sends.empty();
    }
  return count;
}

}  // namespace weft
