#include "parallel/methods/patches/displaced.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"
#include "kernels/copy.h"
#include "kernels/row_code.h"
#include "parallel/context.h"

namespace weft {

namespace {

// Keys and values [n, 2, Akv, E] as two rows of numbers for each token.
TensorView number_rows(const TensorView& rows) {
  return rows.reshape({rows[0], 2, rows[2] * rows[3]});
}

}  // namespace

std::string refuse(const Displaced& method, int64_t tokens) {
  if (method.patches.empty()) return "there are no patches, legal: 1 or more";
  for (const int64_t patch : method.patches)
    if (patch < 1) return "a patch has " + std::to_string(patch) + " tokens, legal: 1 or more";
  const int64_t sum = std::accumulate(method.patches.begin(), method.patches.end(), int64_t{0});
  if (sum != tokens)
    return "the patches have " + std::to_string(sum) + " tokens, legal: " + std::to_string(tokens);
  if (method.window && !(*method.window >= 0 && *method.window <= 1))
    return "window is " + std::to_string(*method.window) + ", legal: 0 ... 1";
  for (const double window : method.windows)
    if (!(window >= 0 && window <= 1))
      return "a window is " + std::to_string(window) + ", legal: 0 ... 1";
  if (method.warmup < 0)
    return "warmup is " + std::to_string(method.warmup) + ", legal: 0 or more steps";
  if (method.resync < 0)
    return "resync is " + std::to_string(method.resync) + ", legal: 0 or more steps";
  if (method.code != WireCode::kResidualFp8) return "";
  for (int step = 1; step < std::ssize(method.windows); ++step)
    if (!method.exact(step) && !method.exact(step - 1) &&
        method.windows[step] > method.windows[step - 1])
      return "the window of step " + std::to_string(step) +
             " is wider than the one before, legal with code=residual-fp8: as wide at most";
  return "";
}

std::optional<double> Displaced::window_of(int step) const {
  if (windows.empty()) return window;
  return windows[std::min<size_t>(step, windows.size() - 1)];
}

std::optional<double> Displaced::widest() const {
  return windows.empty() ? window : std::ranges::max(windows);
}

Range patches_of_part(const Displaced& method, int parts, int index) {
  const auto count = static_cast<int64_t>(method.patches.size());
  const auto tokens = [&](int64_t patches) {
    return std::accumulate(method.patches.begin(), method.patches.begin() + patches, int64_t{0});
  };
  const Range held = partition(count, parts, index);
  return {tokens(held.begin), tokens(held.end)};
}

PatchRows::PatchRows(const Displaced& method, const std::vector<Range>& ranks)
    : method_(method), ranks_(ranks) {
  CHECK(!ranks.empty() && refuse(method, ranks.back().end).empty(), ranks.size(), "ranks");
  int64_t at = 0;
  for (const int64_t size : method.patches) {
    patches_.push_back({at, at + size});
    at += size;
  }
  for (int index = 0; index < this->ranks(); ++index) {
    const Range held = patches_of(index);
    CHECK(held.size() > 0 && patches_[held.begin].begin == ranks[index].begin &&
              patches_[held.end - 1].end == ranks[index].end,
          "rank", index, "holds", to_string(ranks[index]), "of other patches");
  }
}

Range PatchRows::patches_of(int rank) const {
  const auto before = [](int64_t token) {
    return [token](const Range& patch) { return patch.begin < token; };
  };
  const auto count = [&](int64_t token) { return std::ranges::count_if(patches_, before(token)); };
  return {count(ranks_[rank].begin), count(ranks_[rank].end)};
}

Range PatchRows::seen(int patch, std::optional<double> window) const {
  if (!window) return {0, tokens()};
  const auto nearest = [&](int neighbour) -> int64_t {
    if (neighbour < 0 || neighbour >= patches()) return 0;
    const int64_t rows = patches_[neighbour].size();
    return std::min(rows, static_cast<int64_t>(std::ceil(*window * static_cast<double>(rows))));
  };
  return {patches_[patch].begin - nearest(patch - 1), patches_[patch].end + nearest(patch + 1)};
}

Range PatchRows::shared(int from, int to, std::optional<double> window) const {
  const Range held = patches_of(to);
  return intersection(ranks_[from], {seen(static_cast<int>(held.begin), window).begin,
                                     seen(static_cast<int>(held.end - 1), window).end});
}

// The keys and values that the patches of a rank see beside the fresh ones of their own, as pieces
// [n, 2, Akv, E] of the sequence.
struct DisplacedMixer::Keys {
  struct Piece {
    Range tokens;
    TensorView rows;
  };
  std::vector<Piece> pieces{};  // ascending

