#include "parallel/sequence_map.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

namespace {

// Rows [begin, end) of `tokens`.
TokenRanges rows_of(const TokenRanges& tokens, Range rows) {
  TokenRanges out{{}, tokens.total};
  int64_t at = 0;
  for (const Range& range : tokens.ranges) {
    const int64_t begin = std::clamp<int64_t>(rows.begin - at, 0, range.size());
    const int64_t end = std::clamp<int64_t>(rows.end - at, 0, range.size());
    if (begin < end) out.append({range.begin + begin, range.begin + end});
    at += range.size();
  }
  return out;
}

std::vector<TokenRanges> one_range_each(const std::vector<Range>& ranges) {
  int64_t total = 0;
  for (const Range& range : ranges) total = std::max(total, range.end);
  std::vector<TokenRanges> parts;
  for (const Range& range : ranges) parts.push_back({{range}, total});
  return parts;
}

}  // namespace

Sequence::Sequence(int64_t of_tokens, int64_t of_frames, int64_t of_beside)
    : tokens(of_tokens), frames(of_frames), beside(of_beside) {
  CHECK(tokens >= 0 && frames > 0 && tokens % frames == 0 && beside >= 0, "tokens", tokens,
        "frames", frames, "beside", beside);
}

SequenceMap::SequenceMap(std::vector<TokenRanges> parts) : parts_(std::move(parts)) {
  for (const TokenRanges& part : parts_) {
    CHECK(part.size() > 0, "an index without tokens");
    for (size_t i = 0; i < part.ranges.size(); ++i)
      CHECK(part.ranges[i].size() > 0 && (i == 0 || part.ranges[i].begin >= part.ranges[i - 1].end),
            "range", to_string(part.ranges[i]));
  }
}

SequenceMap::SequenceMap(const std::vector<Range>& ranges) : SequenceMap(one_range_each(ranges)) {}

SequenceMap SequenceMap::contiguous(int64_t total, int parts) {
  std::vector<Range> ranges;
  for (int index = 0; index < parts; ++index) ranges.push_back(partition(total, parts, index));
  return SequenceMap(ranges);
}

SequenceMap SequenceMap::clips(const Sequence& video, int clips, int ulysses) {
  std::vector<Range> ranges;
  for (int clip = 0; clip < clips; ++clip) {
    const Range frames = partition(video.frames, clips, clip);
    const int64_t first = frames.begin * video.frame_tokens();
    for (int place = 0; place < ulysses; ++place) {
      const Range own = partition(frames.size() * video.frame_tokens(), ulysses, place);
      ranges.push_back({first + own.begin, first + own.end});
    }
  }
  return SequenceMap(ranges);
}

SequenceMap SequenceMap::zigzag(int64_t total, int rings, int ulysses) {
  CHECK(int64_t{rings} * ulysses <= total, "tokens", total, "rings", rings, "ulysses", ulysses);
  std::vector<TokenRanges> parts;
  for (int ring = 0; ring < rings; ++ring) {
    TokenRanges block{{}, total};
    block.append(partition(total, 2 * rings, ring));
    block.append(partition(total, 2 * rings, 2 * rings - 1 - ring));
    for (int place = 0; place < ulysses; ++place)
      parts.push_back(rows_of(block, partition(block.size(), ulysses, place)));
  }
  return SequenceMap(std::move(parts));
}

int64_t SequenceMap::rows() const {
  int64_t sum = 0;
  for (const TokenRanges& part : parts_) sum += part.size();
  return sum;
}

int64_t SequenceMap::longest() const {
  int64_t most = 0;
  for (const TokenRanges& part : parts_) most = std::max(most, part.size());
  return most;
}

TokenRanges SequenceMap::joined() const {
  TokenRanges out{{}, parts_.empty() ? 0 : parts_[0].total};
  for (const TokenRanges& part : parts_)
    for (const Range& range : part.ranges) out.append(range);
  return out;
}

SequenceMap SequenceMap::with_beside(int64_t tokens) const {
  SequenceMap out = *this;
  for (int index = 0; index < size(); ++index) {
    TokenRanges& part = out.parts_[index];
    const Range own = partition(tokens, size(), index);
    part.append({part.total + own.begin, part.total + own.end});
    part.total += tokens;
  }
  return out;
}

SequenceMap SequenceMap::shifted(int64_t by) const {
  SequenceMap out = *this;
  for (TokenRanges& part : out.parts_) {
    part.total += by;
    for (Range& range : part.ranges) range = {range.begin + by, range.end + by};
  }
  return out;
}

SequenceMap SequenceMap::slice(int begin, int count) const {
  CHECK(begin >= 0 && count > 0 && begin + count <= size(), "indices", begin, count, "of", size());
  return SequenceMap(
      std::vector<TokenRanges>(parts_.begin() + begin, parts_.begin() + begin + count));
}

SequenceMap SequenceMap::blocks(int count) const {
  CHECK(count > 0 && size() % count == 0, "indices", size(), "in blocks of", count);
  std::vector<TokenRanges> out;
  for (int index = 0; index < size(); index += count) {
    std::vector<Range> ranges = slice(index, count).joined().ranges;
    std::ranges::sort(ranges, {}, &Range::begin);
    TokenRanges& block = out.emplace_back(TokenRanges{{}, parts_[index].total});
    for (const Range& range : ranges) block.append(range);
  }
  return SequenceMap(std::move(out));
}

TokenRanges rows_from(const TokenRanges& tokens, int64_t rows) {
  return rows_of(tokens, {rows, tokens.size()});
}

}  // namespace weft
