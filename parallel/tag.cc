#include "parallel/tag.h"

#include "kernels/check.h"

namespace weft {

namespace {

constexpr const char* kPayloadNames[] = {"control",  "text",      "hidden",    "first-block",
                                         "heads-in", "heads-out", "key-value", "query",
                                         "state",    "partial",   "statistic", "gathered",
                                         "velocity", "latent",    "halo",      "frames"};
static_assert(std::size(kPayloadNames) == static_cast<size_t>(Payload::kCount));

// In the order of Topic.
constexpr const char* kTopicNames[] = {"pass",     "share",   "job",     "start",   "step",
                                       "skip",     "segment", "text",    "audio",   "pictures",
                                       "decode",   "file",    "changes", "preview", "kept",
                                       "channels", "clip",    "output",  "check"};
static_assert(std::size(kTopicNames) == static_cast<size_t>(Topic::kCount) &&
              std::size(kTopicNames) <= 1 << 5);  // the bits of a topic

constexpr int kJobs = 1 << 16;  // job numbers, 0 included

struct Fields {
  Tag tag;
  int kind = 0, topic = 0, group = 0, job = 0;
};

// Calls visit(word, field, its width in bits, its name) for every field of a tag. The fields of a
// word are visited from its highest bit down and fill it.
template <class Visit>
void for_each_field(Fields& fields, Visit&& visit) {
  Pass& pass = fields.tag.pass;
  visit(0, fields.job, 16, "job");
  visit(0, pass.prompt, 16, "prompt");
  visit(0, pass.segment, 16, "segment");
  visit(0, pass.micro, 16, "micro");
  visit(1, fields.group, 8, "group");
  visit(1, fields.kind, 5, "kind");
  visit(1, pass.model, 1, "model");
  visit(1, pass.branch, 2, "branch");
  visit(1, pass.step, 16, "step");
  visit(1, fields.tag.layer, 12, "layer");
  visit(1, fields.topic, 5, "topic");
  visit(1, fields.tag.hop, 15, "hop");
}

Fields fields_of(const TagBits& bits) {
  Fields fields;
  int left[] = {64, 64};
  for_each_field(fields, [&](int word, int& value, int width, const char*) {
    left[word] -= width;
    value = static_cast<int>((word ? bits.low : bits.high) >> left[word] &
                             ((uint64_t{1} << width) - 1));
  });
  return fields;
}

}  // namespace

std::string_view to_string(Payload kind) { return kPayloadNames[static_cast<int>(kind)]; }

TagBits Tag::bits(int group, int job) const {
  Fields fields{.tag = *this,
                .kind = static_cast<int>(kind),
                .topic = static_cast<int>(topic),
                .group = group,
                .job = job};
  TagBits bits;
  for_each_field(fields, [&](int word, int value, int width, const char* name) {
    CHECK(value >= 0 && value < (1 << width), name, value);
    uint64_t& to = word ? bits.low : bits.high;
    to = to << width | static_cast<uint64_t>(value);
  });
  return bits;
}

std::string to_string(const Tag& tag) { return tag_text(tag.bits(0)); }

std::string tag_text(const TagBits& bits) {
  const Fields fields = fields_of(bits);
  const auto name = [](const auto& names, int index) {
    return std::string(index < static_cast<int>(std::size(names)) ? names[index] : "?");
  };
  return name(kPayloadNames, fields.kind) +
         (fields.topic ? " of " + name(kTopicNames, fields.topic) : "") + " " +
         to_string(fields.tag.pass) + " layer " + std::to_string(fields.tag.layer) + " hop " +
         std::to_string(fields.tag.hop) + " group " + std::to_string(fields.group) +
         (fields.job ? " job " + std::to_string(fields.job) : "");
}

Payload payload_of(const TagBits& bits) { return static_cast<Payload>(fields_of(bits).kind); }

int next_job(int job) { return job + 1 < kJobs ? job + 1 : 1; }

// The shorter way round the circle decides.
bool earlier_job(int64_t a, int64_t b) {
  if (a == b || a == 0 || b == 0) return a != b && a == 0;
  return (b - a + kJobs - 1) % (kJobs - 1) < kJobs / 2;
}

bool of_earlier_job(const TagBits& bits, int job) {
  const Fields fields = fields_of(bits);
  return fields.group != 0 && earlier_job(fields.job, job);
}

}  // namespace weft