  // The rows of `tokens`, which lie in one piece.
  TensorView at(const Range& tokens) const {
    for (const Piece& piece : pieces)
      if (piece.tokens.begin <= tokens.begin && tokens.end <= piece.tokens.end)
        return piece.rows.slice(0, tokens.begin - piece.tokens.begin, tokens.size());
    CHECK(false, "no rows of tokens", to_string(tokens));
    return {};
  }
};

DisplacedMixer::DisplacedMixer(std::optional<Communicator> group, const PatchRows& rows)
    : group_(std::move(group)), own_(group_ ? group_->rank() : 0), rows_(rows) {
  CHECK(rows.ranks() == (group_ ? group_->size() : 1), "ranks", rows.ranks());
}

void DisplacedMixer::begin(const Pass& pass) {
  TokenMixer::begin(pass);
  if (pass.step != pass_.step) before_ = pass_;
  pass_ = pass;
}

void DisplacedMixer::finish() {
  TokenMixer::finish();
  if (cache_) cache_->finish();
}

// The rows that go to and come from every other rank that has any with the widest window.
std::vector<FeatureLink> DisplacedMixer::links(std::optional<double> window) const {
  const auto in = [](const Range& rows, const Range& part) {
    return Range{rows.begin - part.begin, rows.end - part.begin};
  };
  const auto both = [&](int peer, std::optional<double> by) {
    return FeatureLink{peer, in(rows_.shared(own_, peer, by), rows_.rank(own_)),
                       in(rows_.shared(peer, own_, by), rows_.rank(peer))};
  };
  std::vector<FeatureLink> links;
  for (int peer = 0; peer < rows_.ranks(); ++peer) {
    if (peer == own_) continue;
    const FeatureLink most = both(peer, rows_.method().widest());
    if (most.sent.size() + most.received.size() > 0) links.push_back(both(peer, window));
  }
  return links;
}

void DisplacedMixer::make_cache(const Attend& attend) {
  FeatureDescription parts{.rows = rows_.rank(own_).size(),
                           .row = {2, attend.k[1], attend.k[2]},
                           .versions = 1,
                           .dtype = attend.k.dtype,
                           .device = attend.k.device};
  if (coded()) {
    parts.row = {2, attend.k[1] * attend.k[2] + 1};
    parts.dtype = DType::kI8;
  }
  parts.links = links(rows_.method().widest());
  cache_ = std::make_unique<FeatureCache>(group_ ? &*group_ : nullptr, std::move(parts));
}

// Returns whether the present step sees the present keys of all tokens.
bool DisplacedMixer::exact(const FeatureKey& key) {
  return rows_.method().exact(pass_.step) || pass_.model != before_.model ||
         cache_->staleness(key, pass_.step) != 1;
}

// The present keys and values of all tokens. Waits for those of other ranks.
DisplacedMixer::Keys DisplacedMixer::gather(Context& context, const Attend& attend,
                                            const AttendTags& tags) {
  const TensorView all =
      context.arena.alloc(attend.k.dtype, {rows_.tokens(), 2, attend.k[1], attend.k[2]});
  const auto of = [&](int rank) {
    return all.slice(0, rows_.rank(rank).begin, rows_.rank(rank).size());
  };
  copy(context.stream, attend.k, of(own_).select(1, 0));
  copy(context.stream, attend.v, of(own_).select(1, 1));
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < rows_.ranks(); ++peer) {
    if (peer == own_) continue;
    sends.push_back({peer, tags(Payload::kKeyValue), of(own_)});
    receives.push_back({peer, tags(Payload::kKeyValue), of(peer)});
  }
  if (group_) {
    Communicator::Pending pending = group_->post(context.stream, sends, receives);
    group_->wait(pending);
  }
  return {{{{0, rows_.tokens()}, all}}};
}

// The keys and values of the step before. Waits for those of other ranks.
DisplacedMixer::Keys DisplacedMixer::displaced(Context& context, const Attend& attend,
                                               const FeatureKey& key) {
  Keys keys;
  const int version = pass_.step - 1;
  const std::vector<FeatureLink>& links = cache_->description().links;
  const auto add = [&](size_t piece, const Range& tokens, const TensorView& rows) {
    keys.pieces.push_back({tokens, coded() ? decode(context, attend, key, piece, rows) : rows});
  };
  add(0, rows_.rank(own_), cache_->own(key, version));
  for (size_t link = 0; link < links.size(); ++link)
    if (links[link].received.size() > 0)
      add(1 + link, rows_.shared(links[link].peer, own_, rows_.method().widest()),
          cache_->read(key, static_cast<int>(link), version));
  if (const auto bases = bases_.find(key); bases != bases_.end()) bases->second.step = version;
  return keys;
}

