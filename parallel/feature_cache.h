#pragma once
// FeatureCache: features of a layer that outlive the pass that made them. A slot holds this rank's
// part of the features and what its peers send of theirs, for the last few versions (a version is
// the step that the features belong to). The peers' parts may arrive while later passes run, so
// stale methods (DistriFusion, PCPP) read the version of the step before without waiting for the
// present one.
//
// Bytes sent by a rank per exchange: element E rows [link.sent] to every link's peer, E the values
// of a row.
// Memory: keys * versions * (rows + sum over links of link.received) rows,
// allocated by the constructor.
// Laws:
// - read() returns the version that it is asked for. CHECKs where the slot holds others.
// - write() waits until no receive fills and no send reads the version that it replaces.
// - Delays of messages change nothing that read() returns.
#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace weft {

struct FeatureKey {
  int segment = 0, branch = 0, layer = 0;
  Payload kind = Payload::kKeyValue;
  auto operator<=>(const FeatureKey&) const = default;
};
std::string to_string(const FeatureKey& key);  // "key-value of segment 0 branch 1 layer 3"

// Rows that go to and come from a peer with every version, counted in the sender's part.
struct FeatureLink {
  int peer = 0;  // rank of the group
  Range sent{}, received{};
};

struct FeatureDescription {
  std::vector<FeatureKey> keys{};  // slots made at once; others are made by their first write
  int64_t rows = 0;                // of this rank's part
  std::vector<int64_t> row{};      // the shape of one row
  std::vector<FeatureLink> links{};
  int versions = 2;  // how many are held: 1 more than the most that a version read is stale by
  DType dtype = DType::kF32;
  Device device{};
};

// Every rank of the group calls write() and exchange() for the same keys and versions in the same
// order. Versions of a slot ascend; some may be left out.
class FeatureCache {
 public:
  // `group` outlives the cache; it is null where there are no links.
  FeatureCache(Communicator* group, FeatureDescription description);
  ~FeatureCache();
  FeatureCache(const FeatureCache&) = delete;
  FeatureCache& operator=(const FeatureCache&) = delete;

  // The memory of this rank's part [rows, row...] of a new version, to be filled before the
  // exchange. It takes the place of the oldest version.
  TensorView write(const FeatureKey& key, int version);
  // Posts the sends and the receives of the written version. They outlive the forward. `links` are
  // those of the description with fewer rows, or none rows; empty means all rows.
  void exchange(Stream& stream, const FeatureKey& key, int version,
                const std::vector<FeatureLink>& links = {});
  // In place of an exchange: the memory of every link's part of the written version, for a caller
  // that has these rows already.
  std::vector<TensorView> fill(const FeatureKey& key, int version);
  // This rank's part, or what came from the peer of a link [link.received, row...]. Waits for it if
  // it is still on its way. Valid until the version is replaced.
  TensorView own(const FeatureKey& key, int version);
  TensorView read(const FeatureKey& key, int link, int version);
  // By how much the newest exchanged version is older than `version`: 0 means fresh, empty missing.
  std::optional<int> staleness(const FeatureKey& key, int version);

  // Waits for every receive and send. The versions stay. Peers may still need what was sent, so it
  // comes before the end of a job that was not aborted.
  void finish();
  // Takes back what is under way and forgets all versions, as at the start of a job.
  void abort();

  const FeatureDescription& description() const { return description_; }
  size_t bytes() const;  // held
  int pending() const;   // receives and sends that nothing has waited for

 private:
  struct Version {
    static constexpr int kNone = -1;
    int number = kNone;
    bool exchanged = false;
    Tensor part;
    std::vector<Tensor> arrived;                  // by link
    std::vector<Communicator::Pending> receives;  // by link
    Communicator::Pending sends;
  };
  using Slot = std::vector<Version>;

  Slot& slot(const FeatureKey& key);
  Slot& make_slot(const FeatureKey& key);
  Version& at(const FeatureKey& key, int version);
  Version& begin_exchange(const FeatureKey& key, int version);
  void drain(Version& version);

  Communicator* group_;
  FeatureDescription description_;
  std::map<FeatureKey, Slot> slots_;
};

}  // namespace weft