// Decodes a piece of the step before. Rows that the present window leaves out may be of any value.
TensorView DisplacedMixer::decode(Context& context, const Attend& attend, const FeatureKey& key,
                                  size_t piece, const TensorView& code) {
  TensorView out, base;
  if (rows_.method().code == WireCode::kResidualFp8) {
    const Bases& bases = bases_.at(key);
    out = bases.pieces[piece];
    base = number_rows(out);
    if (bases.step == pass_.step - 1) return out;
    CHECK(bases.step == pass_.step - 2, to_string(key), "changes step", bases.step, "in",
          to_string(pass_));
  } else {
    out = context.arena.alloc(attend.k.dtype, {code[0], 2, attend.k[1], attend.k[2]});
  }
  decode_rows(context.stream, code, base, number_rows(out));
  return out;
}

// Codes a piece of the present step. Exact rows need no code to be the next step's base.
void DisplacedMixer::encode(Stream& stream, const FeatureKey& key, size_t piece,
                            const TensorView& rows, const TensorView& code, bool exact) {
  if (rows_.method().code == WireCode::kFp8)
    return encode_rows(stream, number_rows(rows), {}, code);
  Bases& bases = bases_[key];
  if (!exact) return encode_rows(stream, number_rows(rows), number_rows(bases.pieces[piece]), code);
  bases.pieces.resize(1 + cache_->description().links.size());
  if (!bases.pieces[piece]) bases.pieces[piece] = Tensor(rows.dtype, rows.shape(), rows.device);
  copy(stream, rows, bases.pieces[piece]);
  bases.step = pass_.step;
}

// Keeps the present keys and values for the next step. Those of other ranks are sent, or taken from
// what was gathered.
void DisplacedMixer::keep(Context& context, const Attend& attend, const FeatureKey& key,
                          const Keys* gathered) {
  if (pass_.step + 1 == rows_.method().steps) return;
  Stream& stream = context.stream;
  const TensorView part = cache_->write(key, pass_.step);
  const TensorView own =
      coded() ? context.arena.alloc(attend.k.dtype, {attend.k[0], 2, attend.k[1], attend.k[2]})
              : part;
  copy(stream, attend.k, own.select(1, 0));
  copy(stream, attend.v, own.select(1, 1));
  if (coded()) encode(stream, key, 0, own, part, gathered);
  if (!gathered)
    return cache_->exchange(stream, key, pass_.step,
                            links(rows_.method().window_of(pass_.step + 1)));
  const std::vector<FeatureLink>& links = cache_->description().links;
  const std::vector<TensorView> arrived = cache_->fill(key, pass_.step);
  for (size_t link = 0; link < links.size(); ++link) {
    if (links[link].received.size() == 0) continue;
    const TensorView rows =
        gathered->at(rows_.shared(links[link].peer, own_, rows_.method().widest()));
    if (coded())
      encode(stream, key, 1 + link, rows, arrived[link], true);
    else
      copy(stream, rows, arrived[link]);
  }
}

void DisplacedMixer::attend(Context& context, const Attend& whole) {
  CHECK(whole.mask == Mask::kFull && !whole.past, "displaced patches with a mask or a past");
  const Range held = rows_.patches_of(own_);
  CHECK(whole.replicated == 0 || held.size() == 1, "replicated rows of", held.size(), "patches");
  const AttendTags tags = take_tags(whole.layer, 1);
  apply_positions(context, whole);
  const Attend attend = own_rows(whole);
  const FeatureKey key{.segment = pass_.segment, .branch = pass_.branch, .layer = whole.layer};
  if (!cache_) make_cache(attend);
  const bool fresh = exact(key);
  const Keys keys = fresh ? gather(context, attend, tags) : displaced(context, attend, key);
  const int64_t first = rows_.rank(own_).begin;
  for (int64_t patch = held.begin; patch < held.end; ++patch) {
    const Range own = rows_.patch(static_cast<int>(patch));
    const Range seen =
        fresh ? Range{0, rows_.tokens()}
              : rows_.seen(static_cast<int>(patch), rows_.method().window_of(pass_.step));
    std::vector<KVSegment> segments;
    for (int other = 0; other < rows_.patches(); ++other) {
      const Range tokens = intersection(rows_.patch(other), seen);
      if (tokens.size() == 0) continue;
      if (other == patch) {
        segments.push_back({attend.k.slice(0, own.begin - first, own.size()),
                            attend.v.slice(0, own.begin - first, own.size()), own.begin});
      } else {
        const TensorView rows = keys.at(tokens);
        segments.push_back({rows.select(1, 0), rows.select(1, 1), tokens.begin});
      }
    }
    if (whole.replicated > 0) {
      const Attend text = replicated_rows(whole);
      segments.push_back({text.k, text.v, rows_.tokens()});
    }
    const bool all = whole.replicated > 0;  // the patch is all rows of the attend
    attention(context.stream,
              {.q = all ? whole.q : attend.q.slice(0, own.begin - first, own.size()),
               .segments = segments,
               .scale = whole.scale,
               .format = whole.format,
               .out = all ? whole.out : attend.out.slice(0, own.begin - first, own.size())});
  }
  keep(context, attend, key, fresh ? &keys : nullptr);
}

}  // namespace weft
